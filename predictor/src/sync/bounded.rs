//! A set of trips that forgets the oldest at its bound.

use std::collections::{BTreeSet, VecDeque};

use polyrail_model::TripId;

#[derive(Debug)]
pub(super) struct BoundedSet {
    most: usize,
    trips: BTreeSet<TripId>,
    order: VecDeque<TripId>,
}

impl BoundedSet {
    pub fn new(most: usize) -> Self {
        Self { most, trips: BTreeSet::new(), order: VecDeque::new() }
    }

    pub fn contains(&self, trip: TripId) -> bool {
        self.trips.contains(&trip)
    }

    pub fn iter(&self) -> impl Iterator<Item = TripId> {
        self.trips.iter().copied()
    }

    /// Whether it was not there.
    pub fn insert(&mut self, trip: TripId) -> bool {
        if !self.trips.insert(trip) {
            return false;
        }
        self.order.push_back(trip);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.trips.remove(&oldest);
        }
        true
    }
}
