//! Checks a valid configuration together with its files, interfaces and kernel settings.
//!
//! An error stops the daemon or its tunnels; a warning is about something that may be wrong, or
//! soon will be. A check changes nothing and contacts nobody.

use std::fmt;
use std::fs;
use std::path::Path;

use ipnet::IpNet;
use polyrail_identity::{IdentityPaths, NodeRole, OwnFindings, TlsIdentity};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use toml::de::DeTable;

use crate::{
    Access, Admin, Carrier, CloudConfig, ConfigError, CongestionControl, GatewayConfig,
    LinkDbConfig, Mode, Problem, TlsConfig, read_text,
};

/// The daemon of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `polyrail-gateway`.
    Gateway,
    /// `polyrail-cloud`.
    Cloud,
}

/// The result of checking a valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The daemon of the configuration.
    pub kind: Kind,
    /// The configuration in one line.
    pub summary: String,
    /// With these the daemon does not start, or no tunnel comes up.
    pub errors: Vec<String>,
    /// Things that may be wrong, or soon will be.
    pub warnings: Vec<String>,
}

/// Checks the configuration in `file`. Without `kind`, its keys decide which daemon it is for.
///
/// # Errors
/// The file cannot be read or has a mistake.
pub fn check(file: &Path, kind: Option<Kind>) -> Result<Report, ConfigError> {
    let text = read_text(file)?;
    match kind.unwrap_or_else(|| guess(&text)) {
        Kind::Gateway => Ok(gateway(&GatewayConfig::parse(&text, file)?)),
        Kind::Cloud => Ok(cloud(&CloudConfig::parse(&text, file)?)),
    }
}

/// The daemon that a text is most likely for.
pub fn guess(text: &str) -> Kind {
    let (table, _) = DeTable::parse_recoverable(text);
    let has_any = |keys: &[&str]| keys.iter().any(|key| table.get_ref().contains_key(*key));
    let is_cloud = has_any(&["listen", "access", "dial", "tunnel", "carrier_congestion"]);
    if is_cloud && !has_any(&["cloud", "carrier"]) { Kind::Cloud } else { Kind::Gateway }
}

/// Loads the certificates and key of a node and reports their defects. Each text begins with its
/// key. The identity is `None` if the files cannot be used at all.
pub fn load_identity(tls: &TlsConfig, kind: Kind) -> (Option<TlsIdentity>, OwnFindings) {
    identity_at(tls, kind, OffsetDateTime::now_utc())
}

/// Logs the findings of [`load_identity`], for a daemon's start.
pub fn log_tls(tls: &TlsConfig, kind: Kind) {
    let (_, found) = load_identity(tls, kind);
    for text in found.errors.iter().chain(&found.ended) {
        tracing::error!("{text}");
    }
    for text in found.warnings {
        tracing::warn!("{text}");
    }
}

fn identity_at(
    tls: &TlsConfig,
    kind: Kind,
    now: OffsetDateTime,
) -> (Option<TlsIdentity>, OwnFindings) {
    let paths = IdentityPaths {
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
        authority: tls.authority.clone(),
        revocations: tls.revocations.clone(),
    };
    let role = match kind {
        Kind::Gateway => NodeRole::Gateway,
        Kind::Cloud => NodeRole::Cloud,
    };
    match TlsIdentity::load(&paths) {
        Ok(identity) => {
            let mut found = identity.findings(role, now);
            for list in [&mut found.errors, &mut found.ended, &mut found.warnings] {
                list.iter_mut().for_each(|text| text.insert_str(0, "tls."));
            }
            (Some(identity), found)
        }
        Err(error) => {
            let file = error.path().and_then(|path| paths.kind_of(path));
            let key = file.map_or_else(|| "tls".to_owned(), |file| format!("tls.{file}"));
            let errors = vec![format!("{key}: {error}")];
            (None, OwnFindings { errors, ..OwnFindings::default() })
        }
    }
}

