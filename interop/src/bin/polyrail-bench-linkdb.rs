//! `polyrail-bench-linkdb`: measures what forecasts are worth in namespaces, as RESULT lines.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use polyrail_interop::bench::Effort;
use polyrail_interop::bench_linkdb;
use polyrail_interop::privilege;
use polyrail_interop::report::{Report, results_folder};

/// Measures what forecasts are worth on the emulated rail; needs root, or user namespaces.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Only to see that everything measures: short runs whose figures say little
    #[arg(long)]
    smoke: bool,
    /// Only one benchmark
    #[arg(long, value_name = "NAME", value_parser = bench_linkdb::names())]
    only: Option<String>,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-bench-linkdb: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    privilege::become_root()?;
    let effort = if arguments.smoke { Effort::Smoke } else { Effort::Full };
    let mut report = Report::default();
    let outcome = bench_linkdb::run(&mut report, effort, arguments.only.as_deref());
    let name = arguments
        .only
        .as_deref()
        .map_or("linkdb-rail.json".into(), |only| format!("linkdb-rail-{only}.json"));
    report.write(&results_folder()?.join(name))?;
    outcome
}
