//! `polyrail`, the operator's command: certificates, configurations, kernel settings, and running
//! daemons.
//!
//! Exit codes: 0 success, 1 failure, 2 invalid command line, 3 no daemon listens on the socket.

#![forbid(unsafe_code)]

mod commands;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{admin, check, doctor, linkdb, lists, pki, speedtest, top};

/// The operator's command of Polyrail
#[derive(Parser)]
#[command(name = "polyrail", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Issue and inspect certificates and keys
    #[command(subcommand)]
    Pki(pki::Command),
    /// Check a configuration and the files it names
    Check(check::Arguments),
    /// Check kernel settings and suggest remedies
    Doctor(doctor::Arguments),
    /// Show the status of a running daemon
    Status(admin::Connection),
    /// Show the paths of a running daemon
    Paths(admin::Paths),
    /// Change a path of a running daemon
    #[command(subcommand)]
    Path(admin::PathOrder),
    /// Change the scheduler of a running daemon
    Scheduler(admin::SetScheduler),
    /// Let the flows of a running cloud end, and end it
    Drain(admin::DrainOrder),
    /// Reload the configuration of a running daemon
    Reload(admin::Connection),
    /// Show the events of a running daemon
    Events(admin::Events),
    /// Show the flows of a running daemon
    Flows(lists::Flows),
    /// Show the users of a running daemon, those with the most flows first
    Users(lists::Users),
    /// Measure the carriers of a running gateway, each alone and all together
    ///
    /// Shows rates in both directions, round-trip times without and under load, losses, and the
    /// data that the test cost. The test competes with passengers as one user.
    Speedtest(speedtest::Speedtest),
    /// Watch a running daemon: carriers, users, flows and events
    Top(top::Top),
    /// Inspect, export, import and evaluate a database of handovers
    #[command(subcommand)]
    Linkdb(linkdb::Command),
}

/// The definition of the command line, for manuals and completions.
pub fn command_line() -> clap::Command {
    Arguments::command()
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = io::stdout().lock();
    let result = match arguments.command {
        Command::Pki(command) => pki::run(command, &mut out),
        Command::Check(arguments) => check::run(&arguments, &mut out),
        Command::Doctor(arguments) => doctor::run(&arguments, &mut out),
        Command::Status(connection) => admin::status(&connection, &mut out),
        Command::Paths(arguments) => admin::paths(&arguments, &mut out),
        Command::Path(order) => admin::path(order, &mut out),
        Command::Scheduler(arguments) => admin::scheduler(arguments, &mut out),
        Command::Drain(arguments) => admin::drain(&arguments, &mut out),
        Command::Reload(connection) => admin::reload(&connection, &mut out),
        Command::Events(arguments) => admin::events(&arguments, &mut out),
        Command::Flows(arguments) => lists::flows(&arguments, &mut out),
        Command::Users(arguments) => lists::users(&arguments, &mut out),
        Command::Speedtest(arguments) => speedtest::run(&arguments, &mut out),
        Command::Top(arguments) => top::run(&arguments, &mut out),
        Command::Linkdb(command) => linkdb::run(command, &mut out),
    };
    let result = result.and_then(|fine| Ok(out.flush().map(|()| fine)?));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader of the output closed it.
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
