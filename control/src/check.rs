//! Looks a configuration over together with all that it names: files, interfaces, the kernel.
//!
//! What would stop the daemon is an error; what may be wrong, or soon will be, is a warning.
//! Nothing is changed and nothing is contacted.

use std::fmt;
use std::path::Path;

use ipnet::IpNet;
use polyrail_config::{
    Access, Admin, Carrier, CloudConfig, ConfigError, CongestionControl, GatewayConfig,
    LinkDbConfig, LogConfig, Mode, TlsConfig, read_text,
};
use polyrail_identity::{IdentityPaths, NodeRole, TlsIdentity};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use toml::de::DeTable;

/// Which daemon a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `polyrail-gateway`.
    Gateway,
    /// `polyrail-cloud`.
    Cloud,
}

/// What a look at a valid configuration found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whose configuration it is.
    pub kind: Kind,
    /// What it sets up, in one line.
    pub summary: String,
    /// What would stop the daemon.
    pub errors: Vec<String>,
    /// What may be wrong, or soon will be.
    pub warnings: Vec<String>,
}

/// Looks over the configuration in `file`; `kind` is told from its keys unless it is given.
///
/// # Errors
/// The file cannot be read or has mistakes of its own.
pub fn check(file: &Path, kind: Option<Kind>) -> Result<Report, ConfigError> {
    let text = read_text(file)?;
    match kind.unwrap_or_else(|| guess(&text)) {
        Kind::Gateway => Ok(gateway(&GatewayConfig::parse(&text, file)?)),
        Kind::Cloud => Ok(cloud(&CloudConfig::parse(&text, file)?)),
    }
}

/// Whose configuration a text most likely is, by the top keys that one daemon alone knows.
pub fn guess(text: &str) -> Kind {
    let (table, _) = DeTable::parse_recoverable(text);
    let has = |key: &&str| table.get_ref().contains_key(*key);
    let cloud = ["listen", "congestion", "carrier_congestion", "access", "dial", "tunnel"]
        .iter()
        .filter(|key| has(key))
        .count();
    let gateway =
        ["cloud", "carrier", "restart", "intercept", "dns", "socks5", "users", "telemetry"];
    if cloud > gateway.iter().filter(|key| has(key)).count() { Kind::Cloud } else { Kind::Gateway }
}

/// What is wrong, or may be, with the files of a node's `[tls]`: errors, then warnings.
///
/// None of it stops a daemon by itself: what does is a file that cannot be used at all.
pub fn check_tls(tls: &TlsConfig, kind: Kind) -> (Vec<String>, Vec<String>) {
    let mut notes = Notes::default();
    notes.tls(tls, kind, OffsetDateTime::now_utc());
    (notes.all_errors(), notes.warnings)
}

/// What makes the files of a node's `[tls]` of no use to a running daemon, and what is merely not
/// good: problems, then warnings. That this node's own certificate has ended or was revoked is a
/// warning: its replacement may be what comes next.
pub fn usable_tls(tls: &TlsConfig, kind: Kind) -> (Vec<String>, Vec<String>) {
    let mut notes = Notes::default();
    notes.tls(tls, kind, OffsetDateTime::now_utc());
    (notes.errors, [notes.ended, notes.warnings].concat())
}

/// Logs what [`check_tls`] finds; the daemons call this at start.
pub fn log_tls(tls: &TlsConfig, kind: Kind) {
    let (errors, warnings) = check_tls(tls, kind);
    for text in errors {
        tracing::error!("{text}");
    }
    for text in warnings {
        tracing::warn!("{text}");
    }
}

fn gateway(config: &GatewayConfig) -> Report {
    let mut notes = Notes::default();
    notes.tls(&config.tls, Kind::Gateway, OffsetDateTime::now_utc());
    notes.log(&config.log);
    notes.carriers(&config.carriers, config.mode);
    notes.admin(config.admin.as_ref());
    notes.telemetry(config);
    notes.linkdb(config.linkdb.as_ref());
    let interfaces = config.intercept.iter().flat_map(|intercept| &intercept.interfaces);
    for interface in interfaces {
        notes.interface("intercept.interfaces", interface.as_str());
    }
    for address in config.socks5.iter().flat_map(|socks5| &socks5.listen) {
        if !address.ip().is_loopback() {
            let text = "everyone who reaches it can use the session";
            notes.warnings.push(format!("socks5.listen: {address} is not loopback: {text}"));
        }
    }
    let usable: Vec<_> =
        config.carriers.iter().filter(|c| c.usable()).map(|c| c.name.as_str()).collect();
    let mut takes = Vec::new();
    takes.extend(config.intercept.as_ref().map(|_| "interception"));
    takes.extend(config.dns.as_ref().map(|_| "DNS"));
    takes.extend(config.socks5.as_ref().map(|_| "SOCKS5"));
    let summary = format!(
        "a gateway to the cloud \"{}\" over {}; users come by {}",
        config.cloud.name,
        usable.join(", "),
        takes.join(", ")
    );
    notes.report(Kind::Gateway, summary)
}

