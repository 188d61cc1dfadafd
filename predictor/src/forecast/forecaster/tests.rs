//! Forecasts as a train sees them that passes cells.

use polyrail_model::{Direction, Handover, HandoverOutcome, RouteId, Speed, TripId};

use super::*;
use crate::forecast::Rule;
use crate::forecast::classifier::tests::Dice;
use crate::history::{CellHistory, Passage};

const SPEED: f64 = 80.0;

fn base() -> Instant {
    static BASE: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    #[allow(clippy::disallowed_methods)] // a base for the clock of tests
    *BASE.get_or_init(Instant::now)
}

fn at(seconds: f64) -> Instant {
    base() + Duration::from_secs_f64(100.0 + seconds)
}

fn handover(trip: u64, cell: u64, direction: Direction, metres: f64, fails: bool) -> Handover {
    Handover {
        trip: TripId(trip),
        sequence: cell as u32,
        at_ms: trip * 1_000_000,
        carrier: "a".into(),
        route: RouteId(1),
        direction,
        position: Position::from_metres(metres),
        speed: Speed::from_metres_per_second(SPEED),
        from: CellId(cell),
        to: None,
        rsrp: None,
        outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
        dark: Duration::ZERO,
    }
}

/// A forecaster and the cells of one node.
struct Known {
    forecaster: Forecaster,
    cells: Cells,
}

impl Known {
    fn new(rule: Rule) -> Self {
        Self { forecaster: Forecaster::new(rule), cells: Cells::default() }
    }

    fn add(&mut self, handover: &Handover) {
        self.cells.add(handover);
    }

    fn cell(&mut self, key: &CellKey) -> Option<&CellForecast> {
        self.forecaster.cell(&self.cells, WriterNumber::OWN, key)
    }

    fn cell_in_force(&mut self, key: &CellKey, position: Position) -> Option<&CellForecast> {
        let fit = self.forecaster.fitted(&self.cells, WriterNumber::OWN, key)?;
        CellForecast::in_force(&fit.all, position)
    }

    fn forecast(
        &mut self,
        now: Instant,
        situation: &TrainPosition,
        carrier: &str,
        cell: CellId,
    ) -> Option<LinkForecast> {
        let (cells, own) = (&self.cells, WriterNumber::OWN);
        self.forecaster.forecast(cells, own, now, situation, carrier, (cell, None))
    }
}

/// Twenty trips: of cell 1 every fourth handover fails, late, at about 1,080 m along the way;
/// cell 2 never fails.
fn learned(direction: Direction, rule: Rule) -> Known {
    let mut forecaster = Known::new(rule);
    for trip in 0..20 {
        let fails = trip % 4 == 0;
        let along = 1_000.0 + 4.0 * trip as f64 + if fails { 60.0 } else { -20.0 };
        let metres = direction.sign() * along;
        forecaster.add(&handover(trip, 1, direction, metres, fails));
        forecaster.add(&handover(trip, 2, direction, direction.sign() * 2_000.0, false));
    }
    forecaster
}

/// So far along the way.
fn situation(direction: Direction, along: f64) -> TrainPosition {
    let metres = direction.sign() * along;
    TrainPosition { at: at(0.0), route: RouteId(1), direction, metres, speed: SPEED, error: 5.0 }
}

#[test]
fn a_failure_is_foreseen_in_both_directions() {
    for direction in [Direction::Up, Direction::Down] {
        let mut forecaster = learned(direction, Rule::default());
        let key = CellKey { carrier: "a".into(), route: RouteId(1), direction, cell: CellId(1) };
        let cell = forecaster.cell(&key).unwrap().clone();
        assert_eq!((cell.passages, cell.failures), (20, 5));
        assert!((100..400).contains(&cell.permille()), "{}", cell.permille());
        let place = direction.sign() * cell.place(SPEED).unwrap().metres();
        assert!((900.0..1_070.0).contains(&place), "before the failures: {place}");
        let now = at(0.5);
        let forecast = |forecaster: &mut Known, along: f64, carrier: &str, cell: u64| {
            forecaster.forecast(now, &situation(direction, along), carrier, CellId(cell))
        };
        let told = forecast(&mut forecaster, place - 400.0, "a", 1).unwrap();
        let ahead = told.fails_at - at(0.0);
        assert!((ahead.as_secs_f64() - 400.0 / SPEED).abs() < 0.01, "{ahead:?}");
        assert_eq!(told.uncertainty, Duration::from_millis(250), "20 m at 80 m/s");
        assert_eq!((told.expires_at, told.permille), (at(3.0), cell.permille()));
        let told = forecast(&mut forecaster, place + 80.0, "a", 1).unwrap();
        let ago = at(0.0) - told.fails_at;
        assert!((ago.as_secs_f64() - 1.0).abs() < 0.01, "it is passed: {ago:?}");
        for (along, carrier, cell, why) in [
            (place - 2_500.0, "a", 1, "far away"),
            (place + 2_500.0, "a", 1, "far beyond"),
            (place - 100.0, "b", 1, "another carrier"),
            (place - 100.0, "a", 2, "a cell that never fails"),
            (place - 100.0, "a", 3, "an unknown cell"),
        ] {
            assert_eq!(forecast(&mut forecaster, along, carrier, cell), None, "{why}");
        }
    }
}

