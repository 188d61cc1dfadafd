//! How far each trip is known, in memory, and the digest over all of them: kept as trips change, so
//! that none has to be looked at for it.

use std::collections::BTreeMap;

use crate::wire::{SyncDigest, TripKnown};
use polyrail_model::TripId;

/// How far trips are known, those that fell out among them; as many as its database holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownTrips {
    next: BTreeMap<TripId, u32>,
    digest: SyncDigest,
}

impl KnownTrips {
    /// As [`Ledger::next_of`](super::Ledger::next_of).
    pub fn next_of(&self, trip: TripId) -> u32 {
        self.next.get(&trip).copied().unwrap_or(0)
    }

    /// As [`Ledger::digest`](super::Ledger::digest).
    pub fn digest(&self) -> SyncDigest {
        self.digest
    }

    /// A trip is known up to a number, or not even by its own any more.
    pub fn set(&mut self, trip: TripId, next: Option<u32>) {
        let before = match next {
            Some(next) => self.next.insert(trip, next),
            None => self.next.remove(&trip),
        };
        take_out(&mut self.digest, TripKnown { trip, next: before.unwrap_or(0) });
        put_in(&mut self.digest, TripKnown { trip, next: next.unwrap_or(0) });
    }
}

/// Whether a trip is compared: some of it is known, and it did not fall out.
pub(super) fn counts(known: TripKnown) -> bool {
    known.next > 0 && known.next != TripKnown::LEFT_OUT
}

/// Counts a trip in a digest (`docs/protocol.md`, "The train and its handovers").
pub(super) fn put_in(digest: &mut SyncDigest, known: TripKnown) {
    if counts(known) {
        digest.trips = digest.trips.saturating_add(1);
        digest.hash = digest.hash.wrapping_add(hash(known));
    }
}

/// Undoes the same.
pub(super) fn take_out(digest: &mut SyncDigest, known: TripKnown) {
    if counts(known) {
        digest.trips = digest.trips.saturating_sub(1);
        digest.hash = digest.hash.wrapping_sub(hash(known));
    }
}

fn hash(known: TripKnown) -> u64 {
    mixed(known.trip.0 ^ mixed(u64::from(known.next)))
}

/// The finaliser of SplitMix64 behind its increment.
pub(super) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
