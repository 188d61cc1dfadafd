//! What is kept of a trip beside its handovers, and which trip is the oldest.
//!
//! A record's time is a gateway's, and a gateway's clock may be wrong: a machine that boots in 1970
//! or in 2099 must neither lose its trips at once nor keep them for ever. So a trip's rank is the
//! time of its last handover where that is to be believed ([`believed`]), else the time at which
//! the handover arrived here. What arrives with a time of the future is thus as old as anything
//! that arrives today, and falls out with it.
//!
//! A trip that is seen here goes on now: it is no older than the newest, also where the clock is so
//! late that all others seem newer. Else a full database would let just this one fall out.
//!
//! What a clock of the future recorded here has that time until the clock is right again: then such
//! trips are ranked anew ([`Trip::rank_anew`]).

use polyrail_model::TripId;

use crate::record::{Reader, RecordError, Writer};

/// One trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TripSummary {
    /// The trip.
    pub trip: TripId,
    /// The time of its first handover, in milliseconds since 1970, as the gateway had it.
    pub begun_at_ms: u64,
    /// The time of its last handover.
    pub last_at_ms: u64,
    /// Its handovers that are here.
    pub count: u32,
    /// Those of them that failed.
    pub failures: u32,
    /// All its handovers below this sequence number are here.
    pub next: u32,
}

/// A trip as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trip {
    pub(super) summary: TripSummary,
    /// Counts the trips in the order in which they arrived; the key of its handovers.
    pub(super) serial: u64,
    /// How new it is: the believed time of its last handover.
    pub(super) rank: u64,
    /// Whether its handovers are here; else it fell out and only its number is remembered.
    pub(super) held: bool,
}

impl Trip {
    pub(super) fn new(trip: TripId, serial: u64) -> Self {
        let summary = TripSummary {
            trip,
            begun_at_ms: u64::MAX,
            last_at_ms: 0,
            count: 0,
            failures: 0,
            next: 0,
        };
        Self { summary, serial, rank: 0, held: true }
    }

    /// Its place in the order: trips that fell out before those that are held, then the oldest.
    pub(super) fn order(&self) -> (u8, u64, u64) {
        (u8::from(self.held), self.rank, self.serial)
    }

    /// Its time as far as it tells one: a rank may be later, where the newest trip was.
    pub(super) fn at_ms(&self) -> u64 {
        let told = self.summary.last_at_ms;
        if (EARLIEST_MS..=self.rank).contains(&told) { told } else { self.rank }
    }

    /// Gives it the rank that it would have if it came now. Answers whether that is another one.
    pub(super) fn rank_anew(&mut self, now_ms: u64) -> bool {
        let before = self.rank;
        self.rank = believed(self.summary.last_at_ms, now_ms, 0);
        self.rank != before
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(VERSION);
        out.byte(u8::from(self.held));
        out.varint(self.serial);
        out.varint(self.rank);
        out.varint(self.summary.begun_at_ms);
        out.varint(self.summary.last_at_ms);
        out.varint(self.summary.count.into());
        out.varint(self.summary.failures.into());
        out.varint(self.summary.next.into());
        out.finish()
    }

    pub(super) fn decode(trip: TripId, bytes: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(bytes, VERSION)?;
        let held = match from.byte()? {
            0 => false,
            1 => true,
            _ => return Err(RecordError::Impossible("trip's state")),
        };
        let (serial, rank) = (from.varint()?, from.varint()?);
        let summary = TripSummary {
            trip,
            begun_at_ms: from.varint()?,
            last_at_ms: from.varint()?,
            count: from.number("count")?,
            failures: from.number("failures")?,
            next: from.number("sequence")?,
        };
        from.finish()?;
        Ok(Self { summary, serial, rank, held })
    }
}

/// The time of a handover as far as it is to be believed: its own, when that is neither before this
/// program was written nor in the future; else the time at which it arrived. A clock that is
/// itself in the past (`now_ms`) knows no better than the newest trip (`newest_ms`).
pub(super) fn believed(at_ms: u64, now_ms: u64, newest_ms: u64) -> u64 {
    let plausible = if now_ms >= EARLIEST_MS { now_ms } else { newest_ms.max(EARLIEST_MS) };
    let arrived = plausible.min(LATEST_MS);
    if (EARLIEST_MS..=arrived.saturating_add(AHEAD_MS)).contains(&at_ms) { at_ms } else { arrived }
}

/// Whether a clock is so far behind the newest trip that it is not to be believed.
pub(super) fn is_lost(now_ms: u64, newest_ms: u64) -> bool {
    now_ms.saturating_add(AHEAD_MS) < newest_ms.max(EARLIEST_MS)
}

const VERSION: u8 = 1;
/// 2025: no handover was recorded before.
pub(super) const EARLIEST_MS: u64 = 1_735_689_600_000;
/// The year 2200: a clock that says more is not asked.
const LATEST_MS: u64 = 7_258_118_400_000;
/// Clocks may differ by a day.
pub(super) const AHEAD_MS: u64 = 24 * 3600 * 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_believed_within_reason() {
        let (now, day) = (EARLIEST_MS + 1_000_000_000, AHEAD_MS);
        let table = [
            (now - 5, now, 0, now - 5),
            (now + day, now, 0, now + day),
            (now + day + 1, now, 0, now),
            (u64::MAX, now, 0, now),
            (0, now, 0, now),
            (EARLIEST_MS - 1, now, 0, now),
            // This machine's own clock is lost.
            (now, 0, now, now),
            (now + 2 * day, 0, now, now),
            (5, 0, now, now),
            (5, 0, 0, EARLIEST_MS),
            (now, u64::MAX, 0, now),
            (u64::MAX, u64::MAX, 0, LATEST_MS),
        ];
        for (at, clock, newest, wanted) in table {
            assert_eq!(believed(at, clock, newest), wanted, "{at} at {clock} after {newest}");
        }
    }

    #[test]
    fn a_clock_is_lost_that_is_a_day_behind() {
        let (newest, day) = (EARLIEST_MS + 1_000_000_000, AHEAD_MS);
        for (now, lost) in [(newest - day, false), (newest - day - 1, true), (5, true)] {
            assert_eq!((is_lost(now, newest), is_lost(u64::MAX, newest)), (lost, false), "{now}");
        }
        assert!(is_lost(0, 0) && !is_lost(EARLIEST_MS, 0));
    }

    #[test]
    fn trips_come_back() {
        let mut trip = Trip::new(TripId(9), 300);
        trip.summary.next = 77;
        trip.rank = 12345;
        let bytes = trip.encode();
        assert_eq!(Trip::decode(TripId(9), &bytes), Ok(trip));
        for end in 0..bytes.len() {
            assert!(Trip::decode(TripId(9), &bytes[..end]).is_err());
        }
    }
}
