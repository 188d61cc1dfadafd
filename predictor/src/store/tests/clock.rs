//! Which times of records and clocks are plausible.

use super::super::clock::*;

#[test]
fn clock_is_compared_with_the_newest_lasting_run() {
    // Days, the newest first, and the day that counts.
    let table: [(&[u64], Option<u64>); 9] = [
        (&[], None),
        (&[500], Some(500)),
        (&[500, 499, 490], Some(500)),
        (&[500, 490, 480, 470, 460], Some(500)),
        // A wrong clock for a day, twice, and for a month.
        (&[8_001, 8_000, 500, 490, 470], Some(500)),
        (&[9_000, 8_000, 500, 490, 470], Some(500)),
        (&[8_030, 8_000, 500, 490, 470], Some(8_030)),
        // No run has lasted: the first one counts.
        (&[8_001, 8_000, 500, 499], Some(500)),
        // 180 days are not yet a gap.
        (&[680, 500, 499], Some(680)),
    ];
    for (days, wanted) in table {
        let times: Vec<u64> = days.iter().map(|day| day * DAY_MS).collect();
        assert_eq!(attested(times), wanted.map(|day| day * DAY_MS), "{days:?}");
    }
}

#[test]
fn implausible_times_count_as_the_time_of_arrival() {
    let (now, day) = (EARLIEST_MS + 1_000_000_000, DAY_MS);
    let table = [
        (now - 5, now, 0, now - 5),
        (now + day, now, 0, now + day),
        (now + day + 1, now, 0, now),
        (u64::MAX, now, 0, now),
        (0, now, 0, now),
        (EARLIEST_MS - 1, now, 0, now),
        // This machine's clock is wrong.
        (now, 0, now, now),
        (now + 2 * day, 0, now, now),
        (5, 0, now, now),
        (5, 0, 0, EARLIEST_MS),
        (now, u64::MAX, 0, now),
        (u64::MAX, u64::MAX, 0, 7_258_118_400_000),
    ];
    for (at, clock, newest, wanted) in table {
        assert_eq!(plausible(at, clock, newest), wanted, "{at} at {clock} after {newest}");
    }
}

#[test]
fn clock_may_be_a_day_behind_and_half_a_year_ahead() {
    let trip = EARLIEST_MS + 1_000_000_000;
    for (now, behind) in [(trip - DAY_MS, false), (trip - DAY_MS - 1, true), (5, true)] {
        assert_eq!((is_behind(now, trip), is_behind(u64::MAX, trip)), (behind, false), "{now}");
    }
    assert!(is_behind(0, 0) && !is_behind(EARLIEST_MS, 0));
    for (now, ahead) in [(0, false), (trip, false), (trip + GAP_MS, false), (u64::MAX, true)] {
        assert_eq!(is_ahead(now, trip), ahead, "{now}");
    }
    assert!(is_ahead(trip + GAP_MS + 1, trip));
}
