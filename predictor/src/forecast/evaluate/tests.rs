//! The classes by hand, and trips whose answer is known.

use std::time::{Duration, Instant};

use polyrail_model::{CellId, Direction, HandoverOutcome, Position, RouteId, Rsrp, Speed};

use super::way::Foreseen;
use super::*;
use crate::forecast::{Forecaster, Rule, TrainPosition};
use crate::simulated::Dice;
use crate::views::Cells;

fn handover(trip: u64, sequence: u32, metres: f64, fails: bool) -> Handover {
    Handover {
        trip: TripId(trip),
        sequence,
        at_ms: trip * 1_000_000,
        carrier: "a".into(),
        route: RouteId(1),
        direction: Direction::Up,
        position: Position::from_metres(metres),
        speed: Speed::from_metres_per_second(80.0),
        from: CellId(sequence.into()),
        to: None,
        rsrp: Rsrp::from_dbm(-95.0),
        outcome: if fails { HandoverOutcome::TypeIII } else { HandoverOutcome::Success },
        dark: Duration::ZERO,
    }
}

/// A number from -1 to 1, by two others.
fn jitter(trip: u64, cell: u32) -> f64 {
    Dice::new(trip << 32 | u64::from(cell)).between(-1.0, 1.0)
}

/// Cells each kilometre; each third fails on about a third of the trips, and then 60 m later.
fn campaign(trips: u64) -> Vec<Handover> {
    let mut all = Vec::new();
    for trip in 0..trips {
        for cell in 0..60 {
            let fails = cell % 3 == 0 && jitter(trip, cell + 1_000) < -1.0 / 3.0;
            let late = if fails { 60.0 } else { 0.0 };
            let metres = 1_000.0 * f64::from(cell) + late + 40.0 * jitter(trip, cell);
            all.push(handover(trip, cell, metres, fails));
        }
    }
    all
}

fn all_failures(records: &[Handover]) -> u64 {
    records.iter().filter(|record| record.outcome.is_failure()).count() as u64
}

#[test]
fn the_classes_are_those_of_the_paper() {
    let place = Some(Position::from_metres(1_000.0));
    for (metres, place, wanted) in [
        (1_000.0, place, [1, 0, 0, 0]),
        (1_200.0, place, [1, 0, 0, 0]),
        (1_200.1, place, [0, 0, 1, 0]),
        (999.9, place, [0, 1, 0, 0]),
        (1_000.0, None, [0, 0, 0, 1]),
    ] {
        for (direction, sign) in [(Direction::Up, 1.0), (Direction::Down, -1.0)] {
            let mut told = Told::default();
            let mirrored = |one: Position| Position::from_metres(sign * one.metres());
            let failed = Handover { direction, ..handover(1, 1, sign * metres, true) };
            let passed = place.is_some() && metres >= 1_000.0;
            let foreseen = Foreseen { any: place.is_some(), passed, last: place.map(mirrored) };
            told.judge(&failed, &foreseen);
            let Classes { correct, late, early, none } = told.failures;
            assert_eq!([correct, late, early, none], wanted, "{metres} {direction:?}");
            let succeeded = Handover { outcome: HandoverOutcome::Success, ..failed };
            told.judge(&succeeded, &foreseen);
            let Alarms { correct, alarms, in_forecast_cells } = told.successes;
            let (passed, foreseen) = (u64::from(passed), u64::from(foreseen.any));
            assert_eq!((alarms, correct, in_forecast_cells), (passed, 1 - passed, foreseen));
        }
    }
}

/// A trip that leaves cell 0 twice, cell 1 in between: a third fail at the first place, late, and
/// none at the second.
fn twice(direction: Direction, trip: u64) -> [Handover; 3] {
    let fails = trip.is_multiple_of(3);
    let late = if fails { 60.0 } else { 0.0 };
    let first = 1_000.0 + late + 40.0 * jitter(trip, 0);
    let second = 1_900.0 + 40.0 * jitter(trip, 2);
    [(0, first, fails), (1, 1_400.0, false), (0, second, false)].map(|(cell, along, fails)| {
        let sequence = if along < 1_200.0 { 0 } else { 1 + u32::from(cell == 0) };
        let metres = direction.sign() * along;
        Handover { direction, from: CellId(cell), ..handover(trip, sequence, metres, fails) }
    })
}

