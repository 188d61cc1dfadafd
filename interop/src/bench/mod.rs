//! The suite of the whole system, and the code that all three suites share.

mod bonding;
mod dark;
mod footprint;
mod idle;
mod latency;
pub(crate) mod stalled;
pub(crate) mod throughput;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::lab::in_thread;
use crate::privilege;
use crate::report::{Report, results_folder};
use crate::world::{Plan, World};

pub use dark::darken_all;
pub use footprint::hold;

/// How thorough a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As for the published figures.
    Full,
    /// Checks that everything measures; the figures mean little.
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

/// A benchmark's name and its function.
pub(crate) type Benchmark = (&'static str, fn(&mut Report, Effort) -> Result<()>);

/// Benchmarks whose figures go to one file.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// The file's name in the results' folder, without `.json`.
    pub(crate) file: &'static str,
    /// Checks the requirements on the machine.
    pub(crate) check: fn() -> Result<()>,
    /// In their order of execution.
    pub(crate) benchmarks: &'static [Benchmark],
}

/// The figures of the whole system in mode `tls`.
pub const SUITE: Suite = Suite {
    file: "interop",
    check: || Ok(()),
    benchmarks: &[
        ("bonding", bonding::symmetric),
        ("asymmetric", bonding::asymmetric),
        ("dark", dark::one_carrier),
        ("night", dark::all_carriers),
        ("stalled", stalled::run),
        ("idle", idle::run),
        ("footprint", footprint::run),
        ("local", local),
    ],
};

/// How many benchmarks of a smoke run execute in parallel: they mostly wait.
const SIDE_BY_SIDE: usize = 6;

/// Runs all benchmarks of the suites briefly and writes the results to `smoke.json`.
///
/// # Errors
/// A benchmark fails, or the results cannot be written.
pub fn smoke(suites: &[Suite]) -> Result<()> {
    privilege::become_root()?;
    suites.iter().try_for_each(|suite| (suite.check)())?;
    let wanted = suites.iter().flat_map(|suite| suite.benchmarks).copied().collect();
    let (report, outcome) = run(wanted, Effort::Smoke, SIDE_BY_SIDE);
    report.write(&results_folder()?.join("smoke.json"))?;
    outcome
}

impl Suite {
    /// Measures as root and writes the results to `FILE.json`; those of one benchmark go to
    /// `FILE-NAME.json`, those of a smoke run to `FILE-smoke.json`. A benchmark that fails does
    /// not stop the others.
    ///
    /// # Errors
    /// There is no benchmark `only`, a benchmark fails, or the results cannot be written.
    pub fn measure(&self, smoke: bool, only: Option<&str>) -> Result<()> {
        privilege::become_root()?;
        (self.check)()?;
        measure(self.file, self.benchmarks, smoke, only)
    }
}

/// As [`Suite::measure`], without root.
///
/// # Errors
/// The same.
pub(crate) fn measure(
    file: &str,
    benchmarks: &[Benchmark],
    smoke: bool,
    only: Option<&str>,
) -> Result<()> {
    let mut wanted = benchmarks.to_vec();
    wanted.retain(|(name, _)| only.is_none_or(|only| only == *name));
    let names: Vec<&str> = benchmarks.iter().map(|(name, _)| *name).collect();
    ensure!(!wanted.is_empty(), "--only takes one of {}", names.join(", "));
    let (effort, together, name) = match only {
        _ if smoke => (Effort::Smoke, SIDE_BY_SIDE, format!("{file}-smoke.json")),
        Some(only) => (Effort::Full, 1, format!("{file}-{only}.json")),
        None => (Effort::Full, 1, format!("{file}.json")),
    };
    let (report, outcome) = run(wanted, effort, together);
    report.write(&results_folder()?.join(name))?;
    outcome
}

/// Runs benchmarks, `together` at a time, and prints how long each took.
fn run(wanted: Vec<Benchmark>, effort: Effort, together: usize) -> (Report, Result<()>) {
    let queue = Mutex::new(wanted.into_iter());
    let all = Mutex::new((Report::default(), Ok(())));
    let worker = || loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((name, benchmark)) = next else { return };
        let (mut report, started) = (Report::default(), Instant::now());
        let result = benchmark(&mut report, effort);
        println!("{name}: {:.0} s", started.elapsed().as_secs_f64());
        let result = result.with_context(|| format!("benchmark {name}"));
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        if report.is_empty() && result.is_ok() {
            all.1 = Err(anyhow::anyhow!("benchmark {name} measured nothing"));
        }
        all.0.append(report);
        if let Err(error) = result {
            eprintln!("{error:#}");
            all.1 = Err(error);
        }
    };
    std::thread::scope(|scope| (0..together).for_each(|_| drop(scope.spawn(worker))));
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The benchmarks without an emulated link.
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

/// Sets up a world on a thread of its own and measures in it. On failure it prints the ends of all
/// logs.
pub(crate) fn in_world<T, F>(plan: &Plan, measure: F) -> Result<T>
where
    T: Send,
    F: FnOnce(&mut World) -> Result<T> + Send,
{
    in_thread(move || {
        let mut world = World::start(plan)?;
        measure(&mut world).inspect_err(|_| eprintln!("{}", world.tails()))
    })
}

/// Debian 12's values of the kernel parameters that Polyrail's package sets.
pub(crate) const DEBIAN: &str = "
net.ipv4.tcp_slow_start_after_idle = 1
net.ipv4.tcp_fastopen = 1
net.ipv4.tcp_mtu_probing = 0
net.ipv4.tcp_rmem = 4096 131072 6291456
net.ipv4.tcp_wmem = 4096 16384 4194304
";

/// The lines `key = value` of a file of sysctl.d that a namespace can have. The list of allowed
/// congestion controls and the largest buffers belong to the machine.
pub(crate) fn assignments(
    text: &'static str,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim()))
        .filter(|(key, _)| !key.ends_with("allowed_congestion_control"))
        .filter(|(key, _)| !key.starts_with("net.core."))
}

/// A random seed, which is printed; `POLYRAIL_SEED` sets it.
pub fn fresh_seed(what: &str) -> u64 {
    let given = std::env::var("POLYRAIL_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(what));
    println!("{what}: POLYRAIL_SEED={seed}");
    seed
}
