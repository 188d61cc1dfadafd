//! The command line of `polyrail-cloud`.

use std::path::PathBuf;

use clap::Parser;
use polyrail_admin::StartOptions;
use polyrail_config::check::log_tls;
use polyrail_config::{CloudConfig, Overrides};
use polyrail_identity::NodeRole;

/// The proxy on the ground: gateways connect here, and from here the servers are reached.
#[derive(Debug, Parser)]
#[command(name = "polyrail-cloud", version)]
pub struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/polyrail/cloud.toml")]
    config: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
}

/// Runs the daemon.
///
/// # Errors
/// An error that the operator must correct.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = CloudConfig::load(&arguments.config, &arguments.overrides)?;
    let log = polyrail_config::log::init(&config.common.log, &config.ignored)?;
    log_tls(&config.common.tls, NodeRole::Cloud);
    let Arguments { config: file, overrides } = arguments;
    crate::run::run(config, StartOptions { file, overrides, log: Some(log) })
}