#[test]
fn who_stands_or_is_lost_foresees_nothing() {
    let mut forecaster = learned(Direction::Up, Rule::default());
    let usual = situation(Direction::Up, 900.0);
    let mut told = |now: f64, situation: TrainPosition| {
        forecaster.forecast(at(now), &situation, "a", CellId(1))
    };
    assert!(told(2.9, usual).is_some());
    assert_eq!(told(3.0, usual), None, "too old");
    for speed in [0.0, 0.9, -50.0, f64::NAN] {
        assert_eq!(told(0.0, TrainPosition { speed, ..usual }), None, "{speed}");
    }
    for metres in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300] {
        assert_eq!(told(0.0, TrainPosition { metres, ..usual }), None, "{metres}");
    }
    assert_eq!(told(0.0, TrainPosition { error: f64::NAN, ..usual }), None);
    assert_eq!(told(0.0, TrainPosition { direction: Direction::Down, ..usual }), None);
    assert_eq!(told(0.0, TrainPosition { error: 101.0, ..usual }), None, "over 2.5 s off");
    let lost = TrainPosition { error: 60.0, ..usual };
    assert_eq!(told(0.0, lost).unwrap().uncertainty, Duration::from_millis(1_500));
    // A clock that runs ahead of the position's.
    assert!(told(-1.0, usual).is_some());
}

/// A slow train's error is long in time.
#[test]
fn slow_trains_are_forecast_while_their_time_is_known() {
    let tight: Vec<f64> = (0..12).map(|one| 1_000.0 + 0.1 * f64::from(one)).collect();
    let (mut forecaster, _) = cell_of(Direction::Up, &[], &tight);
    let slow = TrainPosition { speed: 6.0, ..situation(Direction::Up, 980.0) };
    let mut told = |situation| forecaster.forecast(at(0.0), &situation, "a", CellId(1));
    let uncertainty = told(slow).unwrap().uncertainty;
    assert_eq!(uncertainty, Duration::from_millis(2_500), "not five seconds");
    assert_eq!(told(TrainPosition { error: 7.6, ..slow }), None, "over 2.5 s off");
    // Where handovers are 250 m apart nobody knows when a slow train has one.
    let wide: Vec<f64> = (0..24).map(|one| 1_000.0 + 10.0 * f64::from(one)).collect();
    let (mut forecaster, key) = cell_of(Direction::Up, &[], &wide);
    let cell = forecaster.cell(&key).unwrap();
    assert!(cell.place(SPEED).is_some() && cell.place(20.0).is_some());
    for speed in [10.0, 1.0, 0.0, -1.0, f64::NAN] {
        assert_eq!(cell.place(speed), None, "{speed} m/s");
    }
}

/// After few handovers the next one is less certain, so the place is farther before them.
#[test]
fn few_handovers_put_the_place_farther_before_them() {
    for direction in [Direction::Up, Direction::Down] {
        let mut before = f64::INFINITY;
        for trips in [2, 4, 8, 16, 64] {
            let around = |one: u32| 5_000.0 + 40.0 * (f64::from(one % 2) - 0.5);
            let metres: Vec<f64> = (0..trips).map(around).collect();
            let (mut forecaster, key) = cell_of(direction, &[], &metres);
            let place = forecaster.cell(&key).unwrap().place(SPEED).unwrap().metres();
            let ahead = 5_000.0 - direction.sign() * place;
            assert!((20.0..before).contains(&ahead), "{trips} trips: {ahead} m, {before} m");
            before = ahead;
        }
        assert!(before < 70.0, "three deviations of what came: {before}");
    }
}

