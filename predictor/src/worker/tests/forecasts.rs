//! What both sides are told of the failures ahead.

use crate::position::TrainPosition;
use crate::store::PlaceSample;
use polyrail_model::{Direction, Position, TripId};

use super::super::lookahead::outlook;
use super::*;

/// Rides once more and returns what it met.
fn watched(world: &mut World, trip: u64) -> Vec<Met> {
    world.train.forget();
    world.ground.forget();
    world.ride(trip, |_, _| {})
}

#[test]
fn what_failed_before_is_foreseen_on_both_sides() {
    let mut world = World::in_memory(settings());
    world.connect();
    let first = watched(&mut world, 0);
    assert_eq!(first.len(), 3, "cells 1, 4 and 7");
    assert!(world.train.told.is_empty() && world.ground.told.is_empty(), "nothing is known yet");
    world.ride_on(1..TRIPS);
    let met = watched(&mut world, TRIPS);
    assert_eq!(met.len(), 3);
    for Met { at, found } in met {
        for (side, holds) in [
            ("train", world.train.holds("a", at).zip(world.train.holds("a", at - TICK * 10))),
            ("ground", world.ground.holds("a", at).zip(world.ground.holds("a", at - TICK * 10))),
        ] {
            let (forecast, _) = holds.unwrap_or_else(|| panic!("{side}: nothing is foreseen"));
            // Within the 2.5 s before it (POLYCORN 3), or late by less than the spread.
            let early = at.saturating_duration_since(forecast.fails_at);
            let late = forecast.fails_at.saturating_duration_since(at);
            assert!(early < Duration::from_millis(2_500), "{side}: early by {early:?}");
            assert!(late < Duration::from_millis(500), "{side}: late by {late:?}");
            assert!(forecast.permille > 500, "{side}: {forecast:?}");
        }
        // The new cell is sound: it is taken back at once, on the ground as well.
        assert_eq!(world.train.holds("a", found + TICK), None);
        assert_eq!(world.ground.holds("a", found + TICK * 2), None);
        assert!(world.train.found.contains(&(found, "a".to_owned())), "{:?}", world.train.found);
    }
    assert_eq!(world.train.found.len(), 3, "only what was lost is found");
    assert!(world.ground.found.is_empty());
    let never = |told: &[Told]| told.iter().all(|one| one.carrier == "a");
    assert!(never(&world.train.told) && never(&world.ground.told), "b never fails");
    let train = world.train.told.iter().all(|one| one.session == world.on_train());
    assert!(train && world.ground.told.iter().all(|one| one.session == world.on_ground()));
}

/// A forecast never lapses while the train is on its way to the place, and what has not changed is
/// not told.
#[test]
fn forecasts_are_renewed_and_no_more() {
    let mut world = World::in_memory(settings());
    world.connect();
    world.ride_on(0..TRIPS);
    watched(&mut world, TRIPS);
    for (side, told) in [("train", &world.train.told), ("ground", &world.ground.told)] {
        let mut renewed = 0;
        for pair in told.windows(2) {
            let Some(before) = pair[0].forecast else {
                assert!(pair[1].forecast.is_some(), "{side}: nothing is told twice");
                continue;
            };
            assert!(before.expires_at > pair[0].at, "{side}: told when it was over");
            // It is taken back, or told anew in good time.
            assert!(pair[1].forecast.is_none() || pair[1].at < before.expires_at, "{side}");
            renewed += usize::from(pair[1].forecast.is_some());
        }
        // Three cells of twelve seconds, with two renewals a second at most.
        assert!((20..=3 * 13 * 2).contains(&renewed), "{side}: {renewed} in all");
    }
    // A train that stands is told nothing: neither forecasts nor, for long, what is ahead.
    world.train.forget();
    world.ground.forget();
    for _ in 0..20 {
        let still =
            Odometer { at: world.now, route: ROUTE, metres: 9_000.0, velocity: 0.0, error: 4.0 };
        world.observe(Observation::Odometer(still));
        world.observe(serving(world.now, "a", Some(1)));
        world.rest(1);
    }
    assert_eq!((world.train.told.len(), world.ground.told.len()), (0, 0));
}

