//! The forecasts and outlooks of both sides.

use crate::entry::WriterNumber;
use crate::entry::{Link, RateSample, Rates};
use crate::position::TrainPosition;
use polyrail_model::{Direction, Position, TripId};

use super::super::ForecastCounts;
use super::super::lookahead::outlook;
use super::*;

/// One more trip; returns its failures.
fn watched(world: &mut World, trip: u64) -> Vec<Met> {
    world.train.forget();
    world.ground.forget();
    world.ride(trip, |_, _| {})
}

#[test]
fn earlier_failures_are_forecast_on_both_sides() {
    let mut world = World::in_memory(settings());
    world.connect();
    let first = watched(&mut world, 0);
    assert_eq!(first.len(), 3, "cells 1, 4 and 7");
    assert!(
        world.train.reported.is_empty() && world.ground.reported.is_empty(),
        "there is no history yet"
    );
    world.ride_on(1..TRIPS);
    let met = watched(&mut world, TRIPS);
    assert_eq!(met.len(), 3);
    for Met { at, found } in met {
        for (side, forecasts) in [
            (
                "train",
                world.train.forecast_of("a", at).zip(world.train.forecast_of("a", at - TICK * 10)),
            ),
            (
                "ground",
                world
                    .ground
                    .forecast_of("a", at)
                    .zip(world.ground.forecast_of("a", at - TICK * 10)),
            ),
        ] {
            let (forecast, _) = forecasts.unwrap_or_else(|| panic!("{side}: no forecast"));
            // Within the 2.5 s before it (POLYCORN 3), or late by less than the spread.
            let early = at.saturating_duration_since(forecast.fails_at);
            let late = forecast.fails_at.saturating_duration_since(at);
            assert!(early < Duration::from_millis(2_500), "{side}: early by {early:?}");
            assert!(late < Duration::from_millis(500), "{side}: late by {late:?}");
            assert!(forecast.permille > 500, "{side}: {forecast:?}");
        }
        // The new cell does not fail: the forecast is withdrawn at once, also on the ground.
        assert_eq!(world.train.forecast_of("a", found + TICK), None);
        assert_eq!(world.ground.forecast_of("a", found + TICK * 2), None);
        assert!(world.train.found.contains(&(found, "a".to_owned())), "{:?}", world.train.found);
    }
    assert_eq!(world.train.found.len(), 3, "only lost cells are found");
    assert!(world.ground.found.is_empty());
    let never = |reported: &[Reported]| reported.iter().all(|one| one.carrier == "a");
    assert!(never(&world.train.reported) && never(&world.ground.reported), "b never fails");
    // A forecast needs the failures of two trips.
    let [train, ground] = world.states().map(|state| state.forecasts);
    let met = train.correct + train.early + train.late;
    assert_eq!((met + train.missed, ground), (3 * (TRIPS + 1), ForecastCounts::default()));
    assert!((6..=9).contains(&train.missed) && train.alarms >= met, "{train:?}");
    let train = world.train.reported.iter().all(|one| one.session == world.on_train());
    assert!(train && world.ground.reported.iter().all(|one| one.session == world.on_ground()));
}

/// A forecast does not expire before the place, and an unchanged one is not reported again.
#[test]
fn forecasts_are_renewed_only_when_needed() {
    let mut world = World::in_memory(settings());
    world.connect();
    world.ride_on(0..TRIPS);
    watched(&mut world, TRIPS);
    for (side, reported) in [("train", &world.train.reported), ("ground", &world.ground.reported)] {
        let mut renewed = 0;
        for pair in reported.windows(2) {
            let Some(before) = pair[0].forecast else {
                assert!(pair[1].forecast.is_some(), "{side}: repeated withdrawal");
                continue;
            };
            assert!(before.expires_at > pair[0].at, "{side}: reported after its expiry");
            // It is withdrawn, or renewed in time.
            assert!(pair[1].forecast.is_none() || pair[1].at < before.expires_at, "{side}");
            renewed += usize::from(pair[1].forecast.is_some());
        }
        // Three cells of twelve seconds, with two renewals a second at most.
        assert!((20..=3 * 13 * 2).contains(&renewed), "{side}: {renewed} in all");
    }
    // A standing train has no forecasts.
    world.train.forget();
    world.ground.forget();
    for _ in 0..20 {
        let still =
            Odometer { at: world.now, route: ROUTE, metres: 9_000.0, velocity: 0.0, error: 4.0 };
        world.observe(Observation::Odometer(still));
        world.observe(serving(world.now, "a", Some(1)));
        world.rest(1);
    }
    assert_eq!((world.train.reported.len(), world.ground.reported.len()), (0, 0));
}

