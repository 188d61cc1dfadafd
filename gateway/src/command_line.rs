//! The command line of `polyrail-gateway`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use polyrail_admin::StartOptions;
use polyrail_config::check::log_tls;
use polyrail_config::{GatewayConfig, Overrides};
use polyrail_identity::NodeRole;

use crate::intercept::{self, Plan};

/// The daemon on board: takes passengers' connections and carries them to the cloud.
#[derive(Debug, Parser)]
#[command(name = "polyrail-gateway", version)]
pub struct Arguments {
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/polyrail/gateway.toml")]
    config: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print, apply or remove the rules of transparent interception
    Intercept(Intercept),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Intercept {
    /// Print the commands and rules
    #[arg(long)]
    print: bool,
    /// Apply the rules; they stay until they are removed
    #[arg(long)]
    apply: bool,
    /// Remove the rules
    #[arg(long)]
    remove: bool,
}

/// Does what the command line says.
///
/// # Errors
/// An error that the operator must correct.
pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(Command::Intercept(Intercept { remove: true, .. })) = arguments.command {
        return Ok(intercept::remove()?);
    }
    let mut config = GatewayConfig::load(&arguments.config, &arguments.overrides)?;
    if let Some(Command::Intercept(wanted)) = arguments.command {
        if let Some(error) = intercept::exclude_missing_ipv6(&mut config)? {
            eprintln!("polyrail-gateway: this machine has no IPv6, so only IPv4: {error}");
        }
        let plan = Plan::from_config(&config)?;
        if wanted.print {
            print!("{}", intercept::print(&plan)?);
        } else {
            intercept::apply(&plan)?;
        }
        return Ok(());
    }
    let log = polyrail_config::log::init(&config.common.log, &config.ignored)?;
    log_tls(&config.common.tls, NodeRole::Gateway);
    let Arguments { config: file, overrides, command: _ } = arguments;
    crate::shell::run(config, StartOptions { file, overrides, log: Some(log) })
}
