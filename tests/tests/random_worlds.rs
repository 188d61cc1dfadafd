//! Random worlds, different ones for each commit.
//!
//! The first seed is derived from the commit's id; `POLYRAIL_FIRST=n` sets it and `POLYRAIL_RUNS=n`
//! sets how many worlds run (`make random-million`). `POLYRAIL_SEED=n` replays one world with its
//! operations; `POLYRAIL_TRACE=1` adds everything else.

use std::process::Command;

use polyrail_sim::world::Verbosity;
use polyrail_tests::random::{run, run_many};

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[test]
fn every_random_world_keeps_the_promise() {
    if let Some(seed) = variable("POLYRAIL_SEED") {
        let everything = variable("POLYRAIL_TRACE").is_some();
        let verbosity = if everything { Verbosity::Everything } else { Verbosity::Operations };
        println!("seed {seed}: {:?}", run(seed, verbosity));
        return;
    }
    let count = variable("POLYRAIL_RUNS").unwrap_or(RUNS);
    let first = variable("POLYRAIL_FIRST").unwrap_or_else(seed_of_commit);
    println!("POLYRAIL_FIRST={first} POLYRAIL_RUNS={count}");
    let summary = run_many(first, count, THREADS);
    let seconds = summary.real_time.as_secs_f64();
    println!(
        "{} flows, {} MB read, {:.0} h of virtual time",
        summary.flows,
        summary.bytes / 1_000_000,
        summary.virtual_time.as_secs_f64() / 3_600.0,
    );
    println!("RESULT simulated_runs_rate {:.0} runs/s", summary.runs as f64 / seconds);
    println!("{:?}", summary.coverage);
    assert!(summary.failed.is_empty(), "failing seeds: {:?}", summary.failed);
    assert_eq!(summary.runs, count);
    for (name, often) in summary.coverage.entries() {
        assert!(often >= count / 100, "only {often} times {name} in {count} worlds");
    }
}

#[test]
fn the_same_seed_gives_the_same_course_of_events() {
    for seed in 1..20 {
        let (first, second) = (run(seed, Verbosity::Silent), run(seed, Verbosity::Silent));
        assert_eq!(first, second, "seed {seed}");
    }
    let hashes: std::collections::BTreeSet<u64> =
        (1..20).map(|seed| run(seed, Verbosity::Silent).hash).collect();
    assert_eq!(hashes.len(), 19, "different seeds, different courses");
}

/// The first seed of this commit; 1 outside of a repository.
fn seed_of_commit() -> u64 {
    let id = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let id = id.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    id.ok().and_then(|id| u64::from_str_radix(&id, 16).ok()).unwrap_or(1)
}

/// About half a minute of two cores.
const RUNS: u64 = 3_000;
const THREADS: usize = 2;
