//! The configuration of `polyrail-gateway`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail_model::Identity;
use serde::{Deserialize, Serialize};

use crate::common::{Admin, LogConfig, Mode, Overrides, SchedulerConfig, SessionConfig, TlsConfig};
use crate::document::{self, Broken, Document, read_text};
use crate::error::{ConfigError, Problem};
use crate::intercept::Intercept;
use crate::linkdb::LinkDbConfig;
use crate::names::{CarrierName, CongestionControl, InterfaceName, ModemName};
use crate::telemetry::TelemetryConfig;
use crate::users::{Dns, Socks5, Users};
use crate::values::{
    PeerAddress, SourceAddress, count, displayed, duration, identity, list, some, some_list,
    some_path, with_unit, yes,
};

/// `gateway.toml`, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// How tunnels travel, unless a carrier has its own mode.
    #[serde(default)]
    pub mode: Mode,
    /// Logging.
    #[serde(default)]
    pub log: LogConfig,
    /// This gateway's certificate files.
    pub tls: TlsConfig,
    /// The cloud of this gateway.
    pub cloud: CloudPeer,
    /// Bounds of the session.
    #[serde(default)]
    pub session: SessionConfig,
    /// The chain of schedulerlets.
    #[serde(default)]
    pub scheduler: SchedulerConfig,
    /// 1 to [`CARRIERS_MAX`] carriers with different names; at least one is
    /// [usable](Carrier::usable).
    #[serde(rename = "carrier")]
    pub carriers: Vec<Carrier>,
    /// When and how a path's connection is replaced.
    #[serde(default)]
    pub restart: Restart,
    /// The admin socket, if any.
    pub admin: Option<Admin>,
    /// Transparent interception, if any.
    pub intercept: Option<Intercept>,
    /// The DNS forwarder, if any; only together with `intercept`.
    pub dns: Option<Dns>,
    /// The SOCKS5 server, if any; it or `intercept` is there.
    pub socks5: Option<Socks5>,
    /// How users are distinguished.
    #[serde(default)]
    pub users: Users,
    /// The sources of positions and cells; by default none.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
    /// The database of handovers, if any.
    pub linkdb: Option<LinkDbConfig>,
    /// Deleted keys that the file still holds.
    #[serde(skip)]
    pub ignored: Vec<Problem>,
}

/// The most carriers of one gateway.
pub const CARRIERS_MAX: usize = 16;

/// `[cloud]`: the proxy at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudPeer {
    /// The name that its certificate must state.
    #[serde(deserialize_with = "identity", serialize_with = "displayed")]
    pub name: Identity,
    /// Where it listens, in order of preference; 1 to 8.
    #[serde(deserialize_with = "list::<_, PeerAddress, _, 1, 8>")]
    pub addresses: Vec<SocketAddr>,
}

/// `[[carrier]]`: one way to the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carrier {
    /// The operator's name for it.
    pub name: CarrierName,
    /// The interface that its connections are bound to.
    pub interface: Option<InterfaceName>,
    /// The address that its connections come from.
    #[serde(default, deserialize_with = "some::<_, SourceAddress, _>")]
    pub source: Option<IpAddr>,
    /// The cloud's addresses over this carrier, when not those of `[cloud]`; then 1 to 8.
    #[serde(default, deserialize_with = "some_list::<_, PeerAddress, _, 1, 8>")]
    pub addresses: Option<Vec<SocketAddr>>,
    /// The congestion control; default `bbr`.
    #[serde(default = "CongestionControl::bbr")]
    pub congestion: CongestionControl,
    /// How its tunnels travel, when not as the top of the file says.
    pub mode: Option<Mode>,
    /// Whether its bytes cost money: fewer connection attempts at once; default false.
    #[serde(default)]
    pub metered: bool,
    /// The folder for a qlog of each of its QUIC connections, if wanted.
    #[serde(default, deserialize_with = "some_path")]
    pub qlog: Option<PathBuf>,
    /// Its modem, when not the one behind `interface`.
    pub modem: Option<ModemName>,
    /// How it is used; default primary.
    #[serde(default)]
    pub role: CarrierRole,
    /// Whether it is used at all; default true.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// How the operator wants a carrier used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarrierRole {
    /// Used whenever it helps.
    #[default]
    Primary,
    /// In this version the same as primary.
    Secondary,
    /// Used only while no other carrier is up.
    Backup,
    /// Never used.
    Never,
}

/// `[restart]`: when and how a path's connection is replaced by a fresh one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restart {
    /// Whether a stalled path gets a fresh connection; default true. Without it a connection is
    /// replaced only when it has ended.
    pub enabled: bool,
    /// Whether a fresh connection may carry early data; default true.
    pub early_data: bool,
    /// Concurrent attempts on one carrier; default 3, 1 to 8.
    #[serde(deserialize_with = "count::<_, _, 1, 8>")]
    pub attempts_max: usize,
    /// How long after an attempt the next one begins; default 100 ms, 20 ms to 10 s.
    #[serde(deserialize_with = "duration::<_, 20, 10_000>", serialize_with = "with_unit")]
    pub interval: Duration,
}

impl Default for Restart {
    fn default() -> Self {
        let interval = Duration::from_millis(100);
        Self { enabled: true, early_data: true, attempts_max: 3, interval }
    }
}

