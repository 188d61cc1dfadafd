//! What the samples of its transport tell about a path: round-trip time, rate and slow start.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, LinkSample};
use polyrail_scheduler::PathView;

use super::busy_rate::BusyRate;
use crate::capacity::{Capacity, Look};
use crate::rate::Rate;

#[derive(Debug, Default)]
pub(crate) struct Link {
    /// The round-trip time before it is known, from another path of the carrier.
    pub guess: Option<Duration>,
    /// The session's first measurement of it.
    measured: Option<Duration>,
    pub rate: Rate,
    /// The rate that it delivers at present.
    capacity: Capacity,
    /// The rate of its link while that was busy.
    busy_rate: BusyRate,
    /// The rate while the path was the limit, not the offered load.
    pub proven_rate: Option<Bitrate>,
    pub last: Option<LinkSample>,
    start: SlowStart,
}

/// Whether the transport is in slow start, inferred from its samples: its window grows by half
/// within three round trips, and it has lost nothing.
#[derive(Clone, Copy, Debug, Default)]
struct SlowStart {
    goes_on: bool,
    /// When the window had last grown by half, and its size then.
    grown: Option<(Instant, Bytes)>,
    /// Packets lost before the first sample: those of the handshake.
    lost: u64,
}

impl SlowStart {
    fn sample(&mut self, sample: &LinkSample) {
        let Some((at, window)) = &mut self.grown else {
            let grown = Some((sample.at, sample.window));
            *self = Self { goes_on: true, grown, lost: sample.lost_packets };
            return;
        };
        if sample.window.0 >= window.0.saturating_add(window.0 / 2) {
            (*at, *window) = (sample.at, sample.window);
        } else if sample.application_limited || sample.in_flight == Bytes::ZERO {
            // An idle window does not grow, and continues later.
            *at = sample.at;
        }
        let late = sample.at.saturating_duration_since(*at) > sample.srtt * START_ROUNDS;
        self.goes_on &= !late && sample.lost_packets <= self.lost;
    }
}

impl Link {
    /// Takes a sample of a path that was given `sent` bytes.
    pub fn sample(&mut self, sample: &LinkSample, sent: u64) {
        self.last = Some(*sample);
        self.start.sample(sample);
        if !sample.application_limited {
            self.proven_rate = sample.delivery_rate.or(self.proven_rate);
        }
        self.rate.sample(sample);
        let backlog = sample.unsent.0.saturating_add(sample.in_flight.0);
        self.capacity.sample(&Look {
            at: sample.at,
            delivered: sent.saturating_sub(backlog),
            busy: sample.in_flight > Bytes::ZERO,
            backlog,
            rtt_min: sample.rtt_min,
        });
    }

    /// Notes that a run was sent; `bytes` are those of the path up to its end.
    pub fn run_sent(&mut self, sent_us: u64, bytes: u64) {
        self.busy_rate.sent(sent_us, bytes);
    }

    /// Takes the echo of a run that queued for this long.
    pub fn run_echoed(&mut self, now: Instant, sent_us: u64, received_us: u64, queued: Duration) {
        let rate = self.busy_rate.echo(now, sent_us, received_us, queued);
        rate.into_iter().for_each(|rate| self.capacity.was_busy(now, rate));
    }

    /// The session measured a round-trip time; the transport's own measurements have priority.
    pub fn measured(&mut self, rtt: Duration) {
        self.measured.get_or_insert(rtt);
    }

    /// The smoothed round-trip time; an estimate before the first measurement.
    pub fn srtt(&self) -> Duration {
        let known = self.last.map(|sample| sample.srtt).or(self.measured);
        known.or(self.guess).unwrap_or(RTT_GUESS)
    }

    pub fn rtt_var(&self) -> Duration {
        let measured = self.measured.unwrap_or_default() / 2;
        self.last.map_or(measured, |sample| sample.rtt_var)
    }

    /// The transport's minimum round-trip time; the smoothed one before it is known.
    pub fn rtt_min(&self) -> Duration {
        self.last.map_or_else(|| self.srtt(), |sample| sample.rtt_min)
    }

    /// The part of the scheduler's view that the samples tell.
    pub fn view(&self, now: Instant) -> PathView {
        let sample = self.last.as_ref();
        let bytes = |get: fn(&LinkSample) -> Bytes| sample.map_or(Bytes::ZERO, get);
        PathView {
            srtt: self.srtt(),
            rtt_min: self.rtt_min(),
            rtt_var: self.rtt_var(),
            window: bytes(|sample| sample.window),
            in_flight: bytes(|sample| sample.in_flight),
            unsent: bytes(|sample| sample.unsent),
            slow_start: self.start.goes_on,
            timeouts: sample.map_or(0, |sample| sample.timeouts),
            rate: self.rate.max(),
            capacity: self.capacity.now(now),
            busy_rate: self.busy_rate.now(now),
            ..PathView::default()
        }
    }
}

/// Round trips in which slow start doubles its window three times.
const START_ROUNDS: u32 = 3;
/// The round-trip time of an unmeasured carrier.
const RTT_GUESS: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::tests;

    /// A sample at a time in milliseconds, with a round-trip time of 40 ms.
    fn sample(base: Instant, ms: u64, window: u64, lost_packets: u64) -> LinkSample {
        let (window, in_flight) = (Bytes(window), Bytes(window));
        let sample = tests::sample(base + Duration::from_millis(ms), 8.0, false);
        LinkSample { window, in_flight, lost_packets, ..sample }
    }

    #[test]
    fn slow_start_ends_with_a_loss_or_a_constant_window() {
        let (base, mut start) = (tests::base(), SlowStart::default());
        let mut goes_on = |sample: LinkSample| {
            start.sample(&sample);
            start.goes_on
        };
        assert!(goes_on(sample(base, 0, 14_000, 2)), "losses of the handshake do not count");
        assert!(goes_on(sample(base, 40, 28_000, 2)));
        assert!(goes_on(sample(base, 160, 28_000, 2)), "three round trips");
        let idle = LinkSample { in_flight: Bytes::ZERO, ..sample(base, 60_000, 28_000, 2) };
        assert!(goes_on(idle), "nothing to send");
        assert!(goes_on(sample(base, 60_100, 41_999, 2)));
        assert!(!goes_on(sample(base, 60_121, 41_999, 2)), "not half as much again");
        assert!(!goes_on(sample(base, 60_130, 84_000, 2)), "it does not begin again");
        let mut start = SlowStart::default();
        start.sample(&sample(base, 0, 14_000, 0));
        start.sample(&sample(base, 40, 28_000, 1));
        assert!(!start.goes_on, "a loss");
    }
}
