//! `polyrail-demo`: a download crosses two emulated carriers, one of which fails on the way.
//!
//! Nothing is left behind, also when interrupted: see the library's first page.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use polyrail_interop::{demo, privilege};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Shows a download over two emulated carriers; needs root, or user namespaces.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How the tunnels travel
    #[arg(long, default_value = "auto", value_parser = ["quic", "tls", "auto"])]
    mode: String,
}

fn main() -> ExitCode {
    match show(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn show(arguments: &Arguments) -> Result<()> {
    demo::check_tools()?;
    privilege::become_root()?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            println!("\ninterrupted: nothing is left behind");
            // Children and namespaces end with this process.
            std::process::exit(128 + signal);
        }
    });
    demo::run(&arguments.mode)
}