/// Whatever the shape of what decides, few failures come before the place.
#[test]
fn the_quantile_is_one_that_few_later_failures_precede() {
    let mut dice = crate::simulated::Dice::new(11);
    for (shape, tail) in [("normal", 0.0), ("heavy tails", 0.2)] {
        let mut draw = |cell: u64| {
            let late = dice.normal();
            let off = 60.0 * late * (tail * late * late / 2.0).exp();
            // Late ones fail, more often than not.
            (1_000.0 * cell as f64 + off.clamp(-400.0, 400.0), late + dice.normal() > 0.8)
        };
        let mut known = Known::new(Rule::default());
        for (trip, cell) in (0..30).flat_map(|trip| (1..40).map(move |cell| (trip, cell))) {
            let (metres, fails) = draw(cell);
            known.add(&handover(trip, cell, Direction::Up, metres, fails));
        }
        let (mut failures, mut late) = (0, 0);
        for cell in (0..100).flat_map(|_| 1..40) {
            let (metres, fails) = draw(cell);
            let key = CellKey::of(&handover(0, cell, Direction::Up, 0.0, false));
            let place = known.cell(&key).unwrap().place(SPEED).unwrap();
            failures += u32::from(fails);
            late += u32::from(fails && place.metres() > metres);
        }
        let share = f64::from(late) / f64::from(failures);
        println!("{shape}: {late} of {failures} came before their place");
        assert!((0.002..0.03).contains(&share), "{shape}: {share}");
    }
}

#[test]
fn the_rule_of_the_paper_is_the_mean_of_two_failures_or_more() {
    for (failures, place) in [(0, None), (1, None), (2, Some(1_050.0)), (3, Some(1_100.0))] {
        let mut forecaster = Known::new(Rule::Mean);
        for trip in 0..6 {
            let metres = 1_000.0 + 100.0 * trip as f64;
            forecaster.add(&handover(trip, 1, Direction::Up, metres, trip < failures));
        }
        let key = CellKey::of(&handover(0, 1, Direction::Up, 0.0, true));
        let found = forecaster.cell(&key).unwrap().place(SPEED);
        assert_eq!(found.map(Position::metres), place, "{failures}");
    }
}

#[test]
fn the_naive_rule_is_a_deviation_before_the_mean_of_all_handovers() {
    for (direction, failures) in
        [(Direction::Up, 1), (Direction::Up, 2), (Direction::Down, 2), (Direction::Down, 5)]
    {
        let mut forecaster = Known::new(Rule::Naive);
        for trip in 0..5 {
            let metres = direction.sign() * (1_000.0 + 100.0 * trip as f64);
            forecaster.add(&handover(trip, 1, direction, metres, trip < failures));
        }
        let key = CellKey::of(&handover(0, 1, direction, 0.0, true));
        let found = forecaster.cell(&key).unwrap().place(SPEED);
        // 1,000 to 1,400: of the mean 1,200 with a deviation of 158.1.
        let wanted = (failures >= 2).then(|| direction.sign() * 1_041.9);
        assert_eq!(found.map(Position::metres), wanted, "{failures} {direction:?}");
    }
}

/// A cell of such successes and failures, at metres along the way.
fn cell_of(direction: Direction, successes: &[f64], failures: &[f64]) -> (Known, CellKey) {
    let mut forecaster = Known::new(Rule::default());
    let places = successes.iter().map(|one| (*one, false));
    let places = places.chain(failures.iter().map(|one| (*one, true)));
    for (trip, (along, fails)) in (0..).zip(places) {
        forecaster.add(&handover(trip, 1, direction, direction.sign() * along, fails));
    }
    (forecaster, CellKey::of(&handover(0, 1, direction, 0.0, false)))
}

