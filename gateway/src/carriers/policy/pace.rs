//! The pace of a search: the interval between connections, and their lifetimes.
//!
//! By default a new attempt starts every 100 ms, at most 3 are alive, fewer on metered carriers:
//! half of the failed handovers last longer than 1 s (POLYCORN table 1), so a quick attempt after
//! one saves a noticeable part of the outage. `docs/carriers.md` explains this for operators.

use std::time::Duration;

use polyrail_config::Restart;

use super::attempt::Rtt;

/// The limits of the connections of one carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) restart: Restart,
    /// It is metered or a backup: one connection at a time, at long intervals.
    pub(crate) frugal: bool,
    /// Another cloud serves the users: a search only has to notice that this one is back.
    pub(crate) probing: bool,
}

/// The urgency of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Users are waiting.
    Urgent,
    /// A path is up, or there was none before.
    Calm,
}

impl Pace {
    /// The maximum number of concurrent attempts, in addition to paths.
    pub(crate) fn alive_max(&self) -> usize {
        if self.frugal || self.probing { 1 } else { self.restart.attempts_max.max(1) }
    }

    /// The interval between two connections in a search of this age.
    pub(crate) fn interval(&self, haste: Haste, age: Duration) -> Duration {
        let usual = match (haste, self.frugal) {
            (_, false) if self.probing => PROBING,
            (_, true) if self.probing => PROBING_FRUGAL,
            (Haste::Urgent, false) if age < FAST_FOR => self.restart.interval,
            (Haste::Urgent, false) if age < SLOW_FOR => SLOW,
            (Haste::Urgent, true) if age < FAST_FOR => SLOW,
            (Haste::Urgent, true) if age < SLOW_FOR => SLOWEST,
            (Haste::Calm, false) if age < FAST_FOR => CALM,
            (_, false) => SLOWEST,
            (_, true) => FRUGAL,
        };
        usual.max(self.restart.interval)
    }

    /// How long a connection lives before a newer one may replace it: `restart.interval` times the
    /// number of attempts, at least two round trips and 200 ms. If only one attempt of its mode is
    /// alive at a time, it grows with each `replaced` one, because the round trip may have become
    /// longer.
    pub(crate) fn life(&self, rtt: Option<Rtt>, replaced: u32) -> Duration {
        // A full handshake of TLS over TCP takes two round trips.
        let trips = rtt.map_or(RTT_UNKNOWN, |rtt| rtt.smoothed) * 2;
        let count = u32::try_from(self.alive_max()).unwrap_or(u32::MAX);
        let least = self.restart.interval.saturating_mul(count).max(trips + LIFE_MARGIN);
        grown(least, replaced)
    }

    /// The lifetime of a patient connection: `patience` times as long. One of several connections
    /// is patient, for the same reason.
    pub(crate) fn patient_life(&self, rtt: Option<Rtt>, patience: u32) -> Duration {
        let life = self.life(rtt, 0);
        (life * patience).min(LIFE_MAX).max(life)
    }

    /// How long an answered connection may take to become a path before a newer one may replace it:
    /// a lost greeting is retransmitted only after a timeout. A connection that greeted in `early`
    /// data needs one round trip less.
    pub(crate) fn greeting_life(
        rtt: Option<Rtt>,
        early: bool,
        patience: u32,
        replaced: u32,
    ) -> Duration {
        let trip = rtt.map_or(RTT_UNKNOWN, |rtt| rtt.smoothed);
        let least = if early { trip + EARLY_MARGIN } else { trip * 2 + LIFE_MARGIN };
        (least * patience).min(LIFE_MAX).max(grown(least, replaced))
    }
}

fn grown(least: Duration, replaced: u32) -> Duration {
    (0..replaced.min(GROWTHS_MAX)).fold(least, |life, _| life * 3 / 2).min(LIFE_MAX.max(least))
}

/// When TLS joins a search in mode `auto`: after 1.5 times the last round trip, at least 300 ms, so
/// that a QUIC answer usually arrives first.
pub(crate) fn join_delay(rtt: Option<Rtt>) -> Duration {
    rtt.map(|rtt| rtt.smoothed * 3 / 2).unwrap_or_default().clamp(JOIN_MIN, JOIN_MAX)
}

