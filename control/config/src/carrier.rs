//! `[[carrier]]`: one way to the cloud.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cap::{Cap, RateLimit};
use crate::common::Mode;
use crate::names::{CarrierName, CongestionControl, InterfaceName, ModemName};
use crate::values::{PeerAddress, SourceAddress, some, some_list, some_path, yes};

/// `[[carrier]]`: one way to the cloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CarrierConfig {
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
    /// Whether its bytes cost money: fewer connection attempts at once, and no copies; default
    /// false. With a cap they do in any case.
    #[serde(default)]
    pub metered: bool,
    /// The data that it may carry in a month, if not any.
    pub cap: Option<Cap>,
    /// The most that each side sends over it, if limited.
    pub rate_limit: Option<RateLimit>,
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
    /// Used while no primary has room.
    Secondary,
    /// Used only while no other carrier is up.
    Backup,
    /// Watched, but not used.
    Never,
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

impl CarrierConfig {
    /// Whether the gateway may use it: enabled, and its role is not `never`.
    pub fn usable(&self) -> bool {
        self.enabled && self.role != CarrierRole::Never
    }
}
