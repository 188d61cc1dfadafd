//! The configuration of `polyrail-gateway`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_model::Identity;
use serde::{Deserialize, Serialize};

use super::common::{
    self, Admin, LogConfig, Mode, Overrides, SchedulerConfig, SessionConfig, TlsConfig,
};
use super::error::ConfigError;
use super::linkdb::{self, LinkDbConfig};
use super::names::{CarrierName, CongestionControl, InterfaceName, ModemName};
use super::reader::{Section, Source};
use super::telemetry::{self, TelemetryConfig};
use super::values::{
    boolean, choice, duration, integer, listen_address, parsed, peer_address, port, prefix,
    source_address, text,
};

/// Everything that `gateway.toml` says, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// How tunnels travel, unless a carrier says otherwise.
    pub mode: Mode,
    /// What is logged.
    pub log: LogConfig,
    /// This gateway's certificate files.
    pub tls: TlsConfig,
    /// The cloud that this gateway works with.
    pub cloud: CloudPeer,
    /// Bounds of the session.
    pub session: SessionConfig,
    /// The chain of schedulerlets.
    pub scheduler: SchedulerConfig,
    /// 1 to [`CARRIERS_MAX`] carriers with names of their own; at least one is
    /// [usable](Carrier::usable).
    pub carriers: Vec<Carrier>,
    /// When and how a path's connection is replaced.
    pub restart: Restart,
    /// The admin socket, when wanted.
    pub admin: Option<Admin>,
    /// Transparent interception, when wanted.
    pub intercept: Option<Intercept>,
    /// The DNS forwarder, when wanted; only together with `intercept`.
    pub dns: Option<Dns>,
    /// The SOCKS5 server, when wanted; it or `intercept` is there.
    pub socks5: Option<Socks5>,
    /// What tells one user from another.
    pub users: Users,
    /// Who tells of positions and cells; by default nobody.
    pub telemetry: TelemetryConfig,
    /// The database of handovers, when wanted.
    pub linkdb: Option<LinkDbConfig>,
}

/// The most carriers of one gateway.
pub const CARRIERS_MAX: usize = 16;

/// `[cloud]`: the proxy at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudPeer {
    /// The name that its certificate must state.
    pub name: Identity,
    /// Where it listens, in order of preference; 1 to 8.
    pub addresses: Vec<SocketAddr>,
}

/// `[[carrier]]`: one way to the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// The operator's name for it.
    pub name: CarrierName,
    /// The interface that its connections are bound to.
    pub interface: Option<InterfaceName>,
    /// The address that its connections come from.
    pub source: Option<IpAddr>,
    /// The cloud's addresses over this carrier, when not those of `[cloud]`; then 1 to 8.
    pub addresses: Option<Vec<SocketAddr>>,
    /// The congestion control; default `bbr`.
    pub congestion: CongestionControl,
    /// How its tunnels travel, when not as the top of the file says.
    pub mode: Option<Mode>,
    /// Whether its bytes cost money: fewer attempts at once; default false.
    pub metered: bool,
    /// The folder for a qlog of each of its QUIC connections, when wanted.
    pub qlog: Option<PathBuf>,
    /// Its modem, when not the one whose interface the carrier is bound to.
    pub modem: Option<ModemName>,
    /// The operator's wish; default primary.
    pub role: CarrierRole,
    /// Whether it is used at all; default true.
    pub enabled: bool,
}

/// An operator's wish about a carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarrierRole {
    /// Used whenever it helps.
    #[default]
    Primary,
    /// In this version the same as primary.
    Secondary,
    /// Used only while no other carrier lives.
    Backup,
    /// Never used.
    Never,
}

/// `[restart]`: when and how a path's connection is replaced by a fresh one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Whether a path that makes no progress is given a fresh connection; default true. Without
    /// it a connection is replaced only when it has ended.
    pub enabled: bool,
    /// Whether a fresh connection may carry early data; default true.
    pub early_data: bool,
    /// Attempts alive at once on one carrier; default 3, 1 to 8.
    pub attempts_max: usize,
    /// How long after an attempt the next one begins; default 100 ms, 20 ms to 10 s.
    pub interval: Duration,
}

/// `[intercept]`: users' connections are taken transparently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intercept {
    /// Where intercepted connections arrive; default 7801.
    pub port: NonZeroU16,
    /// The interfaces that users are behind; 1 to 16, none of them a carrier's.
    pub interfaces: Vec<InterfaceName>,
    /// The firewall mark of intercepted packets; default 0x706f.
    pub mark: NonZeroU32,
    /// The routing table for them; default 7801, 1 to 2^32 - 1 without 253 to 255.
    pub table: u32,
    /// Destinations that stay untouched; at most 256.
    pub bypass: Vec<IpNet>,
    /// What happens to private destinations; default bypass.
    pub private: PrivateTraffic,
    /// Whether IPv4 is intercepted; default true, `ipv4` or `ipv6` is.
    pub ipv4: bool,
    /// Whether IPv6 is intercepted; default true.
    pub ipv6: bool,
    /// What happens to what is neither TCP nor DNS; default reject.
    pub other: OtherTraffic,
    /// What becomes of users' traffic when the daemon ends; default open.
    pub on_exit: OnExit,
}

