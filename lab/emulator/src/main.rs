//! The command `polyrail-emulator`.

#![deny(unsafe_code)]

mod bench;
mod rail_command;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use polyrail_emulator::control::Client;
use polyrail_emulator::driver::{self, Choice, Options};
use polyrail_emulator::scenario::{Scenario, parse_duration};
use tracing_subscriber::EnvFilter;

/// The emulated rail: links with rate, delay, loss and blackouts between network namespaces.
#[derive(Parser)]
#[command(name = "polyrail-emulator", version)]
struct Cli {
    /// How much to log to standard error: error, warn, info, debug or trace.
    #[arg(long, global = true, default_value = "info")]
    log_level: String,
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Carry traffic through the links of a scenario until a signal, or for its duration.
    Run(RunArgs),
    /// Read a scenario and report its errors.
    Check {
        /// The scenario file.
        scenario: PathBuf,
    },
    /// Make a trip on the rail: the scenario of its links, telemetry, and true handovers.
    Rail(rail_command::RailArgs),
    /// Measure how late packets leave under a load; needs root.
    Bench(bench::BenchArgs),
    /// Send one command to a running emulator and print its answer.
    Control {
        /// The socket of its `--control`.
        socket: PathBuf,
        /// Such as `down a hold`, `up a`, `set a.down rate 5 Mbit/s`, `stats`.
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<String>,
    },
}

#[derive(Args)]
struct RunArgs {
    /// The scenario file.
    scenario: PathBuf,
    /// auto, tun or netem.
    #[arg(long, default_value = "auto")]
    driver: Choice,
    /// The namespace of the gateway's side, such as /run/netns/train; default: the scenario's,
    /// else where this runs.
    #[arg(long)]
    near: Option<PathBuf>,
    /// The namespace of the cloud's side.
    #[arg(long)]
    far: Option<PathBuf>,
    /// Listen for commands on this Unix socket.
    #[arg(long)]
    control: Option<PathBuf>,
    /// Print statistics so often, such as 1s; at the end they come anyway.
    #[arg(long, value_parser = parse_duration)]
    report: Option<Duration>,
    /// Stay on this core.
    #[arg(long)]
    core: Option<usize>,
    /// Do without real-time priority.
    #[arg(long)]
    no_realtime: bool,
}

fn main() -> ExitCode {
    match obey(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-emulator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey(cli: Cli) -> Result<()> {
    let filter = EnvFilter::try_new(&cli.log_level)
        .with_context(|| format!("--log-level {}", cli.log_level))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match cli.task {
        Task::Run(args) => run(args),
        Task::Bench(args) => bench::run(&args),
        Task::Rail(args) => rail_command::run(&args),
        Task::Check { scenario } => {
            let read = Scenario::load(&scenario)?;
            println!("{}: {} links", scenario.display(), read.links.len());
            Ok(())
        }
        Task::Control { socket, command } => {
            let mut client = Client::connect(&socket)
                .with_context(|| format!("is an emulator at {}?", socket.display()))?;
            println!("{}", client.command(&command.join(" "))?);
            Ok(())
        }
    }
}

fn run(args: RunArgs) -> Result<()> {
    // A parent that wants this process to end with it has set a signal, in tests SIGKILL. SIGTERM
    // lets the run remove its devices. Without one, as in a script, the run outlives its parent.
    if prctl::get_pdeathsig().context("PR_GET_PDEATHSIG")?.is_some() {
        prctl::set_pdeathsig(Signal::SIGTERM).context("PR_SET_PDEATHSIG")?;
    }
    let scenario = Scenario::load(&args.scenario)?;
    let options = Options {
        driver: args.driver,
        near: args.near,
        far: args.far,
        control: args.control,
        report: args.report,
        core: args.core,
        realtime: !args.no_realtime,
    };
    Ok(driver::run(&scenario, &options)?)
}
