//! Measures the link: samples for the scheduler, and the rate for the queue ahead of the path.
//!
//! `quiche` reports neither the bytes in flight nor the consecutive timeouts; both are derived here
//! from deltas of its statistics. Bytes in flight are packets sent minus acknowledged minus lost,
//! between zero and the window. The difference drifts, because long acknowledgements look like data
//! but are never acknowledged. So it is corrected by `quiche`'s free window after each received
//! packet, and set to zero whenever nothing was in flight for a while. A timeout counts if the
//! probe timer fired and declared nothing lost (the same timer also declares losses); progress
//! resets it.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, LinkSample};
use quiche::{Connection, Stats};

use super::bbr::Bbr;
use super::context::{UNBOUND_PART, UNBOUND_WINDOW};
use super::pacer::Pacer;
use super::paths::active;

/// The state between samples.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Data packets sent, and their bytes.
    sent_packets: u64,
    sent_bytes: u64,
    /// `sent - acknowledged - lost` when nothing was in flight: the drift.
    offset: i64,
    /// How long data was in flight in total.
    flight_time: Duration,
    /// Valid packets of the peer.
    pub(super) received_packets: usize,
    acked: u64,
    timeouts: u32,
    /// When the path last had room but no data.
    idle_at: Option<Instant>,
    rate: u64,
    srtt: Duration,
    window: usize,
    bbr: Bbr,
    /// The congestion control, unless `quiche` has it.
    pub(super) pacer: Option<Pacer>,
}

impl Meter {
    /// A packet was made; returns whether it may contain data.
    pub(super) fn on_sent(&mut self, connection: &Connection, now: Instant, length: usize) -> bool {
        let may_be_data = length >= DATA_PACKET_MIN;
        if may_be_data {
            self.bbr.on_sent(now, length);
            self.tell_pacer(connection, |pacer, in_flight| pacer.on_sent(now, length, in_flight));
            self.sent_packets += 1;
            self.sent_bytes += length as u64;
        }
        may_be_data
    }

