//! `polyrail-linkdb-eval`: how good LinkDB's forecasts are.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::Parser;
use polyrail_sim::linkdb;

/// LinkDB's forecasts, each trip foreseen from all others.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    options: linkdb::Options,
}

fn main() -> Result<()> {
    linkdb::command(&Arguments::parse().options)
}