/// Two failures of one trip have one cause, as likely as not.
#[test]
fn it_takes_failures_of_two_trips() {
    for (trips, told) in [([100, 100], false), ([100, 101], true)] {
        for direction in [Direction::Up, Direction::Down] {
            let successes: Vec<f64> = (0..6).map(|one| 1_000.0 + 2.0 * f64::from(one)).collect();
            let (mut forecaster, key) = cell_of(direction, &successes, &[]);
            for (sequence, trip) in (0..).zip(trips) {
                let metres = direction.sign() * (1_020.0 + f64::from(sequence));
                let failure = handover(trip, 1, direction, metres, true);
                forecaster.add(&Handover { sequence, ..failure });
            }
            let cell = forecaster.cell(&key).unwrap();
            assert_eq!((cell.passages, cell.failures), (8, 2));
            assert_eq!(cell.place(SPEED).is_some(), told, "{trips:?}");
        }
    }
}

#[test]
fn failures_that_are_left_out_support_nothing() {
    for direction in [Direction::Up, Direction::Down] {
        let successes: Vec<f64> = (0..24).map(|one| 1_000.0 + 2.0 * f64::from(one)).collect();
        let far = [1_400.0, 1_800.0, 2_300.0, 2_900.0, 3_400.0, 4_000.0];
        let before = far.map(|metres| 2_000.0 - metres);
        for failures in [far, before] {
            let (mut forecaster, key) = cell_of(direction, &successes, &failures);
            let cell = forecaster.cell(&key).unwrap();
            assert_eq!((cell.passages, cell.failures), (24, 0));
            assert_eq!(cell.place(SPEED), None, "nothing ever failed there");
            assert!(cell.permille() < 50, "{}", cell.permille());
            for along in (0..50).map(|step| 100.0 * f64::from(step)) {
                let told =
                    forecaster.forecast(at(0.0), &situation(direction, along), "a", CellId(1));
                assert_eq!(told, None, "{along}");
            }
        }
    }
}

#[test]
fn a_cell_that_is_left_at_two_places_is_foreseen_at_the_one_ahead() {
    let around = |middle: f64| (0..20).map(move |one| middle - 38.0 + 4.0 * f64::from(one));
    let late = |middle: f64| (0..8).map(move |one| middle + 40.0 + 4.0 * f64::from(one));
    for direction in [Direction::Up, Direction::Down] {
        // A, B for a moment, A again, then C: each trip leaves A twice.
        let successes: Vec<f64> = around(1_000.0).chain(around(1_600.0)).collect();
        let failures: Vec<f64> = late(1_000.0).chain(late(1_600.0)).collect();
        let (mut forecaster, key) = cell_of(direction, &successes, &failures);
        let mut place = |along: f64| {
            let position = Position::from_metres(direction.sign() * along);
            let cell = forecaster.cell_in_force(&key, position).unwrap();
            assert_eq!((cell.passages, cell.failures), (28, 8), "{along}");
            direction.sign() * cell.place(SPEED).unwrap().metres()
        };
        for along in [0.0, 900.0, 1_100.0, 1_150.0] {
            let place = place(along);
            assert!((950.0..1_060.0).contains(&place), "{along}: {place}");
        }
        for along in [1_350.0, 1_600.0, 1_750.0] {
            let place = place(along);
            assert!((1_550.0..1_660.0).contains(&place), "{along}: {place}");
        }
        let beyond = Position::from_metres(direction.sign() * 9_000.0);
        assert!(forecaster.cell_in_force(&key, beyond).is_none());
        // Only the second fails, always.
        let first: Vec<f64> = around(1_000.0).collect();
        let second: Vec<f64> = late(1_400.0).collect();
        let (mut forecaster, _) = cell_of(direction, &first, &second);
        let mut told =
            |along: f64| forecaster.forecast(at(0.0), &situation(direction, along), "a", CellId(1));
        assert_eq!(told(950.0), None, "the place ahead never fails");
        let told = told(1_260.0).unwrap();
        let place = 1_260.0 + SPEED * (told.fails_at - at(0.0)).as_secs_f64();
        assert!((1_330.0..1_450.0).contains(&place), "{place}");
    }
}

fn places_of(known: &mut Known, key: &CellKey) -> usize {
    known.forecaster.fitted(&known.cells, WriterNumber::OWN, key).unwrap().all.len()
}

