//! Everything at once for a long time: load, blackouts, reloads, address changes, a full disk, port
//! scans, and kills of either daemon.
//!
//! The first quarter of the run has the kills. A flow that was open at a kill may be reset, but
//! never changed. In the rest every flow must live; there memory and descriptors are read in pauses
//! of the load.

mod load;
mod trouble;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand_pcg::Pcg64;

use self::load::{Load, Outcome};
use self::trouble::Trouble;
use crate::bench::{Effort, Suite, fresh_seed, in_world};
use crate::carrier::Link;
use crate::lab::Side;
use crate::linkdb::Rail;
use crate::report::{Goal, Report};
use crate::scratch;
use crate::usage;
use crate::world::{Plan, World};

/// The soak alone.
pub const SUITE: Suite = Suite { file: "soak", check: || Ok(()), benchmarks: &[("soak", run)] };

/// Fails if a flow that must live failed, a byte was wrong, or a descriptor leaked.
fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let link = Link::new(20.0, 40);
    let plan = Plan::new().carrier("alpha", link).carrier("beta", link).rail(Rail::default());
    let plan = plan.gateway("users.key", "address");
    let measured = in_world(&plan, move |world| soak(world, effort))?;
    let failed = |name: &str| measured.value(name).is_none_or(|count| count > 0.0);
    let failed: Vec<&str> = MUST_BE_ZERO.into_iter().filter(|name| failed(name)).collect();
    report.append(measured);
    ensure!(failed.is_empty(), "not zero: {}", failed.join(", "));
    Ok(())
}

/// The figures that fail the run.
const MUST_BE_ZERO: [&str; 4] =
    ["soak_failed", "soak_wrong", "soak_leaked_gateway", "soak_leaked_cloud"];

fn soak(world: &mut World, effort: Effort) -> Result<Report> {
    let length = effort.pick(FULL, SMOKE);
    let filler = small_disk(world)?;
    let seed = fresh_seed("soak");
    let mut generator = Pcg64::seed_from_u64(seed);
    let load = Load::start(world, seed)?;
    let mut trouble = Trouble::new(world, filler)?;
    let began = Instant::now();
    while began.elapsed() < length / 4 {
        trouble.make(world, &mut generator)?;
        trouble.kill(world, &load, &mut generator)?;
    }
    load.pause()?;
    let lasting = load.open_lasting(world)?;
    let mut readings = Vec::new();
    while began.elapsed() < length {
        load.resume();
        let round = Instant::now();
        while round.elapsed() < (length / ROUNDS).min(ROUND_MAX) {
            trouble.make(world, &mut generator)?;
        }
        trouble.end(world)?;
        load.pause()?;
        std::thread::sleep(SETTLED);
        readings.push([Side::Gateway, Side::Cloud].map(|side| Reading::of(world, side)));
    }
    lasting.end()?;
    let readings = readings.into_iter().map(|[gateway, cloud]| Ok([gateway?, cloud?]));
    let readings = readings.collect::<Result<Vec<_>>>()?;
    let outcome = load.end()?;
    ensure!(readings.len() >= 3, "only {} readings of memory", readings.len());
    println!("{}", trouble.summary());
    Ok(figures(&outcome, &readings, effort))
}

/// Puts the gateway's LinkDB on a small disk of its own; returns the file that may fill it.
fn small_disk(world: &mut World) -> Result<PathBuf> {
    let disk = world.lab.folder().join("disk");
    std::fs::create_dir(&disk)?;
    scratch::mount_tmpfs(&disk, "8m")?;
    let file = &mut world.configurations[0];
    file.set("linkdb.path", disk.join("linkdb.redb").display().to_string());
    file.write(&Side::Gateway.configuration(&world.lab))?;
    world.restart_gateway()?;
    world.wait_until_up()?;
    Ok(disk.join("filler"))
}

/// What a daemon holds while nothing moves.
#[derive(Clone, Copy, Debug)]
struct Reading {
    memory_bytes: f64,
    descriptors: f64,
}

impl Reading {
    fn of(world: &World, side: Side) -> Result<Self> {
        let process = match side {
            Side::Gateway => &world.gateway,
            Side::Cloud => &world.cloud,
        };
        let descriptors = usage::descriptors(process.id())
            .with_context(|| format!("the {} does not run", side.name()))?;
        let memory_bytes = usage::memory_bytes(process.id())? as f64;
        Ok(Self { memory_bytes, descriptors: descriptors as f64 })
    }
}

fn figures(outcome: &Outcome, readings: &[[Reading; 2]], effort: Effort) -> Report {
    let mut report = Report::default();
    let count = |count: usize| count as f64;
    report.result("soak_flows", count(outcome.flows), "flows", Goal::AtLeast(1.0), &[]);
    report.result("soak_reset_by_kills", count(outcome.excused), "flows", Goal::None, &[]);
    report.result("soak_failed", count(outcome.failed.len()), "flows", Goal::AtMost(0.0), &[]);
    report.result("soak_wrong", count(outcome.wrong.len()), "flows", Goal::AtMost(0.0), &[]);
    report.result("soak_call_lost", outcome.call_lost, "x", Goal::None, &[]);
    for words in outcome.failed.iter().chain(&outcome.wrong).take(LINES_MAX) {
        println!("  {words}");
    }
    // The first third is warm-up: caches and the list of events are full after it.
    let third = readings.len() / 3;
    let (earlier, rest) = readings.split_at(third * 2);
    let warm = &earlier[third..];
    let goal = effort.pick(Goal::AtMost(0.05), Goal::None);
    for (index, side) in [Side::Gateway, Side::Cloud].iter().enumerate() {
        let memory = |some: &[[Reading; 2]]| -> Vec<f64> {
            some.iter().map(|both| both[index].memory_bytes).collect()
        };
        let all = memory(readings);
        let (before, after) = (memory(warm), memory(rest));
        let growth = mean(&after) / mean(&before).max(1.0) - 1.0;
        report.result(&format!("soak_growth_{}", side.name()), growth, "x", goal, &all);
        let held = |some: &[[Reading; 2]]| -> f64 {
            some.iter().map(|both| both[index].descriptors).fold(0.0, f64::max)
        };
        // A path may have a second connection for a moment.
        let leaked = (held(rest) - held(earlier) - SPARE_DESCRIPTORS).max(0.0);
        let goal = Goal::AtMost(0.0);
        report.result(&format!("soak_leaked_{}", side.name()), leaked, "descriptors", goal, &[]);
    }
    report
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// How long it takes.
const FULL: Duration = Duration::from_secs(1_600);
const SMOKE: Duration = Duration::from_secs(60);
/// Rounds in a run, and the longest.
const ROUNDS: u32 = 12;
const ROUND_MAX: Duration = Duration::from_secs(40);
/// How long after the last flow the daemons are read.
const SETTLED: Duration = Duration::from_secs(1);
/// Failed flows that are printed.
const LINES_MAX: usize = 20;
const SPARE_DESCRIPTORS: f64 = 4.0;

/// Fills the disk of this file.
fn fill(filler: &Path) -> Result<()> {
    // Larger than the disk, so the error is that of a full disk.
    let full = std::fs::write(filler, vec![0; 16 << 20]);
    ensure!(full.is_err(), "the disk is not full");
    Ok(())
}
