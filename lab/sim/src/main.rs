//! `polyrail-sim`: evaluates schedulers and LinkDB's forecasts in virtual time.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::{Parser, Subcommand};
use polyrail_sim::linkdb;
use polyrail_sim::sim::{calibration, compare, congestion, rail, studies, validation};

/// Schedulers and LinkDB's forecasts on the simulated rail.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare schedulers
    Compare(Box<compare::Options>),
    /// Compare congestion controls on trips of the rail bench
    Congestion(congestion::Options),
    /// Compare the generated rail with the published figures
    Calibrate(calibration::Options),
    /// Compare the simulated transports with the kernel and the daemons (`make sim-validate`)
    Validate,
    /// Play recorded runs of the rail bench in virtual time, and compare (`make sim-rail`)
    Rail(rail::Options),
    /// Evaluate LinkDB's forecasts, each trip predicted from all others
    LinkdbEval(Box<linkdb::Options>),
    /// Play the papers' studies of congestion control: BBR+, and coupled subflows (`make studies`)
    Studies(studies::Options),
    /// Run `compare`, `studies` and `linkdb-eval` briefly, to see that they work
    Smoke,
}

fn main() -> Result<()> {
    run(Arguments::parse().command)
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Compare(options) => compare::run_all(&options),
        Command::Congestion(options) => congestion::command(&options),
        Command::Calibrate(options) => calibration::command(&options),
        Command::Validate => validation::validate(),
        Command::Rail(options) => rail::command(&options),
        Command::LinkdbEval(options) => linkdb::command(&options),
        Command::Studies(options) => studies::command(&options),
        Command::Smoke => ["compare", "studies", "linkdb-eval"].into_iter().try_for_each(|name| {
            run(Arguments::parse_from(["polyrail-sim", name, "--smoke"]).command)
        }),
    }
}
