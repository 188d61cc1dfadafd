//! `polyrail`, the operator's command: certificates, configurations, kernel settings, and what a
//! running daemon does.
//!
//! A thin shell over the library. It exits with 0 when all is well, 1 when something is wrong,
//! 2 when the command line itself is, 3 when no daemon answers.

#![forbid(unsafe_code)]

mod commands;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{admin, check, doctor, linkdb, pki};

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
    /// Show how a running daemon is
    Status(admin::Connection),
    /// Show how a running daemon's paths are
    Paths(admin::Paths),
    /// Change a path of a running daemon
    #[command(subcommand)]
    Path(admin::PathOrder),
    /// Let a running daemon read its configuration again
    Reload(admin::Connection),
    /// Show what happened in a running daemon
    Events(admin::Events),
    /// Look at a database of handovers, move it, and judge its forecasts
    #[command(subcommand)]
    Linkdb(linkdb::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = io::stdout().lock();
    let result = match arguments.command {
        Command::Pki(command) => pki::run(command, &mut out),
        Command::Check(arguments) => check::run(&arguments, &mut out),
        Command::Doctor => doctor::run(&mut out),
        Command::Status(connection) => admin::status(&connection, &mut out),
        Command::Paths(arguments) => admin::paths(&arguments, &mut out),
        Command::Path(order) => admin::path(order, &mut out),
        Command::Reload(connection) => admin::reload(&connection, &mut out),
        Command::Events(arguments) => admin::events(&arguments, &mut out),
        Command::Linkdb(command) => linkdb::run(command, &mut out),
    };
    let result = result.and_then(|fine| Ok(out.flush().map(|()| fine)?));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read the output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "polyrail: {error:#}");
            if admin::is_not_running(&error) { NOT_RUNNING.into() } else { ExitCode::FAILURE }
        }
    }
}

/// The exit code when no daemon answers.
const NOT_RUNNING: u8 = 3;

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