#[test]
fn forecasts_end_with_telemetry_and_with_modems_that_say_nothing() {
    let mut world = World::in_memory(settings());
    world.connect();
    world.ride_on(0..TRIPS);
    world.train.forget();
    world.ground.forget();
    // In the cell that fails, before the place; then the world goes silent.
    let mut stopped = None;
    world.ride(TRIPS, |world, metres| {
        if stopped.is_none() && metres > 1_400.0 {
            assert!(world.train.holds("a", world.now).is_some());
            assert!(world.ground.holds("a", world.now).is_some());
            stopped = Some(world.now);
            world.disconnect();
        }
    });
    let stopped = stopped.unwrap();
    let over = stopped + Duration::from_secs(3);
    assert_eq!(world.ground.holds("a", over), None, "it expires");
    assert_eq!(world.states()[1].trips.len(), 0);
    // A modem that says nothing more may be anywhere: positions alone make no forecast.
    world.connect();
    world.pass(Duration::from_secs(3_600));
    world.train.forget();
    world.ground.forget();
    world.observe(serving(world.now, "a", Some(1)));
    for second in 0..80 {
        // It creeps towards the place and never reaches it.
        let metres = 1_000.0 + 10.0 * f64::from(second);
        let (at, velocity) = (world.now, 10.0);
        let place = Odometer { at, route: ROUTE, metres, velocity, error: 4.0 };
        world.observe(Observation::Odometer(place));
        world.rest(1);
    }
    for (side, told) in [("train", &world.train.told), ("ground", &world.ground.told)] {
        let late = world.now - Duration::from_secs(80 - 34);
        assert!(told.iter().all(|one| one.at <= late), "{side}: {:?}", told.last());
    }
}

#[test]
fn a_reload_changes_what_is_told() {
    let mut world = World::in_memory(Settings { forecast: false, ..settings() });
    world.connect();
    world.ride_on(0..TRIPS);
    watched(&mut world, TRIPS);
    assert!(world.train.told.is_empty() && world.ground.told.is_empty());
    assert_eq!(world.train.found.len(), 3, "connections begin anew all the same");
    assert!(!world.states()[0].forecast && !world.states()[1].forecast);
    let mut changes = Vec::new();
    world.ride(TRIPS + 1, |world, metres| {
        let wanted = match metres {
            1_200.0..1_400.0 => true,
            1_400.0..1_600.0 => false,
            1_600.0.. => true,
            _ => return,
        };
        if changes.last() != Some(&wanted) {
            // A guard that comes and goes changes nothing of sound cells here.
            world.tell(Input::Reload(Settings { forecast: wanted, guard: wanted, ..settings() }));
            world.rest(1);
            let now = world.now;
            let told = [world.train.holds("a", now), world.ground.holds("a", now)];
            assert_eq!(told.map(|one| one.is_some()), [wanted; 2], "{metres}");
            changes.push(wanted);
        }
    });
    assert_eq!(changes, [true, false, true]);
    let [train, ground] = world.states();
    assert!(train.forecast && train.guard && ground.forecast && ground.guard);
}

#[test]
fn what_carriers_carried_is_known_on_the_next_trip() {
    let mut world = World::in_memory(settings());
    world.connect();
    let measured = |world: &mut World, _| world.measure("b");
    world.ride(0, measured);
    world.rest(40);
    world.train.forget();
    world.ground.forget();
    world.ride(1, |_, _| {});
    for (side, ahead) in [("train", &world.train.ahead), ("ground", &world.ground.ahead)] {
        assert!(ahead.iter().all(|(_, carrier, _)| carrier == "b"), "{side}: a was not measured");
        let known: Vec<_> = ahead.iter().filter(|(_, _, one)| !one.steps.is_empty()).collect();
        // Once a second, and on the ground with each change of a cell.
        assert!((100..=140).contains(&known.len()), "{side}: {}", known.len());
        for (at, _, outlook) in known {
            assert!(outlook.steps.windows(2).all(|pair| pair[0].from < pair[1].from), "{side}");
            let first = outlook.steps[0];
            assert!(first.from <= *at, "{side}");
            assert_eq!(first.rate, Bitrate::from_bps(8_000_000), "{side}");
            assert_eq!(first.delay, Duration::from_millis(30), "{side}");
        }
        // Where nothing is known that is told once.
        let nothing = |pair: &[(Instant, String, LinkOutlook)]| {
            pair.iter().all(|(_, _, outlook)| outlook.steps.is_empty())
        };
        assert!(!ahead.windows(2).any(nothing), "{side}");
    }
}