impl CarrierRole {
    /// Its name in configurations and in the admin interface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::Backup => "backup",
            Self::Never => "never",
        }
    }
}

impl Carrier {
    /// Whether the gateway may use it: enabled, and its role is not `never`.
    pub fn usable(&self) -> bool {
        self.enabled && self.role != CarrierRole::Never
    }
}

impl GatewayConfig {
    /// Reads and checks `gateway.toml`.
    ///
    /// # Errors
    /// The file cannot be read, or it has a mistake.
    pub fn load(file: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::parse(&read_text(file.as_ref())?, file.as_ref())
    }

    /// Checks `text`, the contents of `file`: relative paths start at its folder.
    ///
    /// # Errors
    /// The text has a mistake.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        document::parse(text, file)
    }

    /// Overrides values of the file by flags of the command line.
    pub fn apply(&mut self, overrides: &Overrides) {
        overrides.apply(&mut self.mode, &mut self.log);
    }

    /// The mode of `carrier`'s tunnels: its own, else the common one.
    pub fn carrier_mode(&self, carrier: &Carrier) -> Mode {
        carrier.mode.unwrap_or(self.mode)
    }

    /// The cloud's addresses over `carrier`: its own, else the common ones.
    pub fn addresses<'a>(&'a self, carrier: &'a Carrier) -> &'a [SocketAddr] {
        carrier.addresses.as_deref().unwrap_or(&self.cloud.addresses)
    }

    fn carrier_rules(&self) -> Result<(), Broken> {
        let count = self.carriers.len();
        if !(1..=CARRIERS_MAX).contains(&count) {
            let reason = format!("{count} entries; 1 to {CARRIERS_MAX} are allowed");
            return Err(Broken::new("carrier", reason));
        }
        let mut unbound: Option<&Carrier> = None;
        for (index, carrier) in self.carriers.iter().enumerate() {
            let key = format!("carrier[{}]", index + 1);
            if self.carriers[..index].iter().any(|other| other.name == carrier.name) {
                let reason = format!("another carrier is already named \"{}\"", carrier.name);
                return Err(Broken::new(format!("{key}.name"), reason));
            }
            let reaches = |ip: IpAddr| {
                self.addresses(carrier).iter().any(|address| address.is_ipv4() == ip.is_ipv4())
            };
            if carrier.source.is_some_and(|ip| !reaches(ip)) {
                let reason = "no address of the cloud is of this address's family";
                return Err(Broken::new(format!("{key}.source"), reason));
            }
            let Carrier { interface, source, addresses, .. } = carrier;
            let is_bound = interface.is_some() || source.is_some() || addresses.is_some();
            if !is_bound && let Some(other) = unbound.replace(carrier) {
                let reason = format!(
                    "neither this carrier nor \"{}\" has an interface, a source or addresses: \
                     both would take the same way",
                    other.name
                );
                return Err(Broken::new(key, reason));
            }
        }
        if self.carriers.iter().any(Carrier::usable) {
            return Ok(());
        }
        let reason = "no carrier may be used: each is disabled or has the role \"never\"";
        Err(Broken::new("carrier[1]", reason))
    }

    fn port_rules(&self) -> Result<(), Broken> {
        let intercept = self.intercept.as_ref().map(|intercept| intercept.port.get());
        let dns = self.dns.as_ref().map(|dns| dns.port.get());
        if dns.is_some() && dns == intercept {
            return Err(Broken::new("dns.port", "intercept.port is the same"));
        }
        for (index, address) in self.socks5.iter().flat_map(|socks5| &socks5.listen).enumerate() {
            if [intercept, dns].contains(&Some(address.port())) {
                let key = format!("socks5.listen[{}]", index + 1);
                return Err(Broken::new(key, "intercept.port or dns.port is the same"));
            }
        }
        Ok(())
    }
}

impl Document for GatewayConfig {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        let mut paths: Vec<_> = self.tls.paths().collect();
        paths.extend(self.admin.as_mut().map(|admin| &mut admin.socket));
        paths.extend(self.carriers.iter_mut().filter_map(|carrier| carrier.qlog.as_mut()));
        paths.extend(self.telemetry.replay.as_mut());
        paths.extend(self.linkdb.as_mut().map(|linkdb| &mut linkdb.path));
        paths
    }

    fn rules(&self) -> Result<(), Broken> {
        self.carrier_rules()?;
        if self.intercept.is_none() && self.socks5.is_none() {
            let reason = "the gateway has no users: add [intercept], [socks5] or both";
            return Err(Broken::new("intercept", reason));
        }
        if self.dns.is_some() && self.intercept.is_none() {
            return Err(Broken::new("dns", "[dns] needs [intercept], which diverts the queries"));
        }
        self.port_rules()?;
        self.intercept.as_ref().map_or(Ok(()), |intercept| intercept.rules(&self.carriers))?;
        self.telemetry.rules()?;
        if self.linkdb.as_ref().is_some_and(|linkdb| linkdb.share.is_some()) {
            return Err(Broken::new("linkdb.share", "unknown field: only a cloud has it"));
        }
        self.admin.as_ref().map_or(Ok(()), Admin::rules)
    }

    fn set_ignored(&mut self, ignored: Vec<Problem>) {
        self.ignored = ignored;
    }
}