/// What becomes of users' traffic when the daemon ends, crashes included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExit {
    /// The rules go with the process: traffic goes where the machine's own routes lead it.
    #[default]
    Open,
    /// The rules stay: new connections are refused until the daemon is back or
    /// `polyrail-gateway intercept --remove` was run.
    Closed,
}

/// What happens to traffic for private destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrivateTraffic {
    /// It stays untouched: the on-board servers.
    #[default]
    Bypass,
    /// It is carried to the cloud.
    Carry,
}

/// What happens to traffic that the session does not carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OtherTraffic {
    /// It is rejected.
    #[default]
    Reject,
    /// It leaves through this carrier, which has an interface and is usable.
    Direct(CarrierName),
}

/// `[dns]`: a forwarder for users' DNS queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// Where queries arrive; default 7853.
    pub port: NonZeroU16,
    /// The resolver that the cloud is asked to connect to.
    pub resolver: SocketAddr,
}

/// `[socks5]`: a SOCKS5 server for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socks5 {
    /// Where it listens; 1 to 8.
    pub listen: Vec<SocketAddr>,
    /// When it says that the connection stands; default immediate.
    pub reply: SocksReply,
}

/// When a SOCKS5 request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocksReply {
    /// At once: a round trip is saved, and a failure shows as a reset.
    #[default]
    Immediate,
    /// When the cloud has reached the server, with the true outcome.
    Dialed,
}

/// `[users]`: what tells one user from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Default link address.
    pub key: UserKey,
}

/// What a user is known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserKey {
    /// The neighbour's link address where known, else the source address.
    #[default]
    LinkAddress,
    /// The source address.
    Address,
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

impl Default for Restart {
    fn default() -> Self {
        let interval = Duration::from_millis(100);
        Self { enabled: true, early_data: true, attempts_max: 3, interval }
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
        let config = source.root().and_then(|root| read(root, &source));
        if let Some(config) = &config {
            cross_check(config, &source);
        }
        source.finish(config)
    }

    /// Puts the command line's wishes over what the file said.
    pub fn apply(&mut self, overrides: &Overrides) {
        overrides.apply(&mut self.mode, &mut self.log);
    }

    /// How the tunnels of `carrier` travel: its own mode, else the common one.
    pub fn carrier_mode(&self, carrier: &Carrier) -> Mode {
        carrier.mode.unwrap_or(self.mode)
    }

    /// The cloud's addresses over `carrier`: its own, else the common ones.
    pub fn addresses<'a>(&'a self, carrier: &'a Carrier) -> &'a [SocketAddr] {
        carrier.addresses.as_deref().unwrap_or(&self.cloud.addresses)
    }
}

fn read(mut root: Section<'_, '_>, source: &Source<'_>) -> Option<GatewayConfig> {
    let common = common::read(&mut root);
    let cloud = root.need_table("cloud").and_then(read_cloud);
    let sections = root.tables("carrier", 1..=CARRIERS_MAX);
    let count = sections.len();
    let carriers: Vec<_> = sections.into_iter().filter_map(read_carrier).collect();
    let restart = root.table("restart").map(read_restart).unwrap_or_default();
    let intercept = root.optional("intercept", read_intercept);
    let dns = root.optional("dns", read_dns);
    let socks5 = root.optional("socks5", read_socks5);
    let users = root.table("users").map(read_users).unwrap_or_default();
    let telemetry = root.table("telemetry").map(telemetry::read).unwrap_or_default();
    let linkdb = root.optional("linkdb", linkdb::read_gateway);
    root.finish();
    names_differ(&carriers, source);
    if count == 0 || carriers.len() != count {
        return None;
    }
    Some(GatewayConfig {
        mode: common.mode,
        log: common.log,
        tls: common.tls?,
        cloud: cloud?,
        session: common.session,
        scheduler: common.scheduler,
        carriers,
        restart,
        admin: common.admin?,
        intercept: intercept?,
        dns: dns?,
        socks5: socks5?,
        users,
        telemetry,
        linkdb: linkdb?,
    })
}

fn read_cloud(mut section: Section<'_, '_>) -> Option<CloudPeer> {
    let name = section.need("name", parsed(Identity::new));
    let addresses = section.need_list("addresses", 1..=8, peer_address);
    section.finish();
    Some(CloudPeer { name: name?, addresses: addresses? })
}

