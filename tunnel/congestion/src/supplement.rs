//! What `quiche`'s bbr lacks for carriers whose rate changes within a second.
//!
//! **Idleness.** bbr has to know when data is missing, not room. But a startup ends neither for a
//! steady rate nor for losses while bbr believes that data is missing. The scheduler bounds the
//! bytes in flight and gives a path little at a time, so its queue runs empty in most round trips
//! of a large download, too. So a startup learns of no idleness once the carrier was full.
//!
//! **Pacing.** After its startup bbr drains the queue that this left, sends at the rate that it
//! knows, and looks for more every two seconds. So from the end of the draining on packets are
//! paced faster, and the window, two bandwidth-delay products, limits them: a carrier that gets
//! faster acknowledges faster and shows it within a round trip. Such pacing also disregards the
//! cuts of the rate after lossy rounds. Those of the window remain.
//!
//! **Steady carriers.** A full window is a round trip of queue, in which calls and small messages
//! wait. A carrier that has delivered at one rate for [`STEADY`] periods needs no such queue, so
//! less may be in flight: enough to show within a round trip that it has become faster.

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

/// The supplement of one connection.
#[derive(Clone, Debug, Default)]
pub struct Supplement {
    /// Whether the startup has filled the carrier.
    filled: bool,
    /// bbr's rate in bytes per second, once the queue of the startup was drained.
    rate: Option<f64>,
    /// The least round-trip time in seconds.
    rtt: f64,
    steadiness: Steadiness,
}

/// What bbr knows of the path.
#[derive(Clone, Copy, Debug)]
pub struct PathModel {
    /// The most bandwidth.
    pub rate: Bitrate,
    /// The least round-trip time.
    pub rtt: Duration,
    /// Whether it is still in its startup.
    pub in_startup: bool,
}

/// Whether a full carrier delivers at one rate.
#[derive(Clone, Debug, Default)]
struct Steadiness {
    /// When the present period began, and the bytes acknowledged until then.
    begin: Option<(Instant, u64)>,
    /// Too little was in flight in the present period to show the carrier's rate.
    has_room: bool,
    /// Bytes per second.
    rate: f64,
    /// Full periods with this rate, less those with room.
    periods: u32,
    /// How often in succession the rate has changed soon after the bytes in flight were bounded:
    /// because of that, if a rival holds the queue or the path has become longer.
    setbacks: u32,
}

impl Supplement {
    /// Whether bbr should learn that data is missing although the window has room.
    pub fn idleness_counts(&mut self, model: &PathModel, in_flight: u64) -> bool {
        if !model.in_startup {
            self.filled = false;
            return true;
        }
        let full = bytes_per_second(model.rate) * model.rtt.as_secs_f64() * FULL_PART;
        self.filled |= in_flight as f64 >= full.max(FULL_MIN);
        !self.filled
    }

    /// Reads the rate, before each burst; `None`: bbr knows none. A startup resets the rest.
    pub fn refresh(&mut self, model: Option<&PathModel>, in_flight: u64) {
        let Some(model) = model.filter(|model| !model.in_startup) else {
            *self = Self { filled: self.filled, ..Self::default() };
            return;
        };
        let rate = bytes_per_second(model.rate);
        self.rtt = model.rtt.as_secs_f64();
        if self.rate.is_some() || in_flight as f64 <= rate * self.rtt {
            self.rate = Some(rate);
        }
    }

    /// So many bytes were acknowledged in all; `in_flight` remain.
    pub fn on_acked(&mut self, now: Instant, acked: u64, in_flight: u64) {
        let shown = self.rate.unwrap_or(0.0) * self.rtt * SHOWN_PART;
        self.steadiness.look(now, acked, (in_flight as f64) < shown);
    }

    /// The bytes in flight that suffice, if the carrier is steady.
    pub fn bound(&self) -> Option<u64> {
        let bytes = self.steadiness.rate * (self.rtt * BOUND_PART + BOUND_TIME);
        let applies = self.rate.is_some() && self.steadiness.is_steady();
        applies.then_some(bytes.max(BOUND_MIN) as u64)
    }

    /// The pacing rate, after the draining. Before it bbr's own applies.
    pub fn pacing(&self) -> Option<Bitrate> {
        self.rate.map(|rate| Bitrate::from_bps((rate * 8.0 * PACING_GAIN).round() as u64))
    }
}

fn bytes_per_second(rate: Bitrate) -> f64 {
    rate.as_bps() as f64 / 8.0
}

impl Steadiness {
    fn is_steady(&self) -> bool {
        self.periods >= self.wanted()
    }

    fn wanted(&self) -> u32 {
        STEADY << self.setbacks
    }

