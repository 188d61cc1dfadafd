//! `polyrail-kernel-tcp`: plays the simulator's trials with the kernel's TCP (`make sim-validate`).

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use polyrail_emulator::results::results_folder;
use polyrail_interop::kernel_tcp::{self, Plan};
use polyrail_interop::privilege;

/// Plays single flows of cubic and bbr over emulated links; needs root, or user namespaces.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How often each trial is played
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// How many flows at a time
    #[arg(long, default_value_t = 6)]
    together: usize,
    /// Only trials whose name begins so
    #[arg(long, default_value = "")]
    only: String,
    /// Where to write; default: sim/kernel.json among the results
    #[arg(long)]
    out: Option<PathBuf>,
    /// As a part of this program: carry the packets of these links
    #[arg(long, hide = true, requires_all = ["near", "far", "control"])]
    emulate: Option<String>,
    #[arg(long, hide = true)]
    near: Option<PathBuf>,
    #[arg(long, hide = true)]
    far: Option<PathBuf>,
    #[arg(long, hide = true)]
    control: Option<PathBuf>,
}

fn main() -> ExitCode {
    match play(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-kernel-tcp: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play(arguments: Arguments) -> Result<()> {
    let Arguments { runs, together, only, out, emulate, near, far, control } = arguments;
    if let (Some(links), Some(near), Some(far), Some(control)) = (emulate, near, far, control) {
        return kernel_tcp::emulate(&links, &near, &far, &control);
    }
    privilege::become_root()?;
    let out = match out {
        Some(out) => out,
        None => results_folder().context("where to write")?.join("sim/kernel.json"),
    };
    kernel_tcp::play(&Plan { runs, together, only }, &out)?;
    println!("written to {}", out.display());
    Ok(())
}
