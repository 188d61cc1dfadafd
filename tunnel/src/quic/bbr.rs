//! Drives [`Supplement`] with `quiche`'s statistics: pacing, idleness and the bound of `quiche`'s
//! bbr, which keeps its window.

use std::time::{Duration, Instant};

use polyrail_congestion::{PathModel, Supplement};
use polyrail_model::{Bitrate, Bytes};
use quiche::{Connection, PathStats};

use super::paths::active;

/// The state of one connection. With other controls than bbr it has no effect.
#[derive(Debug, Default)]
pub(super) struct Bbr {
    supplement: Supplement,
    /// When the next packet may leave, after the draining.
    next_at: Option<Instant>,
}

impl Bbr {
    /// See [`Supplement::idleness_counts`].
    pub(super) fn idleness_counts(&mut self, connection: &Connection, in_flight: usize) -> bool {
        let model = active(connection).and_then(|path| model(&path));
        model.is_some_and(|model| self.supplement.idleness_counts(&model, in_flight as u64))
    }

    /// See [`Supplement::refresh`].
    pub(super) fn refresh(&mut self, path: &PathStats, in_flight: usize) {
        let model = model(path).filter(|model| model.rate.as_bps() > 0);
        self.supplement.refresh(model.as_ref(), in_flight as u64);
        if self.supplement.pacing().is_none() {
            self.next_at = None;
        }
    }

    /// See [`Supplement::on_acked`].
    pub(super) fn on_acked(&mut self, now: Instant, acked: u64, in_flight: usize) {
        self.supplement.on_acked(now, acked, in_flight as u64);
    }

    /// See [`Supplement::bound`].
    pub(super) fn bound(&self) -> Option<usize> {
        self.supplement.bound().map(|bound| bound as usize)
    }

    /// A packet with data was made.
    pub(super) fn on_sent(&mut self, now: Instant, length: usize) {
        let Some(rate) = self.supplement.pacing() else { return };
        let time = rate.time_for(Bytes(length as u64)).unwrap_or(GAP_MAX);
        let earliest = now.checked_sub(LATE_MAX).unwrap_or(now);
        let next_at = self.next_at.map_or(now, |at| at.max(earliest)) + time;
        self.next_at = Some(next_at.min(now + GAP_MAX));
    }

    /// The release time of the next packet.
    pub(super) fn release_time(&self, connection: &Connection, now: Instant) -> Option<Instant> {
        self.next_at.or_else(|| connection.get_next_release_time()?.time(now))
    }
}

/// What `quiche`'s bbr knows; `None` for other controls.
fn model(path: &PathStats) -> Option<PathModel> {
    Some(PathModel {
        rate: Bitrate::from_bytes_per_second(path.max_bandwidth?),
        rtt: path.min_rtt.unwrap_or(path.rtt),
        in_startup: path.startup_exit.is_none(),
    })
}

/// So much lateness of a packet is made up for by the next ones.
const LATE_MAX: Duration = Duration::from_millis(2);
/// The longest time until the next packet, at any rate.
const GAP_MAX: Duration = Duration::from_millis(100);
