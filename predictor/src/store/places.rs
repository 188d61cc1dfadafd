//! The rate map (Dong et al., III and IV): a carrier's rates and delays at a place on its last
//! trips.
//!
//! "The past trip tells us more than the previous location on the current trip." A place is 100 m
//! of track, for one carrier and direction. For each of the last [`PLACE_TRIPS_MAX`] trips it keeps
//! the mean rate and the mean delay, so that a slow train counts no more than a fast one.

use std::time::Duration;

use polyrail_model::codec::FieldError;
use polyrail_model::{Bitrate, Direction, Position, RouteId, TripId};

use crate::record::{Reader, Writer};

/// A measurement of a carrier at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceSample {
    /// The carrier.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// The direction of travel.
    pub direction: Direction,
    /// The position.
    pub position: Position,
    /// The trip.
    pub trip: TripId,
    /// The rate of delivery, if measured.
    pub rate: Option<Bitrate>,
    /// The delay, if measured.
    pub delay: Option<Duration>,
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

/// The trips at a place, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) Vec<Visit>);

/// One trip at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) trip: TripId,
    /// In bits per second.
    pub(crate) rate: Mean,
    /// In microseconds.
    pub(crate) delay: Mean,
}

/// A running mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mean {
    /// The number of values, up to [`SAMPLES_MAX`]; beyond it newer values weigh more.
    samples: u64,
    value: u64,
}

impl Place {
    pub(crate) fn add(&mut self, sample: &PlaceSample) {
        let at = self.0.iter().position(|visit| visit.trip == sample.trip);
        let at = at.unwrap_or_else(|| {
            if self.0.len() >= PLACE_TRIPS_MAX {
                self.0.remove(0);
            }
            let (rate, delay) = Default::default();
            self.0.push(Visit { trip: sample.trip, rate, delay });
            self.0.len() - 1
        });
        let visit = &mut self.0[at];
        if let Some(rate) = sample.rate {
            visit.rate.add(rate.as_bps());
        }
        if let Some(delay) = sample.delay {
            visit.delay.add(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX));
        }
    }

    /// Adds unknown trips, as older than the known ones.
    pub(crate) fn merge(&mut self, other: &Self) {
        let known = |one: &Visit| self.0.iter().any(|own| own.trip == one.trip);
        let mut all: Vec<_> = other.0.iter().filter(|one| !known(one)).copied().collect();
        all.extend(&self.0);
        all.drain(..all.len().saturating_sub(PLACE_TRIPS_MAX));
        self.0 = all;
    }

    pub(crate) fn estimate(&self) -> PlaceEstimate {
        let rate = quantile(self.0.iter().map(|visit| visit.rate), 50);
        let delay = quantile(self.0.iter().map(|visit| visit.delay), 10);
        let (rate, delay) = (rate.map(Bitrate::from_bps), delay.map(Duration::from_micros));
        PlaceEstimate { rate, delay }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(VERSION);
        out.varint(self.0.len() as u64);
        for visit in &self.0 {
            out.fixed(visit.trip.0);
            for mean in [visit.rate, visit.delay] {
                out.varint(mean.samples);
                if mean.samples > 0 {
                    out.varint(mean.value);
                }
            }
        }
        out.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut from = Reader::new(bytes, VERSION)?;
        let count: usize = from.number("number of trips")?;
        if count > PLACE_TRIPS_MAX {
            return Err(FieldError::Invalid("number of trips"));
        }
        let mut visits = Vec::with_capacity(count);
        for _ in 0..count {
            let trip = TripId(from.fixed()?);
            let (rate, delay) = (Mean::decode(&mut from)?, Mean::decode(&mut from)?);
            visits.push(Visit { trip, rate, delay });
        }
        from.finish()?;
        Ok(Self(visits))
    }
}

impl Mean {
    pub(crate) fn new(samples: u64, value: u64) -> Result<Self, FieldError> {
        let is_valid = samples <= SAMPLES_MAX && (samples > 0 || value == 0);
        is_valid.then_some(Self { samples, value }).ok_or(FieldError::Invalid("number of samples"))
    }

    /// The number of values, and their mean.
    pub(crate) fn parts(self) -> (u64, u64) {
        (self.samples, self.value)
    }

    fn add(&mut self, value: u64) {
        self.samples = (self.samples + 1).min(SAMPLES_MAX);
        let step = (i128::from(value) - i128::from(self.value)) / i128::from(self.samples);
        self.value = u64::try_from(i128::from(self.value) + step).unwrap_or(u64::MAX);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, FieldError> {
        let samples = from.varint()?;
        Self::new(samples, if samples > 0 { from.varint()? } else { 0 })
    }
}

/// A quantile in percent, by the nearest rank.
fn quantile(means: impl Iterator<Item = Mean>, percent: usize) -> Option<u64> {
    let mut values: Vec<_> = means.filter(|mean| mean.samples > 0).map(|mean| mean.value).collect();
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(rank).copied()
}

const VERSION: u8 = 1;
/// Trips of a place.
pub(crate) const PLACE_TRIPS_MAX: usize = 32;
/// A mean weighs no more than this many values.
const SAMPLES_MAX: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(trip: u64, mbps: Option<u64>, delay_ms: Option<u64>) -> PlaceSample {
        PlaceSample {
            carrier: "A".to_owned(),
            route: RouteId(1),
            direction: Direction::Up,
            position: Position::default(),
            trip: TripId(trip),
            rate: mbps.map(|mbps| Bitrate::from_bps(mbps * 1_000_000)),
            delay: delay_ms.map(Duration::from_millis),
        }
    }

    #[test]
    fn trip_counts_once_with_its_mean_and_the_oldest_are_dropped() {
        let mut place = Place::default();
        for trip in 0..40 {
            for sample in [trip, trip + 2, trip + 4] {
                place.add(&self::sample(trip, Some(sample), Some(sample)));
            }
        }
        // The trips 8 to 39 are left; their means are 10 to 41.
        assert_eq!(place.0.len(), PLACE_TRIPS_MAX);
        let rate = Some(Bitrate::from_mbps(25.0));
        let delay = Some(Duration::from_millis(13));
        assert_eq!(place.estimate(), PlaceEstimate { rate, delay });
    }

    #[test]
    fn extreme_and_missing_values_are_kept() {
        let mut place = Place::default();
        assert_eq!(place.estimate(), PlaceEstimate { rate: None, delay: None });
        let mut endless = sample(1, None, None);
        endless.rate = Some(Bitrate::from_bps(u64::MAX));
        endless.delay = Some(Duration::MAX);
        place.add(&endless);
        place.add(&endless);
        place.add(&sample(2, None, None));
        assert_eq!(place.estimate().rate.unwrap().as_bps(), u64::MAX);
        let bytes = place.encode();
        assert_eq!(Place::decode(&bytes), Ok(place));
        for end in 0..bytes.len() {
            assert!(Place::decode(&bytes[..end]).is_err());
        }
        assert_eq!(Place::decode(&[1, 33]), Err(FieldError::Invalid("number of trips")));
    }

    #[test]
    fn merged_trips_count_as_older() {
        let (mut own, mut other) = (Place::default(), Place::default());
        (0..20).for_each(|trip| own.add(&sample(trip, Some(1), None)));
        (10..40).for_each(|trip| other.add(&sample(trip, Some(9), None)));
        own.merge(&other);
        let trips: Vec<_> = own.0.iter().map(|visit| visit.trip.0).collect();
        assert_eq!(trips, (28..40).chain(0..20).collect::<Vec<_>>());
        let before = own.clone();
        own.merge(&before);
        assert_eq!(own, before);
    }
}
