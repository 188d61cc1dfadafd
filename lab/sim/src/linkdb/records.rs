//! Generated trips as a gateway records them.
//!
//! A gateway does not know the truth. Its position comes from the last readings of a satellite
//! receiver, it learns of a handover from the modem's next report, and a cell's signal is the last
//! one that its modem reported.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use polyrail_emulator::rail::{self, CarrierProfile, HandoverResult, Route, Speed, Trip};
use polyrail_model as model;
use polyrail_model::{CellId, Direction, HandoverOutcome, Position, RouteId, Rsrp, TripId};

use polyrail_predictor::history::CellKey;

use super::worlds::World;
use crate::dice::Dice;

/// The trips of a campaign, and how they are observed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Campaign {
    /// How long the route is.
    pub metres: f64,
    /// How many trips there are.
    pub trips: u64,
    /// The spread of the places of handovers, as a multiple of the generator's.
    pub spread: f64,
    /// The greatest delay of a modem's report, in milliseconds.
    pub report_ms: u64,
    /// Outcomes are shuffled within their cell: neither place nor signal predicts them.
    pub dealt: bool,
    /// Each trip has another speed, in turns.
    pub speeds: bool,
    /// The satellite receiver's error lasts for about a minute, so that it does not average out.
    pub drift: bool,
    /// The percentage of failures recorded as successes. As many successes are recorded as
    /// failures.
    pub mislabelled: u64,
    /// How the world differs from the generator's.
    pub world: World,
}

impl Default for Campaign {
    fn default() -> Self {
        Self {
            metres: super::METRES,
            trips: 24,
            spread: 1.0,
            report_ms: REPORT_MS,
            dealt: false,
            speeds: false,
            drift: false,
            mislabelled: 0,
            world: World::Generated,
        }
    }
}

/// The handovers of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Trips {
    /// As the gateway records them.
    pub records: Vec<model::Handover>,
    /// As they truly were, at the gateway's own estimate of the place then, with the signal that
    /// its modem last reported.
    pub truths: Vec<model::Handover>,
}

/// Draws the trips of a route. Trains run downwards on odd routes.
///
/// # Errors
/// A schedule cannot hold a trip.
pub fn campaign(seed: u64, what: &Campaign) -> Result<Trips> {
    let speed = Speed::Kmh300;
    let carriers = [CarrierProfile::A, CarrierProfile::B];
    let mut route = Route::new(seed, speed, what.metres, &carriers);
    route.cells.iter_mut().flatten().for_each(|cell| cell.border.spread *= what.spread);
    let mut all = Trips::default();
    for number in 0..what.trips {
        if what.speeds {
            route.speed = SPEEDS[number as usize % SPEEDS.len()];
        }
        let length = route.speed.time_for(what.metres).unwrap_or_default();
        let mut trip = Trip::new(&route, seed * TRIP_SEEDS + number, 0.0, length)?;
        if what.drift {
            drift(&mut trip, route.speed);
        }
        what.world.reshape(&route, &mut trip, number);
        let report = Duration::from_millis(what.report_ms);
        for (mut record, mut truth) in recorded(&route, &trip, number, report) {
            what.world.rename(&mut record);
            what.world.rename(&mut truth);
            all.records.push(record);
            all.truths.push(truth);
        }
    }
    if what.dealt {
        deal(&mut all, &mut Dice::new(seed ^ 0xdea1));
    }
    mislabel(&mut all.records, what.mislabelled, &mut Dice::new(seed ^ 0x1abe1));
    Ok(all)
}

