//! The figures that the issue asks for, each measured in a world of its own.

mod bonding;
mod dark;
mod footprint;
mod idle;
mod latency;
mod stalled;
pub(crate) mod throughput;

use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::privilege;
use crate::report::{Report, results_folder};
use crate::world::{Plan, World};

pub use footprint::hold;

/// How thorough a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As the figures are published.
    Full,
    /// Only to see that everything measures; the figures say little.
    Smoke,
}

impl Effort {
    /// The full value, or the one for a smoke run.
    pub(crate) fn pick<T>(self, full: T, smoke: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Smoke => smoke,
        }
    }
}

/// One benchmark: its name and what measures it.
pub(crate) type Benchmark = (&'static str, fn(&mut Report, Effort) -> Result<()>);

/// All benchmarks in the order in which they run.
const BENCHMARKS: [Benchmark; 8] = [
    ("bonding", bonding::symmetric),
    ("asymmetric", bonding::asymmetric),
    ("dark", dark::one_carrier),
    ("night", dark::all_carriers),
    ("stalled", stalled::run),
    ("idle", idle::run),
    ("footprint", footprint::run),
    ("local", local),
];

/// The names that `--only` takes.
pub fn names() -> Vec<&'static str> {
    BENCHMARKS.iter().map(|(name, _)| *name).collect()
}

/// Runs all benchmarks, or the one named; a benchmark that fails does not stop the others.
///
/// # Errors
/// When one could not measure, after the others have run.
pub fn run(report: &mut Report, effort: Effort, only: Option<&str>) -> Result<()> {
    run_each(&BENCHMARKS, report, effort, only)
}

/// Measures as root, with `run`, and writes the results to `target/results/FILE.json`, those of one
/// benchmark to `FILE-NAME.json`, and those of a smoke run to `FILE-smoke.json`.
///
/// # Errors
/// When one could not measure, or the results cannot be written.
pub fn measure(
    file: &str,
    smoke: bool,
    only: Option<&str>,
    run: fn(&mut Report, Effort, Option<&str>) -> Result<()>,
) -> Result<()> {
    privilege::become_root()?;
    let effort = if smoke { Effort::Smoke } else { Effort::Full };
    let mut report = Report::default();
    let outcome = run(&mut report, effort, only);
    let name = match only {
        _ if smoke => format!("{file}-smoke.json"),
        Some(only) => format!("{file}-{only}.json"),
        None => format!("{file}.json"),
    };
    report.write(&results_folder()?.join(name))?;
    outcome
}

/// Runs those of a list that are wanted, and says how long each took.
pub(crate) fn run_each(
    benchmarks: &[Benchmark],
    report: &mut Report,
    effort: Effort,
    only: Option<&str>,
) -> Result<()> {
    let mut outcome = Ok(());
    for (name, benchmark) in benchmarks {
        if only.is_some_and(|only| only != *name) {
            continue;
        }
        let started = Instant::now();
        let result = benchmark(report, effort);
        println!("{name}: {:.0} s", started.elapsed().as_secs_f64());
        if let Err(error) = result.with_context(|| format!("benchmark {name}")) {
            eprintln!("{error:#}");
            outcome = Err(error);
        }
    }
    outcome
}

/// What needs no emulated link.
fn local(report: &mut Report, effort: Effort) -> Result<()> {
    latency::run(report, effort)?;
    throughput::run(report, effort)
}

/// As [`in_world`], with tunnels of mode `tls`: `bench_tunnel` compares the modes.
fn in_tls<T, F>(plan: &Plan, measure: F) -> Result<T>
where
    T: Send,
    F: FnOnce(&mut World) -> Result<T> + Send,
{
    in_world(&plan.clone().gateway("mode", "tls").cloud("mode", "tls"), measure)
}

/// Sets up a world on a thread of its own and measures in it; all logs' ends are shown when that
/// fails.
pub(crate) fn in_world<T, F>(plan: &Plan, measure: F) -> Result<T>
where
    T: Send,
    F: FnOnce(&mut World) -> Result<T> + Send,
{
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let mut world = World::start(plan)?;
            let outcome = measure(&mut world);
            if outcome.is_err() {
                eprintln!("{}", world.tails());
            }
            outcome
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A seed from the system, printed; `POLYRAIL_SEED` sets it.
pub(crate) fn fresh_seed(what: &str) -> u64 {
    let given = std::env::var("POLYRAIL_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(what));
    println!("{what}: POLYRAIL_SEED={seed}");
    seed
}
