//! The configuration files of both daemons, parsed into types that cannot hold nonsense.
//!
//! A file is taken or refused whole. A refusal lists every mistake with file, line, column, key
//! and reason. What a file names (certificates, interfaces) is not touched here: `check` does it.

#![forbid(unsafe_code)]

mod cloud;
mod common;
mod error;
mod gateway;
pub mod kernel;
mod linkdb;
pub mod log;
mod names;
mod reader;
mod telemetry;
mod values;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use cloud::{Access, CloudConfig, Dial, TunnelConfig};
pub use common::{
    Admin, CHAIN_MAX, LogConfig, LogFormat, LogLevel, LogLevelError, Mode, ModeError, Overrides,
    SOCKET_PATH_MAX, SchedulerConfig, SessionConfig, TlsConfig,
};
pub use error::{ConfigError, PROBLEMS_MAX, Problem};
pub use gateway::{
    CARRIERS_MAX, Carrier, CarrierRole, CloudPeer, Dns, GatewayConfig, Intercept, OnExit,
    OtherTraffic, PrivateTraffic, Restart, Socks5, SocksReply, UserKey, Users,
};
pub use linkdb::{CloudLinkDb, EVENTS_MAX, LinkDbConfig};
pub use names::{CarrierName, CongestionControl, InterfaceName, ModemName, NameError};
pub use polyrail_scheduler::ChainSpec;
pub use telemetry::{BusAddress, BusAddressError, MessageBus, TelemetryConfig};

/// The largest configuration file that is read, in bytes.
pub const FILE_MAX: u64 = 1024 * 1024;

/// The text of a configuration file of at most [`FILE_MAX`].
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn read_text(file: &Path) -> Result<String, ConfigError> {
    let refuse = |source| ConfigError::Read { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(refuse)?;
    opened.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(refuse)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(refuse(io::Error::new(io::ErrorKind::InvalidData, "it is over 1 MiB")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        let start = valid.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&valid[start..]).chars().count() + 1;
        let reason = "a byte that is not UTF-8".to_owned();
        let problems = vec![Problem { line, column, key: String::new(), reason }];
        ConfigError::Invalid { file: file.to_owned(), problems }
    })
}
