//! One download after another, of one passenger, with pauses.

use std::time::Duration;

use polyrail_emulator::rail::Trip;

use super::{Contestant, world};

/// A download as it went.
#[derive(Clone, Copy, Debug)]
pub struct Download {
    /// Its size in bytes.
    pub bytes: u64,
    /// From the passenger's connection to the last byte; the trip's end when it did not end.
    pub time: Duration,
    /// It came to its end.
    pub ended: bool,
}

/// Downloads of these sizes in turns, as many as the trip has time for.
pub fn downloads(trip: &Trip, contestant: &Contestant, sizes: &[u64]) -> Vec<Download> {
    let mut world = world(trip, contestant);
    world.run_for(WARM_UP);
    let mut list = Vec::new();
    for &bytes in sizes.iter().cycle() {
        let left = trip.length.saturating_sub(world.elapsed());
        if left < LAST {
            return list;
        }
        let Ok(flow) = world.open(1) else { return list };
        world.flow_mut(flow).server = (bytes, true);
        let from = world.now();
        let took = world.run_until(left, |world| world.flow(flow).legs[0].end_seen);
        let time = took.unwrap_or_else(|| world.now() - from);
        list.push(Download { bytes, time, ended: took.is_some() });
        world.run_for(PAUSE);
    }
    list
}

const WARM_UP: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(500);
/// No download begins so shortly before the end.
const LAST: Duration = Duration::from_secs(10);
