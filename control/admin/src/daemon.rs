//! The common interface of both configurations.

use std::fmt::Debug;
use std::path::Path;

use polyrail_config::check::Kind;
use polyrail_config::{
    Admin, CloudConfig, ConfigError, GatewayConfig, LogConfig, Overrides, Problem, SchedulerConfig,
    SessionConfig, TlsConfig,
};
use serde::Serialize;

/// A daemon's configuration.
pub trait DaemonConfig: Clone + Debug + PartialEq + Serialize + Send + Sync + 'static {
    /// The kind of daemon.
    const KIND: Kind;

    /// Keys and tables that a running daemon cannot change.
    const NEEDS_RESTART: &'static [&'static str];

    /// Reads `file` and applies the command line options.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    fn read(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError>;

    /// Deleted keys that its file still holds.
    fn ignored(&self) -> &[Problem];

    /// Its log.
    fn log(&self) -> &LogConfig;

    /// Its session limits.
    fn session(&self) -> &SessionConfig;

    /// Its scheduler.
    fn scheduler(&self) -> &SchedulerConfig;

    /// Its certificate files.
    fn tls(&self) -> &TlsConfig;

    /// Its admin socket, if any.
    fn admin(&self) -> Option<&Admin>;

    /// The interfaces of its carriers; `None` for all interfaces, if a carrier is bound only to an
    /// address.
    fn interfaces(&self) -> Option<Vec<String>>;
}

impl DaemonConfig for GatewayConfig {
    const KIND: Kind = Kind::Gateway;
    const NEEDS_RESTART: &'static [&'static str] = &[
        "admin",
        "cloud.name",
        "dns.port",
        "intercept",
        "linkdb.path",
        "session.memory",
        "socks5.listen",
        "users",
    ];

    fn read(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        let mut config = Self::load(file)?;
        config.apply(overrides);
        Ok(config)
    }

    fn ignored(&self) -> &[Problem] {
        &self.ignored
    }

    fn log(&self) -> &LogConfig {
        &self.log
    }

    fn session(&self) -> &SessionConfig {
        &self.session
    }

    fn scheduler(&self) -> &SchedulerConfig {
        &self.scheduler
    }

    fn tls(&self) -> &TlsConfig {
        &self.tls
    }

    fn admin(&self) -> Option<&Admin> {
        self.admin.as_ref()
    }

    fn interfaces(&self) -> Option<Vec<String>> {
        let name = |carrier: &polyrail_config::Carrier| match (&carrier.interface, carrier.source) {
            (Some(interface), _) => Some(Some(interface.to_string())),
            (None, Some(_)) => None,
            (None, None) => Some(None),
        };
        let names: Option<Vec<_>> = self.carriers.iter().map(name).collect();
        names.map(|names| names.into_iter().flatten().collect())
    }
}

impl DaemonConfig for CloudConfig {
    const KIND: Kind = Kind::Cloud;
    const NEEDS_RESTART: &'static [&'static str] =
        &["admin", "linkdb.path", "listen", "mode", "session.memory", "tunnel"];

    fn read(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        let mut config = Self::load(file)?;
        config.apply(overrides);
        Ok(config)
    }

    fn ignored(&self) -> &[Problem] {
        &self.ignored
    }

    fn log(&self) -> &LogConfig {
        &self.log
    }

    fn session(&self) -> &SessionConfig {
        &self.session
    }

    fn scheduler(&self) -> &SchedulerConfig {
        &self.scheduler
    }

    fn tls(&self) -> &TlsConfig {
        &self.tls
    }

    fn admin(&self) -> Option<&Admin> {
        self.admin.as_ref()
    }

    fn interfaces(&self) -> Option<Vec<String>> {
        Some(Vec::new())
    }
}
