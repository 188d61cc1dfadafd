//! `[telemetry]`: the sources of positions and of serving cells.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::document::Broken;
use crate::names::BusAddress;
use crate::values::{PeerAddress, some, some_path};

/// `[telemetry]`: the sources in use; by default none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Where gpsd listens.
    #[serde(deserialize_with = "some::<_, PeerAddress, _>")]
    pub gpsd: Option<SocketAddr>,
    /// Whether ModemManager is a source.
    pub modem_manager: bool,
    /// The bus of ModemManager, when it is not the system bus.
    pub modem_manager_bus: Option<BusAddress>,
    /// A file, a named pipe or a Unix socket with lines of telemetry.
    #[serde(deserialize_with = "some_path")]
    pub replay: Option<PathBuf>,
}

/// A D-Bus message bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MessageBus {
    /// The machine's own.
    #[default]
    System,
    /// Another one.
    At(BusAddress),
}

impl TelemetryConfig {
    /// Whether no source is in use.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The bus of ModemManager, when that is a source.
    pub fn message_bus(&self) -> Option<MessageBus> {
        let bus = || self.modem_manager_bus.clone().map_or(MessageBus::System, MessageBus::At);
        self.modem_manager.then(bus)
    }

    pub(crate) fn rules(&self) -> Result<(), Broken> {
        if self.modem_manager || self.modem_manager_bus.is_none() {
            return Ok(());
        }
        let reason = "this key needs telemetry.modem_manager = true";
        Err(Broken::new("telemetry.modem_manager_bus", reason))
    }
}

impl fmt::Display for MessageBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("the system bus"),
            Self::At(address) => f.write_str(address.as_str()),
        }
    }
}
