//! `polyrail`, the operator's command: certificates, configurations, kernel settings.
//!
//! A thin shell over the library. It exits with 0 when all is well, 1 when something is wrong,
//! 2 when the command line itself is.

#![forbid(unsafe_code)]

mod commands;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{check, doctor, pki};

/// The operator's command of Polyrail
#[derive(Parser)]
#[command(name = "polyrail", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make and look at certificates and keys
    #[command(subcommand)]
    Pki(pki::Command),
    /// Check a configuration and all that it names
    Check(check::Arguments),
    /// Read back the kernel's settings and name remedies
    Doctor,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = io::stdout().lock();
    let result = match arguments.command {
        Command::Pki(command) => pki::run(command, &mut out),
        Command::Check(arguments) => check::run(&arguments, &mut out),
        Command::Doctor => doctor::run(&mut out),
    };
    let result = result.and_then(|fine| Ok(out.flush().map(|()| fine)?));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read the output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "polyrail: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
