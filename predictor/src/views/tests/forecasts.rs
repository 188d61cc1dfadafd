//! Forecasts for a train from the records of others.

use polyrail_model::{CellId, Direction, HandoverOutcome, NodeRole, Observation};

use super::fleet::{self, CELLS, SPEED, Train, Written, forecasts, line, name, place_of, views};
use crate::entry::{Entry, WriterNumber};
use crate::forecast::{Forecaster, TrainPosition};
use crate::pilot::Pilot;
use crate::simulated::{Dice, seconds, start};
use crate::views::{PlaceKey, Views};

const OWN: WriterNumber = WriterNumber::OWN;

fn fleet(trains: &[u32], trips: usize) -> (Vec<Train>, Vec<Written>) {
    let line = line();
    let mut trains: Vec<Train> = trains.iter().map(|one| Train::new(*one, &line)).collect();
    let mut entries = Vec::new();
    for train in &mut trains {
        entries.extend(train.pieces());
        entries.extend(train.trips(&line, trips));
    }
    (trains, entries)
}

#[test]
fn fourth_train_forecasts_from_three_that_learned_the_line_separately() {
    let line = line();
    let (trains, entries) = fleet(&[1, 2, 3], 8);
    let views = views(&entries);
    assert_eq!(views.sizes().tracks, 3);
    assert_eq!(views.sizes().cells, 3 * CELLS as usize);
    let mut forecaster = Forecaster::default();
    let mut all = Vec::new();
    for train in &trains {
        let found = forecasts(&views, &mut forecaster, OWN, &line, train.route);
        assert!(found.len() >= 9, "of ten cells that fail: {found:?}");
        for (cell, (off, permille)) in &found {
            assert_eq!(cell % 3, 0, "{cell} never fails");
            assert!((-40.0..60.0).contains(off), "{cell}: {off} m");
            assert!((200..600).contains(permille), "{cell}: {permille}");
        }
        all.push(found);
    }
    // The tracks differ by the noise of the receivers alone.
    for cell in all[0].keys() {
        let on: Vec<f64> = all.iter().filter_map(|one| Some(one.get(cell)?.0)).collect();
        let apart = on.iter().copied().fold(f64::MIN, f64::max)
            - on.iter().copied().fold(f64::MAX, f64::min);
        assert!(apart < 15.0, "{cell}: {on:?}");
    }
}

/// From fixes alone: the train finds itself on one of the shared tracks.
#[test]
fn empty_train_forecasts_on_its_first_trip() {
    let line = line();
    let (trains, entries) = fleet(&[1, 2, 3], 8);
    let views = views(&entries);
    let mut pilot = Pilot::new(9, "train-0", []);
    pilot.offer(views.shared_tracks(pilot.room()));
    let (mut dice, begin) = (Dice::new(1), start());
    let mut forecaster = Forecaster::default();
    let mut forecast = Vec::new();
    for second in 0..400 {
        let (now, metres) = (begin + seconds(f64::from(second)), SPEED * f64::from(second));
        pilot.observe(now, 0, &Observation::Fix(line.fix(&mut dice, now, metres, 5.0)));
        let cell = (metres / 1_000.0).ceil() as u64 - u64::from(second > 0);
        let Some(train) = pilot.place(now) else { continue };
        assert!(trains.iter().any(|one| one.route == train.route), "no track of its own");
        let found = forecaster.forecast(views.cells(), OWN, now, &train, "a", (CellId(cell), None));
        forecast.extend(found.map(|_| cell));
        if second % 50 == 49 {
            let position = polyrail_model::Position::from_metres(train.metres);
            let spot = pilot.spot(train.route, position, train.direction).unwrap();
            let course = f64::from(spot.heading) * 360.0 / 256.0;
            let off = (course - line.bearing(metres)).rem_euclid(360.0);
            assert!(off.min(360.0 - off) < 8.0, "{course}");
        }
    }
    forecast.dedup();
    assert!(forecast.len() >= 9 && forecast.iter().all(|cell| cell % 3 == 0), "{forecast:?}");
    assert!(pilot.place(begin + seconds(399.0)).is_some());
}

