//! `[telemetry]`: the sources of positions and of serving cells.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Broken;
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

impl TelemetryConfig {
    /// Whether no source is in use.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn rules(&self) -> Result<(), Broken> {
        if self.modem_manager || self.modem_manager_bus.is_none() {
            return Ok(());
        }
        let reason = "this key needs telemetry.modem_manager = true";
        Err(Broken::new("telemetry.modem_manager_bus", reason))
    }
}
