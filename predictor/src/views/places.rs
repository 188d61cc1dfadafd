//! The rate map (Dong et al., III and IV): a carrier's rates and delays at a place on its last
//! trips.
//!
//! "The past trip tells us more than the previous location on the current trip." A place is 100 m
//! of track, for one carrier and direction. For each of the last [`PLACE_TRIPS_MAX`] trips it keeps
//! the mean rate and the mean delay, so that a slow train counts no more than a fast one. No writer
//! displaces or outweighs the others, as in a cell's history, and an estimate stands without any
//! single other one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polyrail_model::{Bitrate, Direction, Position, RouteId, TripId};

use crate::creator::creator_of;
use crate::entry::{EntryKey, RateSample, WriterNumber};
use crate::fair::{crowded_out, holder, victims, weighed};

/// A hundred metres of track, for one carrier and direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlaceKey {
    /// The carrier.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// The direction of travel.
    pub direction: Direction,
    /// Hundreds of metres from the beginning of the track, rounded down.
    pub hectometre: i32,
}

/// The expected rate and delay of a carrier at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceEstimate {
    /// The median of the trips' rates; none if no trip measured one.
    pub rate: Option<Bitrate>,
    /// The 0.1 quantile of the trips' delays, which excludes our own queues; none if no trip
    /// measured one.
    pub delay: Option<Duration>,
}

/// The rate map.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    places: BTreeMap<PlaceKey, Place>,
    writes: u64,
    /// The writers by the hashes of their names.
    creators: BTreeMap<u32, WriterNumber>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Place {
    /// The trips, oldest first; at most [`PLACE_TRIPS_MAX`].
    visits: Vec<Visit>,
    written: u64,
}

/// One trip of a writer at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Visit {
    trip: TripId,
    writer: WriterNumber,
    /// Its last entry.
    entry: EntryKey,
    /// It was recorded on another track.
    projected: bool,
    /// In bits per second.
    rate: Mean,
    /// In microseconds.
    delay: Mean,
}

/// A running mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mean {
    /// The number of values, up to [`SAMPLES_MAX`]; beyond it newer values weigh more.
    samples: u16,
    value: u64,
}

impl PlaceKey {
    /// The place of a position.
    pub fn of(carrier: &str, route: RouteId, direction: Direction, position: Position) -> Self {
        let hectometre = position.decimetres.div_euclid(1000);
        Self { carrier: carrier.to_owned(), route, direction, hectometre }
    }
}

impl Places {
    /// Names a writer and the hash of its name.
    pub fn introduce(&mut self, writer: WriterNumber, creator: u32) {
        self.creators.insert(creator, writer);
    }

    /// The same without places, to count entries again.
    pub fn emptied(&self) -> Self {
        Self { creators: self.creators.clone(), ..Self::default() }
    }

    /// Adds a sample of a writer's trip. Known entries must not come again.
    pub fn add(
        &mut self,
        key: PlaceKey,
        entry: (WriterNumber, EntryKey),
        trip: TripId,
        sample: &RateSample,
        projected: bool,
    ) {
        self.writes += 1;
        let place = self.places.entry(key).or_default();
        place.written = self.writes;
        place.add(entry, trip, sample, projected);
        if self.places.len() > PLACES_MAX {
            self.evict();
        }
    }

    /// The expected rate and delay at a place, for the node `own`.
    pub fn estimate(&self, key: &PlaceKey, own: WriterNumber) -> Option<PlaceEstimate> {
        self.places.get(key).map(|place| place.estimate(own))
    }

    /// The estimates along one direction of a track, by carrier and then by place.
    pub fn along(
        &self,
        route: RouteId,
        direction: Direction,
        own: WriterNumber,
    ) -> impl Iterator<Item = (&PlaceKey, PlaceEstimate)> {
        let is_along = move |key: &PlaceKey| (key.route, key.direction) == (route, direction);
        let along = self.places.iter().filter(move |(key, _)| is_along(key));
        along.map(move |(key, place)| (key, place.estimate(own)))
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Replaces the places of some tracks.
    pub fn replace(&mut self, is_meant: impl Fn(RouteId) -> bool, new: Self) {
        self.places.retain(|key, _| !is_meant(key.route));
        for (key, place) in new.places {
            self.writes += 1;
            self.places.insert(key, Place { written: self.writes, ..place });
        }
        if self.places.len() > PLACES_MAX {
            self.evict();
        }
    }

    /// Removes visits, by their place and entry and whether they are projections.
    pub fn forget(&mut self, gone: impl Fn(&PlaceKey, EntryKey, bool) -> bool) {
        self.places.retain(|key, place| {
            place.visits.retain(|visit| !gone(key, visit.entry, visit.projected));
            !place.visits.is_empty()
        });
    }

    #[cfg(test)]
    pub fn visits(&self) -> std::collections::BTreeSet<String> {
        let all = self.places.iter();
        all.flat_map(|(key, place)| place.visits.iter().map(move |one| format!("{key:?} {one:?}")))
            .collect()
    }

    fn evict(&mut self) {
        let count = self.places.len() + PLACES_MAX / EVICTED - PLACES_MAX;
        let all = self.places.iter().map(|(key, place)| {
            let visits = place.visits.iter().map(|one| (one.writer, one.projected));
            let creator = self.creators.get(&creator_of(key.route)).copied();
            (holder(visits, creator), place.written, key)
        });
        let gone: Vec<PlaceKey> = victims(all, count).into_iter().cloned().collect();
        for key in &gone {
            self.places.remove(key);
        }
    }
}

impl Place {
    fn add(
        &mut self,
        (writer, entry): (WriterNumber, EntryKey),
        trip: TripId,
        sample: &RateSample,
        projected: bool,
    ) {
        let is_same = |one: &Visit| (one.writer, one.trip) == (writer, trip);
        let at = self.visits.iter().position(is_same).unwrap_or_else(|| {
            if self.visits.len() >= PLACE_TRIPS_MAX
                && let Some(gone) = crowded_out(self.visits.iter().map(|one| one.writer))
            {
                self.visits.remove(gone);
            }
            let (rate, delay) = Default::default();
            self.visits.push(Visit { trip, writer, entry, projected, rate, delay });
            self.visits.len() - 1
        });
        let visit = &mut self.visits[at];
        visit.entry = entry;
        if let Some(rate) = sample.rate {
            visit.rate.add(rate.as_bps());
        }
        if let Some(delay) = sample.delay {
            visit.delay.add(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX));
        }
    }

