//! A train on a track of the tests with the carriers alpha and beta, and its earlier trips.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use polyrail_interop::linkdb::{self, Announcer, Record};
use serde_json::{Value, json};

use super::{DAY_MS, days_ago};

/// The constant speed of the train, m/s.
pub(super) const SPEED: f64 = 80.0;
/// Alpha's handovers at these places have failed on all earlier trips.
pub(super) const FIRST: f64 = 10_000.0;
pub(super) const SECOND: f64 = 11_200.0;
/// Handovers on all earlier trips together, and failures among them.
pub(super) const HANDOVERS: u64 = TRIPS * (ALPHA.len() + BETA.len()) as u64;
pub(super) const FAILURES: u64 = TRIPS * 2;
/// Where alpha's cells end, and beta's.
const ALPHA: [f64; 7] = [3_000.0, 5_500.0, 8_000.0, FIRST, SECOND, 14_000.0, 17_000.0];
const BETA: [f64; 3] = [4_000.0, 9_000.0, 15_000.0];
/// A carrier's first cell.
const ALPHA_CELLS: u64 = 0x10;
const BETA_CELLS: u64 = 0x40;
const TRIPS: u64 = 8;
/// How far apart handovers of a cell are, in metres.
const SCATTER: f64 = 10.0;
const SECOND_LONG: Duration = Duration::from_secs(1);

/// Alpha's cells before and after the handover at a place.
pub(super) fn cells(metres: f64) -> (u64, u64) {
    let before = ALPHA.iter().filter(|end| **end < metres).count() as u64;
    (ALPHA_CELLS + before, ALPHA_CELLS + before + 1)
}

/// The handovers of the earlier trips.
pub(super) fn learned() -> Result<String> {
    let mut all = Vec::new();
    let first_ms = days_ago(TRIPS + 1)?;
    for trip in 1..=TRIPS {
        let ends = |carrier, ends: &[f64], cells: u64| {
            let numbered: Vec<_> = (cells..).zip(ends.iter().copied()).collect();
            numbered.into_iter().map(move |(cell, end)| (carrier, cell, end))
        };
        let mut trip_ends: Vec<(&str, u64, f64)> = ends("alpha", &ALPHA, ALPHA_CELLS).collect();
        trip_ends.extend(ends("beta", &BETA, BETA_CELLS));
        trip_ends.sort_by(|a, b| a.2.total_cmp(&b.2));
        for (sequence, (carrier, from, end)) in trip_ends.into_iter().enumerate() {
            // The same five offsets in another order for each cell.
            let place = ((trip * 2 + from * 3) % 5) as f64 - 2.0;
            let fails = end == FIRST || end == SECOND;
            all.push(Record {
                trip,
                sequence,
                at_ms: first_ms + trip * DAY_MS + (end / SPEED * 1_000.0) as u64,
                carrier,
                metres: end + place * SCATTER,
                metres_per_second: SPEED,
                from,
                to: from + 1,
                rsrp_dbm: Some(if fails { -118.0 } else { -100.0 }),
                outcome: if fails { "type3" } else { "success" },
                dark: if fails { Duration::from_millis(1_500) } else { Duration::ZERO },
            });
        }
    }
    Ok(linkdb::records(all))
}

/// A moving train that sends its position and cells every second. Dropping it stops it.
#[derive(Debug)]
pub(super) struct Journey {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    announcer: Announcer,
    began: Instant,
    from: f64,
    /// Alpha's cell; beta stays in one.
    alpha: Mutex<Option<u64>>,
    over: AtomicBool,
}

impl Journey {
    /// Begins at this place, at full speed and in alpha's cell there.
    pub(super) fn begin(announcer: Announcer, from: f64) -> Journey {
        let (cell, _) = cells(from);
        let shared = Arc::new(Shared {
            announcer,
            began: Instant::now(),
            from,
            alpha: Mutex::new(Some(cell)),
            over: AtomicBool::new(false),
        });
        let speaker = shared.clone();
        let thread = std::thread::spawn(move || {
            while !speaker.over.load(Ordering::Relaxed) {
                speaker.say(&json!([]));
                std::thread::park_timeout(SECOND_LONG);
            }
        });
        Journey { shared, thread: Some(thread) }
    }

    /// When a place is reached.
    pub(super) fn reaches(&self, metres: f64) -> Instant {
        self.shared.began + Duration::from_secs_f64((metres - self.shared.from) / SPEED)
    }

    /// Changes alpha's cell, or removes it, and sends that at once.
    pub(super) fn alpha_has(&self, cell: Option<u64>) {
        self.set(cell);
        self.shared.say(&json!([]));
    }

    /// As [`Journey::alpha_has`], and the modem reports how long no packet passed.
    pub(super) fn alpha_found(&self, cell: u64, dark: Duration) {
        self.set(Some(cell));
        self.shared.say(&json!([
            { "carrier": "alpha", "outcome": "type_iii", "dark_s": dark.as_secs_f64() }
        ]));
    }

    fn set(&self, cell: Option<u64>) {
        *self.shared.alpha.lock().unwrap_or_else(PoisonError::into_inner) = cell;
    }
}

impl Shared {
    fn say(&self, handovers: &Value) {
        // The lock is held while sending, so that no older state of another thread follows.
        let alpha = self.alpha.lock().unwrap_or_else(PoisonError::into_inner);
        let beta = BETA_CELLS + BETA.iter().filter(|end| **end < self.from).count() as u64;
        let line = json!({
            "metres": self.from + self.began.elapsed().as_secs_f64() * SPEED,
            "metres_per_second": SPEED,
            "error_m": 2.0,
            "carriers": [
                { "carrier": "alpha", "cell": *alpha, "rsrp_dbm": -110.0 },
                { "carrier": "beta", "cell": beta, "rsrp_dbm": -95.0 },
            ],
            "handovers": handovers,
        });
        self.announcer.say(&line.to_string());
    }
}

impl Drop for Journey {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread does not matter here.
            let _ = thread.join();
        }
    }
}
