//! `polyrail check`: a configuration and everything that it names.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use polyrail_config::check::{self, Kind};

/// `polyrail check`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file
    file: PathBuf,
    /// The daemon of the configuration [default: guessed from its keys]
    #[arg(long = "as", value_name = "DAEMON")]
    kind: Option<Kind>,
}

/// Prints the findings; returns true if the daemon can start with the configuration.
pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<bool> {
    let Arguments { file, kind } = arguments;
    let report = match check::check(file, *kind) {
        Ok(report) => report,
        Err(error) => {
            writeln!(out, "{error}")?;
            if kind.is_none()
                && let Ok(text) = std::fs::read_to_string(file)
            {
                let kind = check::guess(&text);
                let file = file.display();
                writeln!(out, "{file}: read as a {kind}'s configuration (--as overrides this)")?;
            }
            return Ok(false);
        }
    };
    let file = file.display();
    for error in &report.errors {
        writeln!(out, "{file}: error: {error}")?;
    }
    for warning in &report.warnings {
        writeln!(out, "{file}: warning: {warning}")?;
    }
    if report.errors.is_empty() {
        writeln!(out, "{file}: OK: {}", report.summary)?;
    }
    Ok(report.errors.is_empty())
}