fn gateway(config: &GatewayConfig) -> Report {
    let mut notes = Notes::new(&config.tls, Kind::Gateway, &config.ignored);
    notes.carriers(&config.carriers, config.mode);
    notes.folders(config.admin.as_ref(), config.linkdb.as_ref());
    notes.telemetry(config);
    for interface in config.intercept.iter().flat_map(|intercept| &intercept.interfaces) {
        notes.interface("intercept.interfaces", interface.as_str());
    }
    for address in config.socks5.iter().flat_map(|socks5| &socks5.listen) {
        if !address.ip().is_loopback() {
            let text = "everyone who reaches it can use the session";
            notes.warn("socks5.listen", format!("{address} is not loopback: {text}"));
        }
    }
    let usable = config.carriers.iter().filter(|carrier| carrier.usable());
    let usable: Vec<_> = usable.map(|carrier| carrier.name.as_str()).collect();
    let mut inputs = Vec::new();
    inputs.extend(config.intercept.as_ref().map(|_| "interception"));
    inputs.extend(config.dns.as_ref().map(|_| "DNS"));
    inputs.extend(config.socks5.as_ref().map(|_| "SOCKS5"));
    let summary = format!(
        "a gateway to the cloud \"{}\" over {}; users connect by {}",
        config.cloud.name,
        usable.join(", "),
        inputs.join(", ")
    );
    notes.report(Kind::Gateway, summary)
}

fn cloud(config: &CloudConfig) -> Report {
    let mut notes = Notes::new(&config.tls, Kind::Cloud, &config.ignored);
    notes.access(&config.access);
    notes.folders(config.admin.as_ref(), config.linkdb.as_ref());
    if let Some(control) = &config.congestion {
        notes.congestion("congestion", control, config.mode, "bbr");
    }
    for (carrier, control) in &config.carrier_congestion {
        let key = format!("carrier_congestion.{carrier}");
        notes.congestion(&key, control, config.mode, "that of the other carriers");
    }
    let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
    notes.report(Kind::Cloud, format!("a cloud that listens on {}", listen.join(", ")))
}

struct Notes {
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Notes {
    fn new(tls: &TlsConfig, kind: Kind, ignored: &[Problem]) -> Self {
        let (_, found) = load_identity(tls, kind);
        let ignored = ignored
            .iter()
            .map(|Problem { line, key, reason, .. }| format!("line {line}: {key}: {reason}"));
        Self {
            errors: [found.errors, found.ended].concat(),
            warnings: ignored.chain(found.warnings).collect(),
        }
    }

    fn report(self, kind: Kind, summary: String) -> Report {
        Report { kind, summary, errors: self.errors, warnings: self.warnings }
    }

    fn warn(&mut self, key: &str, text: impl fmt::Display) {
        self.warnings.push(format!("{key}: {text}"));
    }

    /// Warns of a missing folder. systemd creates some of them when it starts the daemon.
    fn folder(&mut self, key: &str, folder: Option<&Path>, consequence: &str) {
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            self.warn(key, format!("the folder {} is missing: {consequence}", folder.display()));
        }
    }

    fn folders(&mut self, admin: Option<&Admin>, linkdb: Option<&LinkDbConfig>) {
        let socket = admin.and_then(|admin| admin.socket.parent());
        self.folder("admin.socket", socket, "without it the daemon cannot start");
        let database = linkdb.and_then(|linkdb| linkdb.path.parent());
        self.folder("linkdb.path", database, "without it LinkDB stays off");
    }

