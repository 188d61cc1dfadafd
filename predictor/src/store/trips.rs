//! The stored state of a trip, and its rank: the oldest trips are evicted first.
//!
//! A record's time is a gateway's, and a gateway's clock may be wrong: a machine that boots in 1970
//! or in 2099 must neither lose its trips at once nor keep them for ever. So a trip's rank is the
//! time of its last handover if that is plausible ([`clock::plausible`](super::clock)), else the
//! time at which the handover arrived. A record from the future thus counts as old as the other
//! records of its day, and is evicted with them.
//!
//! A trip observed here is in progress: it is no older than the newest, even if the clock is so
//! late that all others seem newer. Otherwise a full database would evict exactly this trip.
//!
//! Trips recorded under a clock of the future keep its time until the clock is right again; then
//! [`Trip::rerank`] corrects them.

use polyrail_model::TripId;
use polyrail_model::codec::FieldError;

use super::clock;
use crate::record::{Reader, Writer};

/// A trip as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trip {
    pub(super) id: TripId,
    /// Numbers the trips in order of arrival; the key of its handovers.
    pub(super) serial: u64,
    /// The plausible time of its last handover.
    pub(super) rank: u64,
    /// Whether its handovers are here; else it was evicted and only its number is kept.
    pub(super) held: bool,
    /// The time of its first handover, in milliseconds since 1970 by the gateway's clock.
    begun_at_ms: u64,
    /// The time of its last handover.
    last_at_ms: u64,
    /// Its handovers that are here.
    pub(super) count: u32,
    /// Failed ones among them.
    pub(super) failures: u32,
    /// All its handovers below this sequence number are here.
    pub(super) next: u32,
}

impl Trip {
    pub(super) fn new(id: TripId, serial: u64) -> Self {
        Self {
            id,
            serial,
            rank: 0,
            held: true,
            begun_at_ms: u64::MAX,
            last_at_ms: 0,
            count: 0,
            failures: 0,
            next: 0,
        }
    }

    /// Counts a new handover.
    pub(super) fn add(&mut self, at_ms: u64, failed: bool) {
        self.count += 1;
        self.failures += u32::from(failed);
        self.begun_at_ms = self.begun_at_ms.min(at_ms);
        self.last_at_ms = self.last_at_ms.max(at_ms);
    }

    /// Its place in the order: evicted trips first, then held ones, each with the oldest first.
    pub(super) fn order(&self) -> (u8, u64, u64) {
        (u8::from(self.held), self.rank, self.serial)
    }

    /// The time of its last handover if plausible; its rank may be later.
    pub(super) fn at_ms(&self) -> u64 {
        let is_plausible = (clock::EARLIEST_MS..=self.rank).contains(&self.last_at_ms);
        if is_plausible { self.last_at_ms } else { self.rank }
    }

    /// Gives it the rank of a trip that arrives now. Returns whether the rank has changed.
    pub(super) fn rerank(&mut self, now_ms: u64) -> bool {
        let before = self.rank;
        self.rank = clock::plausible(self.last_at_ms, now_ms, 0);
        self.rank != before
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(VERSION);
        out.byte(u8::from(self.held));
        out.varint(self.serial);
        out.varint(self.rank);
        out.varint(self.begun_at_ms);
        out.varint(self.last_at_ms);
        out.varint(self.count.into());
        out.varint(self.failures.into());
        out.varint(self.next.into());
        out.finish()
    }

    pub(super) fn decode(id: TripId, bytes: &[u8]) -> Result<Self, FieldError> {
        let mut from = Reader::new(bytes, VERSION)?;
        let trip = Self {
            id,
            held: from.flags(1)? == 1,
            serial: from.varint()?,
            rank: from.varint()?,
            begun_at_ms: from.varint()?,
            last_at_ms: from.varint()?,
            count: from.number("count")?,
            failures: from.number("failures")?,
            next: from.number("sequence")?,
        };
        from.finish()?;
        Ok(trip)
    }
}

const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trips_are_encoded() {
        let trip = Trip { next: 77, rank: 12345, ..Trip::new(TripId(9), 300) };
        let bytes = trip.encode();
        assert_eq!(Trip::decode(TripId(9), &bytes), Ok(trip));
        for end in 0..bytes.len() {
            assert!(Trip::decode(TripId(9), &bytes[..end]).is_err());
        }
    }
}