#[test]
fn one_writer_alone_creates_no_forecast_on_another_node() {
    let line = line();
    let (trains, entries) = fleet(&[1], 30);
    let views = views(&entries);
    let mut forecaster = Forecaster::default();
    let route = trains[0].route;
    assert!(forecasts(&views, &mut forecaster, OWN, &line, route).is_empty());
    // On its own node, as in the cloud's forecasts for it, it does.
    let own = forecasts(&views, &mut forecaster, WriterNumber(1), &line, route);
    assert_eq!(own.len(), 10);
}

/// The forecast stands if it stands without any single other writer.
#[test]
fn forecast_stands_on_two_writers() {
    let line = line();
    // The trips on which each of the writers 0 to 3 saw the cell fail, of ten.
    let cases: [([u64; 4], bool, &str); 10] = [
        ([0, 5, 5, 5], true, "three others"),
        ([0, 5, 5, 0], true, "two others, and one that saw no failure"),
        ([0, 10, 0, 0], false, "one of three others"),
        ([0, 3, 3, 0], true, "two others on three trips each"),
        ([0, 1, 3, 0], false, "two others, but one of them on one trip"),
        ([5, 0, 0, 0], true, "the node itself"),
        ([5, 5, 0, 0], true, "the node itself and one other"),
        ([1, 9, 0, 0], false, "one other, and one failure of the node itself"),
        ([0, 0, 0, 0], false, "nobody"),
        ([0, 1, 1, 1], true, "three others, one failure each"),
    ];
    for (failures, wanted, why) in cases {
        let mut trains: Vec<Train> = (0..4).map(|one| Train::new(one, &line)).collect();
        let mut entries = Vec::new();
        for (train, failures) in trains.iter_mut().zip(failures) {
            entries.extend(train.pieces());
            for trip in 0..10 {
                let fails = trip < failures;
                let metres = place_of(3) + 3.0 * trip as f64 + if fails { 40.0 } else { 0.0 };
                entries.push(train.handover(&line, trip, 3, metres, fails));
            }
        }
        let views = views(&entries);
        let found = forecasts(&views, &mut Forecaster::default(), OWN, &line, trains[1].route);
        assert_eq!(found.contains_key(&3), wanted, "{why}: {found:?}");
    }
}

#[test]
fn cloud_forecasts_for_each_gateway_with_its_own_records() {
    let line = line();
    let (trains, entries) = fleet(&[1, 2], 20);
    let views = views(&entries);
    let mut forecaster = Forecaster::default();
    for train in &trains {
        for own in [1, 2] {
            let own = WriterNumber(own);
            let found = forecasts(&views, &mut forecaster, own, &line, train.route);
            assert!(found.len() >= 9, "{found:?}");
        }
    }
    // A gateway without passages needs both.
    let nobody = forecasts(&views, &mut forecaster, WriterNumber(3), &line, trains[0].route);
    let own = forecasts(&views, &mut forecaster, WriterNumber(1), &line, trains[0].route);
    assert!(nobody.keys().all(|cell| own.contains_key(cell)));
}

/// With the records of one writer, the forecasts of its node are those of its cells alone.
#[test]
fn own_records_alone_count_in_full() {
    let line = line();
    let (trains, entries) = fleet(&[0], 30);
    let views = views(&entries);
    let mut cells = crate::views::Cells::default();
    for (_, _, entry) in &entries {
        if let Entry::Handover(handover, _) = entry {
            cells.add(handover);
        }
    }
    let train = TrainPosition {
        at: start(),
        route: trains[0].route,
        direction: Direction::Up,
        metres: 0.0,
        speed: SPEED,
        error: 5.0,
    };
    let (mut one, mut other) = (Forecaster::default(), Forecaster::default());
    let (mut some, routes) = (0, trains[0].route);
    for cell in 1..=CELLS {
        let metres = trains[0].at(&line, place_of(cell)).0.metres() - SPEED;
        let train = TrainPosition { metres, route: routes, ..train };
        let cell = CellId(cell);
        let of_views = one.forecast(views.cells(), OWN, train.at, &train, "a", (cell, None));
        assert_eq!(of_views, other.forecast(&cells, OWN, train.at, &train, "a", (cell, None)));
        some += u32::from(of_views.is_some());
    }
    assert_eq!(some, 10);
}

