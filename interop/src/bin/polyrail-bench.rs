//! `polyrail-bench`: measures the real binaries in namespaces and prints RESULT lines.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use polyrail_interop::bench;

/// Measures Polyrail end to end; needs root, or user namespaces.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Only to see that everything measures: short runs whose figures say little
    #[arg(long)]
    smoke: bool,
    /// Only one benchmark
    #[arg(long, value_name = "NAME", value_parser = bench::names())]
    only: Option<String>,
    /// Hold connections, as the server of a benchmark
    #[arg(long, hide = true, value_name = "ADDRESS=COUNT")]
    hold: Option<String>,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    if let Some(what) = &arguments.hold {
        return bench::hold(what);
    }
    bench::measure("interop", arguments.smoke, arguments.only.as_deref(), bench::run)
}
