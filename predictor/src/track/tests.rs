//! Tracks learned from simulated trips.

use proptest::prelude::*;

use polyrail_model::codec::FieldError;

use super::*;
use crate::simulated::{Dice, Line, seconds, start};

impl Track {
    /// Encodes the track, as version 1 did.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![1];
        out.extend_from_slice(&(self.points.len() as u32).to_be_bytes());
        for point in &self.points {
            let (latitude, longitude) = point.place.units();
            for number in [latitude, longitude, point.mark.decimetres] {
                out.extend_from_slice(&number.to_be_bytes());
            }
            out.push(point.weight);
        }
        out
    }
}

/// Learns a line at 60 m/s from fixes with 8 m of error.
fn learn(mut learner: TrackLearner, line: &Line, seed: u64, from: f64, to: f64) -> TrackLearner {
    let mut dice = Dice::new(seed);
    let begin = start();
    let mut metres = learner.find(line.place(from), everywhere()).map_or(0.0, |one| one.metres);
    let steps = ((to - from).abs() / 60.0) as usize;
    for step in 0..steps {
        let true_metres = from + (to - from).signum() * 60.0 * step as f64;
        let fix = line.fix(&mut dice, begin, true_metres, 8.0);
        let place = LatLon::from_degrees(fix.latitude, fix.longitude).unwrap();
        let found = learner.find(place, Hint { metres, reach: 500.0 }).unwrap();
        metres = found.metres;
        learner.learn(begin + seconds(step as f64), place, 8.0, &found);
    }
    learner
}

fn everywhere() -> Hint {
    Hint { metres: 0.0, reach: 2e6 }
}

fn line(seed: u64, metres: f64) -> Line {
    Line::new(seed, LatLon::from_degrees(50.0, 8.0).unwrap(), 60.0, metres)
}

fn learned(line: &Line, seed: u64) -> Track {
    let learner = TrackLearner::begin_at(line.place(0.0));
    learn(learner, line, seed, 0.0, line.length()).settled()
}

/// The largest distance of the line from the track, and of positions from scaled ones of the line.
fn misses(track: &Track, line: &Line, from: f64, to: f64) -> (f64, f64) {
    let (mut beside, mut places) = (0.0_f64, Vec::new());
    let mut metres = from + 500.0;
    while metres < to - 500.0 {
        let found = track.nearest(line.place(metres), None).unwrap();
        beside = beside.max(found.off_track);
        places.push((metres, found.metres));
        metres += 37.0;
    }
    let (first, last) = (places[0], places[places.len() - 1]);
    let scale = (last.1 - first.1) / (last.0 - first.0);
    assert!((scale.abs() - 1.0).abs() < 0.005, "scale {scale}");
    let along = places.iter().map(|(x, y)| (first.1 + (x - first.0) * scale - y).abs());
    (beside, along.fold(0.0, f64::max))
}

#[test]
fn first_trip_learns_the_line() {
    for seed in 0..20 {
        let line = line(seed, 60_000.0);
        let track = learned(&line, seed + 100);
        let (beside, along) = misses(&track, &line, 0.0, line.length());
        assert!(beside < 30.0 && along < 60.0, "seed {seed}: {beside:.1} {along:.1}");
        assert!(track.points() < 250, "seed {seed}: {} points", track.points());
    }
}

#[test]
fn later_trips_refine_a_track_and_positions_stay() {
    let (mut before, mut after) = (0.0, 0.0);
    for seed in 0..10 {
        let line = line(seed, 40_000.0);
        let first = learned(&line, seed + 100);
        let mut track = first.clone();
        for trip in 0..8 {
            let ends = if trip % 2 == 0 { (0.0, 39_000.0) } else { (39_000.0, 0.0) };
            let learner = TrackLearner::resume(track);
            track = learn(learner, &line, seed * 50 + trip, ends.0, ends.1).settled();
        }
        before += misses(&first, &line, 0.0, 39_000.0).0;
        after += misses(&track, &line, 0.0, 39_000.0).0;
        for metres in (1_000..38_000).step_by(500) {
            let place = line.place(f64::from(metres));
            let moved = |track: &Track| track.nearest(place, None).unwrap().metres;
            let by = (moved(&track) - moved(&first)).abs();
            assert!(by < 15.0, "seed {seed}: {metres} moved by {by:.1}");
        }
    }
    assert!(after < before, "{after:.1} {before:.1}");
}

