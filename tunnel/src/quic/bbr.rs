//! What `quiche`'s bbr lacks for carriers whose rate changes within a second.
//!
//! **Idleness.** bbr has to know when data is missing, not room; see `tell_idle` in
//! [`egress`](super::egress). But a startup ends neither for a steady rate nor for losses while
//! `quiche` believes that data is missing. The scheduler bounds the bytes in flight and gives a
//! path little at a time, so its queue runs empty in most round trips of a large download, too. So
//! a startup learns of no idleness once the carrier was full.
//!
//! **Pacing.** After its startup bbr drains the queue that this left, sends at the rate that it
//! knows, and looks for more every two seconds. So from the end of the draining on the tunnel paces
//! packets faster, and the window, two bandwidth-delay products, limits them: a carrier that gets
//! faster acknowledges faster and shows it within a round trip. Such pacing also disregards the
//! cuts of the rate after lossy rounds. Those of the window remain.

use std::time::{Duration, Instant};

use quiche::{Connection, PathStats};

use super::paths::active;

/// The state of one connection. With other controls than bbr it has no effect.
#[derive(Debug, Default)]
pub(super) struct Bbr {
    /// Whether the startup has filled the carrier.
    filled: bool,
    /// bbr's rate in bytes per second, once the queue of the startup was drained: `quiche`'s bbr
    /// does nothing else until then.
    rate: Option<f64>,
    /// When the next packet may leave, after the draining.
    next_at: Option<Instant>,
}

impl Bbr {
    /// Whether bbr should learn that the queue ran empty although the window has room.
    pub(super) fn idleness_counts(&mut self, connection: &Connection, in_flight: usize) -> bool {
        let Some(path) = active(connection) else { return false };
        let Some(rate) = path.max_bandwidth else { return false };
        if path.startup_exit.is_some() {
            self.filled = false;
            return true;
        }
        let rtt = path.min_rtt.unwrap_or(path.rtt);
        let full = rate as f64 * rtt.as_secs_f64() * FULL_PART;
        self.filled |= in_flight >= (full as usize).max(FULL_MIN);
        !self.filled
    }

    /// Reads the rate, before each burst; `in_flight` are the bytes in flight.
    pub(super) fn refresh(&mut self, path: &PathStats, in_flight: usize) {
        let rate = path.max_bandwidth.filter(|rate| *rate > 0 && path.startup_exit.is_some());
        let Some(rate) = rate.map(|rate| rate as f64) else {
            (self.rate, self.next_at) = (None, None);
            return;
        };
        let product = rate * path.min_rtt.unwrap_or(path.rtt).as_secs_f64();
        if self.rate.is_some() || in_flight as f64 <= product {
            self.rate = Some(rate);
        }
    }

    /// A packet with data was made.
    pub(super) fn on_sent(&mut self, now: Instant, length: usize) {
        let Some(rate) = self.rate else { return };
        let time = Duration::from_secs_f64(length as f64 / rate / PACING_GAIN);
        let earliest = now.checked_sub(LATE_MAX).unwrap_or(now);
        let next_at = self.next_at.map_or(now, |at| at.max(earliest)) + time;
        self.next_at = Some(next_at.min(now + GAP_MAX));
    }

    /// The release time of the next packet.
    pub(super) fn release_time(&self, connection: &Connection, now: Instant) -> Option<Instant> {
        self.next_at.or_else(|| connection.get_next_release_time()?.time(now))
    }
}

/// So many bandwidth-delay products in flight fill a carrier, as in bbr's own bandwidth probes.
const FULL_PART: f64 = 1.25;
/// A carrier whose rate is unknown is not full with fewer bytes in flight.
const FULL_MIN: usize = 12_000;
/// The pacing over bbr's rate. Trips at 300 km/h: 1.5 and 2.5 are equally fast, and 2.5 dearer.
const PACING_GAIN: f64 = 1.5;
/// So much lateness of a packet is made up for by the next ones.
const LATE_MAX: Duration = Duration::from_millis(2);
/// The longest time until the next packet, at any rate.
const GAP_MAX: Duration = Duration::from_millis(100);
