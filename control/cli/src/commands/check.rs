//! `polyrail check`: a configuration and all that it names.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use polyrail_control::check::{self, Kind};

/// What `polyrail check` is told.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file
    file: PathBuf,
    /// Whose configuration it is; told from its keys when left out
    #[arg(long = "as", value_name = "DAEMON")]
    kind: Option<KindName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum KindName {
    Gateway,
    Cloud,
}

/// Prints what was found; true when the daemon could start with it.
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
                writeln!(out, "{file}: taken for a {kind}'s configuration (--as says otherwise)")?;
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