    /// Missing sources, and keys that have no effect without one.
    fn telemetry(&mut self, config: &GatewayConfig) {
        let telemetry = &config.telemetry;
        if let Some(file) = telemetry.replay.as_ref().filter(|file| !file.exists()) {
            self.warn("telemetry.replay", format!("{} is missing", file.display()));
        }
        if config.linkdb.is_some() && telemetry.is_empty() {
            self.warn("linkdb", "[telemetry] names no source, so LinkDB records nothing");
        }
        for (index, carrier) in config.carriers.iter().enumerate() {
            let (key, name) = (format!("carrier[{}]", index + 1), &carrier.name);
            match (telemetry.modem_manager, &carrier.modem, &carrier.interface) {
                (true, None, None) => {
                    let text = "has neither modem nor interface, so its modem is unknown";
                    self.warn(&key, format!("\"{name}\" {text}"));
                }
                (false, Some(_), _) => {
                    let text = "no effect, because telemetry.modem_manager is not true";
                    self.warn(&format!("{key}.modem"), text);
                }
                _ => {}
            }
        }
    }

    fn carriers(&mut self, carriers: &[Carrier], mode: Mode) {
        for (index, carrier) in carriers.iter().enumerate() {
            let key = format!("carrier[{}]", index + 1);
            let way = |c: &Carrier| (c.interface.clone(), c.source, c.addresses.clone());
            if let Some(other) = carriers[..index].iter().find(|other| way(other) == way(carrier)) {
                let text = format!("it takes the same way as \"{}\"", other.name);
                self.warn(&key, format!("{text}: this adds no capacity"));
            }
            if let Some(interface) = &carrier.interface {
                self.interface(&format!("{key}.interface"), interface.as_str());
            }
            let mode = carrier.mode.unwrap_or(mode);
            self.congestion(&format!("{key}.congestion"), &carrier.congestion, mode, "bbr");
            self.folder(&format!("{key}.qlog"), carrier.qlog.as_deref(), "no qlog is written");
        }
    }

    /// `instead` is used over QUIC when QUIC does not have `control`.
    fn congestion(&mut self, key: &str, control: &CongestionControl, mode: Mode, instead: &str) {
        if mode.allows_quic() && !["bbr", "cubic", "reno"].contains(&control.as_str()) {
            let text = format!("QUIC has bbr, cubic and reno, but no {control}");
            self.warn(key, format!("{text}: {instead} is used there"));
        }
        let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let is_missing = |names: String| !names.split_whitespace().any(|n| n == control.as_str());
        if mode.allows_tls() && available.is_ok_and(is_missing) {
            self.warn(key, format!("this kernel has no {control} now (see polyrail doctor)"));
        }
    }

    fn interface(&mut self, key: &str, name: &str) {
        if !Path::new("/sys/class/net").join(name).exists() {
            self.warn(key, format!("this machine has no interface {name} now"));
        }
    }

    /// A prefix inside a sensitive one opens it, because the most specific prefix decides.
    fn access(&mut self, access: &Access) {
        for (net, what) in SENSITIVE {
            let Ok(net) = net.parse::<IpNet>() else { continue };
            for allowed in access.allow.iter().filter(|allowed| net.contains(*allowed)) {
                let text = format!("it opens {allowed} ({what}) to every gateway's users");
                self.warn("access.allow", text);
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gateway => "gateway",
            Self::Cloud => "cloud",
        })
    }
}

