//! `polyrail-bench-linkdb`: measures what forecasts are worth in namespaces, as RESULT lines.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use polyrail_interop::bench;
use polyrail_interop::bench_linkdb;

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
    bench::measure("linkdb-rail", arguments.smoke, arguments.only.as_deref(), bench_linkdb::run)
}
