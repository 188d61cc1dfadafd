//! Drives [`Rail`] with `quiche`'s statistics, in place of `quiche`'s own congestion control.
//!
//! `quiche` has no interface for a congestion control. With the settings of
//! [`context`](super::context) its window never binds, and the egress asks here when the next
//! packet may leave. `quiche` keeps the loss detection.

use std::time::{Duration, Instant};

use polyrail_congestion::{Acked, Knowledge, Rail};
use polyrail_model::{Bitrate, Bytes};
use quiche::Connection;

use super::paths::active;

/// The congestion control of one connection, and its pacing.
#[derive(Debug)]
pub(super) struct Pacer {
    rail: Rail,
    /// When the next packet may leave.
    next_at: Instant,
    /// The smoothed round-trip time that `quiche` last reported; `None` before the first sample.
    srtt: Option<Duration>,
    /// The least round-trip time of the datagrams absorbed together.
    rtt: Option<Duration>,
}

impl Pacer {
    pub(super) fn new(now: Instant) -> Self {
        Self { rail: Rail::new(now), next_at: now, srtt: None, rtt: None }
    }

    /// Starts from what an earlier connection knew.
    pub(super) fn resume(&mut self, now: Instant, known: Knowledge) {
        self.rail.resume(now, known);
    }

    /// A datagram was absorbed: derives the round-trip time that `quiche` measured. It keeps only
    /// the smoothed one, which a sample moves by an eighth of the difference (RFC 9002 5.3).
    pub(super) fn on_datagram(&mut self, connection: &Connection) {
        let Some(path) = active(connection) else { return };
        if path.min_rtt.is_none() || self.srtt == Some(path.rtt) {
            return;
        }
        let sample = match self.srtt {
            None => path.rtt,
            Some(before) => (path.rtt * 8).saturating_sub(before * 7),
        };
        self.srtt = Some(path.rtt);
        self.rtt = Some(self.rtt.map_or(sample, |least| least.min(sample)));
    }

    /// Datagrams were absorbed; `in_flight` are the bytes in flight now.
    pub(super) fn on_received(&mut self, connection: &Connection, now: Instant, in_flight: usize) {
        let stats = connection.stats();
        let (acked, lost) = (stats.acked_bytes, stats.lost_bytes);
        let in_flight = in_flight as u64;
        self.rail.on_acked(&Acked { now, acked, lost, in_flight, rtt: self.rtt.take() });
    }

    /// The path changed.
    pub(super) fn on_path_change(&mut self) {
        self.srtt = None;
        self.rail.on_path_change();
    }

    /// A packet with data was made; `in_flight` are the bytes in flight before it.
    pub(super) fn on_sent(&mut self, now: Instant, length: usize, in_flight: usize) {
        let bytes = Bytes(length as u64);
        self.rail.on_sent(now, bytes.0, in_flight as u64);
        if let Some(rate) = self.rail.pacing() {
            let time = rate.time_for(bytes).unwrap_or(PACE_MAX).min(PACE_MAX);
            self.next_at = self.next_at.max(now) + time;
        }
    }

    /// All units are sent.
    pub(super) fn on_idle(&mut self, in_flight: usize) {
        self.rail.on_limited(in_flight as u64);
    }

    /// When pacing permits the next packet.
    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// How many bytes may be in flight.
    pub(super) fn window(&self) -> usize {
        self.rail.window().as_usize()
    }

    /// The rate of the next packets in bytes per second; `None` before the first sample.
    pub(super) fn rate(&self) -> Option<u64> {
        self.rail.pacing().map(|rate| rate.as_bps() / 8)
    }

    /// The delivery rate; see [`Rail::delivery_rate`].
    pub(super) fn delivery_rate(&self) -> Option<Bitrate> {
        self.rail.delivery_rate()
    }

    /// What the next connection over this carrier can start from.
    pub(super) fn knowledge(&self) -> Option<Knowledge> {
        self.rail.knowledge()
    }
}

/// The longest gap between two packets, at any rate.
const PACE_MAX: Duration = Duration::from_millis(200);