    /// Whether no packet with data was sent yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.sent_packets == 0
    }

    /// The queue ran empty.
    pub(super) fn on_idle(&mut self, connection: &Connection, now: Instant) {
        self.idle_at = Some(now);
        self.tell_pacer(connection, |pacer, in_flight| pacer.on_idle(in_flight));
    }

    /// See [`Bbr::idleness_counts`].
    pub(super) fn idleness_counts(&mut self, connection: &Connection) -> bool {
        if self.pacer.is_some() {
            return false;
        }
        let in_flight = self.in_flight(connection);
        self.bbr.idleness_counts(connection, in_flight)
    }

    /// Tells the pacer, if there is one, with the bytes in flight.
    fn tell_pacer(&mut self, connection: &Connection, tell: impl FnOnce(&mut Pacer, usize)) {
        if self.pacer.is_some() {
            let in_flight = self.in_flight(connection);
            if let Some(pacer) = &mut self.pacer {
                tell(pacer, in_flight);
            }
        }
    }

    /// The release time of the next packet.
    pub(super) fn release_time(
        &mut self,
        connection: &Connection,
        now: Instant,
    ) -> Option<Instant> {
        let (at, most) = match &self.pacer {
            Some(pacer) => (Some(pacer.next_at()), Some(pacer.window())),
            None => (self.bbr.release_time(connection, now), self.bbr.bound()),
        };
        // An acknowledgement opens a full window; until then only short packets leave.
        let is_full = most.is_some_and(|most| self.in_flight(connection) >= most);
        if is_full { Some(now + FULL_WAIT) } else { at }
    }

    /// Datagrams were received; returns whether they contained valid packets.
    pub(super) fn on_received(
        &mut self,
        connection: &mut Connection,
        control_stream: u64,
        now: Instant,
    ) -> bool {
        let stats = connection.stats();
        if stats.recv <= self.received_packets {
            return false;
        }
        self.received_packets = stats.recv;
        if stats.acked_bytes > self.acked {
            self.acked = stats.acked_bytes;
            self.timeouts = 0;
        }
        // `quiche` has just computed its free window; a large value may be the stream's bound
        // instead.
        if let Ok(room) = connection.stream_capacity(control_stream)
            && let Some(path) = active(connection)
            && let (known, part) = match self.pacer {
                // After a timeout `quiche` sends beyond its window, and shows the peer's credit.
                Some(_) => (ROOM_EARLIER + 1..path.cwnd.div_ceil(UNBOUND_PART) + 1, UNBOUND_PART),
                None => (0..ROOM_KNOWN, 1),
            }
            && known.contains(&room)
        {
            let in_flight = path.cwnd.saturating_sub(room * part);
            self.offset = self.difference(&stats) - in_flight as i64;
        }
        let in_flight = (self.difference(&stats) - self.offset).max(0) as usize;
        self.bbr.on_acked(now, stats.acked_bytes, in_flight);
        self.tell_pacer(connection, |pacer, in_flight| {
            pacer.on_received(connection, now, in_flight);
        });
        true
    }

    /// Lets `quiche` handle its timers, and counts; true when this was a timeout of the path.
    pub(super) fn on_timeout(&mut self, connection: &mut Connection) -> bool {
        let figures = |connection: &Connection| {
            (active(connection).map_or(0, |path| path.total_pto_count), connection.stats().lost)
        };
        let (probes, lost) = figures(connection);
        connection.on_timeout();
        let (probes_now, lost_now) = figures(connection);
        let timed_out = probes_now > probes && lost_now == lost;
        if timed_out {
            self.timeouts = self.timeouts.saturating_add(1);
        }
        timed_out
    }

    /// The smoothed round-trip time.
    pub(super) fn srtt(&self) -> Duration {
        self.srtt
    }

    /// How long data may make no progress before something is wrong.
    pub(super) fn patience(&self) -> Duration {
        (self.srtt * 2).max(PATIENCE_MIN)
    }

    /// Reads the path's rate, round-trip time and window; cheap enough for every burst.
    pub(super) fn refresh(&mut self, connection: &Connection) {
        let Some(path) = active(connection) else { return };
        self.srtt = path.rtt;
        if let Some(pacer) = &self.pacer {
            self.window = pacer.window();
            let by_window = || per_second(self.window as u64, path.rtt);
            self.rate = pacer.rate().unwrap_or_else(by_window);
            return;
        }
        self.window = path.cwnd;
        let in_flight = self.in_flight(connection);
        self.bbr.refresh(&path, in_flight);
        let by_window = per_second(path.cwnd as u64, path.rtt);
        self.rate = match path.max_bandwidth {
            Some(bandwidth @ 1..) => bandwidth.max(by_window / 4),
            _ => by_window,
        };
    }

    /// How many bytes the path sends in a time, by the last rate.
    pub(super) fn bytes_in(&self, time: Duration) -> usize {
        (self.rate as f64 * time.as_secs_f64()) as usize
    }

    /// Bytes sent and neither acknowledged nor lost.
    pub(super) fn in_flight(&mut self, connection: &Connection) -> usize {
        let stats = connection.stats();
        let difference = self.difference(&stats);
        // The duration stands still if nothing is in flight, but also while the peer is silent;
        // then the probe timer is armed or has fired.
        let probing = self.timeouts > 0 || connection.timeout().is_some_and(|left| left < PROBE);
        if stats.bytes_in_flight_duration == self.flight_time && !probing {
            // Nothing has been in flight since the last call.
            self.offset = difference;
        }
        self.flight_time = stats.bytes_in_flight_duration;
        let in_flight = (difference - self.offset).max(0) as usize;
        let most = if self.pacer.is_some() { UNBOUND_WINDOW } else { self.window };
        in_flight.min(most + WINDOW_EXCESS)
    }

    fn difference(&self, stats: &Stats) -> i64 {
        self.sent_bytes as i64 - stats.acked_bytes as i64 - stats.lost_bytes as i64
    }

    /// A sample of the link; `unsent` is the queue ahead of the path.
    pub(super) fn sample(
        &mut self,
        connection: &Connection,
        now: Instant,
        unsent: usize,
    ) -> Option<LinkSample> {
        self.refresh(connection);
        let path = active(connection)?;
        let in_flight = self.in_flight(connection);
        let stats = connection.stats();
        // A measured rate describes the data of one round trip ago.
        let limited = self.idle_at.is_some_and(|at| now.saturating_duration_since(at) < path.rtt);
        Some(LinkSample {
            at: now,
            srtt: path.rtt,
            rtt_min: path.min_rtt.unwrap_or(path.rtt).min(path.rtt),
            rtt_var: path.rttvar,
            window: Bytes(self.window.min(self.bbr.bound().unwrap_or(usize::MAX)) as u64),
            in_flight: Bytes(in_flight as u64),
            unsent: Bytes(unsent as u64),
            delivery_rate: match &self.pacer {
                Some(pacer) => pacer.delivery_rate(),
                None => (path.delivery_rate > 0)
                    .then(|| Bitrate::from_bytes_per_second(path.delivery_rate)),
            },
            application_limited: limited,
            sent_packets: self.sent_packets,
            lost_packets: stats.lost as u64,
            spurious_packets: stats.spurious_lost as u64,
            timeouts: self.timeouts,
            acked: Bytes(stats.acked_bytes),
        })
    }
}