/// Prefixes that are rarely opened on purpose.
const SENSITIVE: &[(&str, &str)] = &[
    ("127.0.0.0/8", "this machine itself"),
    ("::1/128", "this machine itself"),
    ("169.254.169.254/32", "the hosting provider's metadata"),
    ("fd00:ec2::254/128", "the hosting provider's metadata"),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use polyrail_model::Identity;

    use super::*;
    use polyrail_identity::{Authority, IssueRequest};
    use time::Duration;

    /// A folder with an authority, a gateway's and a cloud's certificate.
    fn world() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_owned();
        let authority = Authority::create(&dir, "Test", false).unwrap();
        for (name, role) in [("g", NodeRole::Gateway), ("c", NodeRole::Cloud)] {
            let name = Identity::new(name).unwrap();
            let request = IssueRequest { name, role, days: 397, out: dir.clone(), force: false };
            authority.issue(&request).unwrap();
        }
        (folder, dir)
    }

    fn tls(dir: &Path, name: &str) -> TlsConfig {
        TlsConfig {
            certificate: dir.join(format!("{name}.crt")),
            key: dir.join(format!("{name}.key")),
            authority: dir.join("ca.crt"),
            revocations: Some(dir.join("revoked.crl")),
        }
    }

    fn at(tls: &TlsConfig, kind: Kind, days: i64) -> OwnFindings {
        identity_at(tls, kind, OffsetDateTime::now_utc() + Duration::days(days)).1
    }

    #[test]
    fn valid_files_have_no_findings_in_their_time() {
        let (_folder, dir) = world();
        let good = tls(&dir, "g");
        assert_eq!(at(&good, Kind::Gateway, 0), OwnFindings::default());
        assert_eq!(at(&tls(&dir, "c"), Kind::Cloud, 0), OwnFindings::default());
        let late = at(&good, Kind::Gateway, 370);
        assert!(late.errors.is_empty() && late.warnings[0].starts_with("tls.certificate: "));
        assert!(at(&good, Kind::Gateway, 398).ended[0].starts_with("tls.certificate: "));
        assert!(at(&good, Kind::Gateway, -1).warnings[0].starts_with("tls.certificate: "));
    }

    #[test]
    fn each_invalid_file_is_named() {
        let (_folder, dir) = world();
        let (_other_folder, other) = world();
        let (g, c) = (tls(&dir, "g"), tls(&dir, "c"));
        let errors = |tls: TlsConfig| {
            let (_, found) = load_identity(&tls, Kind::Gateway);
            [found.errors, found.ended].concat().join("\n")
        };
        let has = |tls: TlsConfig, text: &str| {
            let found = errors(tls);
            assert!(found.contains(text), "{found:?} lacks {text:?}");
        };
        has(c.clone(), "is not one of a gateway");
        has(TlsConfig { key: c.key.clone(), ..g.clone() }, "it belongs to another");
        let foreign = TlsConfig { authority: other.join("ca.crt"), ..g.clone() };
        has(foreign.clone(), "is not signed by the authority");
        let foreign = TlsConfig { revocations: None, ..foreign };
        has(foreign, "tls.certificate: the certificate was not issued by");
        has(TlsConfig { authority: g.certificate.clone(), ..g.clone() }, "no authority's");
        let both = dir.join("both.crt");
        let texts = [other.join("ca.crt"), dir.join("ca.crt")].map(|f| fs::read(f).unwrap());
        fs::write(&both, texts.concat()).unwrap();
        assert_eq!(errors(TlsConfig { authority: both, ..g.clone() }), "", "one of them did");
        has(TlsConfig { certificate: dir.join("x.crt"), ..g.clone() }, "No such file");
        has(TlsConfig { certificate: g.key.clone(), ..g.clone() }, "instead of a certificate");
        has(TlsConfig { revocations: Some(dir.join("ca.crt")), ..g.clone() }, "X509 CRL");
        fs::set_permissions(&g.key, fs::Permissions::from_mode(0o644)).unwrap();
        has(g.clone(), "g.key is mode 0644: run chmod 600");
        fs::set_permissions(&g.key, fs::Permissions::from_mode(0o600)).unwrap();
        Authority::open(&dir).unwrap().revoke_file(&g.certificate).unwrap();
        has(g, "tls.certificate: revoked since 2");
    }

    #[test]
    fn keys_tell_whose_configuration_it_is() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(guess(&text("gateway.toml")), Kind::Gateway);
        assert_eq!(guess(&text("cloud.toml")), Kind::Cloud);
        assert_eq!(guess("[dial]\n"), Kind::Cloud);
        assert_eq!(guess("[carrier\n"), Kind::Gateway);
    }

    const TLS: &str = "[tls]\ncertificate = \"N.crt\"\nkey = \"N.key\"\nauthority = \"ca.crt\"\n";

    /// The report about this text.
    fn report(dir: &Path, text: &str) -> Report {
        let file = dir.join("x.toml");
        fs::write(&file, text).unwrap();
        check(&file, None).unwrap()
    }

    #[test]
    fn everything_that_a_cloud_names_is_checked() {
        let (_folder, dir) = world();
        let tls = TLS.replace('N', "c");
        let cloud = |top: &str, tables: &str| {
            let text = format!("{top}listen = [\"[::]:4433\"]\n{tls}{tables}");
            let Report { kind, errors, warnings, .. } = report(&dir, &text);
            assert_eq!((kind, errors), (Kind::Cloud, vec![]));
            warnings
        };
        let opened = "access.allow: it opens 127.0.0.1/32 (this machine itself)";
        let found = cloud("", "[access]\nallow = [\"0.0.0.0/0\", \"127.0.0.1\"]\n");
        assert!(found.len() == 1 && found[0].starts_with(opened), "{found:?}");
        let found = cloud("", "[log]\nfile = \"logs/x\"\n");
        assert!(found[0].starts_with("line 7: log.file: this key is ignored"), "{found:?}");
        let found = cloud("", "[admin]\nsocket = \"none/s\"\n");
        assert!(found[0].starts_with("admin.socket: the folder"), "{found:?}");
        let missing = |key, name| {
            let quic = "QUIC has bbr, cubic and reno, but no";
            let instead = if key == "congestion" { "bbr" } else { "that of the other carriers" };
            [
                format!("{key}: {quic} {name}: {instead} is used there"),
                format!("{key}: this kernel has no {name} now (see polyrail doctor)"),
            ]
        };
        let control = "congestion = \"x\"\n";
        let both = [missing("congestion", "x"), missing("carrier_congestion.a", "y")].concat();
        assert_eq!(cloud(control, "[carrier_congestion]\na = \"y\"\nb = \"reno\"\n"), both);
        assert_eq!(cloud(&format!("mode = \"tls\"\n{control}"), ""), both[1..2]);
        assert_eq!(cloud(&format!("mode = \"quic\"\n{control}"), ""), both[..1]);
    }

    #[test]
    fn everything_that_a_gateway_names_is_checked() {
        let (_folder, dir) = world();
        let tls = TLS.replace('N', "g");
        let peer = "[cloud]\nname = \"c\"\naddresses = [\"192.0.2.1:1\"]\n";
        let carrier = |name| {
            format!(
                "[[carrier]]\nname = \"{name}\"\ninterface = \"no-such\"\ncongestion = \"x\"\n\
                 qlog = \"none\"\n"
            )
        };
        let socks = "[socks5]\nlisten = [\"0.0.0.0:1080\"]\n";
        let text = format!("{tls}{peer}{}{}{socks}", carrier("a"), carrier("b"));
        let found = report(&dir, &text);
        assert_eq!(found.errors, Vec::<String>::new());
        assert!(found.summary.contains("over a, b; users connect by SOCKS5"), "{}", found.summary);
        let warnings = found.warnings.join("\n");
        for text in ["same way as \"a\"", "no interface no-such", "not loopback", "].qlog: "] {
            assert!(warnings.contains(text), "{warnings}");
        }

        let head = format!(
            "{tls}{peer}[socks5]\nlisten = [\"127.0.0.1:1080\"]\n[[carrier]]\nname = \"a\"\n\
             congestion = \"reno\"\nsource = \"127.0.0.1\"\n"
        );
        let warnings = |more: &str| report(&dir, &format!("{head}{more}")).warnings.join("\n");
        assert_eq!(warnings(""), "");
        let rows = [
            ("[linkdb]\npath = \"none/l\"\n", "linkdb: [telemetry] names no source"),
            ("[linkdb]\npath = \"none/l\"\n", "linkdb.path: the folder"),
            ("[telemetry]\nreplay = \"none\"\n", "none is missing"),
            ("[telemetry]\nmodem_manager = true\n", "carrier[1]: \"a\" has neither modem nor"),
            ("modem = \"1\"\n", "carrier[1].modem: no effect"),
        ];
        for (more, text) in rows {
            assert!(warnings(more).contains(text), "{more}: {}", warnings(more));
        }
    }
}
