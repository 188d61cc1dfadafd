//! The configuration of `polyrail-gateway`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use polyrail_identity::NodeRole;
use polyrail_model::Identity;
use serde::{Deserialize, Serialize};

use crate::carrier::CarrierConfig;
use crate::common::{Common, Mode};
use crate::document::{Config, Tables};
use crate::error::Broken;
use crate::groups::{self, GroupConfig};
use crate::intercept::Intercept;
use crate::telemetry::TelemetryConfig;
use crate::users::{Dns, Socks5, Users};
use crate::values::{PeerAddress, count, displayed, duration, identity, list, path, with_unit};

/// `gateway.toml`, checked.
pub type GatewayConfig = Config<GatewayTables>;

/// The keys of `gateway.toml` alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayTables {
    /// The cloud of this gateway.
    pub cloud: CloudPeer,
    /// 1 to [`CARRIERS_MAX`] carriers with different names; at least one is
    /// [usable](CarrierConfig::usable).
    #[serde(rename = "carrier")]
    pub carriers: Vec<CarrierConfig>,
    /// When and how a path's connection is replaced.
    #[serde(default)]
    pub restart: Restart,
    /// Transparent interception, if any.
    pub intercept: Option<Intercept>,
    /// The DNS forwarder, if any; only together with `intercept`.
    pub dns: Option<Dns>,
    /// The SOCKS5 server, if any; it or `intercept` is there.
    pub socks5: Option<Socks5>,
    /// How users are distinguished.
    #[serde(default)]
    pub users: Users,
    /// Users with a share of their own; a user belongs to the first group that names it.
    #[serde(default, rename = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
    /// Where the carriers' used data is kept.
    #[serde(default)]
    pub usage: Usage,
    /// The sources of positions and cells; by default none.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
}

/// The most carriers of one gateway.
pub const CARRIERS_MAX: usize = 16;

/// The most clouds of one gateway.
pub const CLOUDS_MAX: usize = 8;

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
    /// The clouds to use while it does not answer, in order of preference; by default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standby: Vec<StandbyCloud>,
}

/// `[[cloud.standby]]`: a cloud for when those before it do not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandbyCloud {
    /// The name that its certificate must state.
    #[serde(deserialize_with = "identity", serialize_with = "displayed")]
    pub name: Identity,
    /// Where it listens, over each carrier; 1 to 8.
    #[serde(deserialize_with = "list::<_, PeerAddress, _, 1, 8>")]
    pub addresses: Vec<SocketAddr>,
}

/// `[usage]`: where the data that carriers have carried is kept, for their caps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// The file.
    #[serde(deserialize_with = "path")]
    pub path: PathBuf,
}

impl Default for Usage {
    fn default() -> Self {
        Self { path: PathBuf::from("/var/lib/polyrail/usage.json") }
    }
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

impl GatewayConfig {
    /// The mode of `carrier`'s tunnels: its own, else the common one.
    pub fn carrier_mode(&self, carrier: &CarrierConfig) -> Mode {
        carrier.mode.unwrap_or(self.common.mode)
    }
}

impl GatewayTables {
    /// The names of the clouds in order of preference; at least one.
    pub fn clouds(&self) -> impl Iterator<Item = &Identity> {
        let standby = self.cloud.standby.iter().map(|cloud| &cloud.name);
        std::iter::once(&self.cloud.name).chain(standby)
    }

    /// The addresses of a cloud, by its place in [`GatewayTables::clouds`], over `carrier`: those
    /// of the carrier are of the first cloud.
    pub fn addresses<'a>(&'a self, cloud: usize, carrier: &'a CarrierConfig) -> &'a [SocketAddr] {
        match cloud.checked_sub(1).and_then(|place| self.cloud.standby.get(place)) {
            Some(standby) => &standby.addresses,
            None => carrier.addresses.as_deref().unwrap_or(&self.cloud.addresses),
        }
    }

    fn cloud_rules(&self) -> Result<(), Broken> {
        let count = self.clouds().count();
        if count > CLOUDS_MAX {
            let reason = format!("{} entries; at most {} are allowed", count - 1, CLOUDS_MAX - 1);
            return Err(Broken::new("cloud.standby", reason));
        }
        for (index, name) in self.clouds().enumerate().skip(1) {
            if self.clouds().take(index).any(|other| other == name) {
                let reason = format!("another cloud is already named \"{name}\"");
                return Err(Broken::new(format!("cloud.standby[{index}].name"), reason));
            }
        }
        Ok(())
    }