fn read_carrier(mut section: Section<'_, '_>) -> Option<Carrier> {
    let name = section.need("name", parsed(CarrierName::from_str));
    let interface = section.get("interface", parsed(InterfaceName::from_str));
    let source = section.get("source", source_address);
    let addresses = section.list("addresses", 1..=8, peer_address);
    let congestion = section.get("congestion", parsed(CongestionControl::from_str));
    let role = section.get("role", choice(ROLES)).unwrap_or_default();
    let enabled = section.get("enabled", boolean).unwrap_or(true);
    let mode = section.get("mode", parsed(Mode::from_str));
    let metered = section.get("metered", boolean).unwrap_or(false);
    let qlog = common::path(&mut section, "qlog", false);
    let modem = section.get("modem", parsed(ModemName::from_str));
    section.finish();
    let congestion = congestion.or_else(|| "bbr".parse().ok())?;
    let name = name?;
    Some(Carrier {
        name,
        interface,
        source,
        addresses,
        congestion,
        mode,
        metered,
        qlog,
        modem,
        role,
        enabled,
    })
}

fn read_restart(mut section: Section<'_, '_>) -> Restart {
    let usual = Restart::default();
    let enabled = section.get("enabled", boolean).unwrap_or(usual.enabled);
    let early_data = section.get("early_data", boolean).unwrap_or(usual.early_data);
    let attempts = section.get("attempts_max", integer(1..=8));
    let attempts_max = attempts.and_then(|n| usize::try_from(n).ok()).unwrap_or(usual.attempts_max);
    let bounds = Duration::from_millis(20)..=Duration::from_secs(10);
    let interval = section.get("interval", duration(bounds)).unwrap_or(usual.interval);
    section.finish();
    Restart { enabled, early_data, attempts_max, interval }
}

fn read_intercept(mut section: Section<'_, '_>) -> Option<Intercept> {
    let port = section.get("port", port).or(NonZeroU16::new(7801));
    let interfaces = section.need_list("interfaces", 1..=16, parsed(InterfaceName::from_str));
    let mark = section.get("mark", integer(1..=u64::from(u32::MAX))).unwrap_or(0x706f);
    let mark = u32::try_from(mark).ok().and_then(NonZeroU32::new);
    let table = section.get("table", routing_table).unwrap_or(7801);
    let bypass = section.list("bypass", 0..=256, prefix).unwrap_or_default();
    let private = section.get("private", choice(PRIVATE)).unwrap_or_default();
    let on_exit = section.get("on_exit", choice(ON_EXIT)).unwrap_or_default();
    let ipv4 = section.get("ipv4", boolean).unwrap_or(true);
    let ipv6 = section.get("ipv6", boolean).unwrap_or(true);
    let other = section.get("other", other).unwrap_or_default();
    if !ipv4 && !ipv6 {
        section.source().blame(&section.key("ipv6"), "ipv4 and ipv6 are both false");
    }
    section.finish();
    let (port, interfaces, mark) = (port?, interfaces?, mark?);
    Some(Intercept { port, interfaces, mark, table, bypass, private, ipv4, ipv6, other, on_exit })
}

fn routing_table(value: &toml::de::DeValue<'_>) -> Result<u32, String> {
    let number = integer(1..=u64::from(u32::MAX))(value)?;
    match u32::try_from(number) {
        Ok(253..=255) | Err(_) => Err(format!("table {number} belongs to the kernel")),
        Ok(table) => Ok(table),
    }
}

fn other(value: &toml::de::DeValue<'_>) -> Result<OtherTraffic, String> {
    let found = text(value)?;
    if found == "reject" {
        return Ok(OtherTraffic::Reject);
    }
    let carrier = found
        .strip_prefix("direct:")
        .ok_or_else(|| format!("{found:?} is neither \"reject\" nor \"direct:<carrier>\""))?;
    carrier.parse().map(OtherTraffic::Direct).map_err(|error: super::NameError| error.to_string())
}

fn read_dns(mut section: Section<'_, '_>) -> Option<Dns> {
    let port = section.get("port", port).or(NonZeroU16::new(7853));
    let resolver = section.need("resolver", peer_address);
    section.finish();
    Some(Dns { port: port?, resolver: resolver? })
}

fn read_socks5(mut section: Section<'_, '_>) -> Option<Socks5> {
    let listen = section.need_list("listen", 1..=8, listen_address);
    let reply = section.get("reply", choice(REPLIES)).unwrap_or_default();
    section.finish();
    Some(Socks5 { listen: listen?, reply })
}

fn read_users(mut section: Section<'_, '_>) -> Users {
    let key = section.get("key", choice(USER_KEYS)).unwrap_or_default();
    section.finish();
    Users { key }
}

