//! Schedulers side by side, over many trips.

use anyhow::Result;

/// What is compared.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How many trips.
    #[arg(long, default_value_t = 24)]
    pub trips: u64,
    /// The first route seed; default: 1000, with --held-back 9000.
    #[arg(long)]
    pub from: Option<u64>,
}

/// Runs the comparison.
///
/// # Errors
/// Results cannot be written.
pub fn run(_options: &Options) -> Result<()> {
    Ok(())
}
