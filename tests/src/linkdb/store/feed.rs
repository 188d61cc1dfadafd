//! What it costs the data plane to tell the LinkDB's thread something while that is busy: while it
//! opens and learns a full database, and while it writes.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_emulator::results::{Goal, Report as Results, median};
use polyrail_model::{Bitrate, SessionKey, TripId};
use polyrail_predictor::wire::SyncMessage;
use polyrail_predictor::worker::{Input, Options, Output, Role, Settings, Worker};

use super::full::{Filling, PER_TRIP};
use crate::dice::Dice;

/// Prints how long feeding takes at worst, beside the transactions that go on meanwhile.
///
/// # Errors
/// The thread does not answer.
pub(super) fn judge(results: &mut Results, path: &Path, filling: Filling) -> Result<()> {
    let settings = Settings {
        events_max: filling.events,
        retention: Duration::from_secs(3_650 * 86_400),
        forecast: true,
        guard: false,
        share: true,
    };
    let options = Options {
        role: Role::Cloud,
        path: Some(path.to_owned()),
        settings,
        seed: 1,
        notify: Box::new(|| {}),
    };
    let mut feeding = Feeding { worker: Worker::start(options)?, fed: vec![], idle: vec![] };
    feeding.worker.feed(Input::Up { session: SESSION, peer: "train".to_owned() });
    // It says what it knows when it has opened the database and learned from it.
    let begun = feeding.until(|output| matches!(output, Output::Sync { .. }))?;
    let mut dice = Dice::new(3);
    let mut written = Vec::new();
    for number in 0..TRANSACTIONS {
        let trip = filling.events / PER_TRIP + 1_000 + number;
        let records: Vec<_> = (0..SyncMessage::RECORDS_MAX as u64)
            .map(|sequence| filling.handover(&mut dice, trip, sequence))
            .collect();
        let trip = records[0].trip;
        let message = SyncMessage::Records(records);
        feeding.feed(Input::Sync { session: SESSION, message });
        written.push(feeding.until(|output| answers(output, trip))?);
    }
    let Feeding { worker, mut fed, mut idle } = feeding;
    drop(worker);
    fed.sort_by(f64::total_cmp);
    idle.sort_by(f64::total_cmp);
    let worst = |sorted: &[f64]| sorted.last().copied().unwrap_or_default();
    let mut figure = |name: &str, value: f64, unit: &str, samples: &[f64]| {
        results.result(&format!("linkdb_feed_{name}"), value, unit, Goal::None, samples);
    };
    figure("worst", worst(&fed), "us", &[]);
    figure("p999", fed[fed.len() * 999 / 1_000], "us", &[]);
    figure("median", median(&fed), "us", &[]);
    figure("nothing_worst", worst(&idle), "us", &[]);
    figure("transaction", median(&written), "ms", &written);
    figure("begin", begun, "ms", &[]);
    println!("  fed {} times, {TRANSACTIONS} transactions", fed.len());
    Ok(())
}

/// Somebody who feeds, and how long each time took, in microseconds; beside it how long it took to
/// do nothing, which is what the machine makes of it.
struct Feeding {
    worker: Worker,
    fed: Vec<f64>,
    idle: Vec<f64>,
}

impl Feeding {
    fn feed(&mut self, input: Input) {
        let began = Instant::now();
        self.worker.feed(input);
        self.fed.push(began.elapsed().as_secs_f64() * 1e6);
    }

    /// Feeds until the thread says this; how long it took, in milliseconds.
    fn until(&mut self, wished: impl Fn(&Output) -> bool) -> Result<f64> {
        let began = Instant::now();
        loop {
            self.feed(measured());
            let idle = Instant::now();
            black_box(measured());
            self.idle.push(idle.elapsed().as_secs_f64() * 1e6);
            while let Some(output) = self.worker.try_recv() {
                if wished(&output) {
                    return Ok(began.elapsed().as_secs_f64() * 1e3);
                }
            }
            ensure!(began.elapsed() < PATIENCE, "the LinkDB's thread says nothing");
            std::thread::sleep(PACE);
        }
    }
}

/// What the data plane says most often.
fn measured() -> Input {
    let (rate, srtt) = (Bitrate::from_bps(20_000_000), Duration::from_millis(80));
    Input::Measured { session: SESSION, carrier: "modem-one".to_owned(), rate, srtt }
}

fn answers(output: &Output, trip: TripId) -> bool {
    let Output::Sync { message: SyncMessage::Known(known), .. } = output else { return false };
    known.iter().any(|known| known.trip == trip)
}

const SESSION: SessionKey = SessionKey(1);
const TRANSACTIONS: u64 = 100;
const PACE: Duration = Duration::from_micros(100);
const PATIENCE: Duration = Duration::from_secs(60);