/// The bounds of [`join_delay`].
const JOIN_MIN: Duration = Duration::from_millis(300);
const JOIN_MAX: Duration = Duration::from_secs(3);
/// How long a search keeps `restart.interval`: few failed handovers last longer than 10 s (POLYCORN
/// table 1).
pub(crate) const FAST_FOR: Duration = Duration::from_secs(10);
/// Until when it then keeps [`SLOW`]: the default of `session.linger`.
const SLOW_FOR: Duration = Duration::from_secs(120);
const SLOW: Duration = Duration::from_millis(500);
const SLOWEST: Duration = Duration::from_secs(2);
const FRUGAL: Duration = Duration::from_secs(5);
/// At most about 5 kB each: 40 MB a day of a carrier, 7 MB of a frugal one.
const PROBING: Duration = Duration::from_secs(10);
const PROBING_FRUGAL: Duration = Duration::from_secs(60);
/// If no user waits: TCP's first retransmission timeout (RFC 6298 2.1).
const CALM: Duration = Duration::from_secs(1);
/// Assumed if no round trip was measured.
const RTT_UNKNOWN: Duration = Duration::from_millis(250);
/// Delays of both ends and of the radio link beyond round trips.
const LIFE_MARGIN: Duration = Duration::from_millis(200);
/// The same for a greeting in early data.
const EARLY_MARGIN: Duration = Duration::from_millis(50);
/// The maximum lifetime of an attempt before a newer one may replace it.
const LIFE_MAX: Duration = Duration::from_secs(5);
const GROWTHS_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn rtt(smoothed: u64, variance: u64) -> Option<Rtt> {
        Some(Rtt { smoothed: ms(smoothed), variance: ms(variance) })
    }

    #[test]
    fn join_delay_follows_the_round_trip() {
        for (time, wanted) in
            [(join_delay(None), 300), (join_delay(rtt(60, 0)), 300), (join_delay(rtt(400, 0)), 600)]
        {
            assert_eq!(time, ms(wanted));
        }
    }

    #[test]
    fn search_slows_down_and_frugal_search_is_slow() {
        let usual = Pace { restart: Restart::default(), frugal: false, probing: false };
        let frugal = Pace { frugal: true, ..usual.clone() };
        let probing = [&usual, &frugal].map(|pace| Pace { probing: true, ..pace.clone() });
        for (pace, haste, age, wanted) in [
            (&usual, Haste::Urgent, 0, 100),
            (&usual, Haste::Urgent, 9_999, 100),
            (&usual, Haste::Urgent, 10_000, 500),
            (&usual, Haste::Urgent, 120_000, 2_000),
            (&usual, Haste::Calm, 0, 1_000),
            (&usual, Haste::Calm, 10_000, 2_000),
            (&frugal, Haste::Urgent, 0, 500),
            (&frugal, Haste::Urgent, 10_000, 2_000),
            (&frugal, Haste::Urgent, 120_000, 5_000),
            (&probing[0], Haste::Urgent, 0, 10_000),
            (&probing[1], Haste::Calm, 0, 60_000),
        ] {
            assert_eq!(pace.interval(haste, ms(age)), ms(wanted), "{haste:?} {age}");
        }
        assert_eq!((usual.alive_max(), frugal.alive_max()), (3, 1));
        assert_eq!(probing.map(|pace| pace.alive_max()), [1, 1]);
        let slow = Restart { interval: ms(10_000), ..Restart::default() };
        let slow = Pace { restart: slow, frugal: false, probing: false };
        assert_eq!(slow.interval(Haste::Urgent, ms(20_000)), ms(10_000));
    }

    #[test]
    fn lifetimes_follow_the_round_trip_and_grow_for_single_attempts() {
        let pace = Pace { restart: Restart::default(), frugal: false, probing: false };
        assert_eq!(pace.life(rtt(20, 0), 0), ms(300));
        assert_eq!(pace.life(rtt(200, 0), 0), ms(600));
        assert_eq!(pace.life(rtt(200, 0), 2), ms(1_350));
        assert_eq!(pace.life(rtt(200, 0), u32::MAX), LIFE_MAX);
        assert_eq!(pace.life(rtt(4_000, 0), 9), ms(8_200), "never less than its round trips");
        assert_eq!(pace.patient_life(rtt(20, 0), 4), ms(1_200));
        let greeting = |early, patience, replaced| {
            Pace::greeting_life(rtt(60, 0), early, patience, replaced).as_millis()
        };
        assert_eq!((greeting(false, 1, 0), greeting(true, 1, 0)), (320, 110));
        assert_eq!((greeting(true, 4, 0), greeting(true, 1, 1)), (440, 165));
        assert_eq!((greeting(true, 100, 0), greeting(false, 1, 99)), (5_000, 5_000));
    }
}
