//! `polyrail check`: a configuration and all that it names.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use polyrail_control::check::{self, Kind};

/// `polyrail check`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file
    file: PathBuf,
    /// The daemon of the configuration [default: guessed from its keys]
    #[arg(long = "as", value_name = "DAEMON")]
    kind: Option<KindName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum KindName {
    Gateway,
    Cloud,
}

/// Prints the findings; returns true if the daemon can start with the configuration.
pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<bool> {
    let kind = arguments.kind.map(|kind| match kind {
        KindName::Gateway => Kind::Gateway,
        KindName::Cloud => Kind::Cloud,
    });
    let file = arguments.file.display();
    let report = match check::check(&arguments.file, kind) {
        Ok(report) => report,
        Err(error) => {
            writeln!(out, "{error}")?;
            if kind.is_none()
                && let Ok(text) = std::fs::read_to_string(&arguments.file)
            {
                let kind = check::guess(&text);
                writeln!(out, "{file}: read as a {kind}'s configuration (--as overrides this)")?;
            }
            return Ok(false);
        }
    };
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
