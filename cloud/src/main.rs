//! `polyrail-cloud`: the proxy on the ground.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use polyrail_cloud::command_line::{self, Arguments};

fn main() -> ExitCode {
    match command_line::run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-cloud: {error:#}");
            ExitCode::FAILURE
        }
    }
}