/// The handovers of a trip in the order of time: as the gateway records them, and as they truly
/// were. `report` is the greatest delay of a report.
pub fn recorded(
    route: &Route,
    trip: &Trip,
    number: u64,
    report: Duration,
) -> Vec<(model::Handover, model::Handover)> {
    let signals = trip.signals(route);
    let both = |(sequence, sighting): (u32, rail::Sighting)| {
        let handover = &sighting.handover;
        let record = |at: Duration, metres: f64, rsrp: Option<f64>| model::Handover {
            trip: TripId(number),
            sequence,
            at_ms: number * DAY_MS + at.as_millis() as u64,
            carrier: route.carriers[sighting.carrier].name.to_owned(),
            route: RouteId(route.seed),
            direction: direction(route),
            position: position(route, metres),
            speed: model::Speed::from_metres_per_second(route.speed.metres_per_second()),
            from: CellId(handover.from.into()),
            to: Some(CellId(handover.to.into())),
            rsrp: rsrp.and_then(Rsrp::from_dbm),
            outcome: outcome(handover.outcome),
            dark: handover.dark,
        };
        let rsrp = handover.heard(&signals[sighting.carrier]);
        let truly = trip.metres_seen(handover.at);
        (record(sighting.at, sighting.metres, rsrp), record(handover.at, truly, rsrp))
    };
    (0..).zip(trip.sightings(report)).map(both).collect()
}

/// Shuffles outcomes within each cell.
fn deal(trips: &mut Trips, dice: &mut Dice) {
    let mut cells: BTreeMap<CellKey, Vec<usize>> = BTreeMap::new();
    for (place, record) in trips.records.iter().enumerate() {
        cells.entry(CellKey::of(record)).or_default().push(place);
    }
    for places in cells.values() {
        for last in (1..places.len()).rev() {
            let (one, other) = (places[last], places[dice.between(0, last as u64 + 1) as usize]);
            for list in [&mut trips.records, &mut trips.truths] {
                let outcomes = [list[one].outcome, list[other].outcome];
                [list[other].outcome, list[one].outcome] = outcomes;
            }
        }
    }
}

/// Gives a trip's readings an error that wanders (a first-order autoregression) instead of an
/// independent error each second.
fn drift(trip: &mut Trip, speed: Speed) {
    let mut dice = Dice::new(trip.seed ^ 0xd21f);
    let mut error = DRIFT_METRES * dice.normal();
    // Readings come once a second.
    let keep = (-1.0 / DRIFT_S).exp();
    for fix in &mut trip.fixes {
        fix.metres = speed.metres_per_second() * fix.at.as_secs_f64() + error;
        error = keep * error + DRIFT_METRES * (1.0 - keep * keep).sqrt() * dice.normal();
    }
}

/// Records this percentage of the failures as successes, and as many successes as failures.
fn mislabel(records: &mut [model::Handover], percent: u64, dice: &mut Dice) {
    let fails = |one: &model::Handover| one.outcome.is_failure();
    let (mut failures, mut successes): (Vec<_>, Vec<_>) =
        records.iter_mut().partition(|one| fails(one));
    let wrong = (failures.len() as u64 * percent + 50) / 100;
    for _ in 0..wrong {
        for (kind, outcome) in
            [(&mut failures, HandoverOutcome::Success), (&mut successes, HandoverOutcome::TypeIII)]
        {
            if !kind.is_empty() {
                let one = dice.between(0, kind.len() as u64) as usize;
                kind.swap_remove(one).outcome = outcome;
            }
        }
    }
}

fn direction(route: &Route) -> Direction {
    if route.seed.is_multiple_of(2) { Direction::Up } else { Direction::Down }
}

/// A place along the route, counted in the direction of upward trips.
fn position(route: &Route, metres: f64) -> Position {
    match direction(route) {
        Direction::Up => Position::from_metres(metres),
        Direction::Down => Position::from_metres(route.metres - metres),
    }
}

/// A generated outcome as LinkDB records it.
pub fn outcome(outcome: HandoverResult) -> HandoverOutcome {
    match outcome {
        HandoverResult::Success => HandoverOutcome::Success,
        HandoverResult::FailureHeld => HandoverOutcome::TypeII,
        HandoverResult::FailureDropped => HandoverOutcome::TypeIII,
    }
}

