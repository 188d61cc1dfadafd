//! Trips on the emulated rail, and the records of earlier trips.
//!
//! The records contain what a gateway could observe ([`Trip::sightings`]): a handover has the time
//! when the modem's report was read and the position from satellites. Only the choice of the failed
//! handover uses the true trip.

use std::time::Duration;

use anyhow::Result;
use polyrail_emulator::rail::{CarrierProfile, Handover, HandoverResult, Route, Speed, Trip};

use crate::linkdb;

/// A route and its earlier trips.
pub(super) struct Line {
    route: Route,
    learned: Vec<Trip>,
}

/// A failed handover that also failed on earlier trips.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predictable {
    /// The index of its carrier.
    pub(super) carrier: usize,
    /// When it begins on the trip.
    pub(super) at: Duration,
}

impl Line {
    /// A route with this many earlier trips over its whole length.
    pub(super) fn new(seed: u64, learned: u64) -> Result<Line> {
        let route = Route::new(seed, Speed::Kmh300, LENGTH, &CarrierProfile::mix(CARRIERS));
        let time = Duration::from_secs_f64(LENGTH / route.speed.metres_per_second());
        let trips = (0..learned).map(|trip| Ok(Trip::new(&route, trip, 0.0, time)?));
        Ok(Line { learned: trips.collect::<Result<_>>()?, route })
    }

    /// The carriers' names.
    pub(super) fn carriers(&self) -> Vec<String> {
        self.route.carriers.iter().map(|carrier| carrier.name.to_owned()).collect()
    }

    /// A later trip that begins shortly before a handover that fails for at least a second, and
    /// that failed on at least two earlier trips. `None` if the route has none.
    pub(super) fn trip(&self, seed: u64) -> Result<Option<(Trip, Predictable)>> {
        let speed = self.route.speed.metres_per_second();
        let time = Duration::from_secs_f64(LENGTH / speed);
        let whole = Trip::new(&self.route, seed, 0.0, time)?;
        let lead = speed * LEAD.as_secs_f64();
        for (carrier, trip) in whole.carriers.iter().enumerate() {
            for handover in trip.handovers.iter().filter(|one| one.metres > lead) {
                let fails = handover.outcome != HandoverResult::Success;
                if !fails || handover.dark < DARK_LEAST || self.failures(carrier, handover) < 2 {
                    continue;
                }
                let trip = Trip::new(&self.route, seed, handover.metres - lead, TRIP)?;
                let same =
                    |one: &&Handover| one.from == handover.from && one.outcome == handover.outcome;
                let Some(own) = trip.carriers[carrier].handovers.iter().find(same) else {
                    continue;
                };
                let at = own.at;
                return Ok(Some((trip, Predictable { carrier, at })));
            }
        }
        Ok(None)
    }

    fn failures(&self, carrier: usize, handover: &Handover) -> usize {
        let failed = |trip: &&Trip| {
            let same = |one: &&Handover| one.from == handover.from;
            let own = trip.carriers[carrier].handovers.iter().find(same);
            own.is_some_and(|own| own.outcome != HandoverResult::Success)
        };
        self.learned.iter().filter(failed).count()
    }

    /// The telemetry of a trip.
    pub(super) fn telemetry(&self, trip: &Trip) -> Vec<(Duration, String)> {
        linkdb::telemetry(&self.route, trip)
    }

    /// The handovers of the earlier trips, for `polyrail linkdb import`.
    pub(super) fn records(&self) -> String {
        linkdb::history(&self.route, &self.learned)
    }
}

const CARRIERS: usize = 2;
/// The length of the track in metres: ten minutes at 300 km/h.
const LENGTH: f64 = 50_000.0;
/// The length of a trip before its handover, and in total.
const LEAD: Duration = Duration::from_secs(20);
const TRIP: Duration = Duration::from_secs(30);
const DARK_LEAST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linkdb::{DAY_MS, EPOCH_MS};

    #[test]
    fn records_are_what_a_gateway_knows_and_not_the_truth() {
        let line = Line::new(61_000, 3).unwrap();
        let text = line.records();
        assert_eq!(text, Line::new(61_000, 3).unwrap().records(), "one seed, one text");
        let records: Vec<serde_json::Value> = text
            .lines()
            .skip(1)
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["handover"].take())
            .collect();
        let truths =
            |trip: &Trip| -> usize { trip.carriers.iter().map(|one| one.handovers.len()).sum() };
        assert_eq!(records.len(), line.learned.iter().map(truths).sum::<usize>());
        let (mut late, mut exact) = (0.0, 0);
        for record in &records {
            let number = record["trip"].as_str().unwrap().parse::<usize>().unwrap() - 1;
            let carrier = line.carriers().iter().position(|name| record["carrier"] == **name);
            let own = &line.learned[number].carriers[carrier.unwrap()].handovers;
            let from = u32::from_str_radix(record["from"].as_str().unwrap(), 16).unwrap();
            let truth = own.iter().find(|one| one.from == from).unwrap();
            let began = EPOCH_MS + number as u64 * DAY_MS + truth.at.as_millis() as u64;
            assert!((0..=200).contains(&(record["at_ms"].as_u64().unwrap() - began)));
            let off = record["position_m"].as_f64().unwrap() - truth.metres;
            assert!(off.abs() < 50.0, "{off}");
            late += off;
            exact += u32::from(off.abs() < 0.1);
        }
        let mean = late / records.len() as f64;
        assert!((4.0..13.0).contains(&mean), "a tenth of a second: {mean}");
        assert!(exact * 20 < records.len() as u32, "{exact} places are the true ones");
    }
}
