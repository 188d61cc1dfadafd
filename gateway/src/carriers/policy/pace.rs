//! How fast connections are begun while a carrier is searched, and how long each of them has.
//!
//! Sources: DESIGN 4 ("a new attempt every 100 ms, at most 3 alive, fewer on metered carriers").
//! What an operator reads of it stands in `docs/carriers.md`.

use std::time::Duration;

use polyrail_config::Restart;

use super::attempt::Rtt;

/// What bounds the connections of one carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) restart: Restart,
    /// Its bytes cost money, or it is a backup: one connection at a time, and slowly.
    pub(crate) frugal: bool,
}

/// How much haste a search has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Users wait.
    Urgent,
    /// A path carries, or none ever did.
    Calm,
}

impl Pace {
    /// Connections that may be alive at once, besides paths.
    pub(crate) fn alive_max(&self) -> usize {
        if self.frugal { 1 } else { self.restart.attempts_max.max(1) }
    }

    /// The time between the begins of two connections in a search of this age.
    pub(crate) fn interval(&self, haste: Haste, age: Duration) -> Duration {
        let usual = match (haste, self.frugal) {
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

    /// How long a connection lives before a newer one may take its place: `restart.interval`
    /// times their number, at least two round trips and 200 ms. It grows with those that were
    /// `replaced` while only one of their mode was alive at a time: the round trip may be longer
    /// than it was.
    pub(crate) fn life(&self, rtt: Option<Rtt>, replaced: u32) -> Duration {
        // Two round trips are what a full handshake of TLS takes, TCP's included.
        let trips = rtt.map_or(RTT_UNKNOWN, |rtt| rtt.smoothed) * 2;
        let count = u32::try_from(self.alive_max()).unwrap_or(u32::MAX);
        let least = self.restart.interval.saturating_mul(count).max(trips + LIFE_MARGIN);
        grown(least, replaced)
    }

    /// How long a connection lives that is so many times as patient as others: one of several is,
    /// for the same reason.
    pub(crate) fn patient_life(&self, rtt: Option<Rtt>, patience: u32) -> Duration {
        let life = self.life(rtt, 0);
        (life * patience).min(LIFE_MAX).max(life)
    }

    /// How long a connection that the cloud has answered may take to become a path, once others
    /// wait for its place: an answer is no path, and a greeting that was lost is sent again only
    /// after a timeout. One that greeted in `early` data should be a path by now.
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

/// When TLS joins a search in mode `auto`: 1.5 times the last round trip, at least 300 ms
/// (DESIGN 4).
pub(crate) fn join_delay(rtt: Option<Rtt>) -> Duration {
    rtt.map(|rtt| rtt.smoothed * 3 / 2).unwrap_or_default().clamp(JOIN_MIN, JOIN_MAX)
}

/// The bounds of [`join_delay`].
const JOIN_MIN: Duration = Duration::from_millis(300);
const JOIN_MAX: Duration = Duration::from_secs(3);
/// How long a search goes on at `restart.interval`: half of the failed handovers last longer than
/// 1 s, few longer than 10 s (POLYCORN table 1).
pub(crate) const FAST_FOR: Duration = Duration::from_secs(10);
/// How long it then goes on at [`SLOW`]: a session outlives that by default.
const SLOW_FOR: Duration = Duration::from_secs(120);
const SLOW: Duration = Duration::from_millis(500);
const SLOWEST: Duration = Duration::from_secs(2);
const FRUGAL: Duration = Duration::from_secs(5);
/// Where nobody waits: what TCP's first retransmission waits (RFC 6298 2.1).
const CALM: Duration = Duration::from_secs(1);
/// Taken for a round trip that was never measured.
const RTT_UNKNOWN: Duration = Duration::from_millis(250);
/// What the two ends and the air may take beyond round trips.
const LIFE_MARGIN: Duration = Duration::from_millis(200);
/// The same beyond the one round trip of a greeting that the cloud did not take early.
const EARLY_MARGIN: Duration = Duration::from_millis(50);
/// No connection waits longer for its first answer while others could.
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
    fn a_search_slows_down_and_a_frugal_one_is_slow() {
        let usual = Pace { restart: Restart::default(), frugal: false };
        let frugal = Pace { frugal: true, ..usual.clone() };
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
        ] {
            assert_eq!(pace.interval(haste, ms(age)), ms(wanted), "{haste:?} {age}");
        }
        assert_eq!((usual.alive_max(), frugal.alive_max()), (3, 1));
        let slow = Restart { interval: ms(10_000), ..Restart::default() };
        let slow = Pace { restart: slow, frugal: false };
        assert_eq!(slow.interval(Haste::Urgent, ms(20_000)), ms(10_000));
    }

    #[test]
    fn lives_follow_the_round_trip_and_grow_where_one_is_alone() {
        let pace = Pace { restart: Restart::default(), frugal: false };
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
