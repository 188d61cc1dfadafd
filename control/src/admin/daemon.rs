//! The two configurations as the control thread handles them alike.

use std::fmt::Debug;
use std::path::Path;

use crate::check::Kind;
use crate::reload::{Difference, RestartNeeded, diff_cloud, diff_gateway};
use crate::telemetry::TelemetryPlan;
use polyrail_config::{
    Admin, CloudConfig, ConfigError, GatewayConfig, LogConfig, Overrides, TlsConfig,
};

/// A daemon's configuration, as far as the control thread is concerned.
pub trait DaemonConfig: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// Whose it is.
    const KIND: Kind;

    /// Reads it from `file` and puts the command line's wishes over it.
    ///
    /// # Errors
    /// The file cannot be read or has mistakes.
    fn read(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError>;

    /// How `new` differs from this one.
    ///
    /// # Errors
    /// Differences that a running daemon cannot take.
    fn diff(&self, new: &Self) -> Result<Difference, RestartNeeded>;

    /// Its log.
    fn log(&self) -> &LogConfig;

    /// Its certificate files.
    fn tls(&self) -> &TlsConfig;

    /// Its admin socket, if any.
    fn admin(&self) -> Option<&Admin>;

    /// The interfaces that its carriers are bound to. `None`: all of the machine's matter,
    /// because a carrier is bound to an address alone.
    fn interfaces(&self) -> Option<Vec<String>>;

    /// Its sources of telemetry.
    fn telemetry(&self) -> TelemetryPlan;
}

impl DaemonConfig for GatewayConfig {
    const KIND: Kind = Kind::Gateway;

    fn read(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        let mut config = Self::load(file)?;
        config.apply(overrides);
        Ok(config)
    }

    fn diff(&self, new: &Self) -> Result<Difference, RestartNeeded> {
        diff_gateway(self, new)
    }

    fn log(&self) -> &LogConfig {
        &self.log
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

    fn telemetry(&self) -> TelemetryPlan {
        TelemetryPlan::of(self)
    }
}

impl DaemonConfig for CloudConfig {
    const KIND: Kind = Kind::Cloud;

    fn read(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        let mut config = Self::load(file)?;
        config.apply(overrides);
        Ok(config)
    }

    fn diff(&self, new: &Self) -> Result<Difference, RestartNeeded> {
        diff_cloud(self, new)
    }

    fn log(&self) -> &LogConfig {
        &self.log
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

    fn telemetry(&self) -> TelemetryPlan {
        TelemetryPlan::default()
    }
}
