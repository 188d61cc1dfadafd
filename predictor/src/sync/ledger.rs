//! What the synchronisation needs of a database of handovers, and one in memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::wire::{SyncDigest, TripKnown};
use polyrail_model::{Handover, TripId};

use super::known::put_in;

/// Where a trip stands in the order of all, the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// How new it is, in milliseconds since 1970.
    pub at_ms: u64,
    /// Tells trips of the same time apart.
    pub number: u64,
}

/// A database of handovers, trip by trip. What is asked for one message takes no longer in a large
/// one.
pub trait Ledger {
    /// What may go wrong with it.
    type Error;

    /// The digest over all trips of which some is known and that did not fall out.
    ///
    /// # Errors
    /// The database cannot be read.
    fn digest(&self) -> Result<SyncDigest, Self::Error>;

    /// How far trips are known that are older than this place in the order, or all, the newest
    /// first, at most `max`; those that fell out may be missing.
    ///
    /// # Errors
    /// The database cannot be read.
    fn known_before(
        &self,
        before: Option<Rank>,
        max: usize,
    ) -> Result<Vec<(Rank, TripKnown)>, Self::Error>;

    /// All handovers of this trip below the number are known; 0 for an unknown trip. What is not
    /// there may be given again: a trip whose handovers fell out should stay, with
    /// [`TripKnown::LEFT_OUT`].
    ///
    /// # Errors
    /// The database cannot be read.
    fn next_of(&self, trip: TripId) -> Result<u32, Self::Error>;

    /// Handovers of a trip from this number on, in order, at most `max`; none when they fell out.
    ///
    /// # Errors
    /// The database cannot be read.
    fn records(&self, trip: TripId, from: u32, max: usize) -> Result<Vec<Handover>, Self::Error>;

    /// Takes in what it does not hold yet, in any order, and returns how much that was. What it
    /// has no room for it leaves: when the next one of a trip is left, the peer is told to leave
    /// out the trip.
    ///
    /// # Errors
    /// The database cannot be written. The peer will say it again.
    fn append(&mut self, handovers: &[Handover]) -> Result<usize, Self::Error>;
}

/// A database in memory. Beyond its bound the trip that began first falls out; that it did is
/// remembered of as many trips again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLedger {
    trips_max: usize,
    trips: BTreeMap<TripId, Trip>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Trip {
    /// When it began, as far as one has heard.
    began_ms: u64,
    /// All below are known.
    next: u32,
    handovers: BTreeMap<u32, Handover>,
}

impl Trip {
    fn has_fallen(&self) -> bool {
        self.next == TripKnown::LEFT_OUT
    }
}

impl Default for MemoryLedger {
    fn default() -> Self {
        Self::new(4_096)
    }
}

impl MemoryLedger {
    /// One that holds so many trips.
    pub fn new(trips_max: usize) -> Self {
        Self { trips_max, trips: BTreeMap::new() }
    }

    /// All handovers, by trip and sequence.
    pub fn handovers(&self) -> impl Iterator<Item = &Handover> {
        self.trips.values().flat_map(|trip| trip.handovers.values())
    }

    fn add(&mut self, handover: &Handover) -> bool {
        let Handover { trip, sequence, at_ms, .. } = *handover;
        if !self.trips.contains_key(&trip) && !self.has_room_for(at_ms) {
            return false;
        }
        let entry = self.trips.entry(trip).or_insert(Trip { began_ms: at_ms, ..Trip::default() });
        entry.began_ms = entry.began_ms.min(at_ms);
        if sequence < entry.next || sequence == u32::MAX {
            return false;
        }
        let new = entry.handovers.insert(sequence, handover.clone()).is_none();
        while entry.handovers.contains_key(&entry.next) {
            entry.next += 1;
        }
        self.prune();
        new
    }

    /// Whether a trip that began then would stay.
    fn has_room_for(&self, at_ms: u64) -> bool {
        let newer = self.trips.values().filter(|trip| trip.began_ms >= at_ms);
        newer.count() < self.trips_max
    }

    fn prune(&mut self) {
        while self.trips.values().filter(|trip| !trip.has_fallen()).count() > self.trips_max {
            let held = self.trips.values_mut().filter(|trip| !trip.has_fallen());
            let Some(oldest) = held.min_by_key(|trip| trip.began_ms) else { return };
            oldest.next = TripKnown::LEFT_OUT;
            oldest.handovers.clear();
        }
        while self.trips.len() > 2 * self.trips_max {
            let fallen = self.trips.iter().filter(|(_, trip)| trip.has_fallen());
            let oldest = fallen.min_by_key(|(_, trip)| trip.began_ms).map(|(&id, _)| id);
            let Some(oldest) = oldest else { return };
            self.trips.remove(&oldest);
        }
    }
}

impl Ledger for MemoryLedger {
    type Error = Infallible;

    fn digest(&self) -> Result<SyncDigest, Infallible> {
        let mut digest = SyncDigest::default();
        for (&trip, held) in &self.trips {
            put_in(&mut digest, TripKnown { trip, next: held.next });
        }
        Ok(digest)
    }

    fn known_before(
        &self,
        before: Option<Rank>,
        max: usize,
    ) -> Result<Vec<(Rank, TripKnown)>, Infallible> {
        let ranked = self.trips.iter().map(|(&trip, held)| {
            let rank = Rank { at_ms: held.began_ms, number: trip.0 };
            (rank, TripKnown { trip, next: held.next })
        });
        let older = |(rank, _): &(Rank, TripKnown)| before.is_none_or(|before| *rank < before);
        let mut known: Vec<_> = ranked.filter(older).collect();
        known.sort_by_key(|(rank, _)| Reverse(*rank));
        known.truncate(max);
        Ok(known)
    }

    fn next_of(&self, trip: TripId) -> Result<u32, Infallible> {
        Ok(self.trips.get(&trip).map_or(0, |trip| trip.next))
    }

    fn records(&self, trip: TripId, from: u32, max: usize) -> Result<Vec<Handover>, Infallible> {
        let held = self.trips.get(&trip).into_iter();
        let from = held.flat_map(|trip| trip.handovers.range(from..));
        Ok(from.map(|(_, handover)| handover.clone()).take(max).collect())
    }

    fn append(&mut self, handovers: &[Handover]) -> Result<usize, Infallible> {
        Ok(handovers.iter().filter(|handover| self.add(handover)).count())
    }
}
