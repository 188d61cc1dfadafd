//! The trace database (Dong and others, III and IV): how fast a carrier was at a place, over the
//! last trips.
//!
//! "The past trip tells us more than the previous location on the current trip." A place is 100 m
//! of track, of one carrier and direction. Of each of the last [`PLACE_TRIPS_MAX`] trips it keeps
//! one rate and one delay, the means of what was measured there, so that a slow train counts no
//! more than a fast one.

use std::time::Duration;

use polyrail_model::{Bitrate, Direction, Position, RouteId, TripId};

use crate::record::{Reader, RecordError, Writer};

/// What was measured of a carrier at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceSample {
    /// The carrier.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// Which way the train goes.
    pub direction: Direction,
    /// Where.
    pub position: Position,
    /// On which trip.
    pub trip: TripId,
    /// The rate of delivery; none where the path had too little to send to tell.
    pub rate: Option<Bitrate>,
    /// The delay, where it is known.
    pub delay: Option<Duration>,
}

/// A tenth of the trips is below the first, half below the second, a tenth above the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread<T> {
    /// Exceeded on nine trips of ten.
    pub p10: T,
    /// Exceeded on half of the trips.
    pub p50: T,
    /// Exceeded on one trip of ten.
    pub p90: T,
}

/// What to expect of a carrier at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceQuantiles {
    /// The rate of delivery; none when no trip measured it.
    pub rate: Option<Spread<Bitrate>>,
    /// The delay; none when no trip measured it.
    pub delay: Option<Spread<Duration>>,
    /// How many trips were here.
    pub trips: usize,
}

/// What a place remembers, the oldest trip first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) Vec<Visit>);

/// One trip at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) trip: TripId,
    /// In bits a second.
    pub(crate) rate: Mean,
    /// In microseconds.
    pub(crate) delay: Mean,
}

/// A running mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mean {
    /// How many values went in, up to [`SAMPLES_MAX`]; from there on newer ones weigh more.
    pub(crate) samples: u64,
    pub(crate) value: u64,
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

    /// Takes over trips that it does not know, as older than those that it knows.
    pub(crate) fn merge(&mut self, other: &Self) {
        let known = |one: &Visit| self.0.iter().any(|own| own.trip == one.trip);
        let mut all: Vec<_> = other.0.iter().filter(|one| !known(one)).copied().collect();
        all.extend(&self.0);
        all.drain(..all.len().saturating_sub(PLACE_TRIPS_MAX));
        self.0 = all;
    }

    pub(crate) fn quantiles(&self) -> PlaceQuantiles {
        let rate = spread(self.0.iter().map(|visit| visit.rate), Bitrate::from_bps);
        let delay = spread(self.0.iter().map(|visit| visit.delay), Duration::from_micros);
        PlaceQuantiles { rate, delay, trips: self.0.len() }
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

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(bytes, VERSION)?;
        let count: usize = from.number("number of trips")?;
        if count > PLACE_TRIPS_MAX {
            return Err(RecordError::Impossible("number of trips"));
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
    fn add(&mut self, value: u64) {
        self.samples = (self.samples + 1).min(SAMPLES_MAX);
        let step = (i128::from(value) - i128::from(self.value)) / i128::from(self.samples);
        self.value = u64::try_from(i128::from(self.value) + step).unwrap_or(u64::MAX);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let samples = from.varint()?;
        if samples > SAMPLES_MAX {
            return Err(RecordError::Impossible("number of samples"));
        }
        let value = if samples > 0 { from.varint()? } else { 0 };
        Ok(Self { samples, value })
    }
}

/// Quantiles by the nearest rank.
fn spread<T>(means: impl Iterator<Item = Mean>, unit: fn(u64) -> T) -> Option<Spread<T>> {
    let mut values: Vec<_> = means.filter(|mean| mean.samples > 0).map(|mean| mean.value).collect();
    values.sort_unstable();
    let rank = |percent: usize| {
        let rank = (values.len() * percent).div_ceil(100);
        values.get(rank.saturating_sub(1)).copied().map(unit)
    };
    Some(Spread { p10: rank(10)?, p50: rank(50)?, p90: rank(90)? })
}

const VERSION: u8 = 1;
/// Trips that a place remembers.
pub const PLACE_TRIPS_MAX: usize = 32;
/// A train that stands at a place for long does not stop learning there.
pub(crate) const SAMPLES_MAX: u64 = 1000;

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
    fn a_trip_counts_once_with_its_mean_and_the_oldest_fall_out() {
        let mut place = Place::default();
        for trip in 0..40 {
            for mbps in [trip, trip + 2, trip + 4] {
                place.add(&sample(trip, Some(mbps), None));
            }
        }
        let found = place.quantiles();
        // The trips 8 to 39 are left; their means are 10 to 41.
        assert_eq!((found.trips, found.delay), (32, None));
        let Spread { p10, p50, p90 } = found.rate.unwrap();
        assert_eq!([p10, p50, p90].map(Bitrate::as_mbps), [13.0, 25.0, 38.0]);
    }

    #[test]
    fn extreme_values_and_missing_ones_are_kept() {
        let mut place = Place::default();
        assert_eq!(place.quantiles(), PlaceQuantiles { rate: None, delay: None, trips: 0 });
        let mut endless = sample(1, None, None);
        endless.rate = Some(Bitrate::from_bps(u64::MAX));
        endless.delay = Some(Duration::MAX);
        place.add(&endless);
        place.add(&endless);
        place.add(&sample(2, None, None));
        assert_eq!(place.quantiles().rate.unwrap().p90.as_bps(), u64::MAX);
        let bytes = place.encode();
        assert_eq!(Place::decode(&bytes), Ok(place));
        for end in 0..bytes.len() {
            assert!(Place::decode(&bytes[..end]).is_err());
        }
        assert_eq!(Place::decode(&[1, 33]), Err(RecordError::Impossible("number of trips")));
    }

    #[test]
    fn what_is_taken_over_counts_as_older() {
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
