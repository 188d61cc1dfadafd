//! The receptions and stalls of a carrier that carries data all the time.
//!
//! The session and `polyrail_relay::Foresight` report for such a carrier: a stall after
//! max(3 srtt + 4 rttvar, 300 ms) without progress, counted from the last reception; a shorter
//! outage of at least 100 ms and 1.5 round trips at its end; and a reception every 250 ms.

use polyrail_emulator::rail::{CarrierProfile, Handover, HandoverResult};
use polyrail_model::{Heard, Observation, Silence};

use super::drive::Clock;
use crate::dice::Dice;

/// A time without receptions, in seconds of the trip.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quiet {
    from: f64,
    to: f64,
    /// A stall is reported after this.
    patience: f64,
    /// The least length of a shorter outage that is reported at its end.
    gap: f64,
}

/// The observations of a carrier's path between two seconds of the trip, unordered.
pub fn observed(
    profile: &CarrierProfile,
    handovers: &[Handover],
    clock: Clock,
    (from, to): (f64, f64),
    dice: &mut Dice,
) -> Vec<(f64, Observation)> {
    let quiets = quiets(profile, handovers, dice);
    let carrier = || profile.name.to_owned();
    let mut seen = Vec::new();
    for quiet in &quiets {
        // The path is checked at intervals.
        let noticed = quiet.from + quiet.patience + LOOK_EVERY * dice.unit();
        let begin = if noticed < quiet.to { noticed } else { quiet.to };
        if begin < quiet.to || quiet.to - quiet.from >= quiet.gap {
            for (at, since) in [(begin, Some(clock.at(quiet.from))), (quiet.to, None)] {
                let silence = Silence { at: clock.at(at), carrier: carrier(), since, kept: None };
                seen.push((at, Observation::Silence(silence)));
            }
        }
    }
    let mut at = from + REPORT_EVERY * dice.unit();
    while at < to {
        let next = quiets.partition_point(|quiet| quiet.to <= at);
        if quiets.get(next).is_none_or(|quiet| at < quiet.from) {
            let heard = Heard { at: clock.at(at), carrier: carrier() };
            seen.push((at, Observation::Heard(heard)));
        }
        at += REPORT_EVERY;
    }
    seen
}

/// The times without receptions, in order and disjoint.
fn quiets(profile: &CarrierProfile, handovers: &[Handover], dice: &mut Dice) -> Vec<Quiet> {
    let mut quiets: Vec<Quiet> = Vec::new();
    for handover in handovers {
        let round = round_trip(profile, dice);
        let began = handover.at.as_secs_f64();
        // Packets in flight at the start of the outage may still arrive.
        let from = began + round / 2.0 * dice.unit();
        // Held packets arrive at once; after lost ones the next probe arrives.
        let probe =
            if handover.outcome == HandoverResult::FailureDropped { PROBE_EVERY } else { 0.0 };
        let to = began + handover.dark.as_secs_f64() + round / 2.0 + probe * dice.unit();
        match quiets.last_mut().filter(|last| from <= last.to) {
            Some(last) => last.to = last.to.max(to),
            None => {
                // The mean deviation is an eighth.
                let patience = (round * 3.5).max(STALL_MIN);
                let gap = GAP_MIN + round * 1.5;
                quiets.push(Quiet { from, to, patience, gap });
            }
        }
    }
    quiets
}

/// A round trip under load, by the quartiles.
fn round_trip(profile: &CarrierProfile, dice: &mut Dice) -> f64 {
    let [low, middle, high] = profile.rtt_ms;
    let share = 2.0 * dice.unit();
    let ms = if share < 1.0 {
        low + share * (middle - low)
    } else {
        middle + (share - 1.0) * (high - middle)
    };
    ms / 1_000.0
}

/// The session's least patience, in seconds.
const STALL_MIN: f64 = 0.3;
/// The least length of a gap beyond 1.5 round trips, in seconds.
const GAP_MIN: f64 = 0.1;
/// The intervals at which `polyrail_relay` checks paths and reports receptions, in seconds.
const LOOK_EVERY: f64 = 0.02;
const REPORT_EVERY: f64 = 0.25;
/// The least interval between pings of a path, in seconds.
const PROBE_EVERY: f64 = 0.2;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_failure_is_noticed_and_a_success_is_not() {
        let ended = |at: u64, outcome, dark_ms| Handover {
            from: 1,
            to: 2,
            at: Duration::from_secs(at),
            metres: 0.0,
            rsrp: -90.0,
            outcome,
            dark: Duration::from_millis(dark_ms),
        };
        let handovers = [
            ended(10, HandoverResult::Success, 100),
            ended(20, HandoverResult::FailureHeld, 2_000),
            // Both are one outage.
            ended(30, HandoverResult::FailureDropped, 5_000),
            ended(33, HandoverResult::Success, 50),
        ];
        let clock = Clock::new(Instant::now());
        for seed in 0..100 {
            let mut dice = Dice::new(seed);
            let seen = observed(&CarrierProfile::A, &handovers, clock, (0.0, 60.0), &mut dice);
            let noticed: Vec<(f64, f64)> = seen
                .iter()
                .filter_map(|(at, one)| match one {
                    Observation::Silence(Silence { since, .. }) => {
                        let since = since.map(|since| (since - clock.at(0.0)).as_secs_f64());
                        Some((*at, since.unwrap_or(0.0)))
                    }
                    _ => None,
                })
                .collect();
            let [(first, since), (over, _), (second, again), (end, _)] = noticed[..] else {
                panic!("{noticed:?}")
            };
            // Half a round trip in flight, 3.5 round trips of patience, a check.
            let latest = 4.0 * CarrierProfile::A.rtt_ms[2] / 1_000.0 + LOOK_EVERY;
            assert!((20.0..20.2).contains(&since) && (20.3..20.0 + latest).contains(&first));
            assert!((22.0..22.2).contains(&over));
            assert!((30.0..30.2).contains(&again) && (30.3..30.0 + latest).contains(&second));
            assert!((35.0..35.4).contains(&end));
            let heard = |from: f64, to: f64| {
                let heard = |(at, one): &&(f64, Observation)| {
                    matches!(one, Observation::Heard(_)) && (from..to).contains(at)
                };
                seen.iter().filter(heard).count()
            };
            assert_eq!((heard(0.0, 10.0), heard(20.2, 22.0), heard(30.2, 35.0)), (40, 0, 0));
        }
    }
}
