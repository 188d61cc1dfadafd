//! Trials through a QUIC tunnel: each has a lab with a gateway, a cloud and one carrier.
//!
//! The carrier is the trial's link behind a lead in which the daemons start.

use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::trials::{FLOW_BEGINS, Played, SAMPLE_EVERY, Sample, TUNNEL_LEAD, Trial};

use super::Job;
use crate::bulk::{Bulk, Source};
use crate::carrier::{self, Medium};
use crate::world::{Plan, World};

/// How often a trial is attempted: on a busy machine the daemons may start too late.
const ATTEMPTS: u32 = 3;

/// Plays trials at the same time, each on a thread of its own, because a lab needs one.
pub(super) fn play(batch: &[Job]) -> Result<Vec<Played>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            batch.iter().map(|job| scope.spawn(move || play_patiently(job))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|played| played.map_err(|_| anyhow!("a trial panicked"))?).collect()
    })
}

fn play_patiently(job: &Job) -> Result<Played> {
    for _ in 1..ATTEMPTS {
        match play_one(job) {
            Ok(played) => return Ok(played),
            Err(error) => eprintln!("{}, retrying: {error:#}", job.trial.name),
        }
    }
    play_one(job).with_context(|| format!("trial {}", job.trial.name))
}

fn play_one(job: &Job) -> Result<Played> {
    let late = job.trial.after_lead()?;
    let mut world = World::start_cold(&plan(&late, job.seed))?;
    world.wait_for_carriers()?;
    let epoch = world.emulator.as_ref().context("no emulator")?.epoch;
    let trial_begins = epoch + TUNNEL_LEAD;
    let (begin, end) = (trial_begins + FLOW_BEGINS, epoch + late.length);
    let source = Source::start(&world)?;
    source.set_flowing(false);
    let bulk = Bulk::start(&world)?;
    source.wait_for_client(begin)?;
    ensure!(Instant::now() < begin, "the daemons started too late");
    let mut samples = Vec::new();
    let mut next = begin;
    while next < end {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        source.set_flowing(true);
        let at = Instant::now() - trial_begins;
        let counters = carrier::counters(&world.lab)?;
        samples.push(Sample {
            at_s: at.as_secs_f64(),
            delivered: bulk.bytes(),
            queue: counters.first().context("no carrier")?.down_queued_bytes,
            ..Sample::default()
        });
        next += SAMPLE_EVERY;
    }
    ensure!(bulk.bytes() > 0, "no byte arrived\n{}", world.tails());
    Ok(job.played(&late, samples))
}

/// One carrier in mode `quic`; everything else but the chain is the default.
fn plan(trial: &Trial, seed: u64) -> Plan {
    Plan::new()
        .medium("alpha", Medium::Course(Box::new(trial.links.clone())))
        .command(&format!("set alpha seed {seed}"))
        .gateway("mode", "quic")
        .cloud("mode", "quic")
        .gateway("scheduler.chain", "min_rtt")
        .cloud("scheduler.chain", "min_rtt")
        .carrier_key(0, "congestion", "bbr")
        .cloud("congestion", "bbr")
}
