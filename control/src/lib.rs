//! Configuration, logs, identity and kernel settings: what an operator sets up and looks at.
//!
//! The daemons take their typed configuration from here and the operator's command `polyrail` is
//! a thin shell over it. Nothing here touches a session, a tunnel or a user's byte.

#![forbid(unsafe_code)]

pub mod admin;
pub mod check;
pub mod config;
pub mod kernel;
pub mod linkdb;
mod links;
pub mod log;
pub mod pki;
pub mod reload;
pub mod telemetry;

pub use config::{CloudConfig, ConfigError, GatewayConfig, Overrides};
