//! The configuration files of both daemons, parsed into types that hold only valid values.
//!
//! A file is taken or refused whole. A refusal names file, line, column, key and reason of the
//! first mistake. This crate also sets up logging and reads the kernel's settings. The parser does
//! not touch what a file names (certificates, interfaces): `polyrail check` does.

#![forbid(unsafe_code)]

pub mod bridges;
mod cap;
mod carrier;
pub mod check;
mod cloud;
mod common;
mod document;
mod error;
mod gateway;
mod groups;
mod intercept;
pub mod kernel;
mod linkdb;
pub mod log;
mod names;
mod page;
mod telemetry;
mod users;
mod values;

#[cfg(test)]
mod tests;

pub use cap::{Cap, CapAction, CapBytes, RateLimit};
pub use carrier::{CarrierConfig, CarrierRole};
pub use cloud::{Access, CloudConfig, CloudTables, Dial, TunnelConfig};
pub use common::{
    Admin, Common, DatagramCopies, Filtering, LogConfig, LogFormat, LogLevel, MetricsConfig, Mode,
    Overrides, SOCKET_PATH_MAX, SchedulerConfig, SessionConfig, TlsConfig, UdpConfig, chain,
};
pub use document::{Config, FILE_MAX, Tables};
pub use error::{ConfigError, Problem};
pub use gateway::{
    CARRIERS_MAX, CLOUDS_MAX, CloudPeer, GatewayConfig, GatewayTables, Restart, StandbyCloud, Usage,
};
pub use groups::{GROUPS_MAX, GroupConfig};
pub use intercept::{Intercept, OnExit, OtherTraffic, Ports, PrivateTraffic, UdpTraffic};
pub use linkdb::{EVENTS_MAX, LinkDbConfig, SharedConfig};
pub use names::{
    BusAddress, CarrierName, CongestionControl, GroupName, InterfaceName, LinkAddress, ModemName,
    NameError,
};
pub use page::PageConfig;
pub use polyrail_scheduler::ChainSpec;
pub use telemetry::TelemetryConfig;
pub use users::{Dns, Socks5, SocksReply, UserKey, Users};
pub use values::parse_duration;
