//! Whether the data in flight arrived after an outage, by the account of its transport.
//!
//! A network that held the packets delivers them in order. QUIC then declares none lost, and the
//! peer's TCP receives the retransmissions as duplicates, which it reports (DSACK, RFC 2883). After
//! a network that dropped the packets, QUIC declares them lost as soon as a later one is
//! acknowledged, and TCP's retransmissions are no duplicates. Or a fresh connection ends the outage
//! although its own packets queued behind the data in flight.

use std::time::{Duration, Instant};

use polyrail_model::LinkSample;
use polyrail_session::TunnelKey;

/// The data in flight on a tunnel when an outage began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flight {
    pub(crate) tunnel: TunnelKey,
    /// The measurement at the last progress.
    pub(crate) before: LinkSample,
}

/// An outage of a carrier that is over.
#[derive(Clone, Debug)]
pub(crate) struct Aftermath {
    /// When it ended.
    pub(crate) at: Instant,
    pub(crate) carrier: String,
    /// A fresh connection ended it.
    replaced: bool,
    seen: Option<Seen>,
}

/// A tunnel and its measurements.
#[derive(Clone, Copy, Debug)]
struct Seen {
    flight: Flight,
    /// At the end of the outage.
    ended: LinkSample,
    last: LinkSample,
    /// Packets declared lost by the time at which the data in flight was acknowledged.
    lost: Option<u64>,
}

impl Aftermath {
    /// An outage that ended at `at`, whether a fresh connection `replaced` the tunnel, and the
    /// tunnel's data in flight and its measurement at the end, if known.
    pub(crate) fn new(
        at: Instant,
        carrier: String,
        replaced: bool,
        seen: Option<(Flight, LinkSample)>,
    ) -> Self {
        let seen = seen.map(|(flight, ended)| Seen { flight, ended, last: ended, lost: None });
        Self { at, carrier, replaced, seen }
    }

    /// The tunnel to follow.
    pub(crate) fn tunnel(&self) -> Option<TunnelKey> {
        self.seen.map(|seen| seen.flight.tunnel)
    }

    /// Takes a measurement of the tunnel.
    pub(crate) fn on_sample(&mut self, sample: &LinkSample) {
        if let Some(seen) = &mut self.seen {
            seen.last = *sample;
            if seen.arrived() >= seen.exposed() {
                // Packets lost later were sent later.
                seen.lost.get_or_insert(sample.lost_packets);
            }
        }
    }

    /// Whether the peer's reports on the data in flight have arrived, or none are expected any
    /// more. The last one arrives a round trip after the outage, or later if the queue was long.
    pub(crate) fn is_known(&self, now: Instant) -> bool {
        let Some(seen) = &self.seen else { return true };
        let round = seen.flight.before.srtt.clamp(ROUND_MIN, ROUND_MAX);
        let waited = now.saturating_duration_since(self.at);
        waited >= round && (seen.is_acknowledged() || waited >= round * ROUNDS)
    }

    /// Whether the data in flight arrived; `None` if unknown.
    pub(crate) fn kept(&self) -> Option<bool> {
        let seen = self.seen?;
        // Held packets would have arrived before those of the fresh connection.
        let overtaken = self.replaced && seen.ended.acked <= seen.flight.before.acked;
        if overtaken || !seen.is_acknowledged() {
            return self.replaced.then_some(false);
        }
        let lost = seen.lost.unwrap_or(seen.last.lost_packets);
        let lost = lost.saturating_sub(seen.flight.before.lost_packets);
        let missing = lost.saturating_sub(seen.since(|sample| sample.spurious_packets));
        Some(missing * LOST_PART <= seen.arrived().min(seen.exposed()) / PACKET)
    }
}

impl Seen {
    fn since(&self, count: fn(&LinkSample) -> u64) -> u64 {
        count(&self.last).saturating_sub(count(&self.flight.before))
    }

    /// Bytes acknowledged since the outage began.
    fn arrived(&self) -> u64 {
        self.since(|sample| sample.acked.0)
    }

    /// Bytes that were in flight at any time of the outage.
    fn exposed(&self) -> u64 {
        let Self { flight, ended, .. } = self;
        (ended.acked + ended.in_flight).0.saturating_sub(flight.before.acked.0)
    }

    /// Nothing is in flight any more. Or everything in flight at the beginning is acknowledged, and
    /// something of the data in flight at the end.
    fn is_acknowledged(&self) -> bool {
        let all = self.arrived() >= self.flight.before.in_flight.0;
        let later = self.ended.in_flight.0 == 0 || self.last.acked > self.ended.acked;
        self.arrived() > 0 && (self.last.in_flight.0 == 0 || (all && later))
    }
}

