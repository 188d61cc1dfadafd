//! One download after another, of one passenger, with pauses.

use std::time::Duration;

use polyrail_emulator::rail::Trip;

use super::{Contestant, bound, fluids, resent, world};
use crate::world::{Side, World};

/// A download as it went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Download {
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes read: all, or those that arrived by the trip's end.
    pub read: u64,
    /// When the passenger asked for it, since the trip's beginning.
    pub at: Duration,
    /// From the passenger's connection to the last byte; the trip's end when it did not end.
    pub time: Duration,
    /// It came to its end.
    pub ended: bool,
    /// Its duration over the fluid aggregated link, if requested at the same time; at
    /// most until the trip's end.
    pub bound: Duration,
}

/// All downloads of a trip.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Downloads {
    /// In their order.
    pub list: Vec<Download>,
    /// Bytes that gateway and cloud sent more than once.
    pub resent: u64,
}

impl Download {
    /// Mbit/s.
    pub fn goodput(&self) -> f64 {
        self.read as f64 * 8e-6 / self.time.as_secs_f64()
    }

    /// Mbit/s that nothing can exceed, asked for at the same time.
    pub fn goodput_bound(&self) -> f64 {
        self.bytes as f64 * 8e-6 / self.bound.as_secs_f64()
    }
}

/// Downloads of these sizes in turns, as many as the trip has time for.
pub fn downloads(trip: &Trip, contestant: &Contestant, sizes: &[u64]) -> Downloads {
    downloads_in(world(trip, contestant), trip, sizes)
}

/// The same in a world that stands.
pub fn downloads_in(mut world: World, trip: &Trip, sizes: &[u64]) -> Downloads {
    let fluids = fluids(trip);
    let mut list = Vec::new();
    for &bytes in sizes.iter().cycle() {
        let left = trip.length.saturating_sub(world.elapsed());
        if left < LAST {
            break;
        }
        let Ok(flow) = world.open(1) else { break };
        world.flow_mut(flow).server = (bytes, true);
        let at = world.elapsed();
        let took = world.run_until(left, |world| world.flow(flow).legs[0].end_seen);
        let time = took.unwrap_or_else(|| world.elapsed() - at);
        let bound = bound::download(&fluids, at.as_secs_f64(), bytes) - at.as_secs_f64();
        let bound = Duration::from_secs_f64(bound.min(left.as_secs_f64()));
        let ended = took.is_some();
        let read = if ended { bytes } else { world.flow(flow).legs[0].read };
        list.push(Download { bytes, read, at, time, ended, bound });
        world.run_for(PAUSE);
    }
    Downloads { list, resent: Side::BOTH.map(|side| resent(&world, side)).iter().sum() }
}

/// Between two downloads.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// No download begins so shortly before the end.
pub(super) const LAST: Duration = Duration::from_secs(10);
