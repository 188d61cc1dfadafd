//! Checks a valid configuration together with its files, interfaces and kernel settings.
//!
//! An error stops the daemon or its tunnels; a warning is about something that may be wrong, or
//! soon will be. A check changes nothing and contacts nobody.

use std::fmt;
use std::fs;
use std::path::Path;

use ipnet::IpNet;
use polyrail_identity::{NodeRole, OwnFindings, TlsIdentity};
use time::OffsetDateTime;
use toml::de::DeTable;

use crate::document::read_text;
use crate::{
    Access, CarrierConfig, CloudConfig, Common, Config, ConfigError, CongestionControl,
    GatewayConfig, InterfaceName, Mode, Problem, Tables, TlsConfig, bridges,
};

/// The result of checking a valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The daemon of the configuration.
    pub role: NodeRole,
    /// The configuration in one line.
    pub summary: String,
    /// With these the daemon does not start, no tunnel comes up, or no intercepted connection
    /// works.
    pub errors: Vec<String>,
    /// Things that may be wrong, or soon will be.
    pub warnings: Vec<String>,
}

/// Checks the configuration in `file`. Without `role`, its keys decide which daemon it is for.
///
/// # Errors
/// The file cannot be read or has a mistake.
pub fn check(file: &Path, role: Option<NodeRole>) -> Result<CheckReport, ConfigError> {
    let text = read_text(file)?;
    match role.unwrap_or_else(|| guess(&text)) {
        NodeRole::Gateway => Ok(gateway(&GatewayConfig::parse(&text, file)?)),
        NodeRole::Cloud => Ok(cloud(&CloudConfig::parse(&text, file)?)),
    }
}

/// The daemon that a text is most likely for.
pub fn guess(text: &str) -> NodeRole {
    let (table, _) = DeTable::parse_recoverable(text);
    let has_any = |keys: &[&str]| keys.iter().any(|key| table.get_ref().contains_key(*key));
    let is_cloud = has_any(&["listen", "access", "dial", "tunnel", "carrier_congestion"]);
    if is_cloud && !has_any(&["cloud", "carrier"]) { NodeRole::Cloud } else { NodeRole::Gateway }
}

/// Loads the certificates and key of a node and reports their defects. Each text begins with its
/// key. The identity is `None` if the files cannot be used at all.
pub fn load_identity(tls: &TlsConfig, role: NodeRole) -> (Option<TlsIdentity>, OwnFindings) {
    identity_at(tls, role, OffsetDateTime::now_utc())
}

/// Logs the findings of [`load_identity`], for a daemon's start.
pub fn log_tls(tls: &TlsConfig, role: NodeRole) {
    let (_, found) = load_identity(tls, role);
    for text in found.errors.iter().chain(&found.ended) {
        tracing::error!("{text}");
    }
    for text in found.warnings {
        tracing::warn!("{text}");
    }
}

fn identity_at(
    tls: &TlsConfig,
    role: NodeRole,
    now: OffsetDateTime,
) -> (Option<TlsIdentity>, OwnFindings) {
    let paths = tls.paths();
    match TlsIdentity::load(&paths) {
        Ok(identity) => {
            let mut found = identity.findings(role, now);
            for list in [&mut found.errors, &mut found.ended, &mut found.warnings] {
                list.iter_mut().for_each(|text| text.insert_str(0, "tls."));
            }
            (Some(identity), found)
        }
        Err(error) => {
            let kind = paths.files().find(|(_, file)| error.path() == Some(file));
            let key = kind.map_or("tls".to_owned(), |(kind, _)| format!("tls.{kind}"));
            let errors = vec![format!("{key}: {error}")];
            (None, OwnFindings { errors, ..OwnFindings::default() })
        }
    }
}

