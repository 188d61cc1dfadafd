//! `[telemetry]`: who tells the gateway where the train is and which cells its modems are in.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use super::common::path;
use super::reader::Section;
use super::values::{boolean, parsed, peer_address};

/// `[telemetry]`: the sources that are used; by default none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Where gpsd listens.
    pub gpsd: Option<SocketAddr>,
    /// The bus on which ModemManager is, when it is asked.
    pub modem_manager: Option<MessageBus>,
    /// A file, a named pipe or a Unix socket with lines of telemetry.
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

/// The address of a D-Bus bus, as `unix:path=/run/dbus/system_bus_socket` (D-Bus specification,
/// "Server Addresses").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusAddress(String);

/// A text that is no address of a bus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a bus such as \"unix:path=/run/dbus/system_bus_socket\"")]
pub struct BusAddressError(String);

impl TelemetryConfig {
    /// Whether no source is used.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl FromStr for BusAddress {
    type Err = BusAddressError;

    fn from_str(text: &str) -> Result<Self, BusAddressError> {
        let error = || BusAddressError(text.to_owned());
        // The library takes only what it can connect to.
        zbus::Address::from_str(text).map_err(|_| error())?;
        if text.len() <= BUS_ADDRESS_MAX { Ok(Self(text.to_owned())) } else { Err(error()) }
    }
}

impl BusAddress {
    /// The address as text.
    pub fn as_str(&self) -> &str {
        &self.0
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

/// Reads the table.
pub(super) fn read(mut section: Section<'_, '_>) -> TelemetryConfig {
    let gpsd = section.get("gpsd", peer_address);
    let wanted = section.get("modem_manager", boolean).unwrap_or(false);
    let address = section.get("modem_manager_bus", parsed(BusAddress::from_str));
    let replay = path(&mut section, "replay", false);
    if address.is_some() && !wanted {
        let reason = "nothing asks ModemManager: modem_manager is not true";
        section.source().blame(&section.key("modem_manager_bus"), reason);
    }
    section.finish();
    let bus = address.map_or(MessageBus::System, MessageBus::At);
    TelemetryConfig { gpsd, modem_manager: wanted.then_some(bus), replay }
}

/// The longest address of a bus that is taken, in bytes.
const BUS_ADDRESS_MAX: usize = 512;