    fn carrier_rules(&self) -> Result<(), Broken> {
        let count = self.carriers.len();
        if !(1..=CARRIERS_MAX).contains(&count) {
            let reason = format!("{count} entries; 1 to {CARRIERS_MAX} are allowed");
            return Err(Broken::new("carrier", reason));
        }
        let mut unbound: Option<&CarrierConfig> = None;
        for (index, carrier) in self.carriers.iter().enumerate() {
            let key = format!("carrier[{}]", index + 1);
            if self.carriers[..index].iter().any(|other| other.name == carrier.name) {
                let reason = format!("another carrier is already named \"{}\"", carrier.name);
                return Err(Broken::new(format!("{key}.name"), reason));
            }
            let reaches = |cloud: usize, ip: IpAddr| {
                let addresses = self.addresses(cloud, carrier);
                addresses.iter().any(|address| address.is_ipv4() == ip.is_ipv4())
            };
            for (place, cloud) in self.clouds().enumerate() {
                if carrier.source.is_some_and(|ip| !reaches(place, ip)) {
                    let reason =
                        format!("no address of the cloud \"{cloud}\" is of this address's family");
                    return Err(Broken::new(format!("{key}.source"), reason));
                }
            }
            let CarrierConfig { interface, source, addresses, .. } = carrier;
            let apart = addresses.is_some() && self.cloud.standby.is_empty();
            let is_bound = interface.is_some() || source.is_some() || apart;
            if !is_bound && let Some(other) = unbound.replace(carrier) {
                let or = if self.cloud.standby.is_empty() {
                    ", a source or addresses"
                } else {
                    " or a source"
                };
                let reason = format!(
                    "neither this carrier nor \"{}\" has an interface{or}: both would take the \
                     same way",
                    other.name
                );
                return Err(Broken::new(key, reason));
            }
        }
        self.cap_rules()?;
        if self.carriers.iter().any(CarrierConfig::usable) {
            return Ok(());
        }
        let reason = "no carrier may be used: each is disabled or has the role \"never\"";
        Err(Broken::new("carrier[1]", reason))
    }

    /// A cap counts the bytes of the carrier's interface.
    fn cap_rules(&self) -> Result<(), Broken> {
        for (index, carrier) in self.carriers.iter().enumerate().filter(|(_, c)| c.cap.is_some()) {
            let broken =
                |reason: String| Broken::new(format!("carrier[{}].cap", index + 1), reason);
            let Some(interface) = &carrier.interface else {
                let reason = "a cap needs an interface, because it counts the interface's bytes";
                return Err(broken(reason.to_owned()));
            };
            let shares = |other: &&CarrierConfig| {
                other.name != carrier.name && other.interface.as_ref() == Some(interface)
            };
            if let Some(other) = self.carriers.iter().find(shares) {
                let reason = format!(
                    "it counts the bytes of the interface, which carrier \"{}\" has, too",
                    other.name
                );
                return Err(broken(reason));
            }
        }
        Ok(())
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

impl Tables for GatewayTables {
    const ROLE: NodeRole = NodeRole::Gateway;
    const NEEDS_RESTART: &'static [&'static str] = &[
        "admin",
        "cloud.name",
        "cloud.standby",
        "dns.port",
        "intercept",
        "linkdb.path",
        "metrics",
        "page",
        "session.memory",
        "socks5.listen",
        "usage",
        "users",
    ];

    fn interfaces(&self) -> Option<Vec<String>> {
        if self.carriers.iter().any(|c| c.interface.is_none() && c.source.is_some()) {
            return None;
        }
        let bound = self.carriers.iter().filter_map(|carrier| carrier.interface.as_ref());
        Some(bound.map(ToString::to_string).collect())
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        let qlogs = self.carriers.iter_mut().filter_map(|carrier| carrier.qlog.as_mut());
        qlogs.chain(&mut self.telemetry.replay).chain([&mut self.usage.path]).collect()
    }

    fn rules(&self, common: &Common) -> Result<(), Broken> {
        self.cloud_rules()?;
        self.carrier_rules()?;
        if self.intercept.is_none() && self.socks5.is_none() {
            let reason = "the gateway has no users: add [intercept], [socks5] or both";
            return Err(Broken::new("intercept", reason));
        }
        if self.dns.is_some() && self.intercept.is_none() {
            return Err(Broken::new("dns", "[dns] needs [intercept], which diverts the queries"));
        }
        self.port_rules()?;
        groups::rules(&self.groups, self.users.key)?;
        self.intercept.as_ref().map_or(Ok(()), |intercept| intercept.rules(&self.carriers))?;
        self.telemetry.rules()?;
        if common.linkdb.as_ref().is_some_and(|linkdb| linkdb.share.is_some()) {
            return Err(Broken::new("linkdb.share", "unknown field: only a cloud has it"));
        }
        if common.linkdb.as_ref().is_some_and(|linkdb| linkdb.shared.is_some()) {
            return Err(Broken::new("linkdb.shared", "unknown field: only a cloud has it"));
        }
        if common.udp.filtering.is_some() {
            return Err(Broken::new("udp.filtering", "unknown field: only a cloud has it"));
        }
        Ok(())
    }
}