fn gateway(config: &GatewayConfig) -> CheckReport {
    let mut notes = Notes::new(config);
    notes.carriers(&config.carriers, config.common.mode);
    notes.telemetry(config);
    let inside = config.intercept.iter().flat_map(|intercept| &intercept.interfaces);
    for interface in inside.clone() {
        notes.interface("intercept.interfaces", interface.as_str());
    }
    for losing in bridges::losing_of(inside.map(InterfaceName::as_str)) {
        notes.errors.push(format!("intercept.interfaces: {losing}: {}", losing.remedy()));
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
    let clouds: Vec<_> = config.clouds().map(|name| format!("\"{name}\"")).collect();
    let summary = format!(
        "a gateway to the cloud {} over {}; users connect by {}",
        clouds.join(", else "),
        usable.join(", "),
        inputs.join(", ")
    );
    notes.report(NodeRole::Gateway, summary)
}

fn cloud(config: &CloudConfig) -> CheckReport {
    let mut notes = Notes::new(config);
    notes.access(&config.access);
    if let Some(control) = &config.congestion {
        notes.congestion("congestion", control, config.common.mode, "bbr");
    }
    for (carrier, control) in &config.carrier_congestion {
        let key = format!("carrier_congestion.{carrier}");
        notes.congestion(&key, control, config.common.mode, "that of the other carriers");
    }
    let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
    notes.report(NodeRole::Cloud, format!("a cloud that listens on {}", listen.join(", ")))
}

struct Notes {
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Notes {
    fn new<T: Tables>(config: &Config<T>) -> Self {
        let (_, found) = load_identity(&config.common.tls, T::ROLE);
        let ignored = config
            .ignored
            .iter()
            .map(|Problem { line, key, reason, .. }| format!("line {line}: {key}: {reason}"));
        let mut notes = Self {
            errors: [found.errors, found.ended].concat(),
            warnings: ignored.chain(found.warnings).collect(),
        };
        notes.folders(&config.common, T::ROLE);
        notes
    }

    fn report(self, role: NodeRole, summary: String) -> CheckReport {
        CheckReport { role, summary, errors: self.errors, warnings: self.warnings }
    }

    fn warn(&mut self, key: &str, text: impl fmt::Display) {
        self.warnings.push(format!("{key}: {text}"));
    }

    /// Warns of a missing folder.
    fn folder(&mut self, key: &str, folder: Option<&Path>, consequence: &str) {
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            self.warn(key, format!("the folder {} is missing: {consequence}", folder.display()));
        }
    }

    fn folders(&mut self, common: &Common, role: NodeRole) {
        let socket = common.admin.as_ref().and_then(|admin| admin.socket.parent());
        let missing = socket.filter(|folder| !folder.is_dir());
        if let Some(folder) = missing.filter(|folder| !unit_creates(Path::new("/"), folder, role)) {
            let (folder, unit) = (folder.display(), unit(role));
            self.errors.push(format!(
                "admin.socket: the folder {folder} is missing, so the daemon cannot start: create \
                 it, or install {unit}, which creates {RUN_FOLDER}"
            ));
        }
        let database = common.linkdb.as_ref().and_then(|linkdb| linkdb.path.parent());
        self.folder("linkdb.path", database, "without it LinkDB stays off");
    }

    /// Missing sources, and keys that have no effect without one.
    fn telemetry(&mut self, config: &GatewayConfig) {
        let telemetry = &config.telemetry;
        if let Some(file) = telemetry.replay.as_ref().filter(|file| !file.exists()) {
            self.warn("telemetry.replay", format!("{} is missing", file.display()));
        }
        if config.common.linkdb.is_some() && telemetry.is_empty() {
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

    fn carriers(&mut self, carriers: &[CarrierConfig], mode: Mode) {
        for (index, carrier) in carriers.iter().enumerate() {
            let key = format!("carrier[{}]", index + 1);
            let way = |c: &CarrierConfig| (c.interface.clone(), c.source, c.addresses.clone());
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
        if mode.allows_quic() && !["rail", "bbr", "cubic", "reno"].contains(&control.as_str()) {
            let text = format!("QUIC has rail, bbr, cubic and reno, but no {control}");
            self.warn(key, format!("{text}: {instead} is used there"));
        }
        let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        // `rail` exists over QUIC only.
        let name = if control.as_str() == "rail" { "bbr" } else { control.as_str() };
        let is_missing = |names: String| !names.split_whitespace().any(|n| n == name);
        if mode.allows_tls() && available.is_ok_and(is_missing) {
            self.warn(key, format!("this kernel has no {name} now (see polyrail doctor)"));
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

/// The packaged unit of a daemon.
fn unit(role: NodeRole) -> String {
    format!("polyrail-{}.service", role.as_str())
}

/// Whether the daemon's unit is installed and creates the folder before it starts the daemon.
fn unit_creates(root: &Path, folder: &Path, role: NodeRole) -> bool {
    let is_installed = || UNITS.iter().any(|units| root.join(units).join(unit(role)).exists());
    folder == Path::new(RUN_FOLDER) && is_installed()
}

/// The `RuntimeDirectory` of both units.
const RUN_FOLDER: &str = "/run/polyrail";

/// Where systemd looks for units (systemd.unit(5)).
const UNITS: [&str; 3] = ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

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
    use std::path::PathBuf;

    use polyrail_model::Identity;

    use super::*;
    use polyrail_identity::{Authority, IssueRequest};
    use time::Duration;

    /// A folder with an authority and the certificates of a gateway and a cloud.
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
            expiry_grace: std::time::Duration::ZERO,
        }
    }

    #[test]
    fn findings_begin_with_the_key_of_their_file() {
        let (_folder, dir) = world();
        let (g, c) = (tls(&dir, "g"), tls(&dir, "c"));
        let at = |tls: &TlsConfig, days| {
            identity_at(tls, NodeRole::Gateway, OffsetDateTime::now_utc() + Duration::days(days)).1
        };
        assert_eq!(at(&g, 0), OwnFindings::default());
        let late = at(&g, 370);
        assert!(late.errors.is_empty() && late.warnings[0].starts_with("tls.certificate: "));
        assert!(at(&g, 398).ended[0].starts_with("tls.certificate: "));
        let missing = Some(dir.join("none"));
        let rows = [
            (c.clone(), "tls.certificate: the certificate (name \"c\") is not one of a gateway"),
            (TlsConfig { key: c.key.clone(), ..g.clone() }, "tls.key: "),
            (TlsConfig { authority: c.certificate.clone(), ..g.clone() }, "tls.authority: "),
            (TlsConfig { revocations: missing, ..g.clone() }, "tls.revocations: "),
        ];
        for (tls, start) in rows {
            let errors = at(&tls, 0).errors;
            assert!(errors[0].starts_with(start), "{errors:?} lacks {start:?}");
        }
        let both = dir.join("both.crt");
        let (_other_folder, other) = world();
        let texts = [other.join("ca.crt"), dir.join("ca.crt")].map(|f| fs::read(f).unwrap());
        fs::write(&both, texts.concat()).unwrap();
        let either = TlsConfig { authority: both, revocations: None, ..g };
        assert_eq!(at(&either, 0), OwnFindings::default(), "one of two authorities issued it");
    }

    #[test]
    fn role_is_guessed_from_the_keys() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(guess(&text("gateway.toml")), NodeRole::Gateway);
        assert_eq!(guess(&text("cloud.toml")), NodeRole::Cloud);
        assert_eq!(guess("[dial]\n"), NodeRole::Cloud);
        assert_eq!(guess("[carrier\n"), NodeRole::Gateway);
    }

    const TLS: &str = "[tls]\ncertificate = \"N.crt\"\nkey = \"N.key\"\nauthority = \"ca.crt\"\n";

    /// The report about this text.
    fn report(dir: &Path, text: &str) -> CheckReport {
        let file = dir.join("x.toml");
        fs::write(&file, text).unwrap();
        check(&file, None).unwrap()
    }

    #[test]
    fn files_and_controls_of_a_cloud_are_checked() {
        let (_folder, dir) = world();
        let tls = TLS.replace('N', "c");
        let cloud = |top: &str, tables: &str| {
            let text = format!("{top}listen = [\"[::]:4433\"]\n{tls}{tables}");
            let CheckReport { role, errors, warnings, .. } = report(&dir, &text);
            assert_eq!((role, errors), (NodeRole::Cloud, vec![]));
            warnings
        };
        let opened = "access.allow: it opens 127.0.0.1/32 (this machine itself)";
        let found = cloud("", "[access]\nallow = [\"0.0.0.0/0\", \"127.0.0.1\"]\n");
        assert!(found.len() == 1 && found[0].starts_with(opened), "{found:?}");
        let found = cloud("", "[log]\nfile = \"logs/x\"\n");
        assert!(found[0].starts_with("line 7: log.file: this key is ignored"), "{found:?}");
        let missing = |key, name| {
            let quic = "QUIC has rail, bbr, cubic and reno, but no";
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
    fn missing_folder_of_the_socket_is_an_error_unless_the_unit_creates_it() {
        let (_folder, dir) = world();
        let tls = TLS.replace('N', "c");
        let socket = "[admin]\nsocket = \"none/s\"\n";
        let text = format!("listen = [\"[::]:4433\"]\n{tls}{socket}");
        let CheckReport { errors, warnings, .. } = report(&dir, &text);
        assert_eq!(warnings, Vec::<String>::new());
        let missing = format!("admin.socket: the folder {} is missing", dir.join("none").display());
        assert!(errors.len() == 1 && errors[0].starts_with(&missing), "{errors:?}");
        fs::create_dir(dir.join("none")).unwrap();
        assert_eq!(report(&dir, &text).errors, Vec::<String>::new());

        let creates = |folder, role| unit_creates(&dir, Path::new(folder), role);
        assert!(!creates(RUN_FOLDER, NodeRole::Cloud));
        fs::create_dir_all(dir.join(UNITS[1])).unwrap();
        fs::write(dir.join(UNITS[1]).join("polyrail-cloud.service"), "").unwrap();
        assert!(creates(RUN_FOLDER, NodeRole::Cloud));
        assert!(!creates(RUN_FOLDER, NodeRole::Gateway));
        assert!(!creates("/run/other", NodeRole::Cloud));
        for role in [NodeRole::Gateway, NodeRole::Cloud] {
            let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
            let text = fs::read_to_string(packaging.join(unit(role))).unwrap();
            assert!(text.contains("\nRuntimeDirectory=polyrail\n"), "{text}");
        }
    }

    #[test]
    fn files_and_interfaces_of_a_gateway_are_checked() {
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