/// Detects that packets of full size do not pass any more, while shorter ones do (a black hole,
/// RFC 8899 4.3).
///
/// It compares the bytes lost and acknowledged since the first of the recent losses: in a black
/// hole nearly all lost packets have the full size, and little is acknowledged. Timeouts alone do
/// not show it, because short packets pass and reset their count.
#[derive(Debug)]
pub(super) struct SizeWatch {
    /// The longest datagram that passes.
    pub(super) mtu: usize,
    acked: u64,
    lost: usize,
    lost_bytes: u64,
    since: Option<Instant>,
}

impl Default for SizeWatch {
    fn default() -> Self {
        let mtu = quiche::MIN_CLIENT_INITIAL_LEN;
        Self { mtu, acked: 0, lost: 0, lost_bytes: 0, since: None }
    }
}

impl SizeWatch {
    /// Whether the datagram size is too long now; then the watch starts over.
    pub(super) fn is_black_hole(&mut self, stats: &Stats, now: Instant) -> bool {
        self.look(now, stats.acked_bytes, stats.lost, stats.lost_bytes)
    }

    fn look(&mut self, now: Instant, acked: u64, lost: usize, lost_bytes: u64) -> bool {
        let packets = lost.saturating_sub(self.lost);
        if packets == 0 {
            // Acknowledgements before the first loss are no evidence.
            (self.acked, self.since) = (acked, Some(now));
        }
        let bytes = lost_bytes.saturating_sub(self.lost_bytes);
        let passed = acked.saturating_sub(self.acked);
        let black = self.mtu > quiche::MIN_CLIENT_INITIAL_LEN
            && packets >= LOST_MIN
            && bytes > quiche::MIN_CLIENT_INITIAL_LEN as u64 * packets as u64
            && bytes > LOST_OVER_ACKED * passed;
        let old = self.since.is_none_or(|since| now.saturating_duration_since(since) >= LOOK);
        if black || old {
            *self = Self { mtu: self.mtu, acked, lost, lost_bytes, since: Some(now) };
        }
        black
    }
}

/// Fewer lost packets are not evidence.
const LOST_MIN: usize = 6;
/// Lost bytes must exceed acknowledged bytes so many times.
const LOST_OVER_ACKED: u64 = 4;
/// The period after a loss over which losses are counted.
const LOOK: Duration = Duration::from_secs(1);

fn per_second(bytes: u64, time: Duration) -> u64 {
    (bytes as f64 / time.as_secs_f64().max(1e-4)) as u64
}

/// Before the first timeout the probe timer is shorter than this (RFC 9002 6.2), and an idle
/// connection's timer is longer but for its last moments.
const PROBE: Duration = Duration::from_secs(10);
/// Longer than a path's own variation.
const PATIENCE_MIN: Duration = Duration::from_millis(100);
/// The control stream's window, less its unread bytes, is larger: peers of version 0.1 renew it
/// when half of 256 KiB is used. Idle windows grow to twice the initial one, which is less.
const ROOM_KNOWN: usize = 112 << 10;
/// With a pacer, a part of the free window is larger than this, and less than the control stream's
/// window. Peers of version 0.1 have a window of this size, which shows nothing.
const ROOM_EARLIER: usize = 256 << 10;
/// How long a full window delays acknowledgements: the usual `max_ack_delay` (RFC 9000 18.2).
const FULL_WAIT: Duration = Duration::from_millis(25);
/// Shorter packets contain only acknowledgements, which are not in flight.
const DATA_PACKET_MIN: usize = 80;
/// Probes may exceed the window a little (RFC 9002 7.5).
const WINDOW_EXCESS: usize = 4 * 1_500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn black_hole_is_detected() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let base = Instant::now();
        let at = |millis| base + Duration::from_millis(millis);
        let fresh = |mtu| {
            let mut watch = SizeWatch { mtu, ..SizeWatch::default() };
            assert!(!watch.look(at(0), 0, 0, 0));
            watch
        };
        // Bytes acknowledged, packets lost, bytes lost.
        for (mtu, acked, lost, lost_bytes, black, why) in [
            (1_400, 2_000, 6, 8_400, true, "six of full size, and a little acknowledged"),
            (1_400, 2_000, 5, 7_000, false, "few"),
            (1_400, 2_100, 6, 8_400, false, "much passes"),
            (1_400, 0, 6, 6_000, false, "short ones are lost, too"),
            (1_200, 0, 9, 12_000, false, "there is no shorter size"),
        ] {
            assert_eq!(fresh(mtu).look(at(100), acked, lost, lost_bytes), black, "{why}");
        }
        let mut watch = fresh(1_400);
        for (ms, lost, lost_bytes, black, why) in [
            (900, 5, 7_000, false, "few"),
            (1_000, 5, 7_000, false, "few"),
            (1_100, 8, 11_200, false, "old losses do not count"),
            (1_200, 11, 15_400, true, "enough"),
            (1_300, 12, 16_800, false, "it starts over"),
        ] {
            assert_eq!(watch.look(at(ms), 0, lost, lost_bytes), black, "{why}");
        }
    }
}