fn cloud(config: &CloudConfig) -> Report {
    let mut notes = Notes::default();
    notes.tls(&config.tls, Kind::Cloud, OffsetDateTime::now_utc());
    notes.log(&config.log);
    notes.access(&config.access);
    notes.admin(config.admin.as_ref());
    notes.linkdb(config.linkdb.as_ref().map(|linkdb| &linkdb.common));
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

#[derive(Default)]
struct Notes {
    errors: Vec<String>,
    /// Errors of certificates that would be good at another time.
    ended: Vec<String>,
    warnings: Vec<String>,
}

impl Notes {
    fn report(self, kind: Kind, summary: String) -> Report {
        let errors = self.all_errors();
        Report { kind, summary, errors, warnings: self.warnings }
    }

    fn all_errors(&self) -> Vec<String> {
        [self.errors.as_slice(), &self.ended].concat()
    }

    fn tls(&mut self, tls: &TlsConfig, kind: Kind, now: OffsetDateTime) {
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
                let found = identity.findings(role, now);
                let named =
                    |texts: Vec<String>| texts.into_iter().map(|text| format!("tls.{text}"));
                self.errors.extend(named(found.errors));
                self.ended.extend(named(found.ended));
                self.warnings.extend(named(found.warnings));
            }
            Err(error) => {
                let file = error.path().and_then(|path| paths.kind_of(path));
                let key = file.map_or_else(|| "tls".to_owned(), |file| format!("tls.{file}"));
                self.errors.push(format!("{key}: {error}"));
            }
        }
    }

    fn log(&mut self, log: &LogConfig) {
        let folder = log.file.as_deref().and_then(Path::parent);
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            self.errors.push(format!("log.file: there is no folder {}", folder.display()));
        }
    }

    /// systemd makes the folder when it starts the daemon, so that it may be missing until then.
    fn admin(&mut self, admin: Option<&Admin>) {
        let folder = admin.and_then(|admin| admin.socket.parent());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let text = format!("there is no folder {} now", folder.display());
            self.warnings.push(format!("admin.socket: {text}: without it the daemon cannot start"));
        }
    }

    /// Without its database a daemon runs on, and forecasts nothing.
    fn linkdb(&mut self, linkdb: Option<&LinkDbConfig>) {
        let folder = linkdb.and_then(|linkdb| linkdb.path.parent());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let text = format!("there is no folder {} now", folder.display());
            self.warnings.push(format!("linkdb.path: {text}: without it nothing is learned"));
        }
    }

    /// What is named and not there, and what is there and asked by nobody.
    fn telemetry(&mut self, config: &GatewayConfig) {
        let telemetry = &config.telemetry;
        if let Some(file) = telemetry.replay.as_ref().filter(|file| !file.exists()) {
            let text = format!("there is no {} now", file.display());
            self.warnings.push(format!("telemetry.replay: {text}"));
        }
        if config.linkdb.is_some() && telemetry.is_empty() {
            let text = "[telemetry] names no source, so that there is nothing to learn from";
            self.warnings.push(format!("linkdb: {text}"));
        }
        let asked = telemetry.modem_manager.is_some();
        for (index, carrier) in config.carriers.iter().enumerate() {
            let (key, name) = (format!("carrier[{}]", index + 1), &carrier.name);
            if asked && carrier.modem.is_none() && carrier.interface.is_none() {
                let text = format!("\"{name}\" has neither modem nor interface");
                let text = format!("{text}: its modem cannot be told");
                self.warnings.push(format!("{key}: {text}"));
            }
            if !asked && carrier.modem.is_some() {
                let text = "nobody asks ModemManager: telemetry.modem_manager is not true";
                self.warnings.push(format!("{key}.modem: {text}"));
            }
        }
    }

    fn carriers(&mut self, carriers: &[Carrier], mode: Mode) {
        for (index, carrier) in carriers.iter().enumerate() {
            let key = format!("carrier[{}]", index + 1);
            let same = |other: &&Carrier| {
                let way = |c: &Carrier| (c.interface.clone(), c.source, c.addresses.clone());
                way(other) == way(carrier)
            };
            if let Some(other) = carriers[..index].iter().find(same) {
                let text = format!("it takes the same way as \"{}\"", other.name);
                self.warnings.push(format!("{key}: {text}: this adds no capacity"));
            }
            if let Some(interface) = &carrier.interface {
                self.interface(&format!("{key}.interface"), interface.as_str());
            }
            let mode = carrier.mode.unwrap_or(mode);
            self.congestion(&format!("{key}.congestion"), &carrier.congestion, mode, "bbr");
            if let Some(folder) = carrier.qlog.as_deref().filter(|folder| !folder.is_dir()) {
                let text = format!("there is no folder {}", folder.display());
                self.warnings.push(format!("{key}.qlog: {text}: nothing will be written"));
            }
        }
    }

    /// `instead` is what a tunnel over QUIC has when QUIC does not know `control`.
    fn congestion(&mut self, key: &str, control: &CongestionControl, mode: Mode, instead: &str) {
        if mode.allows_quic() && !["bbr", "cubic", "reno"].contains(&control.as_str()) {
            let text = format!("QUIC has bbr, cubic and reno, but no {control}");
            self.warnings.push(format!("{key}: {text}: {instead} is taken there"));
        }
        if !mode.allows_tls() {
            return;
        }
        let available =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let missing =
            |names: &String| !names.split_whitespace().any(|name| name == control.as_str());
        if available.as_ref().is_ok_and(missing) {
            let text = format!("this kernel has no {control} now");
            self.warnings.push(format!("{key}: {text} (see polyrail doctor)"));
        }
    }

    fn interface(&mut self, key: &str, name: &str) {
        if !Path::new("/sys/class/net").join(name).exists() {
            self.warnings.push(format!("{key}: this machine has no interface {name} now"));
        }
    }

    /// A prefix inside a sensitive one opens it: the most specific prefix decides.
    fn access(&mut self, access: &Access) {
        for (net, what) in SENSITIVE {
            let Ok(net) = net.parse::<IpNet>() else { continue };
            for allowed in access.allow.iter().filter(|allowed| net.contains(*allowed)) {
                let text = format!("it opens {allowed} ({what}) to every gateway's users");
                self.warnings.push(format!("access.allow: {text}"));
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

/// Prefixes whose opening is seldom meant.
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

    fn at(tls: &TlsConfig, kind: Kind, days: i64) -> Notes {
        let mut notes = Notes::default();
        notes.tls(tls, kind, OffsetDateTime::now_utc() + Duration::days(days));
        notes
    }

    #[test]
    fn good_files_are_fine_in_their_time() {
        let (_folder, dir) = world();
        let good = tls(&dir, "g");
        assert_eq!(check_tls(&good, Kind::Gateway), (vec![], vec![]));
        assert_eq!(check_tls(&tls(&dir, "c"), Kind::Cloud), (vec![], vec![]));
        let late = at(&good, Kind::Gateway, 370);
        assert!(late.errors.is_empty() && late.warnings[0].contains("it ends at"));
        assert!(at(&good, Kind::Gateway, 398).ended[0].contains("it ended at"));
        assert!(at(&good, Kind::Gateway, -1).warnings[0].contains("begins at"));
    }

    #[test]
    fn each_bad_file_is_named() {
        let (_folder, dir) = world();
        let (_other_folder, other) = world();
        let (g, c) = (tls(&dir, "g"), tls(&dir, "c"));
        let errors = |tls: TlsConfig| check_tls(&tls, Kind::Gateway).0.join("\n");
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
    fn a_configuration_is_told_by_its_keys() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(guess(&text("gateway.toml")), Kind::Gateway);
        assert_eq!(guess(&text("cloud.toml")), Kind::Cloud);
        assert_eq!(guess("[dial]\n"), Kind::Cloud);
        assert_eq!(guess("[carrier\n"), Kind::Gateway);
    }

    #[test]
    fn a_whole_configuration_is_looked_over() {
        let (_folder, dir) = world();
        let file = dir.join("cloud.toml");
        let tls = "[tls]\ncertificate = \"c.crt\"\nkey = \"c.key\"\nauthority = \"ca.crt\"\n";
        let head = "listen = [\"[::]:4433\"]\n";
        fs::write(&file, format!("{head}{tls}[access]\nallow = [\"0.0.0.0/0\", \"127.0.0.1\"]\n"))
            .unwrap();
        let report = check(&file, None).unwrap();
        assert_eq!((report.kind, report.errors.len()), (Kind::Cloud, 0));
        let opened = "access.allow: it opens 127.0.0.1/32 (this machine itself)";
        assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
        assert!(report.warnings[0].starts_with(opened), "{:?}", report.warnings);
        assert!(check(&file, Some(Kind::Gateway)).is_err());
        fs::write(&file, format!("{head}[log]\nfile = \"logs/x\"\n{tls}")).unwrap();
        let report = check(&file, None).unwrap();
        assert!(report.errors[0].starts_with("log.file: there is no folder"));
        let controls = "congestion = \"x\"\n";
        let carriers = "[carrier_congestion]\na = \"y\"\nb = \"reno\"\n";
        fs::write(&file, format!("{controls}{head}{tls}{carriers}")).unwrap();
        let missing = |key, name| {
            let quic = "QUIC has bbr, cubic and reno, but no";
            let instead = if key == "congestion" { "bbr" } else { "that of the other carriers" };
            [
                format!("{key}: {quic} {name}: {instead} is taken there"),
                format!("{key}: this kernel has no {name} now (see polyrail doctor)"),
            ]
        };
        let expected = [missing("congestion", "x"), missing("carrier_congestion.a", "y")];
        assert_eq!(check(&file, None).unwrap().warnings, expected.concat());
        fs::write(&file, format!("mode = \"tls\"\n{controls}{head}{tls}")).unwrap();
        assert_eq!(check(&file, None).unwrap().warnings, [missing("congestion", "x")[1].clone()]);
        fs::write(&file, format!("mode = \"quic\"\n{controls}{head}{tls}")).unwrap();
        assert_eq!(check(&file, None).unwrap().warnings, [missing("congestion", "x")[0].clone()]);
        fs::write(&file, format!("{head}{tls}[admin]\nsocket = \"none/s\"\n")).unwrap();
        let report = check(&file, None).unwrap();
        assert!(report.warnings[0].starts_with("admin.socket: there is no folder"));

        let file = dir.join("gateway.toml");
        let tls = tls.replace("c.", "g.").replace("certifig.te", "certificate");
        let carrier = |name| {
            format!(
                "[[carrier]]\nname = \"{name}\"\ninterface = \"no-such\"\ncongestion = \"x\"\n\
                 qlog = \"none\"\n"
            )
        };
        let rest = "[cloud]\nname = \"c\"\naddresses = [\"192.0.2.1:1\"]\n";
        let socks = "[socks5]\nlisten = [\"0.0.0.0:1080\"]\n";
        let text = format!("{tls}{rest}{}{}{socks}", carrier("a"), carrier("b"));
        fs::write(&file, text).unwrap();
        let report = check(&file, None).unwrap();
        assert_eq!(report.errors, Vec::<String>::new());
        let warnings = report.warnings.join("\n");
        for text in [
            "same way as \"a\"",
            "no interface no-such",
            "but no x: bbr is taken there",
            "has no x now",
            "not loopback",
            "].qlog: ",
        ] {
            assert!(warnings.contains(text), "{warnings}");
        }
        let absent: &[&str] = &["linkdb", "telemetry", "modem"];
        assert!(!absent.iter().any(|word| warnings.contains(word)), "{warnings}");
        assert!(report.summary.contains("over a, b; users come by SOCKS5"), "{}", report.summary);
    }
    #[test]
    fn what_learning_lacks_is_warned_of() {
        let (_folder, dir) = world();
        let file = dir.join("gateway.toml");
        let head = "[tls]\ncertificate = \"g.crt\"\nkey = \"g.key\"\nauthority = \"ca.crt\"\n\
                    [cloud]\nname = \"c\"\naddresses = [\"192.0.2.1:1\"]\n\
                    [socks5]\nlisten = [\"127.0.0.1:1080\"]\n[[carrier]]\nname = \"a\"\n\
                    congestion = \"reno\"\nsource = \"127.0.0.1\"\n";
        let warnings = |more: &str| {
            fs::write(&file, format!("{head}{more}")).unwrap();
            let report = check(&file, None).unwrap();
            assert_eq!((report.kind, report.errors), (Kind::Gateway, vec![]));
            report.warnings
        };
        assert_eq!(warnings(""), Vec::<String>::new());
        let linkdb = "[linkdb]\npath = \"none/l\"\n";
        let found = warnings(linkdb).join("\n");
        for text in ["[telemetry] names no source", "linkdb.path: there is no folder"] {
            assert!(found.contains(text), "{found}");
        }
        let found = warnings("[telemetry]\nreplay = \"none\"\nmodem_manager = true\n").join("\n");
        for text in ["telemetry.replay: there is no", "carrier[1]: \"a\" has neither modem nor"] {
            assert!(found.contains(text), "{found}");
        }
        let found =
            warnings("modem = \"1\"\n[linkdb]\npath = \"l\"\n[telemetry]\nreplay = \"ca.crt\"\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("carrier[1].modem: nobody asks ModemManager"), "{found:?}");
        fs::write(&file, head.replace("name = \"a\"", "nam = 1")).unwrap();
        assert!(check(&file, None).is_err());
    }
}
