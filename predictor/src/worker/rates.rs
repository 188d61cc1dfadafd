//! Collects measurements of a carrier into entries: the means of one trip at each place.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Position, TripId};

use crate::entry::{Link, RateSample, Rates, Spot};
use crate::position::TrainPosition;

/// The open entries of a session's carriers; at most [`CARRIERS_MAX`].
#[derive(Debug)]
pub(super) struct RateRecorder {
    link: Link,
    open: BTreeMap<String, OpenRates>,
}

#[derive(Debug)]
struct OpenRates {
    rates: Rates,
    began: Instant,
    /// The hundred metres of the last sample, and its sums.
    place: i32,
    count: u64,
    rate_bps: u64,
    delay_us: u64,
}

impl RateRecorder {
    pub(super) fn new(link: Link) -> Self {
        Self { link, open: BTreeMap::new() }
    }

    /// Takes a measurement at the train's position. Returns the entry that is complete before it.
    pub(super) fn record(
        &mut self,
        (train, trip): (&TrainPosition, TripId),
        spot: Option<Spot>,
        carrier: &str,
        rate: Bitrate,
        srtt: Duration,
    ) -> Option<Rates> {
        let position = Position::from_metres(train.metres);
        let place = position.decimetres.div_euclid(1_000);
        let delay_us = u64::try_from(srtt.as_micros() / 2).unwrap_or(u64::MAX);
        let mut complete = None;
        let continues = |open: &OpenRates| {
            let Rates { trip: of, route, direction, samples, .. } = &open.rates;
            let has_room = samples.len() < Rates::SAMPLES_MAX || open.place == place;
            (*of, *route, *direction) == (trip, train.route, train.direction) && has_room
        };
        if self.open.get(carrier).is_some_and(|open| !continues(open)) {
            complete = self.open.remove(carrier).map(|open| open.rates);
        }
        if !self.open.contains_key(carrier) && self.open.len() >= CARRIERS_MAX {
            return complete;
        }
        let open = self.open.entry(carrier.to_owned()).or_insert_with(|| OpenRates {
            rates: Rates {
                trip,
                carrier: carrier.to_owned(),
                route: train.route,
                direction: train.direction,
                link: self.link,
                samples: Vec::new(),
            },
            began: train.at,
            place,
            count: 0,
            rate_bps: 0,
            delay_us: 0,
        });
        if open.place != place || open.rates.samples.is_empty() {
            (open.place, open.count, open.rate_bps, open.delay_us) = (place, 0, 0, 0);
            open.rates.samples.push(RateSample { position, spot, rate: None, delay: None });
        }
        open.count += 1;
        open.rate_bps = open.rate_bps.saturating_add(rate.as_bps());
        open.delay_us = open.delay_us.saturating_add(delay_us);
        if let Some(sample) = open.rates.samples.last_mut() {
            sample.rate = Some(Bitrate::from_bps(open.rate_bps / open.count));
            sample.delay = Some(Duration::from_micros(open.delay_us / open.count));
        }
        complete
    }

    /// The entries that were begun this long ago.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Rates> {
        let due = |open: &OpenRates| now.saturating_duration_since(open.began) >= OPEN_MAX;
        let all = std::mem::take(&mut self.open).into_iter();
        let (due, open): (BTreeMap<_, _>, _) = all.partition(|(_, open)| due(open));
        self.open = open;
        due.into_values().map(|open| open.rates).collect()
    }

    /// All entries, at the end.
    pub(super) fn take_all(&mut self) -> Vec<Rates> {
        std::mem::take(&mut self.open).into_values().map(|open| open.rates).collect()
    }
}

const CARRIERS_MAX: usize = 64;
/// An entry is appended after this time at the latest.
const OPEN_MAX: Duration = Duration::from_secs(60);
