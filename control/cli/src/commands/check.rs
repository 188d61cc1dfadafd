//! `polyrail check`: a configuration and everything that it names.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use polyrail_config::check;
use polyrail_identity::NodeRole;

/// `polyrail check`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file
    file: PathBuf,
    /// The daemon of the configuration: gateway or cloud [default: guessed from its keys]
    #[arg(long = "as", value_name = "DAEMON")]
    role: Option<NodeRole>,
}

/// Prints the findings; returns true if the daemon can start with the configuration.
pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<bool> {
    let Arguments { file, role } = arguments;
    let report = match check::check(file, *role) {
        Ok(report) => report,
        Err(error) => {
            writeln!(out, "{error}")?;
            if role.is_none()
                && let Ok(text) = std::fs::read_to_string(file)
            {
                let role = check::guess(&text).as_str();
                let file = file.display();
                writeln!(out, "{file}: read as a {role}'s configuration (--as overrides this)")?;
            }
            writeln!(out, "{}: FAILED: 1 error", file.display())?;
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
    match report.errors.len() {
        0 => writeln!(out, "{file}: OK: {}", report.summary)?,
        1 => writeln!(out, "{file}: FAILED: 1 error")?,
        count => writeln!(out, "{file}: FAILED: {count} errors")?,
    }
    Ok(report.errors.is_empty())
}
