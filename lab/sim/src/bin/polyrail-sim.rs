//! `polyrail-sim`: what is found out on the simulated rail, in virtual time.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::{Parser, Subcommand};
use polyrail_sim::sim::{calibration, compare, validation};

/// Schedulers on the simulated rail.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    compare: compare::Options,
}

#[derive(Subcommand)]
enum Command {
    /// Schedulers side by side; this is also what is done without a command.
    Compare(compare::Options),
    /// The generated rail beside the published figures.
    Calibrate(calibration::Options),
    /// The simulator's cubic and bbr beside the kernel's (`make sim-validate`).
    Validate(validation::Options),
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.command.unwrap_or(Command::Compare(arguments.compare)) {
        Command::Compare(options) => compare::run_all(&options),
        Command::Calibrate(options) => calibration::command(&options),
        Command::Validate(options) => validation::validate(&options),
    }
}