#[test]
fn track_grows_at_both_ends() {
    let line = line(3, 60_000.0);
    let begun = TrackLearner::begin_at(line.place(20_000.0));
    let track = learn(begun, &line, 1, 20_000.0, 40_000.0).settled();
    let at = |track: &Track, metres: f64| track.nearest(line.place(metres), None).unwrap().metres;
    let middle = at(&track, 30_000.0);
    let track = learn(TrackLearner::resume(track), &line, 2, 30_000.0, 1_000.0).settled();
    assert!((track.ends().0 + 19_000.0).abs() < 200.0, "{:?}", track.ends());
    let track = learn(TrackLearner::resume(track), &line, 3, 30_000.0, 59_000.0).settled();
    assert!((track.ends().1 - 39_000.0).abs() < 300.0, "{:?}", track.ends());
    assert!((at(&track, 30_000.0) - middle).abs() < 10.0);
    assert!((at(&track, 50_000.0) - at(&track, 10_000.0) - 40_000.0).abs() < 150.0);
    let (beside, along) = misses(&track, &line, 2_000.0, 58_000.0);
    assert!(beside < 30.0 && along < 80.0, "{beside} {along}");
}

#[test]
fn hint_chooses_between_equally_near_places() {
    // A square of 2 km that returns to its beginning, and beyond.
    let corner = LatLon::from_degrees(50.0, 8.0).unwrap();
    let way = |east: f64, north: f64| Vector { east, north };
    let mut track = Track::begun(corner);
    let mut place = corner;
    let ways = [way(2e3, 0.0), way(0.0, 2e3), way(-2e3, 0.0), way(0.0, -2e3), way(2e3, 0.0)];
    for (way, at) in ways.into_iter().zip(1..) {
        place = place.moved(way);
        let mark = Position::from_metres(2_000.0 * f64::from(at));
        track.points.push(Point { place, mark, weight: 1 });
    }
    let middle = corner.moved(way(1e3, 5.0));
    for (metres, expected) in [(900.0, 1_000.0), (9_300.0, 9_000.0)] {
        let found = track.nearest(middle, Some(Hint { metres, reach: 500.0 })).unwrap();
        assert!((found.metres - expected).abs() < 1.0 && (found.off_track - 5.0).abs() < 0.1);
    }
    assert_eq!(track.nearest(middle, Some(Hint { metres: 20_000.0, reach: 500.0 })), None);
    assert_eq!(track.nearest(middle, Some(Hint { metres: f64::NAN, reach: 500.0 })), None);
}

#[test]
fn track_is_at_most_two_thousand_kilometres_long() {
    let line = Line::new(7, LatLon::from_degrees(45.0, 179.0).unwrap(), 80.0, 2_100_000.0);
    let mut learner = TrackLearner::begin_at(line.place(0.0));
    let (mut metres, begin) = (0.0, start());
    for step in 0..35_000 {
        let place = line.place(60.0 * f64::from(step));
        let Some(found) = learner.find(place, Hint { metres, reach: 500.0 }) else { break };
        metres = found.metres;
        learner.learn(begin + seconds(f64::from(step)), place, 8.0, &found);
    }
    assert!((1_999_000.0..=LENGTH_MAX).contains(&learner.track().length()));
    let raw = learner.track().points();
    let track = learner.settled();
    println!("{raw} points, {} simplified, {} bytes", track.points(), track.encode().len());
    assert!(track.points() < 8_000);
    assert_eq!(Track::decode(&track.encode()), Ok(track));
}

#[test]
fn golden_bytes_match() {
    let place = LatLon::from_units(500_000_000, -80_000_000).unwrap();
    let mut track = Track::begun(place);
    let mark = Position { decimetres: 1_000 };
    let next = LatLon::from_units(500_009_000, -80_000_000).unwrap();
    track.points.push(Point { place: next, mark, weight: 2 });
    let golden = ["01 00000002", "1dcd6500 fb3b4c00 00000000 01", "1dcd8828 fb3b4c00 000003e8 02"];
    let golden: String = golden.concat().split(' ').collect();
    let bytes = track.encode();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden);
    assert_eq!(Track::decode(&bytes), Ok(track));
    for length in 0..bytes.len() {
        assert!(Track::decode(&bytes[..length]).is_err(), "{length}");
    }
    assert_eq!(Track::decode(&[&bytes[..], &[0]].concat()), Err(FieldError::Invalid("length")));
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        Track::decode(&bytes)
    };
    for (at, byte, field) in [
        (0, 2, "version"),
        (1, 0xff, "number of points"),
        (4, 0, "number of points"),
        (5, 0x7f, "point"),
        (17, 0, "point"),
        (17, 17, "point"),
        (18, 0x10, "order of points"),
        (26, 0xff, "order of points"),
        (26, 0x7f, "length"),
    ] {
        assert_eq!(with(at, byte), Err(FieldError::Invalid(field)), "{at} {byte}");
    }
}

proptest! {
    #[test]
    fn fuzz_changed_byte_never_panics(at in 0_usize..1_000, byte in any::<u8>()) {
        let line = line(1, 10_000.0);
        let mut bytes = learned(&line, 1).encode();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(track) = Track::decode(&bytes) {
            prop_assert_eq!(track.encode(), bytes);
            let _ = track.project(50.0, 8.01, None);
        }
    }
}