/// One place, however wide it is, stays one: of a normal distribution hardly any is split.
#[test]
fn one_wide_place_is_not_split() {
    let mut dice = crate::simulated::Dice::new(7);
    let mut split = 0;
    for cell in 0..1_000_u32 {
        let deviation = [20.0, 50.0, 100.0, 200.0][cell as usize % 4];
        let count = [6, 12, 24, 128][cell as usize / 4 % 4];
        let metres: Vec<f64> = (0..count).map(|_| 5_000.0 + deviation * dice.normal()).collect();
        let (mut forecaster, key) = cell_of(Direction::Up, &metres, &[]);
        split += u32::from(places_of(&mut forecaster, &key) > 1);
    }
    println!("{split} of 1000 cells are split");
    assert!(split <= 2, "{split}");
}

#[test]
fn a_cell_is_learned_anew_when_its_history_changes() {
    let mut forecaster = learned(Direction::Up, Rule::default());
    let key = CellKey::of(&handover(0, 2, Direction::Up, 0.0, false));
    assert_eq!(forecaster.cell(&key).unwrap().place(SPEED), None);
    for trip in 100..120 {
        forecaster.add(&handover(trip, 2, Direction::Up, 2_050.0, true));
        forecaster.add(&handover(trip, 2, Direction::Up, 2_050.0, true));
    }
    let cell = forecaster.cell(&key).unwrap();
    assert_eq!((cell.passages, cell.failures), (40, 20), "the second of each is known");
    assert!(cell.place(SPEED).is_some());
}

/// The pool of a mature line: each history is full, and what comes pushes out what was.
#[test]
fn full_histories_make_the_pool_stale_as_well() {
    let key = CellKey::of(&handover(0, 1, Direction::Up, 0.0, false));
    let last = |trips: std::ops::Range<u64>| -> CellHistory {
        let mut history = CellHistory::default();
        for trip in trips {
            history.add(&handover(trip, 1, Direction::Up, 1_000.0, trip >= 128));
        }
        history
    };
    let Known { mut forecaster, mut cells } = Known::new(Rule::default());
    cells.put(key.clone(), last(0..128));
    forecaster.refresh(&cells);
    let before = forecaster.pools.of(WriterNumber::OWN, None).rates("a").expected(0, 0);
    let stale = forecaster.stale_at - cells.changes();
    cells.put(key.clone(), last(stale - 1..127 + stale));
    assert_eq!(forecaster.stale_at - cells.changes(), 1, "one more than those that were new");
    cells.put(key, last(128..256));
    forecaster.refresh(&cells);
    assert!(forecaster.pools.of(WriterNumber::OWN, None).rates("a").expected(0, 0) > before + 0.05);
    let stale = forecaster.stale_at - cells.changes();
    assert_eq!(stale, STALE_MIN, "as many as there are, not as there ever were");
}

#[test]
fn fits_used_longest_ago_are_dropped() {
    let mut known = learned(Direction::Up, Rule::default());
    let situation = situation(Direction::Up, 900.0);
    for cell in 0..FITS_MAX as u64 + 500 {
        known.add(&handover(1, 10 + cell, Direction::Up, 5_000.0, false));
    }
    let key = |cell| CellKey::of(&handover(0, cell, Direction::Up, 0.0, false));
    for cell in 0..FITS_MAX as u64 + 500 {
        assert!(known.cell(&key(10 + cell)).is_some());
        if cell % 1_000 == 0 {
            let forecast = known.forecast(at(0.0), &situation, "a", CellId(1));
            assert!(forecast.is_some(), "{cell}");
        }
    }
    let Forecaster { fits, .. } = &known.forecaster;
    assert!((FITS_MAX / 4 * 3..=FITS_MAX).contains(&fits.len()), "{}", fits.len());
    let is_kept = |cell| fits.contains_key(&(WriterNumber::OWN, key(cell)));
    assert!(is_kept(1) && !is_kept(10) && is_kept(9 + FITS_MAX as u64));
}

