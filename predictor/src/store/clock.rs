//! Whether a clock may say which trips are too old.
//!
//! A gateway whose clock is years ahead would let all its trips fall out, and the trips that it
//! records itself bear the same wrong time: the newest of them proves nothing. So a clock is held
//! against *runs* of trips, which no gap of [`AHEAD_MS`] interrupts. The newest run that lasted for
//! [`RUN_MS`] counts; before there is any, the oldest run does, which was there before the others.
//!
//! ```text
//!   ......................                         .. .        wall
//!   a run of a year, honest    20 years of gap     some days   clock
//!                        ^ held against this
//! ```
//!
//! A train that was laid up for longer than the bound looks the same: for the first 30 days that it
//! runs again nothing of it falls out, and then what is too old does. Nothing of this is stored, so
//! starting anew changes nothing.
//!
//! A clock that is to be believed, being neither far ahead of those trips nor behind them, tells
//! also which trips cannot be as new as the wrong clock made them.

/// The last of the trips that a clock is held against. `times`: those of all trips, in any order;
/// none where there are no trips.
pub(super) fn attested(mut times: Vec<u64>) -> Option<u64> {
    times.sort_unstable();
    let mut run: Option<(u64, u64)> = None;
    for at in times.into_iter().rev() {
        let last = match run {
            Some((last, first)) if first - at <= AHEAD_MS => last,
            _ => at,
        };
        if last - at >= RUN_MS {
            return Some(last);
        }
        run = Some((last, at));
    }
    run.map(|(last, _)| last)
}

/// Whether a clock is so far ahead of those trips that it is not believed.
pub(super) fn is_doubtful(wall_ms: u64, attested_ms: u64) -> bool {
    wall_ms.saturating_sub(attested_ms) > AHEAD_MS
}

/// Whether a clock is so far behind those trips that it is not believed.
pub(super) fn is_behind(wall_ms: u64, attested_ms: u64) -> bool {
    wall_ms.saturating_add(DAY_MS) < attested_ms
}

/// So far a clock may be ahead of the trips, in milliseconds: 180 days, longer than a train stands
/// in a workshop and less than the year by which a hand sets it wrong.
const AHEAD_MS: u64 = 180 * DAY_MS;
/// So long a run of trips lasts that proves its own clock: 30 days.
const RUN_MS: u64 = 30 * DAY_MS;
const DAY_MS: u64 = 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_held_against_the_newest_run_that_lasted() {
        // Days, the newest first, and the one that counts.
        let table: [(&[u64], Option<u64>); 9] = [
            (&[], None),
            (&[500], Some(500)),
            (&[500, 499, 490], Some(500)),
            (&[500, 490, 480, 470, 460], Some(500)),
            // A wrong clock for a day, for two different ones, and one that lasted.
            (&[8_001, 8_000, 500, 490, 470], Some(500)),
            (&[9_000, 8_000, 500, 490, 470], Some(500)),
            (&[8_030, 8_000, 500, 490, 470], Some(8_030)),
            // Nothing has lasted: the first run.
            (&[8_001, 8_000, 500, 499], Some(500)),
            // A gap of 180 days is none.
            (&[680, 500, 499], Some(680)),
        ];
        for (days, wanted) in table {
            let times: Vec<u64> = days.iter().map(|day| day * DAY_MS).collect();
            assert_eq!(attested(times), wanted.map(|day| day * DAY_MS), "{days:?}");
        }
    }

    #[test]
    fn a_clock_may_be_a_day_behind() {
        for (wall, behind) in [(0, true), (498, true), (499, false), (501, false)] {
            assert_eq!(is_behind(wall * DAY_MS, 500 * DAY_MS), behind, "{wall}");
        }
    }

    #[test]
    fn a_clock_may_be_half_a_year_ahead() {
        for (wall, doubtful) in [(0, false), (500, false), (680, false), (681, true)] {
            assert_eq!(is_doubtful(wall * DAY_MS, 500 * DAY_MS), doubtful, "{wall}");
        }
    }
}
