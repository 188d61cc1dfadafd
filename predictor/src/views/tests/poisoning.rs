//! One forged writer against three honest ones.
//!
//! Three others support the forecast of a cell if each of them saw a failure there on two trips,
//! and if a quarter of their handovers failed. No forged entry makes a forecast where there is none
//! without it, and none removes the forecast of a supported cell. The place and the probability
//! move within the bounds that this test states; it prints how far they do.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{CellId, HandoverOutcome, Observation, Position, RouteId, TripId};

use super::fleet::{self, CELLS, SPEED, Train, Written, forecasts, line, name, place_of, views};
use crate::entry::{Entry, Spot, TrackPiece, WriterNumber};
use crate::forecast::Forecaster;
use crate::pilot::Pilot;
use crate::simulated::{Dice, Line, seconds, start};
use crate::views::{Views, creator_hash, new_route};

/// The numbers of its routes are lower than those of all others.
const FORGER: u32 = 8;
/// The number of the track on which an empty train finds itself.
const RIDDEN: u32 = 99;
/// By how much the forger moves a place (1.5 s at 80 m/s) and a probability.
const METRES_MAX: f64 = 120.0;
const PERMILLE_MAX: u16 = 160;

/// Changes a handover of the forger.
fn changed(
    written: Written,
    change: impl FnOnce(&mut polyrail_model::Handover, &mut Option<Spot>),
) -> Written {
    let (writer, key, entry) = written;
    let Entry::Handover(mut handover, mut spot) = entry else { unreachable!() };
    change(&mut handover, &mut spot);
    (writer, key, Entry::Handover(handover, spot))
}

/// A handover of each cell on as many trips.
fn everywhere(
    forger: &mut Train,
    line: &Line,
    trips: u64,
    fails: bool,
    off: impl Fn(u64) -> f64,
) -> Vec<Written> {
    let mut dice = Dice::new(8);
    let mut all = Vec::new();
    for trip in 0..trips {
        for cell in 1..=CELLS {
            let metres = place_of(cell) + off(trip) + 5.0 * dice.normal();
            all.push(forger.handover(line, trip, cell, metres, fails));
        }
    }
    all
}

