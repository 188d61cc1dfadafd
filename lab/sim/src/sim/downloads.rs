//! Downloads of one passenger, one after another, with pauses.

use std::time::Duration;

use polyrail_emulator::rail::Trip;

use super::resent;
use crate::world::{Side, World};

/// One download.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Download {
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes read: all, or those that arrived by the trip's end.
    pub read: u64,
    /// From the passenger's connection to the last byte, or to the trip's end if it did not finish.
    pub time: Duration,
    /// It finished.
    pub ended: bool,
}

/// All downloads of a trip.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Downloads {
    /// In their order.
    pub list: Vec<Download>,
    /// Bytes that gateway and cloud reinjected.
    pub resent: u64,
}

impl Download {
    /// Mbit/s.
    pub fn goodput(&self) -> f64 {
        self.read as f64 * 8e-6 / self.time.as_secs_f64()
    }
}

/// Downloads of these sizes in turns, as many as the trip has time for.
pub fn downloads(mut world: World, trip: &Trip, sizes: &[u64]) -> Downloads {
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
        let ended = took.is_some();
        let read = if ended { bytes } else { world.flow(flow).legs[0].read };
        list.push(Download { bytes, read, time, ended });
        world.run_for(PAUSE);
    }
    Downloads { list, resent: Side::BOTH.map(|side| resent(&world, side)).iter().sum() }
}

/// Between two downloads.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// No download begins so shortly before the end.
pub(super) const LAST: Duration = Duration::from_secs(10);
