//! `polyrail-emulator rail`: a trip from seeds, as files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use polyrail_emulator::rail::{CarrierProfile, Route, Speed, Trip};
use polyrail_emulator::scenario::Scenario;

/// Which trip, and where to.
#[derive(Args)]
pub struct RailArgs {
    /// Decides the cells.
    #[arg(long)]
    route_seed: u64,
    /// Decides all else.
    #[arg(long)]
    trip_seed: u64,
    /// How many carriers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=8))]
    carriers: u8,
    /// In km/h: 0, 200, 300 or 350.
    #[arg(long, default_value = "300")]
    speed: Speed,
    /// How long the trip takes, at most two hours.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=7_200))]
    seconds: u64,
    /// Where it begins, in metres along the track, up to 1,000,000.
    #[arg(long, default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    start: u32,
    /// The folder for scenario.toml, telemetry.ndjson and handovers.ndjson.
    #[arg(long)]
    out: PathBuf,
}

/// Makes the trip and writes it.
///
/// # Errors
/// The folder cannot be written.
pub fn run(args: &RailArgs) -> Result<()> {
    let start = f64::from(args.start);
    let metres = start + args.speed.metres_per_second() * args.seconds as f64 + AHEAD;
    let carriers = CarrierProfile::mix(usize::from(args.carriers));
    let route = Route::new(args.route_seed, args.speed, metres, &carriers);
    let trip = Trip::new(&route, args.trip_seed, start, Duration::from_secs(args.seconds))?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("{}", args.out.display()))?;
    let write = |name: &str, text: String| -> Result<PathBuf> {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    };
    let scenario = write("scenario.toml", trip.scenario(&route).to_toml()?)?;
    write("telemetry.ndjson", trip.telemetry_lines(&route))?;
    write("handovers.ndjson", trip.handover_lines(&route))?;
    checked(&scenario)?;
    let handovers: usize = trip.carriers.iter().map(|carrier| carrier.handovers.len()).sum();
    println!("{}: {} carriers, {handovers} handovers", args.out.display(), args.carriers);
    Ok(())
}

/// A written scenario can be read.
fn checked(scenario: &Path) -> Result<()> {
    Scenario::load(scenario).map(drop).context("the scenario just written")
}

/// The track goes on behind the trip, in metres.
const AHEAD: f64 = 5_000.0;
