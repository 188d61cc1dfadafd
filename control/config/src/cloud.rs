//! The configuration of `polyrail-cloud`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_identity::NodeRole;
use polyrail_model::Families;
use serde::{Deserialize, Serialize};

use crate::common::Common;
use crate::document::{Config, Tables};
use crate::error::Broken;
use crate::linkdb::SharedConfig;
use crate::names::{CarrierName, CongestionControl};
use crate::values::{ListenAddress, Prefix, count, duration, list, with_unit};

/// `cloud.toml`, checked.
pub type CloudConfig = Config<CloudTables>;

/// The keys of `cloud.toml` alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudTables {
    /// The addresses on which gateways connect; 1 to 8, each once.
    #[serde(deserialize_with = "list::<_, ListenAddress, _, 1, 8>")]
    pub listen: Vec<SocketAddr>,
    /// The number of event loops that share the gateways among them, each on a thread of its own;
    /// 0, the default: as many as the processors that the process may use; at most 64.
    #[serde(default, deserialize_with = "count::<_, _, 0, 64>")]
    pub workers: usize,
    /// The congestion control of the downlink; by default bbr where the kernel has it.
    pub congestion: Option<CongestionControl>,
    /// `[carrier_congestion]`: other ones for single carriers, by the names that gateways give
    /// them; at most 256.
    #[serde(default)]
    pub carrier_congestion: BTreeMap<CarrierName, CongestionControl>,
    /// Which destinations gateways may ask for.
    #[serde(default)]
    pub access: Access,
    /// How destinations are dialed.
    #[serde(default)]
    pub dial: Dial,
    /// How tunnels over QUIC begin.
    #[serde(default)]
    pub tunnel: TunnelConfig,
}

/// `[tunnel]`: how tunnels over QUIC begin; the bounds are per listening address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TunnelConfig {
    /// Concurrent handshakes; further ones are dropped; default 1,024, 1 to 65,536.
    #[serde(deserialize_with = "count::<_, _, 1, 65_536>")]
    pub half_open_max: usize,
    /// From this many concurrent handshakes on, a client must first prove its address (Retry);
    /// default 256, 0 to 65,536.
    #[serde(deserialize_with = "count::<_, _, 0, 65_536>")]
    pub retry_above: usize,
    /// The number of this cloud's process in its connection ids, for a load balancer that routes
    /// by them; default 0, 0 to 65,535.
    pub server_id: u16,
}

/// `[access]`: which destinations gateways may ask for, in addition to the built-in rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Prefixes that are permitted although the built-in rules refuse them; at most 1,024.
    #[serde(deserialize_with = "list::<_, Prefix, _, 0, PREFIXES_MAX>")]
    pub allow: Vec<IpNet>,
    /// Prefixes that are refused in addition; at most 1,024.
    #[serde(deserialize_with = "list::<_, Prefix, _, 0, PREFIXES_MAX>")]
    pub deny: Vec<IpNet>,
    /// Destination ports that are refused; at most 1,024, default 25.
    #[serde(deserialize_with = "list::<_, NonZeroU16, _, 0, PREFIXES_MAX>")]
    pub deny_ports: Vec<NonZeroU16>,
}

/// `[dial]`: how destinations are dialed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dial {
    /// How long a destination may take to answer; default 10 s, 100 ms to 5 min.
    #[serde(deserialize_with = "duration::<_, 100, 300_000>", serialize_with = "with_unit")]
    pub timeout: Duration,
    /// Concurrent dials of one user; further ones wait; default 128, 1 to 4,096.
    #[serde(deserialize_with = "count::<_, _, 1, 4_096>")]
    pub user_max: usize,
    /// Concurrent dials of one gateway; further ones wait; default 1,024, 1 to 4,096.
    #[serde(deserialize_with = "count::<_, _, 1, 4_096>")]
    pub gateway_max: usize,
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
        let timeout = Duration::from_secs(10);
        Self { timeout, user_max: 128, gateway_max: 1024, ipv4: true, ipv6: true }
    }
}

impl Dial {
    /// The address families of destinations.
    pub fn families(&self) -> Families {
        Families { v4: self.ipv4, v6: self.ipv6 }
    }
}

impl Tables for CloudTables {
    const ROLE: NodeRole = NodeRole::Cloud;
    const NEEDS_RESTART: &'static [&'static str] = &[
        "admin",
        "linkdb.path",
        "linkdb.shared",
        "listen",
        "metrics",
        "mode",
        "page",
        "session.memory",
        "tunnel",
        "workers",
    ];

    fn interfaces(&self) -> Option<Vec<String>> {
        Some(Vec::new())
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        Vec::new()
    }

    fn rules(&self, common: &Common) -> Result<(), Broken> {
        let shared = common.linkdb.as_ref().and_then(|linkdb| linkdb.shared.as_ref());
        shared.map_or(Ok(()), SharedConfig::rules)?;
        for (index, address) in self.listen.iter().enumerate() {
            if self.listen[..index].contains(address) {
                let reason = format!("\"{address}\" is in the list twice");
                return Err(Broken::new(format!("listen[{}]", index + 1), reason));
            }
        }
        let count = self.carrier_congestion.len();
        if count > CARRIERS_MAX {
            let reason = format!("{count} entries; 0 to {CARRIERS_MAX} are allowed");
            return Err(Broken::new("carrier_congestion", reason));
        }
        if !self.dial.ipv4 && !self.dial.ipv6 {
            return Err(Broken::new("dial.ipv6", "ipv4 and ipv6 are both false"));
        }
        Ok(())
    }
}

const PREFIXES_MAX: usize = 1024;
const CARRIERS_MAX: usize = 256;