    fn look(&mut self, now: Instant, acked: u64, has_room: bool) {
        self.has_room |= has_room;
        let (begin, before) = *self.begin.get_or_insert((now, acked));
        let time = now.saturating_duration_since(begin);
        if time < PERIOD {
            return;
        }
        let rate = acked.saturating_sub(before) as f64 / time.as_secs_f64();
        let (has_room, is_steady) = (std::mem::take(&mut self.has_room), self.is_steady());
        self.begin = Some((now, acked));
        // What the bound takes must not become the rate that it is taken from.
        let least = if is_steady { 1.0 - TAKEN_PART } else { 1.0 - SAME_PART };
        let is_same = (least..=1.0 + SAME_PART).contains(&(rate / self.rate));
        if time > PAUSE || (!has_room && !is_same) {
            if is_steady && time <= PAUSE {
                let is_soon = self.periods < self.wanted() + SOON;
                let more = (self.setbacks + 1).min(SETBACKS_MAX);
                self.setbacks = if is_soon { more } else { self.setbacks.saturating_sub(1) };
            }
            (self.rate, self.periods) = (rate, 0);
        } else if has_room {
            self.periods = self.periods.saturating_sub(1);
        } else {
            if !is_steady || rate > self.rate {
                self.rate += (rate - self.rate) / RATE_PART;
            }
            self.periods += 1;
            if self.periods >= self.wanted() + BOUNDED {
                self.periods = self.wanted() - UNBOUNDED;
            }
        }
    }
}

