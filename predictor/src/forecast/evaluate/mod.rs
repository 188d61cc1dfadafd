//! How good forecasts are: each trip is left out once and foreseen from all others.
//!
//! The classes are those of POLYCORN 3, Fig. 5, with t1 = 0 and t2 = 2.5 s. Of a handover that
//! fails, the forecast is *correct* when the train reaches the place at most 2.5 s before it,
//! *late* when it does so after it, and *early* when it does so longer before. Of one that succeeds
//! it is correct when no forecast place was passed by then, and a false alarm otherwise. What
//! counts is what a forecaster tells on the way. Beside them stands what a rejecter gets that
//! knows no rates, with the same choice of places: it is on in every cell.
//!
//! Nothing is measured here: what is true comes with the records, or apart from them
//! ([`evaluate_against`]) where it is known better.

mod counts;
mod report;
mod way;

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{Handover, TripId};

pub use counts::{Alarms, Bin, Classes, Probabilities, Told};
pub use report::Report;

use super::cell::CellForecast;
use super::pool::Pool;
use super::settings::{Rule, SUPPORT};
use crate::entry::WriterNumber;
use crate::history::{CellHistory, CellKey};
use way::{FittedCells, Way};

/// What is evaluated, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluateSettings {
    /// How places are chosen.
    pub rule: Rule,
    /// Whether probabilities follow lateness and signal, which takes some 0.1 s a trip.
    pub classify: bool,
    /// So many trips at most are left out, the last ones.
    pub trips_max: usize,
    /// The learning curve is taken after so many trips.
    pub learning: Vec<usize>,
}

impl Default for EvaluateSettings {
    fn default() -> Self {
        Self {
            rule: Rule::default(),
            classify: true,
            trips_max: TRIPS_MAX,
            learning: LEARNING.to_vec(),
        }
    }
}

/// Leaves each trip out once. It learns from the records; the truths are the handovers as
/// they really were, whether they have a record or not. Truths name the trip, route and direction
/// that records of theirs would; their sequences do not count. Records are never judged.
pub fn evaluate_against(
    records: &[Handover],
    truths: &[Handover],
    settings: &EvaluateSettings,
) -> Report {
    let mut report = Report::default();
    let trips = trips(records.iter().chain(truths));
    let mut tests: BTreeMap<TripId, Vec<&Handover>> = BTreeMap::new();
    for truth in truths {
        tests.entry(truth.trip).or_default().push(truth);
    }
    tests.values_mut().for_each(|trip| trip.sort_by_key(|truth| truth.sequence));
    let histories = histories(records.iter());
    for (place, trip) in trips.iter().enumerate().rev().take(settings.trips_max) {
        let Some(test) = tests.get(trip) else { continue };
        report.trips += 1;
        let without = |cell: &CellHistory| cell.retained(|one| one.trip != *trip);
        let others = histories.iter().map(|(key, cell)| (key, without(cell)));
        let cells = fitted(&others.collect(), settings.rule, settings.classify);
        let test = Way::all(test);
        judge(&mut report, &cells, &test);
        for count in settings.learning.iter().filter(|count| **count < trips.len()) {
            // Those that follow, and those at the beginning after the last.
            let some: BTreeSet<TripId> =
                trips.iter().cycle().skip(place + 1).take(*count).copied().collect();
            let some = records.iter().filter(|one| some.contains(&one.trip));
            let some = self::histories(some);
            let some = some.iter().map(|(key, cell)| (key, cell.clone())).collect();
            let cells = fitted(&some, settings.rule, false);
            let told = report.learning.entry(*count).or_default();
            for way in &test {
                told.count(way, &cells);
            }
        }
    }
    report
}

/// A trip from the cells that were learned without it.
fn judge(report: &mut Report, cells: &FittedCells, test: &[Way]) {
    let always = |one: &CellForecast, _speed: f64| Some(one.any_place());
    for way in test {
        let foreseen = report.told.count(way, cells);
        let (handover, cell) = (way.handover, way.cell(cells));
        let fails = handover.outcome.is_failure();
        let alarms = foreseen.last.and(CellForecast::in_force(cell, handover.position));
        report.alarm(alarms, handover);
        report.always.judge(handover, &way.foreseen(cell, always));
        let place = CellForecast::in_force(cell, handover.position).or(cell.last());
        let Some(place) = place else { continue };
        report.supported += u64::from(fails && place.failed_trips >= SUPPORT);
        report.calibrate(place.permille(), fails);
    }
}

/// What each cell remembers of these handovers.
pub fn histories<'a>(
    records: impl Iterator<Item = &'a Handover>,
) -> BTreeMap<CellKey, CellHistory> {
    let mut cells: BTreeMap<CellKey, CellHistory> = BTreeMap::new();
    for record in records {
        cells.entry(CellKey::of(record)).or_default().add(record);
    }
    cells
}

/// All cells, from their histories alone.
fn fitted<'a>(
    histories: &BTreeMap<&'a CellKey, CellHistory>,
    rule: Rule,
    classify: bool,
) -> FittedCells<'a> {
    let all = || histories.iter().map(|(key, history)| (*key, history));
    let mut pool = Pool::new(all());
    if classify {
        pool.train(all(), |_| true);
    }
    let cells = histories.iter().filter(|(_, history)| history.passages().len() > 0);
    let fit = |key, history| CellForecast::fit(key, history, WriterNumber::OWN, &pool, rule);
    cells.map(|(key, history)| (*key, fit(key, history))).collect()
}

/// The trips in their order in time.
fn trips<'a>(records: impl Iterator<Item = &'a Handover>) -> Vec<TripId> {
    let mut first: BTreeMap<TripId, u64> = BTreeMap::new();
    for record in records {
        let at = first.entry(record.trip).or_insert(record.at_ms);
        *at = record.at_ms.min(*at);
    }
    let mut trips: Vec<(u64, TripId)> = first.into_iter().map(|(trip, at)| (at, trip)).collect();
    trips.sort_unstable();
    trips.into_iter().map(|(_, trip)| trip).collect()
}

/// How fast the train was; what stands in no record is taken as 1 m/s.
fn speed(handover: &Handover) -> f64 {
    handover.speed.metres_per_second().max(1.0)
}

/// Trips that are left out by default.
const TRIPS_MAX: usize = 100;
const LEARNING: [usize; 6] = [1, 2, 4, 8, 16, 23];

#[cfg(test)]
mod tests;
