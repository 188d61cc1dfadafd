//! Journeys on the emulated rail: what the train learned on earlier trips, and the trip at hand.

use std::time::Duration;

use anyhow::Result;
use polyrail_emulator::rail::{CarrierProfile, Handover, Outcome, Route, Speed, Trip};

use crate::rail::{self, Record};

/// A route and the trips on it that were made before.
pub(super) struct Line {
    route: Route,
    learned: Vec<Trip>,
}

/// A failed handover that the trips before have seen fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Foreseeable {
    /// Its carrier's place.
    pub(super) carrier: usize,
    /// When it begins on the trip.
    pub(super) at: Duration,
}

impl Line {
    /// A route with so many trips behind it, each of the whole length.
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

    /// A later trip that is to begin shortly before a handover which fails for at least a second
    /// and which at least two of the trips before have seen fail; none if it has no such.
    pub(super) fn trip(&self, seed: u64) -> Result<Option<(Trip, Foreseeable)>> {
        let speed = self.route.speed.metres_per_second();
        let time = Duration::from_secs_f64(LENGTH / speed);
        let whole = Trip::new(&self.route, seed, 0.0, time)?;
        let lead = speed * LEAD.as_secs_f64();
        for (carrier, trip) in whole.carriers.iter().enumerate() {
            for handover in trip.handovers.iter().filter(|one| one.metres > lead) {
                let fails = handover.outcome != Outcome::Success;
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
                return Ok(Some((trip, Foreseeable { carrier, at })));
            }
        }
        Ok(None)
    }

    fn failures(&self, carrier: usize, handover: &Handover) -> usize {
        let failed = |trip: &&Trip| {
            let same = |one: &&Handover| one.from == handover.from;
            let own = trip.carriers[carrier].handovers.iter().find(same);
            own.is_some_and(|own| own.outcome != Outcome::Success)
        };
        self.learned.iter().filter(failed).count()
    }

    /// What the train says on a trip, a line a second, each with its time.
    pub(super) fn telemetry(&self, trip: &Trip) -> Vec<(Duration, String)> {
        let lines = trip.telemetry_lines(&self.route);
        let at = |line: &str| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            Duration::from_secs_f64(value["time_s"].as_f64().unwrap_or(0.0))
        };
        lines.lines().map(|line| (at(line), line.to_owned())).collect()
    }

    /// The handovers of the trips before, as `polyrail linkdb import` takes them.
    pub(super) fn records(&self) -> String {
        rail::records(self.learned.iter().enumerate().flat_map(|(number, trip)| {
            let mut all: Vec<(&str, &Handover)> = Vec::new();
            for (profile, carrier) in self.route.carriers.iter().zip(&trip.carriers) {
                all.extend(carrier.handovers.iter().map(|one| (profile.name, one)));
            }
            all.sort_by_key(|(_, handover)| handover.at);
            let number = number as u64;
            let began = EPOCH_MS + number * DAY_MS;
            let metres_per_second = self.route.speed.metres_per_second();
            all.into_iter().enumerate().map(move |(sequence, (carrier, handover))| Record {
                trip: number + 1,
                sequence,
                at_ms: began + handover.at.as_millis() as u64,
                carrier,
                metres: handover.metres,
                metres_per_second,
                from: handover.from.into(),
                to: handover.to.into(),
                rsrp_dbm: handover.rsrp,
                outcome: match handover.outcome {
                    Outcome::Success => "success",
                    Outcome::FailureHeld => "type2",
                    Outcome::FailureDropped => "type3",
                },
                dark: handover.dark,
            })
        }))
    }
}

const CARRIERS: usize = 2;
/// The track, in metres: at 300 km/h ten minutes.
const LENGTH: f64 = 50_000.0;
/// How long a trip is before its handover, and altogether.
const LEAD: Duration = Duration::from_secs(20);
const TRIP: Duration = Duration::from_secs(30);
const DARK_LEAST: Duration = Duration::from_secs(1);
/// When the first of the trips was, and how far they are apart.
const EPOCH_MS: u64 = 1_790_000_000_000;
const DAY_MS: u64 = 86_400_000;
