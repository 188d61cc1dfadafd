//! `polyrail-bench-tunnel`: measures the tunnel's modes in namespaces and prints RESULT lines.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use polyrail_interop::bench;
use polyrail_interop::bench_tunnel;
use polyrail_interop::privilege;

/// Measures QUIC against TLS and what path restart buys; needs root, or user namespaces.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Only to see that everything measures: short runs whose figures say little
    #[arg(long)]
    smoke: bool,
    /// Only one benchmark
    #[arg(long, value_name = "NAME", value_parser = bench_tunnel::names())]
    only: Option<String>,
    /// One measurement without link limits, as a part of the benchmark of that name
    #[arg(long, hide = true, value_name = "MODE=BYTES")]
    unlimited: Option<String>,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polyrail-bench-tunnel: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    if let Some(what) = &arguments.unlimited {
        privilege::become_root()?;
        return bench_tunnel::unlimited(what);
    }
    bench::measure("tunnel", arguments.smoke, arguments.only.as_deref(), bench_tunnel::run)
}
