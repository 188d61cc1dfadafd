//! A trial through the simulated world: what `polyrail-lab trials` plays with the daemons.

use std::time::Duration;

use polyrail_emulator::rail::{CarrierTrip, Trip};
use polyrail_emulator::trials::{FLOW_BEGINS, SAMPLE_EVERY, Sample, TUNNEL_LEAD, Trial};

use crate::sim::{Contestant, Engine, world};
use crate::world::{Side, World};

/// One endless download over one carrier by chain `min_rtt` with the engine `full`; the trial has
/// its lead already. The samples begin with the flow's data.
///
/// # Panics
/// The world finds a breach.
pub(super) fn play(late: &Trial, seed: u64) -> Vec<Sample> {
    let contestant = Contestant::named("min_rtt", Engine::Full);
    let carrier = CarrierTrip { links: late.links.clone(), handovers: Vec::new() };
    let trip = Trip { seed, length: late.length, carriers: vec![carrier], fixes: Vec::new() };
    let mut world = world(&trip, &contestant);
    let flow = world.open(1).unwrap_or_else(|error| panic!("a flow is refused: {error:?}"));
    let begin = TUNNEL_LEAD + FLOW_BEGINS;
    run_to(&mut world, begin);
    world.write(flow, Side::Cloud, ENDLESS);
    let mut samples = Vec::new();
    let mut at = begin;
    while at < late.length {
        run_to(&mut world, at);
        samples.push(Sample {
            at_s: (at - TUNNEL_LEAD).as_secs_f64(),
            delivered: world.flow(flow).legs[0].read,
            queue: queued(&mut world),
            ..Sample::default()
        });
        at += SAMPLE_EVERY;
    }
    samples
}

fn run_to(world: &mut World, at: Duration) {
    let left = at.saturating_sub(world.elapsed());
    world.run_for(left);
}

/// Bytes queued before the downlink.
fn queued(world: &mut World) -> u64 {
    let mut bytes = 0;
    // Of both links, the downlink is the last.
    world.change_links(0, |_, link| bytes = link.queued().bytes);
    bytes
}

const ENDLESS: u64 = 1 << 40;
