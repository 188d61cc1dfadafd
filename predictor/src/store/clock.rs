//! Plausible times of records, and of this machine's clock.
//!
//! A gateway whose clock is years ahead would evict all its trips, and the trips that it records
//! have the same wrong time, so the newest of them proves nothing. So a clock is compared with
//! *runs* of trips without a gap of [`GAP_MS`]. The newest run that lasted [`RUN_MS`] counts. If
//! there is none, the oldest run does, because it was there before the others.
//!
//! ```text
//!   ......................                         .. .        clock
//!   a run of a year, right     20 years of gap     some days
//!                        ^ compared with this
//! ```
//!
//! A train that was out of service for longer looks the same: for its first 30 days back in service
//! nothing is evicted by age. None of this is stored, so a restart changes nothing.
//!
//! A plausible clock, neither far ahead of those trips nor behind them, also shows which trips have
//! a wrong time from the future.

/// The time of a handover if it is plausible: neither before 2025 nor more than a day in the
/// future. Else its time of arrival, which is that of the newest trip (`newest_ms`) if this
/// machine's clock (`now_ms`) is before 2025.
pub(super) fn plausible(at_ms: u64, now_ms: u64, newest_ms: u64) -> u64 {
    let now_ms = if now_ms >= EARLIEST_MS { now_ms } else { newest_ms.max(EARLIEST_MS) };
    let arrived = now_ms.min(LATEST_MS);
    if (EARLIEST_MS..=arrived.saturating_add(DAY_MS)).contains(&at_ms) { at_ms } else { arrived }
}

/// Whether the clock is more than a day behind a trip, or before 2025.
pub(super) fn is_behind(now_ms: u64, trip_ms: u64) -> bool {
    now_ms.saturating_add(DAY_MS) < trip_ms.max(EARLIEST_MS)
}

/// Whether the clock is implausibly far ahead of the attested trip.
pub(super) fn is_ahead(now_ms: u64, attested_ms: u64) -> bool {
    now_ms.saturating_sub(attested_ms) > GAP_MS
}

/// The last time of the run that counts; none without entries. `times`
/// are in any order.
pub(super) fn attested(mut times: Vec<u64>) -> Option<u64> {
    times.sort_unstable();
    let mut run: Option<(u64, u64)> = None;
    for at in times.into_iter().rev() {
        let last = match run {
            Some((last, first)) if first - at <= GAP_MS => last,
            _ => at,
        };
        if last - at >= RUN_MS {
            return Some(last);
        }
        run = Some((last, at));
    }
    run.map(|(last, _)| last)
}

/// 2025: no handover was recorded before.
pub(super) const EARLIEST_MS: u64 = 1_735_689_600_000;
/// The year 2200: a later clock is wrong.
const LATEST_MS: u64 = 7_258_118_400_000;
/// The difference that clocks may have.
pub(super) const DAY_MS: u64 = 86_400_000;
/// 180 days: longer than a train is in a workshop, and less than the year by which a typing error
/// sets a clock wrong.
pub(super) const GAP_MS: u64 = 180 * DAY_MS;
/// The length of a run that proves its clock.
const RUN_MS: u64 = 30 * DAY_MS;