/// What one place lacks is taken from the nearest that has it, each figure by itself.
#[test]
fn a_hole_in_the_track_ahead_is_filled_from_beside_it() {
    let now = Instant::now();
    let mut store = BufferedStore::open(now, None, settings());
    let (direction, speed) = (Direction::Up, 100.0);
    let place =
        TrainPosition { at: now, route: ROUTE, direction, metres: 1_060.0, speed, error: 4.0 };
    let mut record = |metres: f64, mbps: Option<u64>, millis: Option<u64>| {
        let (carrier, position) = ("a".to_owned(), Position::from_metres(metres));
        let rate = mbps.map(|mbps| Bitrate::from_bps(mbps * 1_000_000));
        let delay = millis.map(Duration::from_millis);
        let (route, trip) = (ROUTE, TripId(1));
        let sample = PlaceSample { carrier, route, direction, position, trip, rate, delay };
        store.record_place(sample);
    };
    record(850.0, Some(1), Some(10));
    record(1_050.0, None, Some(20));
    record(1_250.0, Some(3), None);
    record(1_550.0, Some(4), Some(40));
    store.on_timeout(now + Duration::from_secs(30), WALL_MS);
    let mut told = |metres: f64| -> Vec<(u64, u128)> {
        let place = TrainPosition { metres, ..place };
        let steps = outlook(now, &mut store, "a", &place).steps.into_iter();
        steps.map(|one| (one.rate.as_bps() / 1_000_000, one.delay.as_millis())).collect()
    };
    // At 1,060 m the next 200 m are nearer than the last, at 1,040 m the other way round.
    assert_eq!(told(1_060.0), [(3, 20), (3, 20), (3, 20), (3, 40)]);
    assert_eq!(told(1_040.0), [(1, 20), (3, 20), (3, 20), (3, 40)]);
    // Beyond 200 m it ends.
    assert_eq!(told(1_560.0), [(4, 40), (4, 40), (4, 40)]);
    assert_eq!(told(1_860.0), []);
}

/// The cloud hears of a cell that is lost or found at once, but not of each that comes and goes.
#[test]
fn the_cloud_is_told_at_once_of_another_cell() {
    let mut world = World::in_memory(settings());
    world.connect();
    world.observe(odometer(world.now, 100.0));
    world.observe(serving(world.now, "a", Some(1)));
    world.rest(2);
    let step = Duration::from_millis(10);
    for cell in [Some(2), None, Some(3)] {
        world.pass(step * 20);
        let before = world.telemetry;
        world.observe(serving(world.now, "a", cell));
        assert_eq!(world.telemetry, before + 1, "{cell:?}");
        assert_eq!(world.states()[1].trips[0].carriers[0].cell, cell);
        // What is said again, and what the signal does, is no news.
        world.observe(serving(world.now, "a", cell));
        assert_eq!(world.telemetry, before + 1, "{cell:?}");
    }
    world.rest(1);
    // A modem that flaps for two seconds.
    let before = world.telemetry;
    for cell in 0..200 {
        world.observe(serving(world.now, "a", Some(cell % 2)));
        world.pass(step);
    }
    assert!((19..=23).contains(&(world.telemetry - before)), "{}", world.telemetry - before);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.states()[1].trips[0].carriers[0].cell, Some(1), "the last one");
    // Without a session nobody is told, and nothing is waited for.
    world.disconnect();
    world.observe(serving(world.now, "a", None));
    world.pass(step * 10);
    assert!(world.train.worker.next_timeout().unwrap() > world.now);
}
