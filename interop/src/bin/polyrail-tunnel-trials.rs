//! `polyrail-tunnel-trials`: plays the simulator's trials with the daemons (`make sim-validate`).

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use polyrail_emulator::results::results_folder;
use polyrail_interop::privilege;
use polyrail_interop::tunnel_trials::{self, Plan};

/// Plays downloads through a QUIC tunnel over emulated links; needs root, or user namespaces.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How often each trial is played
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// How many labs at a time; each takes up to a third of a core
    #[arg(long, default_value_t = 4)]
    together: usize,
    /// Only trials whose name begins so
    #[arg(long, default_value = "")]
    only: String,
    /// Where to write; default: sim/tunnel.json among the results
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match play(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-tunnel-trials: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play(Arguments { runs, together, only, out }: Arguments) -> Result<()> {
    privilege::become_root()?;
    let out = match out {
        Some(out) => out,
        None => results_folder().context("where to write")?.join("sim/tunnel.json"),
    };
    tunnel_trials::play(&Plan { runs, together, only }, &out)?;
    println!("written to {}", out.display());
    Ok(())
}