/// POLYCORN 3: reports reach a program up to 200 ms late.
pub const REPORT_MS: u64 = 200;
/// The speeds of a campaign with several.
const SPEEDS: [Speed; 3] = [Speed::Kmh300, Speed::Kmh200, Speed::Kmh350];
/// The standard deviation of the wandering error (that of the generator's), and its memory.
const DRIFT_METRES: f64 = 8.0;
const DRIFT_S: f64 = 60.0;
/// A trip a day.
const DAY_MS: u64 = 86_400_000;
const TRIP_SEEDS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_near_the_truth_and_never_before_it() {
        for (seed, sign) in [(2_000, 1.0), (2_001, -1.0)] {
            let what = Campaign { trips: 3, metres: 20_000.0, ..Campaign::default() };
            let trips = campaign(seed, &what).unwrap();
            assert!(trips.records.len() > 60, "{}", trips.records.len());
            let (mut farthest, mut sum) = (0.0_f64, 0.0);
            for (record, truth) in trips.records.iter().zip(&trips.truths) {
                assert_eq!(
                    (record.trip, record.sequence, record.from, record.outcome),
                    (truth.trip, truth.sequence, truth.from, truth.outcome)
                );
                assert!((0..=200).contains(&(record.at_ms - truth.at_ms)));
                let late = sign * (record.position.metres() - truth.position.metres());
                farthest = farthest.max(late.abs());
                sum += late;
                assert_eq!(record.rsrp, truth.rsrp);
            }
            let with = trips.records.iter().filter(|one| one.rsrp.is_some()).count();
            assert!(with * 20 > trips.records.len() * 19, "too few records have a signal");
            let mean = sum / trips.records.len() as f64;
            assert!((5.0..12.0).contains(&mean), "a tenth of a second: {mean}");
            assert!(farthest < 60.0, "{farthest}");
        }
    }

    #[test]
    fn the_signal_of_a_record_is_older_than_the_handover() {
        let carriers = [CarrierProfile::A];
        let route = Route::new(2_000, Speed::Kmh300, 20_000.0, &carriers);
        let trip = Trip::new(&route, 1, 0.0, Duration::from_secs(200)).unwrap();
        let (signals, handovers) = (&trip.signals(&route)[0], &trip.carriers[0].handovers);
        let off = handovers.iter().filter_map(|one| Some((one.heard(signals)? - one.rsrp).abs()));
        let off: Vec<f64> = off.collect();
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        assert!(off.len() > 10 && (1.0..5.0).contains(&mean), "{mean} dB");
    }

    #[test]
    fn double_spread_moves_handovers_and_keeps_their_outcomes() {
        let [one, two] = [1.0, 2.0].map(|spread| {
            let what = Campaign { trips: 2, metres: 20_000.0, spread, ..Campaign::default() };
            campaign(2_000, &what).unwrap()
        });
        let failures =
            |trips: &Trips| trips.truths.iter().filter(|one| one.outcome.is_failure()).count();
        assert!(failures(&one).abs_diff(failures(&two)) <= 1, "apart from the ends of the route");
        assert_ne!(one.truths, two.truths);
        assert_eq!(
            one.truths,
            campaign(2_000, &Campaign { trips: 2, metres: 20_000.0, ..Campaign::default() })
                .unwrap()
                .truths
        );
    }

    #[test]
    fn shuffled_outcomes_stay_in_their_cell() {
        let plain = Campaign { trips: 6, metres: 20_000.0, ..Campaign::default() };
        let [plain, dealt] =
            [plain, Campaign { dealt: true, ..plain }].map(|what| campaign(2_000, &what).unwrap());
        let failures = |trips: &Trips| {
            let mut cells: BTreeMap<CellKey, u32> = BTreeMap::new();
            for record in &trips.records {
                let fails = u32::from(record.outcome.is_failure());
                *cells.entry(CellKey::of(record)).or_default() += fails;
            }
            cells
        };
        assert_eq!(failures(&plain), failures(&dealt));
        assert_ne!(plain.records, dealt.records);
        let alike =
            |(one, other): (&model::Handover, &model::Handover)| one.outcome == other.outcome;
        assert!(dealt.records.iter().zip(&dealt.truths).all(alike));
    }

    #[test]
    fn speeds_change_the_time_of_handovers_and_not_their_places() {
        let plain = Campaign { trips: 6, metres: 20_000.0, ..Campaign::default() };
        let [plain, varied] =
            [plain, Campaign { speeds: true, ..plain }].map(|what| campaign(2_000, &what).unwrap());
        let speeds: Vec<f64> =
            varied.records.iter().map(|one| one.speed.metres_per_second() * 3.6).collect();
        for wanted in [200.0, 300.0, 350.0] {
            assert!(speeds.iter().any(|one| (one - wanted).abs() < 0.1), "{wanted}");
        }
        let mut of: BTreeMap<(TripId, String, CellId), &model::Handover> = BTreeMap::new();
        for one in &plain.truths {
            of.insert((one.trip, one.carrier.clone(), one.from), one);
        }
        let mut compared = 0;
        for one in &varied.truths {
            let Some(other) = of.get(&(one.trip, one.carrier.clone(), one.from)) else { continue };
            compared += 1;
            let apart = one.position.metres() - other.position.metres();
            assert!(apart.abs() < 80.0, "the errors of both receivers: {apart}");
            assert_eq!(one.outcome.is_failure(), other.outcome.is_failure());
        }
        assert!(compared + 2 >= plain.truths.len(), "{compared} of {}", plain.truths.len());
    }

    #[test]
    fn wandering_error_has_a_memory_of_a_minute_and_the_same_deviation() {
        let (mut square, mut next, mut later, mut count) = (0.0, 0.0, 0.0, 0.0);
        for seed in 0..40 {
            let carriers = [CarrierProfile::A];
            let route = Route::new(seed, Speed::Kmh300, 60_000.0, &carriers);
            let length = Duration::from_secs(700);
            let mut trip = Trip::new(&route, seed, 0.0, length).unwrap();
            drift(&mut trip, route.speed);
            let speed = route.speed.metres_per_second();
            let error = |fix: &rail::Fix| fix.metres - speed * fix.at.as_secs_f64();
            let errors: Vec<f64> = trip.fixes.iter().map(error).collect();
            for at in 0..errors.len() - 60 {
                square += errors[at] * errors[at];
                next += errors[at] * errors[at + 1];
                later += errors[at] * errors[at + 60];
                count += 1.0;
            }
        }
        let deviation = f64::sqrt(square / count);
        assert!((6.5..9.5).contains(&deviation), "{deviation}");
        assert!((0.97..1.0).contains(&(next / square)), "{}", next / square);
        assert!((0.15..0.6).contains(&(later / square)), "e^-1: {}", later / square);
    }

    #[test]
    fn as_many_successes_are_mislabelled_as_failures() {
        for (percent, least) in [(0, 0), (5, 2), (10, 4), (100, 40)] {
            let what = Campaign { trips: 12, mislabelled: percent, ..Campaign::default() };
            let Trips { records, truths } = campaign(2_000, &what).unwrap();
            let fails = |one: &model::Handover| u64::from(one.outcome.is_failure());
            let [recorded, failures] =
                [&records, &truths].map(|all| all.iter().map(fails).sum::<u64>());
            assert_eq!(recorded, failures, "as many as there were");
            let both = records.iter().zip(&truths);
            let missed = both.filter(|(record, truth)| fails(record) < fails(truth)).count() as u64;
            assert_eq!(missed, (failures * percent + 50) / 100);
            assert!(missed >= least, "{missed} of {failures}");
        }
    }
}