/// So many bandwidth-delay products in flight fill a carrier, as in bbr's own bandwidth probes.
const FULL_PART: f64 = 1.25;
/// A carrier whose rate is unknown is not full with fewer bytes in flight.
const FULL_MIN: f64 = 12_000.0;
/// The pacing over bbr's rate. More is faster with two carriers, slower with six, and dearer with
/// any (`docs/congestion.md`, section 4).
const PACING_GAIN: f64 = 1.5;
/// A carrier is steady after so many full periods of about one rate.
const STEADY: u32 = 12;
/// Each setback doubles that, up to a minute and a half.
const SETBACKS_MAX: u32 = 5;
/// A change within so many periods of the bound may be due to it.
const SOON: u32 = 8;
/// After so many periods with the bound there are some without, to see the carrier's rate, and so
/// that bbr's own probes end: 3 % of the time.
const BOUNDED: u32 = 60;
const UNBOUNDED: u32 = 2;
const PERIOD: Duration = Duration::from_millis(250);
/// A longer period says nothing about the present.
const PAUSE: Duration = Duration::from_millis(500);
/// Rates that differ by less are the same, and the bound must not take more.
const SAME_PART: f64 = 0.15;
const TAKEN_PART: f64 = 0.06;
/// The weight of a period in the rate, as a divisor.
const RATE_PART: f64 = 4.0;
/// With fewer bandwidth-delay products in flight at an acknowledgement, the carrier may have room:
/// one acknowledgement is for up to a quarter of a round trip.
const SHOWN_PART: f64 = 0.75;
/// So many bandwidth-delay products, as in a probe of bbr's, and seconds of the rate for late
/// wake-ups and acknowledgements suffice on a steady carrier.
const BOUND_PART: f64 = 1.25;
const BOUND_TIME: f64 = 0.005;
/// About ten packets, as in the least window.
const BOUND_MIN: f64 = 12_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 Mbit/s and 40 ms: 50,000 bytes.
    fn model(in_startup: bool) -> PathModel {
        PathModel { rate: Bitrate::from_mbps(10.0), rtt: Duration::from_millis(40), in_startup }
    }

    #[test]
    fn startup_learns_of_idleness_until_the_carrier_was_full() {
        let mut supplement = Supplement::default();
        assert!(supplement.idleness_counts(&model(true), 62_000));
        assert!(!supplement.idleness_counts(&model(true), 62_500), "1.25 products");
        assert!(!supplement.idleness_counts(&model(true), 0), "it was full");
        assert!(supplement.idleness_counts(&model(false), 0), "the startup is over");
        let unknown = PathModel { rate: Bitrate::from_bps(0), ..model(true) };
        assert!(supplement.idleness_counts(&unknown, 11_999));
        assert!(!supplement.idleness_counts(&unknown, 12_000));
    }

    #[test]
    fn pacing_is_half_above_the_rate_once_the_startup_is_drained() {
        let mut supplement = Supplement::default();
        for (model, in_flight, mbps, why) in [
            (None, 0, None, "unknown"),
            (Some(model(true)), 0, None, "startup"),
            (Some(model(false)), 50_001, None, "it drains"),
            (Some(model(false)), 50_000, Some(15.0), "it is drained"),
            (Some(model(false)), 99_999, Some(15.0), "and remains so"),
            (Some(model(true)), 0, None, "another startup"),
        ] {
            supplement.refresh(model.as_ref(), in_flight);
            assert_eq!(supplement.pacing().map(Bitrate::as_mbps), mbps, "{why}");
        }
    }

    #[test]
    fn bound_is_a_probe_of_the_rate_of_a_steady_carrier() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let base = Instant::now();
        let mut supplement = Supplement::default();
        // Bytes acknowledged in a period at this rate.
        let acked = |kbps: u64, period: u32| kbps * 250 / 8 * u64::from(period);
        for (kbps, wanted) in [(10_000, 68_750), (1_000, 12_000)] {
            let rate = Bitrate::from_bps(kbps * 1_000);
            supplement.refresh(None, 0);
            supplement.refresh(Some(&PathModel { rate, ..model(false) }), 0);
            for period in 0..=13 {
                assert_eq!(supplement.bound(), None, "{period}");
                supplement.on_acked(base + PERIOD * period, acked(kbps, period), 60_000);
            }
            assert_eq!(supplement.bound(), Some(wanted), "{kbps} kbit/s");
            // Fewer than 0.75 products in flight show nothing.
            supplement.on_acked(base + PERIOD * 14, acked(kbps, 14), 0);
            assert_eq!(supplement.bound(), None);
        }
    }

    /// Plays periods of a rate, whether there was room in them, and returns whether the carrier is
    /// steady at the end.
    fn play(periods: &[(u32, u64, bool)]) -> bool {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let (mut now, mut acked) = (Instant::now(), 0);
        let mut steadiness = Steadiness::default();
        steadiness.look(now, acked, false);
        for &(count, kilobytes, has_room) in periods {
            for _ in 0..count {
                // Two acknowledgements a period; room at one of them is enough.
                (now, acked) = (now + PERIOD / 2, acked + 500 * kilobytes);
                steadiness.look(now, acked, has_room);
                (now, acked) = (now + PERIOD / 2, acked + 500 * kilobytes);
                steadiness.look(now, acked, false);
            }
        }
        steadiness.is_steady()
    }

    #[test]
    fn carrier_is_steady_after_three_seconds_of_one_rate() {
        // The first period only shows the rate.
        assert!(!play(&[(12, 100, false)]), "less");
        assert!(play(&[(13, 100, false)]));
        assert!(play(&[(9, 100, false), (4, 90, false)]), "about the same");
        assert!(!play(&[(30, 100, false), (1, 70, false)]), "slower");
        assert!(!play(&[(30, 100, false), (1, 130, false)]), "faster");
        assert!(play(&[(30, 100, false), (1, 95, false)]), "noise");
        assert!(!play(&[(30, 100, false), (1, 92, false)]), "the bound takes too much");
        assert!(!play(&[(15, 100, false), (20, 96, false), (1, 92, false)]), "in small steps");
        assert!(!play(&[(50, 20, true)]), "never full");
        assert!(play(&[(30, 100, false), (4, 20, true)]), "a little idle");
        assert!(!play(&[(30, 100, false), (20, 20, true)]), "long idle");
        // As a carrier on a train.
        assert!(!(0..20).any(|n| play(&[(1, 100, false), (5, 80, false)].repeat(n))));
    }

    #[test]
    fn bound_is_lifted_for_half_a_second_of_fifteen() {
        let steady = |periods: u32| play(&[(1 + periods, 100, false)]);
        let bounded = (12..12 + 3 * (60 + 2)).filter(|&periods| steady(periods)).count();
        assert_eq!(bounded, 3 * 60);
        assert!(steady(71) && !steady(72) && !steady(73) && steady(74));
    }

    #[test]
    fn change_soon_after_the_bound_doubles_the_wait() {
        let setback = [(13, 100, false), (1, 60, false)];
        // A period shows the rate, then there are twice as many as before.
        assert!(!play(&[&setback[..], &[(24, 100, false)]].concat()));
        assert!(play(&[&setback[..], &[(25, 100, false)]].concat()));
        let setbacks = [&setback[..], &[(25, 100, false), (1, 60, false)]].concat();
        assert!(!play(&[&setbacks[..], &[(48, 100, false)]].concat()));
        assert!(play(&[&setbacks[..], &[(49, 100, false)]].concat()));
        // A change long after it halves the wait again.
        let late = [&setbacks[..], &[(49 + 8, 100, false), (1, 60, false)]].concat();
        assert!(!play(&[&late[..], &[(24, 100, false)]].concat()));
        assert!(play(&[&late[..], &[(25, 100, false)]].concat()));
    }
}