#[test]
fn entries_before_their_track_count_once_it_is_known() {
    let (trains, entries) = fleet(&[1, 2, 3], 6);
    let (pieces, others): (Vec<Written>, Vec<Written>) =
        entries.iter().cloned().partition(|(_, _, entry)| matches!(entry, Entry::Track(_)));
    let mut late = Views::new(NodeRole::Gateway);
    (0..4).map(WriterNumber).for_each(|writer| late.introduce(writer, &name(writer)));
    for (writer, key, entry) in others.iter().chain(&pieces) {
        assert!(late.apply(*writer, *key, entry).is_empty());
        // The next track, or the next piece of one, is derived with the others.
        if pieces.first().is_some_and(|first| first.1 == *key) {
            assert!(late.needs_derivation());
            fleet::derive(&mut late, &others);
        }
    }
    fleet::derive(&mut late, &others);
    assert!(!late.needs_derivation());
    let at_once = views(&entries);
    let set = |views: &Views| -> Vec<_> {
        let mut all: Vec<_> = views
            .cells()
            .iter()
            .flat_map(|(key, history)| {
                history.passages().map(move |one| (key.clone(), one.entry, one.position))
            })
            .collect();
        all.sort();
        all
    };
    assert_eq!(set(&late), set(&at_once), "each entry counts once on each track");
    assert_eq!(trains.len(), 3);
}

#[test]
fn rates_count_on_the_tracks_of_others() {
    use crate::entry::{Link, RateSample, Rates};
    use polyrail_model::{Bitrate, TripId};
    let line = line();
    let (mut trains, mut entries) = fleet(&[1, 2, 3], 0);
    for link in [Link::Up, Link::Down] {
        for trip in 0..6 {
            let train = &mut trains[1 + trip as usize % 2];
            let (position, direction) = train.at(&line, 5_050.0);
            let spot = train.track.spot(position, direction);
            let rate = Some(Bitrate::from_mbps(if link == Link::Up { 10.0 } else { 50.0 }));
            let samples = vec![RateSample { position, spot, rate, delay: None }];
            let (trip, carrier, route) = (TripId(trip), "a".to_owned(), train.route);
            let rates = Rates { trip, carrier, route, direction, link, samples };
            entries.push(train.write(Entry::Rates(rates)));
        }
    }
    let views = fleet::views(&entries);
    for train in &trains {
        let (position, direction) = train.at(&line, 5_050.0);
        let place = PlaceKey::of("a", train.route, direction, position);
        let estimate = views.estimate(OWN, &place).unwrap();
        assert_eq!(estimate.rate, Some(Bitrate::from_mbps(10.0)), "a gateway's own direction");
        let along: Vec<_> = views.estimates(OWN, train.route, direction).collect();
        assert_eq!(along, [(&place, estimate)]);
        let back = if direction == Direction::Up { Direction::Down } else { Direction::Up };
        assert_eq!(views.estimates(OWN, train.route, back).count(), 0);
    }
    assert_eq!(views.sizes().places, 3);
}

#[test]
fn forgotten_entries_leave_the_views() {
    let line = line();
    let (mut trains, entries) = fleet(&[1, 2, 3], 8);
    let mut views = views(&entries);
    let log = trains[2].key().log;
    views.forget_below(log, u64::MAX);
    assert_eq!(views.sizes().tracks, 2);
    let all = || views.cells().iter().flat_map(|(_, history)| history.passages());
    assert!(all().all(|one| one.entry.log != log));
    assert!(all().any(|one| one.outcome == HandoverOutcome::TypeII));
    let mut forecaster = Forecaster::default();
    assert!(!forecasts(&views, &mut forecaster, OWN, &line, trains[0].route).is_empty());
    views.forget_below(trains[1].key().log, u64::MAX);
    let found = forecasts(&views, &mut forecaster, OWN, &line, trains[0].route);
    assert!(found.is_empty(), "one writer is left: {found:?}");
}
