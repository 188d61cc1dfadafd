//! `polyrail-gateway`: the daemon on board.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use polyrail_gateway::command_line::{self, Arguments};

fn main() -> ExitCode {
    match command_line::run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-gateway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
