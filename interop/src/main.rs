//! `polyrail-lab`: the real programs in network namespaces over emulated carriers.
//!
//! An interrupted run leaves nothing behind; the library's documentation says why.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use polyrail_interop::bench::Suite;
use polyrail_interop::{
    attack, bench, bench_fleet, bench_linkdb, bench_operate, bench_tunnel, bench_udp,
    bench_workers, demo, matrix, rail, soak, trials,
};

/// Polyrail's programs over emulated carriers; needs root, or user namespaces.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a download over two carriers, one of which fails
    Demo {
        /// The tunnel mode of both daemons
        #[arg(long, default_value = "auto", value_parser = ["quic", "tls", "auto"])]
        mode: String,
    },
    /// Run the mode matrix: every mode, family and fault, row by row
    Matrix(matrix::Options),
    /// Measure Polyrail end to end, with tunnels of mode `tls`
    Bench(Selection),
    /// Compare QUIC with TLS, and path restart with none
    BenchTunnel(Selection),
    /// Measure passengers' datagrams over steady links
    BenchUdp(Selection),
    /// Measure the effect of forecasts on the emulated rail
    BenchLinkdb(Selection),
    /// Measure failover between clouds, drains and blackouts
    BenchOperate(Selection),
    /// Compare clouds of one and two workers, and serve many gateways
    BenchWorkers(Selection),
    /// Measure the record traffic of a fleet through a shared LinkDB in PostgreSQL
    Fleet(Selection),
    /// Attack the daemons as a passenger and as a gateway, and measure how others fare
    Attack(Selection),
    /// Play the same trips with Polyrail and with its rivals, in real time
    Rail(rail::Options),
    /// Run the soak and all benchmarks but the rail briefly, to check that each still measures
    Smoke,
    /// Load, faults, reloads and kills together for a long time
    Soak(Selection),
    /// Play the simulator's trials with the kernel's TCP and with the daemons
    Trials(trials::Options),
    /// Accept and hold connections: `ADDRESS=COUNT`
    #[command(hide = true)]
    Hold { what: String },
    /// Hold idle connections: `SOURCE>ADDRESS=COUNT`
    #[command(hide = true)]
    HoldOpen { what: String },
    /// Play a group of contenders on a trip, described in JSON
    #[command(hide = true)]
    RailGroup { what: String },
    /// Measure `MODE=BYTES` without link limits
    #[command(hide = true)]
    Unlimited { what: String },
}

#[derive(Args)]
struct Selection {
    /// Short runs, to check that everything measures; their figures mean little
    #[arg(long)]
    smoke: bool,
    /// Only this benchmark
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let measure = |suite: &Suite, Selection { smoke, only }| suite.measure(smoke, only.as_deref());
    match command {
        Command::Demo { mode } => demo::run(&mode),
        Command::Matrix(options) => matrix::measure(&options),
        Command::Bench(selection) => measure(&bench::SUITE, selection),
        Command::BenchTunnel(selection) => measure(&bench_tunnel::SUITE, selection),
        Command::BenchUdp(selection) => measure(&bench_udp::SUITE, selection),
        Command::BenchLinkdb(selection) => measure(&bench_linkdb::SUITE, selection),
        Command::BenchOperate(selection) => measure(&bench_operate::SUITE, selection),
        Command::BenchWorkers(selection) => measure(&bench_workers::SUITE, selection),
        Command::Fleet(Selection { smoke, only }) => bench_fleet::run(smoke, only.as_deref()),
        Command::Attack(selection) => measure(&attack::SUITE, selection),
        Command::Rail(options) => rail::run(&options),
        Command::Smoke => bench::smoke(&SUITES),
        Command::Soak(selection) => measure(&soak::SUITE, selection),
        Command::Trials(options) => trials::play(&options),
        Command::Hold { what } => bench::hold(&what),
        Command::HoldOpen { what } => attack::hold_open(&what),
        Command::RailGroup { what } => rail::play_group(&what),
        Command::Unlimited { what } => bench_tunnel::unlimited(&what),
    }
}

/// The longest smoke runs first.
const SUITES: [Suite; 8] = [
    soak::SUITE,
    bench_operate::SUITE,
    bench_linkdb::SUITE,
    bench_tunnel::SUITE,
    bench::SUITE,
    attack::SUITE,
    bench_udp::SUITE,
    bench_workers::SUITE,
];