#[test]
fn forecasts_expire_without_telemetry_or_reports_of_modems() {
    let mut world = World::in_memory(settings());
    world.connect();
    world.ride_on(0..TRIPS);
    world.train.forget();
    world.ground.forget();
    // In the failing cell, before the place; then the session ends.
    let mut stopped = None;
    world.ride(TRIPS, |world, metres| {
        if stopped.is_none() && metres > 1_400.0 {
            assert!(world.train.forecast_of("a", world.now).is_some());
            assert!(world.ground.forecast_of("a", world.now).is_some());
            stopped = Some(world.now);
            world.disconnect();
        }
    });
    let stopped = stopped.unwrap();
    let over = stopped + Duration::from_secs(3);
    assert_eq!(world.ground.forecast_of("a", over), None, "it expires");
    assert_eq!(world.states()[1].trips.len(), 0);
    // A silent modem may be in any cell: positions alone make no forecast.
    world.connect();
    world.pass(Duration::from_secs(3_600));
    world.train.forget();
    world.ground.forget();
    world.observe(serving(world.now, "a", Some(1)));
    for second in 0..80 {
        // The train approaches the place slowly and never reaches it.
        let metres = 1_000.0 + 10.0 * f64::from(second);
        let (at, velocity) = (world.now, 10.0);
        let place = Odometer { at, route: ROUTE, metres, velocity, error: 4.0 };
        world.observe(Observation::Odometer(place));
        world.rest(1);
    }
    for (side, reported) in [("train", &world.train.reported), ("ground", &world.ground.reported)] {
        let late = world.now - Duration::from_secs(80 - 34);
        assert!(reported.iter().all(|one| one.at <= late), "{side}: {:?}", reported.last());
    }
}

#[test]
fn reload_turns_forecasts_on_and_off() {
    let mut world = World::in_memory(LinkDbSettings { forecast: false, ..settings() });
    world.connect();
    world.ride_on(0..TRIPS);
    watched(&mut world, TRIPS);
    assert!(world.train.reported.is_empty() && world.ground.reported.is_empty());
    assert_eq!(world.train.found.len(), 3, "connections restart all the same");
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
            let changed = LinkDbSettings { forecast: wanted, ..settings() };
            world.feed(Input::Reload(changed));
            world.rest(1);
            let now = world.now;
            let reported = [world.train.forecast_of("a", now), world.ground.forecast_of("a", now)];
            assert_eq!(reported.map(|one| one.is_some()), [wanted; 2], "{metres}");
            changes.push(wanted);
        }
    });
    assert_eq!(changes, [true, false, true]);
    let [train, ground] = world.states();
    assert!(train.forecast && ground.forecast);
}

#[test]
fn rates_of_a_trip_are_known_on_the_next_trip() {
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
        // Once a second, and on the ground with each change of cell.
        assert!((100..=140).contains(&known.len()), "{side}: {}", known.len());
        for (at, _, outlook) in known {
            assert!(outlook.steps.windows(2).all(|pair| pair[0].from < pair[1].from), "{side}");
            let first = outlook.steps[0];
            assert!(first.from <= *at, "{side}");
            assert_eq!(first.rate, Bitrate::from_bps(8_000_000), "{side}");
            assert_eq!(first.delay, Duration::from_millis(30), "{side}");
        }
        // An empty outlook is reported once.
        let nothing = |pair: &[(Instant, String, LinkOutlook)]| {
            pair.iter().all(|(_, _, outlook)| outlook.steps.is_empty())
        };
        assert!(!ahead.windows(2).any(nothing), "{side}");
    }
}

/// The rate and the delay each come from the nearest place that has them.
#[test]
fn missing_values_come_from_the_nearest_place() {
    let now = Instant::now();
    let mut store = train_store(now, None, settings());
    let (direction, speed) = (Direction::Up, 100.0);
    let place =
        TrainPosition { at: now, route: ROUTE, direction, metres: 1_060.0, speed, error: 4.0 };
    let mut record = |metres: f64, mbps: Option<u64>, millis: Option<u64>| {
        let (carrier, position) = ("a".to_owned(), Position::from_metres(metres));
        let rate = mbps.map(|mbps| Bitrate::from_bps(mbps * 1_000_000));
        let delay = millis.map(Duration::from_millis);
        let (route, trip) = (ROUTE, TripId(1));
        let samples = vec![RateSample { position, spot: None, rate, delay }];
        let rates = Rates { trip, carrier, route, direction, link: Link::Up, samples };
        store.record(Entry::Rates(rates));
    };
    record(850.0, Some(1), Some(10));
    record(1_050.0, None, Some(20));
    record(1_250.0, Some(3), None);
    record(1_550.0, Some(4), Some(40));
    store.on_timeout(now + Duration::from_secs(30), WALL_MS);
    let reported = |metres: f64| -> Vec<(u64, u128)> {
        let place = TrainPosition { metres, ..place };
        let steps = outlook(now, &store, WriterNumber::OWN, "a", &place).steps.into_iter();
        steps.map(|one| (one.rate.as_bps() / 1_000_000, one.delay.as_millis())).collect()
    };
    // At 1,060 m the next 200 m are nearer than the last, at 1,040 m the other way round.
    assert_eq!(reported(1_060.0), [(3, 20), (3, 20), (3, 20), (3, 40)]);
    assert_eq!(reported(1_040.0), [(1, 20), (3, 20), (3, 20), (3, 40)]);
    // The outlook ends beyond 200 m.
    assert_eq!(reported(1_560.0), [(4, 40), (4, 40), (4, 40)]);
    assert_eq!(reported(1_860.0), []);
}

/// Telemetry reports a lost or found cell at once, but not each change of a flapping modem.
#[test]
fn another_cell_is_reported_to_the_cloud_at_once() {
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
        // A repeated report is not sent again.
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
    // Without a session nothing is sent, and no timeout is due.
    world.disconnect();
    world.observe(serving(world.now, "a", None));
    world.pass(step * 10);
    assert!(world.train.worker.next_timeout().unwrap() > world.now);
}
