//! The configuration of `polyrail-cloud`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_model::Families;

use super::common::{
    self, Admin, LogConfig, Mode, Overrides, SchedulerConfig, SessionConfig, TlsConfig,
};
use super::error::ConfigError;
use super::linkdb::{self, CloudLinkDb};
use super::names::{CarrierName, CongestionControl};
use super::reader::{Section, Source};
use super::values::{boolean, duration, integer, listen_address, parsed, port, prefix};

/// Everything that `cloud.toml` says, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudConfig {
    /// How gateways' tunnels may travel.
    pub mode: Mode,
    /// What is logged.
    pub log: LogConfig,
    /// This cloud's certificate files.
    pub tls: TlsConfig,
    /// Where gateways are awaited; 1 to 8, each once.
    pub listen: Vec<SocketAddr>,
    /// The congestion control of the downlink; by default bbr where the kernel has it.
    pub congestion: Option<CongestionControl>,
    /// `[carrier_congestion]`: other ones for carriers, by the names that gateways give them; at
    /// most 256.
    pub carrier_congestion: BTreeMap<CarrierName, CongestionControl>,
    /// Bounds of each session.
    pub session: SessionConfig,
    /// The chain of schedulerlets for the downlink.
    pub scheduler: SchedulerConfig,
    /// Which destinations gateways may ask for.
    pub access: Access,
    /// How destinations are dialed.
    pub dial: Dial,
    /// The admin socket, when wanted.
    pub admin: Option<Admin>,
    /// How tunnels over QUIC begin.
    pub tunnel: TunnelConfig,
    /// The database of handovers, when wanted.
    pub linkdb: Option<CloudLinkDb>,
}

/// `[tunnel]`: how tunnels over QUIC begin; the bounds are for each listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelConfig {
    /// Handshakes under way at once; further ones are dropped; default 1,024, 1 to 65,536.
    pub half_open_max: usize,
    /// From so many on, a client must first prove its address (Retry); default 256, 0 to 65,536.
    pub retry_above: usize,
    /// The number of this cloud's process in its connection ids, for a load balancer that routes
    /// by them; default 0, 0 to 65,535.
    pub server_id: u16,
}

/// `[access]`: which destinations gateways may ask for, beside the built-in refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Prefixes that are permitted although the built-in rule refuses them; at most 1,024.
    pub allow: Vec<IpNet>,
    /// Prefixes that are refused in addition; at most 1,024.
    pub deny: Vec<IpNet>,
    /// Destination ports that are refused; at most 1,024, default 25.
    pub deny_ports: Vec<NonZeroU16>,
}

/// `[dial]`: how destinations are dialed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// How long a destination may take to answer; default 10 s, 100 ms to 5 min.
    pub timeout: Duration,
    /// Whether IPv4 destinations are reached; default true, `ipv4` or `ipv6` is.
    pub ipv4: bool,
    /// Whether IPv6 destinations are reached; default true.
    pub ipv6: bool,
}

impl Default for Access {
    fn default() -> Self {
        let deny_ports = NonZeroU16::new(25).into_iter().collect();
        Self { allow: Vec::new(), deny: Vec::new(), deny_ports }
    }
}

impl Default for TunnelConfig {
    fn default() -> Self {
        Self { half_open_max: 1024, retry_above: 256, server_id: 0 }
    }
}

impl Default for Dial {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), ipv4: true, ipv6: true }
    }
}

impl Dial {
    /// The address families that destinations are reached by.
    pub fn families(&self) -> Families {
        Families { v4: self.ipv4, v6: self.ipv6 }
    }
}

impl CloudConfig {
    /// Reads and checks `cloud.toml`.
    ///
    /// # Errors
    /// The file cannot be read, or it has mistakes; all of them are listed with their places.
    pub fn load(file: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let file = file.as_ref();
        Self::parse(&super::read_text(file)?, file)
    }

