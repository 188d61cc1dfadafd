//! The daemons' half of the comparison with the simulator: trials played through a QUIC tunnel.
//!
//! Each trial has a lab of its own with one gateway, one cloud and one carrier, which is the
//! trial's link behind a lead in which the daemons come up. What the passenger's program has read
//! of one endless download is noted as `polyrail-kernel-tcp` does. A few labs stand at a time.

mod flow;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::trials::{FLOW_BEGINS, Played, SAMPLE_EVERY, Sample, TUNNEL_LEAD};
use polyrail_emulator::trials::{Trial, trials};

use crate::carrier::{self, Medium};
use crate::world::{self, World};
use flow::Flow;

/// How to play.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How often each trial is played, with another seed each time.
    pub runs: u64,
    /// How many labs at a time.
    pub together: usize,
    /// Only trials whose name begins so.
    pub only: String,
}

/// Plays all trials and writes what was seen to a file.
///
/// # Errors
/// A lab does not come up, or the file cannot be written.
pub fn play(plan: &Plan, out: &Path) -> Result<()> {
    let mut queue: Vec<(Trial, u64)> = Vec::new();
    for trial in trials()?.into_iter().filter(|trial| trial.name.starts_with(&plan.only)) {
        queue.extend((1..=plan.runs).map(|run| (trial.clone(), run)));
    }
    ensure!(!queue.is_empty(), "there is no trial {:?}", plan.only);
    // Those of one length together: a batch takes as long as its longest.
    queue.sort_by_key(|(trial, _)| trial.length);
    let batches: Vec<_> = queue.chunks(plan.together.max(1)).collect();
    let mut all = Vec::new();
    for (number, batch) in batches.iter().enumerate() {
        let seconds = batch.iter().map(|(trial, _)| trial.length + TUNNEL_LEAD).max();
        let seconds = seconds.unwrap_or_default().as_secs();
        eprintln!("tunnels: batch {} of {}, {seconds} s", number + 1, batches.len());
        all.extend(play_batch(batch)?);
    }
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(out, serde_json::to_vec(&all)?).with_context(|| format!("{}", out.display()))
}

/// Each on a thread of its own, which a lab needs.
fn play_batch(batch: &[(Trial, u64)]) -> Result<Vec<Played>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = batch
            .iter()
            .map(|(trial, seed)| scope.spawn(move || play_patiently(trial, *seed)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|outcome| outcome.map_err(|_| anyhow!("a trial panicked"))?).collect()
    })
}

/// Daemons that come up too late are tried once more.
fn play_patiently(trial: &Trial, seed: u64) -> Result<Played> {
    let mut outcome = play_one(trial, seed);
    for _ in 1..ATTEMPTS {
        let Err(error) = &outcome else { break };
        eprintln!("{}, once more: {error:#}", trial.name);
        outcome = play_one(trial, seed);
    }
    outcome.with_context(|| format!("trial {}", trial.name))
}

fn play_one(trial: &Trial, seed: u64) -> Result<Played> {
    let late = trial.after_lead()?;
    let mut world = World::start_cold(&plan_of(&late, seed))?;
    world.wait_for_carriers()?;
    let emulator = world.emulator.as_ref().context("no emulator")?;
    let trial_begins = emulator.epoch + TUNNEL_LEAD;
    let (begin, end) = (trial_begins + FLOW_BEGINS, emulator.epoch + late.length);
    let flow = Flow::open(&world, begin, end)?;
    ensure!(Instant::now() < begin, "the daemons came up too late");
    let mut samples = Vec::new();
    let mut next = begin;
    while next < end {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let at = Instant::now() - trial_begins;
        let counters = carrier::counters(&world.lab)?;
        samples.push(Sample {
            at_s: at.as_secs_f64(),
            delivered: flow.delivered(),
            queue: counters.first().context("no carrier")?.down_queued_bytes,
            ..Sample::default()
        });
        next += SAMPLE_EVERY;
    }
    if flow.delivered() == 0 {
        return Err(anyhow!("nothing came\n{}", world.tails()));
    }
    Ok(Played {
        trial: trial.name.to_owned(),
        control: CONTROL.to_owned(),
        seed,
        mark: late.mark(),
        samples,
    })
}

/// One carrier in mode `quic`; all else as the product has it, but for the chain.
fn plan_of(trial: &Trial, seed: u64) -> world::Plan {
    let links = Medium::Course(Box::new(trial.links.clone()));
    let plan = world::Plan::new().medium("alpha", links);
    let plan = plan.command(&format!("set alpha seed {seed}"));
    let plan = plan.gateway("mode", "quic").cloud("mode", "quic");
    let plan = plan.gateway("scheduler.chain", "min_rtt").cloud("scheduler.chain", "min_rtt");
    plan.carrier_key(0, "congestion", "bbr").cloud("congestion", "bbr")
}

/// What stands in the place of a control of the kernel.
const CONTROL: &str = "quic";
/// How often a lab is set up at most.
const ATTEMPTS: u32 = 3;