#[test]
fn who_goes_on_to_the_second_place_passes_the_first() {
    for direction in [Direction::Up, Direction::Down] {
        let records: Vec<Handover> = (0..24).flat_map(|trip| twice(direction, trip)).collect();
        let [first, between, second] = twice(direction, 25);
        let far = Position::from_metres(direction.sign() * 5_000.0);
        let fails = HandoverOutcome::TypeII;
        // The handovers of one more trip, and how they count: correct, late, early and none of
        // failures, correct and alarms of successes.
        for (last, wanted, why) in [
            (vec![&second], [0, 0, 0, 0, 0, 1], "past the first, which often fails"),
            (vec![&between, &second], [0, 0, 0, 0, 2, 0], "the cell was joined beyond it"),
            (vec![&Handover { outcome: fails, ..second.clone() }], [0, 0, 0, 1, 0, 0], "no place"),
            (
                vec![&Handover { outcome: fails, position: far, ..first.clone() }],
                [0, 0, 0, 1, 0, 0],
                "beyond all history",
            ),
            (
                vec![&Handover { position: far, ..first.clone() }],
                [0, 0, 0, 0, 0, 1],
                "beyond all history, past the first",
            ),
        ] {
            let all: Vec<Handover> = records.iter().chain(last).cloned().collect();
            let settings = EvaluateSettings {
                trips_max: 1,
                learning: Vec::new(),
                ..EvaluateSettings::default()
            };
            let report = evaluate_against(&all, &all, &settings);
            let counted =
                |told: &Told| told.failures.all() + told.successes.correct + told.successes.alarms;
            assert_eq!(counted(&report.always), counted(&report.told), "{why}");
            let Told { failures, successes } = report.told;
            let Classes { correct, late, early, none } = failures;
            let told = [correct, late, early, none, successes.correct, successes.alarms];
            assert_eq!(told, wanted, "{why}, {direction:?}");
        }
    }
}

/// The reference is the forecaster itself, asked at each metre.
#[test]
fn what_is_judged_is_what_a_forecaster_tells() {
    #[allow(clippy::disallowed_methods)] // any clock will do
    let now = Instant::now() + Duration::from_secs(100);
    for direction in [Direction::Up, Direction::Down] {
        let records: Vec<Handover> = (0..24).flat_map(|trip| twice(direction, trip)).collect();
        let mut forecaster = Forecaster::new(Rule::default());
        let (mut known, own) = (Cells::default(), WriterNumber::OWN);
        for record in &records {
            known.add(record);
        }
        let histories = histories(records.iter());
        let cells = fitted(
            &histories.iter().map(|(key, history)| (key, history.clone())).collect(),
            Rule::default(),
            false,
        );
        let mut tell = |along: u32| {
            let metres = direction.sign() * f64::from(along);
            let route = RouteId(1);
            let situation =
                TrainPosition { at: now, route, direction, metres, speed: 80.0, error: 5.0 };
            forecaster.forecast(&known, own, now, &situation, "a", (CellId(0), None))
        };
        let told: Vec<_> = (0..2_400).map(&mut tell).collect();
        let (mut passed, mut quiet) = (0, 0);
        for from in (0..2_400).step_by(37) {
            for to in (from..2_400).step_by(41) {
                let at = |along: usize| Position::from_metres(direction.sign() * along as f64);
                let [one, ..] = twice(direction, 30);
                let end = Handover { position: at(to), ..one };
                let way = Way { handover: &end, from: Some(at(from)) };
                let foreseen = way.foreseen(way.cell(&cells), CellForecast::place);
                let on_the_way = || told[from..=to].iter().flatten();
                assert_eq!(foreseen.any, on_the_way().next().is_some(), "{from} to {to}");
                let is_passed = on_the_way().any(|forecast| forecast.fails_at <= now);
                assert_eq!(foreseen.passed, is_passed, "{from} to {to}");
                assert_eq!(foreseen.last.is_some(), told[to].is_some(), "{from} to {to}");
                passed += u32::from(is_passed);
                quiet += u32::from(!is_passed);
            }
        }
        assert!(passed > 300 && quiet > 300, "{passed} {quiet}");
    }
}

#[test]
fn each_trip_is_foreseen_from_the_others() {
    let records = campaign(24);
    let report = evaluate_against(&records, &records, &EvaluateSettings::default());
    let failures = report.told.failures;
    assert_eq!((report.trips, failures.all()), (24, all_failures(&records)));
    assert_eq!(report.ceiling(), Some(1.0), "each failing cell fails about eight times");
    assert!(failures.correct_share() > Some(0.97) && failures.coverage() > Some(0.97));
    assert_eq!(report.always.failures.coverage(), Some(1.0));
    assert!(report.always.successes.correct_share() < report.told.successes.correct_share());
    let after: Vec<u64> = report.learning.values().map(Told::forecasts).collect();
    assert_eq!(report.learning.keys().copied().collect::<Vec<_>>(), [1, 2, 4, 8, 16, 23]);
    assert!(after[0] == 0 && after.is_sorted(), "{after:?}");
    assert_eq!(report.learning[&23], report.told, "all others");
    let often = report.calibration.iter().filter(|bin| bin.failed > 0);
    let (expected, failed): (f64, f64) =
        often.fold((0.0, 0.0), |sum, bin| (sum.0 + bin.expected, sum.1 + bin.failed as f64));
    assert!((expected / failed - 1.0).abs() < 0.2, "{expected} {failed}");
}