    fn estimate(&self, own: WriterNumber) -> PlaceEstimate {
        // Of each other writer the newest, no more than the median of the others' numbers.
        let visits = weighed(self.visits.iter().rev(), |one| one.writer, own);
        let rate = robust(&visits, own, |visit| visit.rate, 50);
        let delay = robust(&visits, own, |visit| visit.delay, 10);
        let (rate, delay) = (rate.map(Bitrate::from_bps), delay.map(Duration::from_micros));
        PlaceEstimate { rate, delay }
    }
}

impl Mean {
    fn add(&mut self, value: u64) {
        self.samples = (self.samples + 1).min(SAMPLES_MAX);
        let step = (i128::from(value) - i128::from(self.value)) / i128::from(self.samples);
        self.value = u64::try_from(i128::from(self.value) + step).unwrap_or(u64::MAX);
    }
}

/// A quantile of visits in percent, as it stands without any single writer other than `own`:
/// between the least and the most of the writers' quantiles when that one is left out. So there is
/// none if the node itself has no visit and there is just one other writer, or if there are two
/// that differ by more than [`AGREED`].
fn robust(
    visits: &[Visit],
    own: WriterNumber,
    of: impl Fn(&Visit) -> Mean,
    percent: usize,
) -> Option<u64> {
    let writers: BTreeSet<WriterNumber> = visits.iter().map(|one| one.writer).collect();
    let value_of = |writer: &WriterNumber| {
        let means = visits.iter().filter(|one| one.writer == *writer).map(&of);
        Some((quantile(means, percent)?, *writer))
    };
    let mut values: Vec<(u64, WriterNumber)> = writers.iter().filter_map(value_of).collect();
    values.sort_unstable();
    let without = |end: Option<&(u64, WriterNumber)>, next: Option<&(u64, WriterNumber)>| {
        end.filter(|(_, writer)| *writer == own).or(next).map(|(value, _)| *value)
    };
    let least = without(values.first(), values.get(1))?;
    let most = without(values.last(), values.iter().rev().nth(1))?;
    let stands = least.min(most).saturating_mul(AGREED) >= least;
    let all = quantile(visits.iter().map(of), percent)?;
    stands.then_some(all.clamp(least.min(most), least.max(most)))
}

/// A quantile in percent, by the nearest rank.
fn quantile(means: impl Iterator<Item = Mean>, percent: usize) -> Option<u64> {
    let mut values: Vec<_> = means.filter(|mean| mean.samples > 0).map(|mean| mean.value).collect();
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(rank).copied()
}

/// The most places: three carriers, both directions, 3,300 km.
pub const PLACES_MAX: usize = 200_000;
/// Trips of a place.
pub const PLACE_TRIPS_MAX: usize = 32;
/// A full map evicts this part of its capacity, because each eviction looks at all places.
const EVICTED: usize = 64;
/// Two writers agree if one's value is at most so many times the other's.
const AGREED: u64 = 2;
/// A mean weighs no more than this many values.
const SAMPLES_MAX: u16 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate of a node with these delays of its own and of other writers, in microseconds.
    fn delay(own: &[u64], others: &[&[u64]]) -> Option<u64> {
        let mut place = Place::default();
        for (writer, values) in (0..).zip([own].iter().chain(others)) {
            for (trip, value) in (0..).zip(*values) {
                let delay = Some(Duration::from_micros(*value));
                let sample =
                    RateSample { position: Position::default(), spot: None, rate: None, delay };
                let from = (WriterNumber(writer), EntryKey::default());
                place.add(from, TripId(trip), &sample, false);
            }
        }
        let delay = place.estimate(WriterNumber::OWN).delay;
        delay.map(|delay| u64::try_from(delay.as_micros()).unwrap())
    }

    #[test]
    fn estimate_stands_without_any_single_other_writer() {
        let forged: [&[u64]; 3] = [&[0; 32], &[1], &[9_000_000; 20]];
        for forged in forged {
            assert_eq!(delay(&[], &[forged]), None, "it alone creates none");
            assert_eq!(delay(&[50, 60, 70], &[forged]), Some(50), "the node's own");
            assert_eq!(delay(&[], &[&[50, 60], forged]), None, "they disagree");
            let three: [&[u64]; 4] = [&[50, 55], &[60, 70], &[52], forged];
            let found = delay(&[], &three).unwrap();
            assert!((50..=60).contains(&found), "{found}");
            let found = delay(&[65, 66], &three[1..]).unwrap();
            assert!((52..=65).contains(&found), "{found}");
        }
        assert_eq!(delay(&[50], &[]), Some(50));
        assert_eq!(delay(&[], &[&[50], &[60]]), Some(50), "they agree");
    }
}