/// Bounds of the round trip.
const ROUND_MIN: Duration = Duration::from_millis(100);
const ROUND_MAX: Duration = Duration::from_millis(500);
/// The last reports arrive after so many round trips.
const ROUNDS: u32 = 4;
/// A carrier loses less than one in so many full packets at random.
const LOST_PART: u64 = 8;
/// The bytes of a full packet.
const PACKET: u64 = 1_200;

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;

    use super::*;

    /// A measurement with these bytes acknowledged and in flight, and packets lost and spurious.
    fn sample(at: Instant, acked: u64, in_flight: u64, lost: u64, spurious: u64) -> LinkSample {
        LinkSample {
            at,
            srtt: Duration::from_millis(200),
            rtt_min: Duration::from_millis(60),
            rtt_var: Duration::from_millis(20),
            window: Bytes(100_000),
            in_flight: Bytes(in_flight),
            unsent: Bytes::ZERO,
            delivery_rate: None,
            application_limited: true,
            sent_packets: 100,
            lost_packets: 10 + lost,
            spurious_packets: 3 + spurious,
            timeouts: 0,
            acked: Bytes(5_000 + acked),
        }
    }

    #[test]
    fn fate_follows_from_acknowledgements_losses_and_duplicates() {
        let at = Instant::now();
        let (kept, lost) = (Some(true), Some(false));
        // In flight before; acknowledged and in flight at the end; then acknowledged, lost and
        // spurious.
        for (before, [acked, out], [then, gone, twice], replaced, expected, why) in [
            (900, [0, 2_000], [2_000, 0, 0], false, kept, "all arrived"),
            (900, [0, 2_000], [2_000, 3, 3], false, kept, "all retransmissions were duplicates"),
            (900, [0, 2_000], [2_000, 2, 1], false, lost, "one retransmission was needed"),
            (900, [0, 2_000], [2_000, 1, 0], false, lost, "the same"),
            (90_000, [0, 95_000], [100_000, 9, 0], false, kept, "few of many lost at random"),
            (90_000, [0, 90_000], [100_000, 40, 1], false, lost, "many of many"),
            (900, [0, 2_000], [50_000, 2, 1], false, lost, "later data does not count"),
            (900, [900, 0], [900, 1, 1], true, kept, "acknowledged before the end"),
            (900, [0, 2_000], [300, 1, 0], false, None, "its duplicate may not be reported yet"),
            (900, [0, 2_000], [0, 0, 0], false, None, "no report"),
            (900, [0, 2_000], [0, 0, 0], true, lost, "the connection was replaced"),
            (900, [0, 2_000], [300, 0, 0], true, lost, "replaced before the rest arrived"),
            (900, [900, 1_000], [1_900, 0, 0], true, kept, "arrived before the fresh packets"),
            (900, [0, 2_000], [2_000, 2, 5], true, lost, "arrived after the fresh packets"),
            (900, [900, 2_000], [900, 0, 0], false, None, "acknowledged before the outage"),
            (90_000, [0, 90_000], [50_000, 0, 0], false, None, "half of it is still in flight"),
            (900, [900, 0], [900, 0, 0], false, kept, "nothing else was in flight"),
        ] {
            let flight = Flight { tunnel: TunnelKey(1), before: sample(at, 0, before, 0, 0) };
            let ended = sample(at, acked, out, 0, 0);
            let mut over = Aftermath::new(at, "a".to_owned(), replaced, Some((flight, ended)));
            over.on_sample(&sample(at, then, out - (then - acked).min(out), gone, twice));
            assert_eq!(over.kept(), expected, "{why}");
        }
        assert_eq!(Aftermath::new(at, "a".to_owned(), false, None).kept(), None, "no tunnel");
    }

    #[test]
    fn losses_after_the_data_in_flight_was_acknowledged_do_not_count() {
        let at = Instant::now();
        let flight = Flight { tunnel: TunnelKey(1), before: sample(at, 0, 900, 0, 0) };
        let ended = sample(at, 0, 2_000, 0, 0);
        let mut over = Aftermath::new(at, "a".to_owned(), false, Some((flight, ended)));
        over.on_sample(&sample(at, 2_000, 50_000, 0, 0));
        over.on_sample(&sample(at, 400_000, 50_000, 3, 0));
        assert_eq!(over.kept(), Some(true));
    }

    #[test]
    fn reports_are_awaited_for_one_to_four_round_trips() {
        let at = Instant::now();
        let known = |over: &Aftermath| {
            [199, 200, 799, 800].map(|ms| over.is_known(at + Duration::from_millis(ms)))
        };
        let before = sample(at, 0, 900, 0, 0);
        let seen = Some((Flight { tunnel: TunnelKey(1), before }, before));
        let mut over = Aftermath::new(at, "a".to_owned(), false, seen);
        assert_eq!(known(&over), [false, false, false, true]);
        over.on_sample(&sample(at, 900, 0, 0, 0));
        assert_eq!(known(&over), [false, true, true, true]);
        assert!(Aftermath::new(at, "a".to_owned(), false, None).is_known(at));
    }
}
