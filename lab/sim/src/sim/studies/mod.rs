//! Studies of the papers on the simulated rail: BBR+ (`plus`, Wang et al., MobiCom 2019), MPTCP's
//! coupled congestion control (`coupled`, Li et al., on subflow degradation), and scheduling by
//! what earlier trips measured at each place (`places`, Dong et al.).

mod coupled;
mod picture;
mod places;
mod plus;

use std::path::{Path, PathBuf};

use anyhow::Result;
use polyrail_emulator::rail::{Course, Trip};
use polyrail_emulator::results::{Report, results_folder};

/// What to play.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Play BBR+ only.
    #[arg(long)]
    plus: bool,
    /// Play coupled congestion control only.
    #[arg(long, conflicts_with = "plus")]
    coupled: bool,
    /// Play scheduling by places only.
    #[arg(long, conflicts_with_all = ["plus", "coupled"])]
    places: bool,
    /// The number of trips; default: 12 for coupled congestion control, else 24.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    trips: Option<u64>,
    /// The seed of the first trip; from 50000 on they are held back, and have goals.
    #[arg(long, default_value_t = Course::HELD_BACK)]
    from: u64,
    /// The length of a flow in seconds; default: that of the paper.
    #[arg(long)]
    seconds: Option<u64>,
    /// The lambdas of BBR+, in percent.
    #[arg(long, value_delimiter = ',', default_values_t = plus::LAMBDAS)]
    lambdas: Vec<u32>,
    /// Play coupled congestion control on a standing train too.
    #[arg(long)]
    standing: bool,
    /// The number of threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Draw the figures into this folder.
    #[arg(long)]
    figures: Option<PathBuf>,
    /// A short run: one trip of 3 s, at one speed.
    #[arg(long)]
    smoke: bool,
}

/// Plays the studies, prints their tables and RESULT lines, and writes these as JSON.
///
/// # Errors
/// An option is invalid, the simulated world found a breach, or a file cannot be written.
pub fn command(options: &Options) -> Result<()> {
    let options = match options.smoke {
        true => Options { trips: Some(1), seconds: Some(3), ..options.clone() },
        false => options.clone(),
    };
    let mut report = Report::default();
    let only = [options.plus, options.coupled, options.places];
    let has = |study: usize| only[study] || only == [false; 3];
    if has(0) {
        plus::study(&options, &mut report)?;
    }
    if has(1) {
        coupled::study(&options, &mut report)?;
    }
    if has(2) {
        // The trips of a short run are too short for a handover.
        let seconds = options.seconds.filter(|_| !options.smoke);
        places::study(&Options { seconds, ..options.clone() }, &mut report)?;
    }
    let name = if options.smoke { "studies-smoke.json" } else { "studies.json" };
    report.write(&results_folder()?.join(name))
}

impl Options {
    /// Goals count on held-back trips only.
    fn judges(&self) -> bool {
        self.from >= Course::HELD_BACK && !self.smoke
    }

    /// Trips of carriers A and B at this speed, with the published rate of failures.
    fn trips(&self, speed_kmh: u32, seconds: u64, default: u64) -> Result<Vec<Trip>> {
        let trip = |seed| {
            let course =
                Course { speed_kmh, failures: FAILURES, seed, seconds, carriers: Course::CARRIERS };
            Ok(Trip { seed, ..course.trip(&course.route()?)? })
        };
        (self.from..).take(self.trips.unwrap_or(default) as usize).map(trip).collect()
    }

    /// The speeds of a study in km/h; a short run has the first one only.
    fn speeds<'a>(&self, all: &'a [u32]) -> &'a [u32] {
        if self.smoke { &all[..1] } else { all }
    }

    fn draw(&self, file: &str, text: impl FnOnce() -> Result<String>) -> Result<()> {
        let Some(folder) = &self.figures else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        Ok(std::fs::write(Path::new(folder).join(file), text()?)?)
    }
}

/// The percentage of handovers that fail at 300 km/h (POLYCORN 2.3).
const FAILURES: f64 = 6.0;
