//! Many runs at once, each thread with its own worlds.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::operations::run;
use polyrail_sim::world::{Coverage, Verbosity};

/// The results of many runs.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Successful runs.
    pub runs: u64,
    /// The first seeds that failed, at most `FAILURES_MAX`.
    pub failed: Vec<u64>,
    /// Flows that were opened.
    pub flows: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// The counts of events.
    pub coverage: Coverage,
    /// Virtual time.
    pub virtual_time: Duration,
    /// Real time.
    pub real_time: Duration,
}

/// Runs `count` seeds from `first` on this many threads. Stops after too many failures.
pub fn run_many(first: u64, count: u64, threads: usize) -> Summary {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let parts: Vec<Summary> = std::thread::scope(|scope| {
        let worker = || {
            let mut summary = Summary::default();
            while !stop.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                let seed = first + index;
                match catch_unwind(|| run(seed, Verbosity::Silent)) {
                    Ok(outcome) => {
                        summary.runs += 1;
                        summary.flows += outcome.flows as u64;
                        summary.bytes += outcome.bytes;
                        summary.virtual_time += outcome.time;
                        summary.coverage.add(&outcome.coverage);
                    }
                    Err(_) => {
                        eprintln!("seed {seed} failed; POLYRAIL_SEED={seed} replays it");
                        summary.failed.push(seed);
                        stop.fetch_or(summary.failed.len() >= FAILURES_MAX, Ordering::Relaxed);
                    }
                }
            }
            summary
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    let mut summary = Summary { real_time: began.elapsed(), ..Summary::default() };
    for part in parts {
        summary.runs += part.runs;
        summary.failed.extend(part.failed);
        summary.flows += part.flows;
        summary.bytes += part.bytes;
        summary.virtual_time += part.virtual_time;
        summary.coverage.add(&part.coverage);
    }
    summary.failed.sort_unstable();
    summary
}

/// A thread stops after this many failures.
pub const FAILURES_MAX: usize = 5;