    /// Checks `text`, which is said to come from `file`: relative paths start at its folder.
    ///
    /// # Errors
    /// The text has mistakes; all of them are listed with their places.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let source = Source::new(text, file);
        let config = source.root().and_then(read);
        source.finish(config)
    }

    /// Puts the command line's wishes over what the file said.
    pub fn apply(&mut self, overrides: &Overrides) {
        overrides.apply(&mut self.mode, &mut self.log);
    }
}

fn read(mut root: Section<'_, '_>) -> Option<CloudConfig> {
    let common = common::read(&mut root);
    let listen = root.need_list("listen", 1..=8, listen_address);
    for (index, address) in listen.iter().flatten().enumerate() {
        if listen.iter().flatten().take(index).any(|other| other == address) {
            let key = format!("listen[{}]", index + 1);
            root.source().blame(&key, format!("\"{address}\" stands in the list twice"));
        }
    }
    let congestion = root.get("congestion", parsed(CongestionControl::from_str));
    let carrier_congestion =
        root.table("carrier_congestion").map(read_carrier_congestion).unwrap_or_default();
    let access = root.table("access").map(read_access).unwrap_or_default();
    let dial = root.table("dial").map(read_dial).unwrap_or_default();
    let tunnel = root.table("tunnel").map(read_tunnel).unwrap_or_default();
    let linkdb = root.optional("linkdb", linkdb::read_cloud);
    root.finish();
    Some(CloudConfig {
        mode: common.mode,
        log: common.log,
        tls: common.tls?,
        listen: listen?,
        congestion,
        carrier_congestion,
        session: common.session,
        scheduler: common.scheduler,
        access,
        dial,
        admin: common.admin?,
        tunnel,
        linkdb: linkdb?,
    })
}

fn read_carrier_congestion(section: Section<'_, '_>) -> BTreeMap<CarrierName, CongestionControl> {
    let control = parsed(CongestionControl::from_str);
    section.entries(0..=CARRIERS_MAX, CarrierName::from_str, control).into_iter().collect()
}

fn read_access(mut section: Section<'_, '_>) -> Access {
    let usual = Access::default();
    let allow = section.list("allow", 0..=PREFIXES_MAX, prefix).unwrap_or(usual.allow);
    let deny = section.list("deny", 0..=PREFIXES_MAX, prefix).unwrap_or(usual.deny);
    let ports = section.list("deny_ports", 0..=PREFIXES_MAX, port);
    let deny_ports = ports.unwrap_or(usual.deny_ports);
    section.finish();
    Access { allow, deny, deny_ports }
}

fn read_dial(mut section: Section<'_, '_>) -> Dial {
    let usual = Dial::default();
    let bounds = Duration::from_millis(100)..=Duration::from_secs(300);
    let timeout = section.get("timeout", duration(bounds)).unwrap_or(usual.timeout);
    let ipv4 = section.get("ipv4", boolean).unwrap_or(usual.ipv4);
    let ipv6 = section.get("ipv6", boolean).unwrap_or(usual.ipv6);
    if !ipv4 && !ipv6 {
        section.source().blame(&section.key("ipv6"), "ipv4 and ipv6 are both false");
    }
    section.finish();
    Dial { timeout, ipv4, ipv6 }
}

fn read_tunnel(mut section: Section<'_, '_>) -> TunnelConfig {
    let usual = TunnelConfig::default();
    let half_open = section.get("half_open_max", integer(1..=HALF_OPEN_MAX));
    let retry = section.get("retry_above", integer(0..=HALF_OPEN_MAX));
    let server_id = section.get("server_id", integer(0..=u64::from(u16::MAX)));
    section.finish();
    let count = |n: Option<u64>| n.and_then(|n| usize::try_from(n).ok());
    TunnelConfig {
        half_open_max: count(half_open).unwrap_or(usual.half_open_max),
        retry_above: count(retry).unwrap_or(usual.retry_above),
        server_id: server_id.and_then(|n| u16::try_from(n).ok()).unwrap_or(usual.server_id),
    }
}

const HALF_OPEN_MAX: u64 = 65_536;
const PREFIXES_MAX: usize = 1024;
const CARRIERS_MAX: usize = 256;