type Forgery = (&'static str, Vec<Written>);

/// The forgeries by name.
fn forgeries(line: &Line, honest: &[Train], real: &[Written]) -> Vec<Forgery> {
    let some = [many(line, honest), own_cells(line, honest), everywhere_at_once(line)].concat();
    [some, others(line, honest, real)].concat()
}

/// Many entries.
fn many(line: &Line, honest: &[Train]) -> Vec<Forgery> {
    let new = || Train::new(FORGER, line);
    let mut forger = new();
    let mut all = Vec::new();
    let invented = (0..50_000).map(|number| {
        let metres = 1_500.0 + (number % 30_000) as f64;
        let written = forger.handover(line, number % 100, CELLS + 1 + number / 2, metres, true);
        changed(written, |handover, _| handover.route = honest[0].route)
    });
    all.push(("50,000 invented cells", invented.collect()));
    let mut forger = new();
    let tomorrow = (0..20_001).map(|trip| {
        let cell = 1 + trip % CELLS;
        let written = forger.handover(line, trip, cell, place_of(cell), trip % 2 == 0);
        changed(written, |handover, _| handover.at_ms = 4_102_444_800_000)
    });
    all.push(("20,001 trips dated tomorrow", tomorrow.collect()));
    all
}

/// Invented cells with enough handovers for pooled values: far apart, with a few failures each.
fn own_cells(line: &Line, honest: &[Train]) -> Vec<Forgery> {
    let sizes = [
        ("256 cells of 4 handovers", 256, 4, 1),
        ("700 cells of 128 handovers", 700, 128, 2),
        ("1,500 cells of 20 handovers", 1_500, 20, 19),
        ("5,000 cells of 8 handovers", 5_000, 8, 0),
    ];
    let mut dice = Dice::new(12);
    let forgery = |(name, cells, handovers, failures)| {
        let mut forger = Train::new(FORGER, line);
        let mut all = Vec::new();
        for cell in 0..cells {
            for trip in 0..handovers {
                let metres = dice.between(-1_750.0, 1_750.0);
                let fails = trip < failures;
                let written = forger.handover(line, trip, CELLS + 1 + cell, 9_000.0, fails);
                all.push(changed(written, |handover, spot| {
                    (handover.route, *spot) = (honest[0].route, None);
                    handover.position = Position::from_metres(9_000.0 + metres);
                }));
            }
        }
        (name, all)
    };
    sizes.map(forgery).into()
}

/// Entries in every cell of the line.
fn everywhere_at_once(line: &Line) -> Vec<Forgery> {
    let new = || Train::new(FORGER, line);
    let mut all = Vec::new();
    all.push(("failures in every cell", everywhere(&mut new(), line, 128, true, |_| 0.0)));
    for (name, off) in [
        ("failures 100 m before", -100.0),
        ("failures 150 m before", -150.0),
        ("failures 200 m before", -200.0),
        ("failures 300 m before", -300.0),
        ("failures 500 m before", -500.0),
        ("failures 150 m after", 150.0),
    ] {
        all.push((name, everywhere(&mut new(), line, 128, true, |_| off)));
    }
    let spread = |trip: u64| 10.0 * (trip % 60) as f64 - 300.0;
    all.push(("failures all along", everywhere(&mut new(), line, 128, true, spread)));
    // Up to 600 m away, in two groups and a bridge between them.
    let wide = |trip: u64| match trip % 3 {
        0 => -600.0 + trip as f64,
        1 => 600.0 - trip as f64,
        _ => 6.0 * trip as f64 - 380.0,
    };
    for (name, fails) in [("failures far and wide", true), ("successes far and wide", false)] {
        all.push((name, everywhere(&mut new(), line, 128, fails, wide)));
    }
    all.push(("successes in every cell", everywhere(&mut new(), line, 128, false, |_| 0.0)));
    all.push(("late successes", everywhere(&mut new(), line, 128, false, |_| 120.0)));
    all.push(("successes all along", everywhere(&mut new(), line, 128, false, spread)));
    all.push(("successes far before", everywhere(&mut new(), line, 128, false, |_| -700.0)));
    all
}

/// Another writer's trips, tracks and places.
fn others(line: &Line, honest: &[Train], real: &[Written]) -> Vec<Forgery> {
    let new = || Train::new(FORGER, line);
    let mut all = Vec::new();
    let mut forger = new();
    let copied = real.iter().filter_map(|(_, _, entry)| {
        let Entry::Handover(handover, spot) = entry else { return None };
        let mut handover = handover.clone();
        handover.outcome = match handover.outcome {
            HandoverOutcome::Success => HandoverOutcome::TypeIII,
            _ => HandoverOutcome::Success,
        };
        Some(forger.write(Entry::Handover(handover, *spot)))
    });
    all.push(("another writer's trips", copied.collect()));
    let mut forger = new();
    let mut bent = Vec::new();
    for train in honest {
        for mut piece in train.track.pieces(train.route) {
            piece.points.iter_mut().for_each(|point| point.latitude += 30_000);
            bent.push(forger.write(Entry::Track(piece)));
        }
    }
    all.push(("pieces of another's track", bent));
    // Its own tracks, on top of the real one, with other metres.
    let stretched = |mut points: Vec<crate::entry::TrackPoint>, piece: i16| {
        for point in &mut points {
            let share = point.position.metres().rem_euclid(TrackPiece::LENGTH) / TrackPiece::LENGTH;
            let share = share - 0.05 * share * (1.0 - share);
            let metres = (f64::from(piece) + share) * TrackPiece::LENGTH;
            point.position = Position::from_metres(metres);
        }
        points
    };
    let mut forger = new();
    let mut tracks = Vec::new();
    for number in 0..300 {
        let route = new_route(creator_hash(&name(WriterNumber(FORGER))), number);
        for piece in honest[0].track.pieces(route) {
            let TrackPiece { route, points, piece } = piece;
            let points = stretched(points, piece);
            tracks.push(forger.write(Entry::Track(TrackPiece { route, piece, points })));
        }
    }
    all.push(("300 tracks over the real one", tracks));
    all.push(("30 tracks beside the real one", own_tracks(line, honest, 30, |piece| piece)));
    let short = |mut piece: TrackPiece| {
        piece.points.retain(|point| point.position.metres().rem_euclid(5_000.0) < 1_500.0);
        piece
    };
    all.push(("short tracks", own_tracks(line, honest, 30, short)));
    let mut forger = new();
    let spots = (0..40).flat_map(|trip| (1..=CELLS).map(move |cell| (trip, cell)));
    let spots = spots.map(|(trip, cell)| {
        let written = forger.handover(line, trip, cell, place_of(cell), true);
        changed(written, |handover, _| {
            handover.position = Position { decimetres: i32::MAX };
            handover.trip = TripId(trip);
            handover.from = CellId(cell);
        })
    });
    all.push(("spots of every cell", spots.collect()));
    all
}

/// Tracks of the forger, each the real one moved to the north, the first by 0 m and the others by
/// 95 m.
fn own_tracks(
    line: &Line,
    honest: &[Train],
    count: u32,
    change: impl Fn(TrackPiece) -> TrackPiece,
) -> Vec<Written> {
    let mut forger = Train::new(FORGER, line);
    let mut tracks = Vec::new();
    for number in 0..count {
        let route = new_route(creator_hash(&name(forger.writer)), count - number);
        for mut piece in honest[0].track.pieces(route) {
            let north = if number == 0 { 0 } else { 8_540 };
            piece.points.iter_mut().for_each(|point| point.latitude += north);
            tracks.push(forger.write(Entry::Track(change(piece))));
        }
    }
    tracks
}

#[derive(Default, Debug)]
struct Moved {
    metres: f64,
    permille: u16,
    lost: usize,
}

#[test]
fn one_forged_writer_neither_creates_nor_removes_forecasts_of_an_empty_train() {
    check(0);
}

/// The node has two trips of its own.
#[test]
fn one_forged_writer_neither_creates_nor_removes_forecasts_of_a_train_with_records() {
    check(2);
}

fn check(own_trips: usize) {
    let line = line();
    let mut trains: Vec<Train> = (0..4).map(|one| Train::new(one, &line)).collect();
    let mut honest = Vec::new();
    for train in &mut trains[1..] {
        honest.extend(train.pieces());
        honest.extend(train.trips(&line, 12));
    }
    let mut own = Vec::new();
    if own_trips > 0 {
        own.extend(trains[0].pieces());
        own.extend(trains[0].trips(&line, own_trips));
    }
    let supported = supported(&honest);
    assert!(supported.len() >= 6, "{supported:?}");
    let mut worst = Moved::default();
    let real = [own.clone(), honest.clone()].concat();
    let before = told(&real, &line, &trains);
    assert!(supported.iter().all(|cell| before.keys().any(|(_, known)| known == cell)));
    for (name, forged) in forgeries(&line, &trains[1..], &honest) {
        let after = told(&[real.clone(), forged].concat(), &line, &trains);
        let mut moved = Moved::default();
        for (at, (metres, permille)) in &before {
            let Some((metres_after, permille_after)) = after.get(at) else {
                assert!(!supported.contains(&at.1), "{name}: {at:?} is lost");
                moved.lost += 1;
                continue;
            };
            moved.metres = moved.metres.max((metres_after - metres).abs());
            moved.permille = moved.permille.max(permille_after.abs_diff(*permille));
        }
        let new: Vec<_> = after.keys().filter(|at| !before.contains_key(at)).collect();
        println!("{name}, {} own entries: {moved:?} of {}", own.len(), before.len());
        assert!(new.is_empty(), "{name}: new forecasts {new:?}");
        worst.metres = worst.metres.max(moved.metres);
        worst.permille = worst.permille.max(moved.permille);
    }
    assert!(worst.metres <= METRES_MAX && worst.permille <= PERMILLE_MAX, "{worst:?}");
}

/// Nearer than the tracks of all others where the train begins, but it does not go on as they do.
#[test]
fn short_track_does_not_lead_an_empty_train_off_the_line() {
    let line = line();
    let mut trains: Vec<Train> = (1..4).map(|one| Train::new(one, &line)).collect();
    let mut forger = Train::new(FORGER, &line);
    let point = |hectometre: u32| {
        let metres = 100.0 * f64::from(hectometre);
        let (latitude, longitude) = line.place(metres).units();
        let position = Position::from_metres(metres);
        crate::entry::TrackPoint { latitude, longitude, position, weight: 1 }
    };
    let (route, points) = (forger.route, (0..25).map(point).collect());
    let short = forger.write(Entry::Track(TrackPiece { route, piece: 0, points }));
    assert_eq!(ridden(&views(std::slice::from_ref(&short)), &line).0, route, "it is a good one");
    let mut entries: Vec<Written> = trains.iter_mut().flat_map(Train::pieces).collect();
    entries.push(short);
    let found = ridden(&views(&entries), &line).0;
    assert!(trains.iter().any(|train| train.route == found));
}

/// A writer with an entry or two in each cell does not lower the weight of others there.
#[test]
fn few_forged_entries_remove_no_forecast() {
    let line = line();
    let fleets = [[1, 2, 3], [4, 5, 6], [6, 7, 9], [3, 5, 9]];
    let cases = [(12, 0.4), (12, 0.3), (10, 0.25)];
    for (fleet, (trips, rate)) in fleets.iter().flat_map(|one| cases.map(|case| (one, case))) {
        let mut trains: Vec<Train> = fleet.iter().map(|one| Train::new(*one, &line)).collect();
        let mut honest = Vec::new();
        for train in &mut trains {
            honest.extend(train.pieces());
            honest.extend((0..trips).flat_map(|_| train.trip(&line, rate)));
        }
        let supported = supported(&honest);
        let before = told(&honest, &line, &trains);
        let count = before.keys().filter(|(_, cell)| supported.contains(cell)).count();
        assert!(count >= 3, "{trips} trips, {rate}: {supported:?}");
        for (entries, fails) in [(1, false), (2, false), (1, true), (2, true)] {
            let forged = everywhere(&mut Train::new(FORGER, &line), &line, entries, fails, |_| 0.0);
            let after = told(&[honest.clone(), forged].concat(), &line, &trains);
            let lost = before.keys().filter(|at| !after.contains_key(at));
            let lost: Vec<_> = lost.filter(|(_, cell)| supported.contains(cell)).collect();
            assert!(lost.is_empty(), "{trips} trips, {rate}, {entries} {fails}: {lost:?}");
        }
    }
}

/// The forecasts on each track of a real train, and on the one on which a train finds itself.
fn told(entries: &[Written], line: &Line, trains: &[Train]) -> BTreeMap<(u32, u64), (f64, u16)> {
    let mut views = views(entries);
    let (ridden, found_at) = ridden(&views, line);
    views.ride("", ridden);
    fleet::derive(&mut views, entries);
    let mut forecaster = Forecaster::default();
    let mut all = BTreeMap::new();
    let known = trains.iter().filter(|train| views.track(train.route).is_some());
    let known = known.map(|train| (train.writer.0, train.route));
    for (number, route) in known.chain([(RIDDEN, ridden)]) {
        let found = forecasts(&views, &mut forecaster, WriterNumber::OWN, line, route);
        let found =
            found.into_iter().filter(|(cell, _)| number != RIDDEN || place_of(*cell) > found_at);
        all.extend(found.map(|(cell, one)| ((number, cell), one)));
    }
    all
}

/// The track on which a train finds itself at the beginning of the line, and where it does.
fn ridden(views: &Views, line: &Line) -> (RouteId, f64) {
    let mut pilot = Pilot::new(9, "train-0", views.own_tracks());
    pilot.offer(views.shared_tracks(pilot.room()));
    let (mut dice, begin) = (Dice::new(1), start());
    for second in 5..60 {
        let (now, metres) = (begin + seconds(f64::from(second)), SPEED * f64::from(second));
        pilot.observe(now, 0, &Observation::Fix(line.fix(&mut dice, now, metres, 5.0)));
        if let Some(train) = pilot.place(now).filter(|one| views.track(one.route).is_some()) {
            return (train.route, metres);
        }
    }
    panic!("on no known track");
}

/// The cells that three others support.
fn supported(honest: &[Written]) -> BTreeSet<u64> {
    let mut counts: BTreeMap<u64, BTreeMap<WriterNumber, (u32, u32)>> = BTreeMap::new();
    for (writer, _, entry) in honest {
        let Entry::Handover(handover, _) = entry else { continue };
        let cell = counts.entry(handover.from.0).or_default();
        let (all, failed) = cell.entry(*writer).or_default();
        *all += 1;
        *failed += u32::from(handover.outcome.is_failure());
    }
    let is_supported = |writers: &BTreeMap<WriterNumber, (u32, u32)>| {
        let all: u32 = writers.values().map(|(all, _)| all).sum();
        let failed: u32 = writers.values().map(|(_, failed)| failed).sum();
        writers.len() == 3 && writers.values().all(|(_, failed)| *failed >= 2) && 4 * failed >= all
    };
    counts.into_iter().filter(|(_, writers)| is_supported(writers)).map(|(cell, _)| cell).collect()
}

/// The node has been on it when it knew no other track, so it has pieces of its own.
#[test]
fn train_leaves_a_ridden_short_track_for_one_that_goes_on() {
    let line = line();
    let mut trains: Vec<Train> = (1..4).map(|one| Train::new(one, &line)).collect();
    let mut forger = Train::new(FORGER, &line);
    let mut piece = forger.track.pieces(forger.route).swap_remove(0);
    piece.points.retain(|point| point.position.metres() < 2_500.0);
    let (key, piece) = (trains[0].key(), Entry::Track(piece));
    let mut entries = vec![forger.write(piece.clone()), (WriterNumber::OWN, key, piece)];
    assert_eq!(ridden(&views(&entries), &line).0, forger.route, "it is a good one");
    entries.extend(trains.iter_mut().flat_map(Train::pieces));
    let found = ridden(&views(&entries), &line).0;
    assert!(trains.iter().any(|train| train.route == found));
}