fn names_differ(carriers: &[Carrier], source: &Source<'_>) {
    let mut seen = BTreeSet::new();
    for (index, carrier) in carriers.iter().enumerate() {
        if !seen.insert(&carrier.name) {
            let key = format!("carrier[{}].name", index + 1);
            source.blame(&key, format!("another carrier is named \"{}\" already", carrier.name));
        }
    }
}

/// What no single table can know.
fn cross_check(config: &GatewayConfig, source: &Source<'_>) {
    if !config.carriers.iter().any(Carrier::usable) {
        let reason = "no carrier may be used: each is disabled or has the role \"never\"";
        source.blame("carrier[1]", reason);
    }
    if config.intercept.is_none() && config.socks5.is_none() {
        source.blame("intercept", "nothing takes users in: add [intercept], [socks5] or both");
    }
    if config.dns.is_some() && config.intercept.is_none() {
        source.blame("dns", "[dns] needs [intercept], which brings it the queries");
    }
    check_carriers(config, source);
    check_ports(config, source);
    if let Some(intercept) = &config.intercept {
        check_intercept(config, intercept, source);
    }
}

fn check_carriers(config: &GatewayConfig, source: &Source<'_>) {
    let mut unbound = None;
    for (index, carrier) in config.carriers.iter().enumerate() {
        let key = format!("carrier[{}]", index + 1);
        let family = |ip: IpAddr| config.addresses(carrier).iter().any(|a| same_family(a.ip(), ip));
        if carrier.source.is_some_and(|ip| !family(ip)) {
            let reason = "no address of the cloud is of this address's family";
            source.blame(&format!("{key}.source"), reason);
        }
        let bound =
            carrier.interface.is_some() || carrier.source.is_some() || carrier.addresses.is_some();
        if !bound && let Some(other) = unbound.replace(&carrier.name) {
            let reason = format!(
                "neither this carrier nor \"{other}\" has an interface, a source or addresses: \
                 both would take the same way"
            );
            source.blame(&key, reason);
        }
    }
}

fn check_ports(config: &GatewayConfig, source: &Source<'_>) {
    let intercept = config.intercept.as_ref().map(|i| i.port.get());
    let dns = config.dns.as_ref().map(|d| d.port.get());
    if dns.is_some() && dns == intercept {
        source.blame("dns.port", "intercept.port is the same");
    }
    for (index, address) in config.socks5.iter().flat_map(|s| &s.listen).enumerate() {
        if [intercept, dns].contains(&Some(address.port())) {
            let key = format!("socks5.listen[{}]", index + 1);
            source.blame(&key, "intercept.port or dns.port is the same");
        }
    }
}

fn check_intercept(config: &GatewayConfig, intercept: &Intercept, source: &Source<'_>) {
    for (index, interface) in intercept.interfaces.iter().enumerate() {
        let key = format!("intercept.interfaces[{}]", index + 1);
        if intercept.interfaces[..index].contains(interface) {
            source.blame(&key, format!("\"{interface}\" stands in the list twice"));
        }
        let carrier = config.carriers.iter().find(|c| c.interface.as_ref() == Some(interface));
        if let Some(carrier) = carrier {
            source.blame(
                &key,
                format!("\"{interface}\" belongs to the carrier \"{}\"", carrier.name),
            );
        }
    }
    if let OtherTraffic::Direct(name) = &intercept.other {
        let reason = match config.carriers.iter().find(|carrier| carrier.name == *name) {
            None => format!("no carrier is named \"{name}\""),
            Some(carrier) if !carrier.usable() => {
                format!("the carrier \"{name}\" is disabled or has the role \"never\"")
            }
            Some(carrier) if carrier.interface.is_none() => {
                format!("the carrier \"{name}\" has no interface")
            }
            Some(_) => return,
        };
        source.blame("intercept.other", reason);
    }
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

const ROLES: &[(&str, CarrierRole)] = &[
    ("primary", CarrierRole::Primary),
    ("secondary", CarrierRole::Secondary),
    ("backup", CarrierRole::Backup),
    ("never", CarrierRole::Never),
];
const ON_EXIT: &[(&str, OnExit)] = &[("open", OnExit::Open), ("closed", OnExit::Closed)];
const PRIVATE: &[(&str, PrivateTraffic)] =
    &[("bypass", PrivateTraffic::Bypass), ("carry", PrivateTraffic::Carry)];
const REPLIES: &[(&str, SocksReply)] =
    &[("immediate", SocksReply::Immediate), ("dialed", SocksReply::Dialed)];
const USER_KEYS: &[(&str, UserKey)] =
    &[("link_address", UserKey::LinkAddress), ("address", UserKey::Address)];
