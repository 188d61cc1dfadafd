//! `polyrail`, the operator's command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    polyrail_cli::run()
}
