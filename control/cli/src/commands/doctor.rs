//! `polyrail doctor`: the kernel's settings, good and bad, with remedies.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use polyrail_config::{GatewayConfig, InterfaceName, Overrides, bridges, kernel};

/// `polyrail doctor`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The gateway's configuration, which names the intercepted interfaces
    #[arg(long, value_name = "FILE", default_value = "/etc/polyrail/gateway.toml")]
    config: PathBuf,
}

/// Prints each setting; true when none is bad.
pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<bool> {
    let readings = kernel::readings();
    for reading in &readings {
        let mark = match (reading.good, &reading.found) {
            (false, _) => "BAD ",
            (true, None) => "?   ",
            (true, Some(_)) => "good",
        };
        writeln!(out, "{mark} {reading}")?;
    }
    let bad = readings.iter().filter(|reading| !reading.good).count();
    let bad = bad + look_at_bridges(arguments, out)?;
    if bad > 0 {
        let files = "the files in /usr/lib/sysctl.d (docs/operations.md, section 1)";
        writeln!(out, "{bad} bad settings; {files} set them at each boot")?;
    }
    Ok(bad == 0)
}

/// Prints the bridges that lose intercepted connections; returns the number of bad settings.
fn look_at_bridges(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<usize> {
    let losing = bridges::losing();
    let file = arguments.config.display();
    let config = match GatewayConfig::load(&arguments.config, &Overrides::default()) {
        Ok(config) => config,
        Err(_) if losing.is_empty() => return Ok(0),
        Err(error) => {
            for losing in &losing {
                writeln!(out, "?    {losing}: bad if intercept.interfaces has it")?;
            }
            writeln!(out, "?    {file} does not tell (--config names another file): {error}")?;
            return Ok(0);
        }
    };
    let inside = config.intercept.iter().flat_map(|intercept| &intercept.interfaces);
    let inside: Vec<_> = inside.map(InterfaceName::as_str).collect();
    let is_inside = |losing: &&bridges::LosingBridge| inside.contains(&losing.bridge.as_str());
    for losing in losing.iter().filter(is_inside) {
        writeln!(out, "BAD  {losing}, should be 0: {}", losing.remedy())?;
    }
    let bad = losing.iter().filter(is_inside).count();
    if bad == 0 && !inside.is_empty() {
        writeln!(out, "good no bridge of intercept.interfaces passes packets to the IP firewall")?;
    }
    Ok(bad)
}