#[test]
fn two_reports_add_up_and_print_as_tables() {
    let settings = EvaluateSettings { learning: vec![1], ..EvaluateSettings::default() };
    let records = campaign(6);
    let one = evaluate_against(&records, &records, &settings);
    let mut two = one.clone();
    two.merge(&one);
    assert_eq!((two.trips, two.supported), (12, 2 * one.supported));
    assert_eq!(two.told.failures.all(), 2 * one.told.failures.all());
    assert_eq!(two.ceiling(), one.ceiling());
    let text = two.to_string();
    let all = 2 * all_failures(&records);
    for row in ["forecast", "always on", "after 1"] {
        assert!(text.contains(&format!("| {row} | {all} |")), "{text}");
    }
    let json = serde_json::to_value(&two).unwrap();
    assert_eq!(json["told"]["failures"]["none"], two.told.failures.none);
}

#[test]
fn what_was_not_counted_is_a_dash() {
    for records in [vec![], vec![handover(1, 1, 0.0, false)]] {
        let report = evaluate_against(&records, &records, &EvaluateSettings::default());
        let text = report.to_string();
        assert!(!text.contains("NaN") && text.contains(" - |"), "{text}");
        assert_eq!(report.told.failures.correct_share(), None);
    }
    // No speed, and positions at the ends of what a record holds.
    let odd = |trip: u64| Handover {
        speed: Speed::default(),
        position: Position { decimetres: if trip.is_multiple_of(2) { i32::MIN } else { i32::MAX } },
        ..handover(trip, 1, 0.0, true)
    };
    let odd: Vec<_> = (0..9).map(odd).collect();
    let report = evaluate_against(&odd, &odd, &EvaluateSettings::default());
    assert!(!report.to_string().contains("NaN"));
}

#[test]
fn what_is_true_may_be_known_apart() {
    let records = campaign(12);
    let moved = |one: &Handover| Handover {
        position: Position::from_metres(one.position.metres() - 500.0),
        ..one.clone()
    };
    let truths: Vec<Handover> = records.iter().map(moved).collect();
    let settings = EvaluateSettings::default();
    let report = evaluate_against(&records, &truths, &settings);
    assert_eq!(report.told.failures.late_share(), Some(1.0), "all came 500 m before");
}

#[test]
fn what_was_not_recorded_is_judged_and_not_learned() {
    let truths = campaign(12);
    let settings = EvaluateSettings::default();
    // Of trip 3 nothing is recorded, of the others no failure of the first cells is.
    let unseen = |one: &&Handover| one.outcome.is_failure() && one.sequence < 30;
    let records: Vec<Handover> = truths.iter().filter(|one| !unseen(one)).cloned().collect();
    let records: Vec<Handover> = records.into_iter().filter(|one| one.trip != TripId(3)).collect();
    let report = evaluate_against(&records, &truths, &settings);
    let failures = report.told.failures;
    assert_eq!((report.trips, failures.all()), (12, all_failures(&truths)));
    let unseen = truths.iter().filter(unseen).count() as u64;
    assert!(failures.none >= unseen, "{} of {unseen}", failures.none);
    let third: Vec<Handover> = truths.iter().filter(|one| one.trip == TripId(3)).cloned().collect();
    let failures = evaluate_against(&records, &third, &settings).told.failures;
    assert!(failures.all() == all_failures(&third) && failures.none < failures.all());
    let none = evaluate_against(&[], &truths, &settings);
    assert_eq!((none.told.failures.none, none.trips), (all_failures(&truths), 12));
}

#[test]
fn trips_are_bounded_and_the_last_ones_count() {
    let settings = EvaluateSettings { trips_max: 2, ..EvaluateSettings::default() };
    let records = campaign(6);
    let report = evaluate_against(&records, &records, &settings);
    let last = all_failures(&records[4 * 60..]);
    assert_eq!((report.trips, report.told.failures.all()), (2, last));
    let settings = EvaluateSettings { rule: Rule::Mean, ..EvaluateSettings::default() };
    let records = campaign(24);
    let report = evaluate_against(&records, &records, &settings);
    let late = report.told.failures.late_share().unwrap();
    assert!((0.3..0.7).contains(&late), "half of the failures come before their mean: {late}");
}