/// Whatever a database holds, forecasts are sound and nothing panics.
#[test]
fn any_history_makes_sound_forecasts() {
    use proptest::prelude::*;
    let passage = (0..6_u64, 0..40_u64, any::<i32>(), any::<bool>(), any::<bool>());
    let passages = proptest::collection::vec(passage, 0..200);
    let situation = (any::<f64>(), 0.0..200.0_f64, any::<f64>());
    proptest!(|(passages in passages, situation in situation, dbm in any::<f64>())| {
        let (metres, speed, error) = situation;
        let mut known = Known::new(Rule::default());
        for (cell, trip, decimetres, down, fails) in passages {
            let direction = if down { Direction::Down } else { Direction::Up };
            let position = Position { decimetres };
            known.add(&Handover { position, ..handover(trip, cell, direction, 0.0, fails) });
        }
        let Known { mut forecaster, cells } = known;
        for cell in 0..6 {
            for direction in [Direction::Up, Direction::Down] {
                let usual = self::situation(direction, 0.0);
                let situation = TrainPosition { metres, speed, error, ..usual };
                let seen = (CellId(cell), Rsrp::from_dbm(dbm));
                let own = WriterNumber::OWN;
                let told = forecaster.forecast(&cells, own, at(0.0), &situation, "a", seen);
                if let Some(told) = told {
                    prop_assert!(told.fails_at <= at(30.0) && told.permille <= 1_000);
                    prop_assert!(told.uncertainty <= Duration::from_millis(2_500));
                }
            }
        }
    });
}

/// Forty trips through ten cells whose late and weak handovers fail.
fn late_and_weak() -> Known {
    let mut known = Known::new(Rule::default());
    let mut dice = Dice(1);
    for trip in 0..40 {
        for cell in 0..10 {
            let (late, weak) = (dice.normal(), dice.normal());
            let metres = 1_000.0 * cell as f64 + 50.0 * late;
            let one = handover(trip, cell, Direction::Up, metres, late + weak > 0.8);
            known.add(&Handover { rsrp: Rsrp::from_dbm(-100.0 - 4.0 * weak), ..one });
        }
    }
    known
}

impl Known {
    /// The probability for a train in cell 5 that is so far beyond its usual place, with this
    /// signal.
    fn permille(&mut self, beyond: f64, dbm: f64) -> u16 {
        let situation = situation(Direction::Up, 5_000.0 + beyond);
        let (own, seen) = (WriterNumber::OWN, (CellId(5), Rsrp::from_dbm(dbm)));
        let Self { forecaster, cells } = self;
        let told = forecaster.forecast(cells, own, at(0.0), &situation, "a", seen);
        told.expect("the cell has support").permille
    }
}

#[test]
fn late_and_weak_handovers_are_likelier_to_fail() {
    let mut known = late_and_weak();
    let untrained = known.permille(50.0, -110.0);
    assert_eq!(untrained, known.permille(-50.0, -90.0), "the rate of the cell");
    assert!(known.forecaster.train(&known.cells) && !known.forecaster.train(&known.cells));
    let [late, early] = [50.0, -50.0].map(|beyond| known.permille(beyond, -100.0));
    let [weak, strong] = [-105.0, -95.0].map(|dbm| known.permille(0.0, dbm));
    assert!(late > early + 200 && weak > strong + 200, "{late} {early} {weak} {strong}");
    // The classifier outlives the pools.
    known.forecaster.stale_at = 0;
    assert_eq!(known.permille(50.0, -100.0), late);
    assert!(!known.forecaster.train(&known.cells), "not before there is more");
}

/// Another writer repeats the node's handovers with a signal that is none.
#[test]
fn signals_of_others_change_no_probability() {
    for dbm in [0.0, -200.0] {
        let mut known = late_and_weak();
        known.permille(0.0, -100.0);
        known.forecaster.train(&known.cells);
        let before = [-105.0, -95.0].map(|dbm| known.permille(0.0, dbm));
        let cells: Vec<(CellKey, CellHistory)> =
            known.cells.iter().map(|(key, history)| (key.clone(), history.clone())).collect();
        for (key, history) in cells {
            let forge = |one: &Passage| {
                let rsrp = Rsrp::from_dbm(dbm);
                Passage { trip: TripId(one.trip.0 + 100), rsrp, writer: WriterNumber(9), ..*one }
            };
            let forged = history.passages().map(forge).collect::<Vec<_>>();
            for one in forged {
                known.cells.insert(key.clone(), one);
            }
        }
        known.forecaster.stale_at = 0;
        let after = [-105.0, -95.0].map(|dbm| known.permille(0.0, dbm));
        known.forecaster.train(&known.cells);
        let trained = [-105.0, -95.0].map(|dbm| known.permille(0.0, dbm));
        for (before, after) in before.iter().zip(after.iter().zip(trained)) {
            let off = before.abs_diff(*after.0).max(before.abs_diff(after.1));
            assert!(off <= 60, "{dbm}: {before} {after:?}");
        }
    }
}
