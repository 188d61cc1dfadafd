//! Positions on simulated trips, with bounds over many seeds.

#![allow(clippy::disallowed_methods)] // Only differences between instants count.

use super::*;
use crate::simulated::{Dice, Line, fix, seconds, start};
use crate::track::Vector;

const ROUTE: RouteId = RouteId(7);

/// A train that accelerates, cruises and stops at a station every 20 km, with its receiver.
struct Train {
    line: Line,
    dice: Dice,
    begin: Instant,
    time: f64,
    metres: f64,
    speed: f64,
    sign: f64,
    waits: f64,
}

impl Train {
    fn new(seed: u64, metres: f64) -> Self {
        let line = Line::new(seed, LatLon::from_degrees(50.0, 8.0).unwrap(), 60.0, 100_000.0);
        let dice = Dice::new(seed + 1_000);
        let begin = start();
        Self { line, dice, begin, time: 0.0, metres, speed: 0.0, sign: 1.0, waits: 0.0 }
    }

    fn now(&self) -> Instant {
        self.begin + seconds(self.time)
    }

    /// Advances by a second.
    fn step(&mut self) {
        self.time += 1.0;
        self.waits -= 1.0;
        let position = self.metres * self.sign;
        let station = (position / 20_000.0).floor() * 20_000.0 + 20_000.0;
        let brakes = self.speed * self.speed / (2.0 * 0.5) + 2.0 * self.speed;
        if self.waits > 0.0 {
            self.speed = 0.0;
        } else if station - position <= brakes {
            self.speed = (self.speed - 0.5).max(0.0);
            self.waits = if self.speed == 0.0 { 60.0 } else { 0.0 };
        } else {
            self.speed = (self.speed + 0.5).min(83.0);
        }
        self.metres += self.sign * self.speed;
        if self.waits == 60.0 {
            // Just past the station, so that the next one counts.
            self.metres += self.sign * (station - position + 1.0);
        }
    }

    fn fix(&mut self, with_speed: bool) -> Fix {
        let at = self.now();
        let mut fix = self.line.fix(&mut self.dice, at, self.metres, 8.0);
        if with_speed {
            fix.speed = Some((self.speed + 0.3 * self.dice.normal()).max(0.0));
            let back = if self.sign < 0.0 { 180.0 } else { 0.0 };
            fix.heading = Some(self.line.bearing(self.metres) + back);
        }
        fix
    }

    /// A fix with a speed, a heading, both or none of them.
    fn some_fix(&mut self, kind: u64) -> Fix {
        let fix = self.fix(!kind.is_multiple_of(4));
        let heading = fix.heading.filter(|_| kind % 4 != 1);
        let speed = fix.speed.filter(|_| kind % 4 != 2);
        Fix { heading, speed, ..fix }
    }

    fn truth(&self, track: &Track) -> f64 {
        track.nearest(self.line.place(self.metres), None).unwrap().metres
    }
}

/// The track of earlier trips.
fn known(line: &Line) -> Track {
    let mut learner = TrackLearner::begin_at(line.place(0.0));
    let (mut metres, begin) = (0.0, start());
    for step in 0..(line.length() / 50.0) as usize {
        let place = line.place(50.0 * step as f64);
        let found = learner.find(place, Hint { metres, reach: 500.0 }).unwrap();
        metres = found.metres;
        learner.learn(begin + seconds(step as f64), place, 8.0, &found);
    }
    learner.settled()
}

fn fresh() -> impl FnMut() -> RouteId {
    let mut dice = Dice::new(77);
    move || dice.route()
}

#[derive(Default)]
struct Misses {
    squares: f64,
    most: f64,
    deviations: f64,
    count: f64,
    missing: usize,
}

impl Misses {
    fn add(&mut self, place: Option<TrainPosition>, truth: f64) {
        let Some(place) = place else {
            self.missing += 1;
            return;
        };
        let miss = (place.metres - truth).abs();
        self.squares += miss * miss;
        self.most = self.most.max(miss);
        self.deviations = self.deviations.max(miss / place.error);
        self.count += 1.0;
    }

    fn mean(&self) -> f64 {
        (self.squares / self.count.max(1.0)).sqrt()
    }
}

#[test]
fn positions_are_more_exact_than_the_receiver() {
    for with_speed in [false, true] {
        let mut all = Misses::default();
        for seed in 0..12 {
            let mut train = Train::new(seed, 5_000.0);
            let track = known(&train.line);
            let mut positioner = Positioner::new([(ROUTE, track.clone())]);
            for second in 0..900 {
                train.step();
                let fix = train.fix(with_speed);
                positioner.observe_fix(train.now(), &fix, &mut fresh());
                if second < 60 {
                    continue;
                }
                let place = positioner.place(train.now());
                all.add(place, train.truth(&track));
                let place = place.unwrap();
                assert_eq!((place.route, place.direction), (ROUTE, Direction::Up), "seed {seed}");
                let wrong = (place.speed - train.speed).abs();
                assert!(wrong < 12.0, "seed {seed}: {} {}", place.speed, train.speed);
            }
        }
        let (mean, most, deviations) = (all.mean(), all.most, all.deviations);
        println!("speed {with_speed}: mean {mean:.1} m, most {most:.1} m, {deviations:.1} sigma");
        assert_eq!(all.missing, 0);
        assert!(mean < 7.0 && most < 35.0 && deviations < 5.0);
        assert!(!with_speed || mean < 5.0);
    }
}

#[test]
fn tunnels_are_bridged_with_a_growing_error() {
    let mut ends = Misses::default();
    for seed in 0..40 {
        let mut train = Train::new(seed, 2_000.0);
        let track = known(&train.line);
        let mut positioner = Positioner::new([(ROUTE, track.clone())]);
        for _ in 0..190 {
            train.step();
            let fix = train.fix(seed % 2 == 0);
            positioner.observe_fix(train.now(), &fix, &mut fresh());
        }
        let before = positioner.place(train.now()).unwrap();
        for _ in 0..30 {
            train.step();
        }
        let place = positioner.place(train.now()).unwrap();
        assert!(place.error > before.error + 20.0, "seed {seed}");
        ends.add(Some(place), train.truth(&track));
        for second in 31..62 {
            train.step();
            let place = positioner.place(train.now());
            assert_eq!(place.is_some(), second <= 60, "seed {seed} second {second}");
        }
        for _ in 0..60 {
            train.step();
        }
        for _ in 0..5 {
            train.step();
            let fix = train.fix(false);
            positioner.observe_fix(train.now(), &fix, &mut fresh());
        }
        let place = positioner.place(train.now()).unwrap();
        assert_eq!((place.route, place.direction), (ROUTE, Direction::Up), "seed {seed}");
        let miss = (place.metres - train.truth(&track)).abs();
        assert!(miss < 40.0, "seed {seed}: {miss:.1} m after two minutes");
    }
    let (mean, most, deviations) = (ends.mean(), ends.most, ends.deviations);
    println!("after 30 s: mean {mean:.0} m, most {most:.0} m, {deviations:.1} sigma");
    assert!(mean < 90.0 && most < 250.0 && deviations < 4.0);
}

#[test]
fn jumps_are_rejected_and_lasting_ones_accepted() {
    for seed in 0..20 {
        let mut train = Train::new(seed, 2_000.0);
        let track = known(&train.line);
        let mut positioner = Positioner::new([(ROUTE, track.clone())]);
        for second in 0..300 {
            train.step();
            let mut fix = train.fix(true);
            // Up to three in a row are far off, with invalid fixes between.
            if second > 60 && second % 20 < 3 {
                let away = train.line.place(train.metres + 700.0);
                fix = crate::simulated::fix(train.now(), away, 8.0);
            }
            positioner.observe_fix(train.now(), &fix, &mut fresh());
            for nonsense in nonsense(&fix) {
                positioner.observe_fix(train.now(), &nonsense, &mut fresh());
            }
            if second > 60 {
                let miss = positioner.place(train.now()).unwrap().metres - train.truth(&track);
                assert!(miss.abs() < 45.0, "seed {seed} second {second}: {miss:.1}");
            }
        }
        // The train is elsewhere.
        train.metres += 20_000.0;
        for _ in 0..10 {
            train.step();
            let fix = train.fix(true);
            positioner.observe_fix(train.now(), &fix, &mut fresh());
        }
        let place = positioner.place(train.now()).unwrap();
        assert_eq!(place.route, ROUTE, "seed {seed}");
        let miss = place.metres - train.truth(&track);
        assert!(miss.abs() < 60.0, "seed {seed}: {miss:.1}");
    }
}

fn nonsense(fix: &Fix) -> [Fix; 7] {
    let earlier = |back: u64| fix.at.checked_sub(Duration::from_secs(back)).unwrap_or(fix.at);
    [
        Fix { latitude: f64::NAN, ..*fix },
        Fix { longitude: f64::INFINITY, ..*fix },
        Fix { latitude: 0.0, longitude: 0.0, ..*fix },
        Fix { error: Some(5_000.0), latitude: fix.latitude + 0.02, ..*fix },
        // Late by seconds, and after a clock step.
        Fix { at: earlier(3), time_ms: Some(0), ..*fix },
        Fix { time_ms: Some(u64::MAX), speed: Some(f64::NAN), heading: Some(1e300), ..*fix },
        Fix { speed: Some(-7.0), error: Some(f64::NAN), ..*fix },
    ]
}

#[test]
fn two_receivers_are_smoothed() {
    // At both ends of a coach and of a train, alternately late.
    for (apart, mean, most) in [(25.0, 15.0, 50.0), (200.0, 120.0, 160.0)] {
        let mut all = Misses::default();
        for seed in 0..12 {
            let mut train = Train::new(seed, 2_000.0);
            let track = known(&train.line);
            let mut positioner = Positioner::new([(ROUTE, track.clone())]);
            for second in 0..400 {
                train.step();
                for (antenna, late) in [(apart / 2.0, 0.3), (-apart / 2.0, 0.0)] {
                    let metres = train.metres + antenna - train.speed * late;
                    let at = train.now() - seconds(late);
                    let fix = train.line.fix(&mut train.dice, at, metres, 12.0);
                    positioner.observe_fix(train.now(), &fix, &mut fresh());
                }
                if second > 60 {
                    let place = positioner.place(train.now());
                    all.add(place, train.truth(&track));
                    assert_eq!(place.map(|place| place.route), Some(ROUTE), "seed {seed}");
                }
            }
        }
        println!("{apart} m apart: mean {:.1} m, most {:.1} m", all.mean(), all.most);
        assert!(all.mean() < mean && all.most < most);
    }
}

#[test]
fn train_turns_at_its_terminus_and_not_when_it_stands_or_shunts() {
    for seed in 0..20 {
        let mut train = Train::new(seed, 2_000.0);
        let track = known(&train.line);
        let mut positioner = Positioner::new([(ROUTE, track.clone())]);
        let mut run = |train: &mut Train, direction: Direction| {
            let fix = train.some_fix(seed);
            positioner.observe_fix(train.now(), &fix, &mut fresh());
            let place = positioner.place(train.now());
            if let Some(place) = place {
                assert_eq!(place.direction, direction, "seed {seed} at {}", train.metres);
            }
            place
        };
        while train.metres < 20_000.0 {
            train.step();
            run(&mut train, Direction::Up);
        }
        // It stands for 20 minutes and is shunted by 60 m.
        for second in 0..1_200 {
            train.time += 1.0;
            train.speed = 0.0;
            let shunted = matches!(second, 300..600);
            train.metres = if shunted { 19_940.0 } else { 20_001.0 };
            run(&mut train, Direction::Up);
        }
        (train.sign, train.waits) = (-1.0, 0.0);
        for _ in 0..15 {
            train.step();
        }
        let (mut turned_at, mut forward, mut back) = (None, 0, None);
        for _ in 0..200 {
            train.step();
            let fix = train.some_fix(seed);
            positioner.observe_fix(train.now(), &fix, &mut fresh());
            match positioner.place(train.now()) {
                Some(place) if place.direction == Direction::Down => {
                    turned_at = turned_at.or(Some(20_001.0 - train.metres));
                }
                // Below 2 m/s it counts as standing.
                Some(_) => forward += u32::from(train.speed > 2.0),
                None => back = Some(train.now()),
            }
        }
        let turned_at = turned_at.unwrap();
        assert!((60.0..300.0).contains(&turned_at), "seed {seed}: {turned_at:.0} m");
        // Seconds above 2 m/s with the old direction, until the filter has followed.
        assert!(forward <= 8, "seed {seed}: {forward}");
        if let Some(back) = back {
            assert_eq!(positioner.place_at(back), None, "seed {seed}: no position while reversing");
        }
        let miss = positioner.place(train.now()).unwrap().metres - train.truth(&track);
        assert!(miss.abs() < 35.0, "seed {seed}: {miss:.1}");
    }
}

#[test]
fn first_trip_has_the_positions_of_later_ones() {
    let mut all = Misses::default();
    for seed in 0..12 {
        let mut first = Train::new(seed, 1_000.0);
        let mut positioner = Positioner::new([]);
        let mut marks = Vec::new();
        for _ in 0..700 {
            first.step();
            let fix = first.fix(true);
            positioner.observe_fix(first.now(), &fix, &mut fresh());
            if let Some(place) = positioner.place(first.now()) {
                marks.push((first.metres, place.metres));
            }
        }
        let tracks = positioner.settle();
        assert_eq!(tracks.len(), 1, "seed {seed}");
        assert!(positioner.learned().is_none() && positioner.settle().is_empty());
        let (route, track) = tracks[0].clone();
        for (metres, mark) in &marks {
            let found = track.nearest(first.line.place(*metres), None).unwrap();
            let miss = found.metres - mark;
            assert!(miss.abs() < 45.0, "seed {seed}: {miss:.1} at {metres:.0}");
        }
        let mut second = Train::new(seed, 3_000.0);
        second.dice = Dice::new(seed + 5_000);
        let mut positioner = Positioner::new([(route, track.clone())]);
        for _ in 0..600 {
            second.step();
            let fix = second.fix(true);
            positioner.observe_fix(second.now(), &fix, &mut fresh());
            let Some(place) = positioner.place(second.now()) else { continue };
            assert_eq!(place.route, route, "seed {seed}");
            // Compared with the first trip at the same place.
            let after = marks.partition_point(|(metres, _)| *metres < second.metres);
            let [before, after] = [marks[after - 1], marks[after.min(marks.len() - 1)]];
            let way = (after.0 - before.0).max(1e-9);
            let share = ((second.metres - before.0) / way).clamp(0.0, 1.0);
            all.add(Some(place), before.1 + share * (after.1 - before.1));
        }
    }
    println!("between two trips: mean {:.1} m, most {:.1} m", all.mean(), all.most);
    assert!(all.mean() < 15.0 && all.most < 70.0);
}

#[test]
fn branch_becomes_a_track_and_is_recognised() {
    for seed in 0..10 {
        let main = Train::new(seed, 0.0).line;
        let branch = main.branch(30_000.0, 40.0, 25_000.0);
        let track = known(&main);
        let apart = |metres: f64| track.nearest(branch.place(metres), None).unwrap().off_track;
        if (34..55).any(|kilometre| apart(f64::from(kilometre) * 1_000.0) < 400.0) {
            continue; // The lines meet again.
        }
        let mut tracks = vec![(ROUTE, track.clone())];
        let mut routes = Vec::new();
        for trip in 0..2 {
            let mut positioner = Positioner::new(tracks.clone());
            let mut dice = Dice::new(seed * 10 + trip);
            let (begin, mut draw) = (start(), fresh());
            let mut seen = Vec::new();
            for second in 0..560 {
                let at = begin + seconds(f64::from(second));
                let metres = 10_000.0 + 80.0 * f64::from(second);
                let fix = branch.fix(&mut dice, at, metres, 8.0);
                positioner.observe_fix(at, &fix, &mut draw);
                let Some(place) = positioner.place(at) else { continue };
                if seen.last() != Some(&place.route) {
                    seen.push(place.route);
                }
            }
            assert_eq!(seen.len(), 2, "seed {seed} trip {trip}: {seen:?}");
            assert_eq!(seen[0], ROUTE);
            routes.push(seen[1]);
            for (route, track) in positioner.settle() {
                tracks.retain(|(known, _)| *known != route);
                tracks.push((route, track));
            }
        }
        assert_eq!(routes[0], routes[1], "seed {seed}");
        assert_eq!(tracks.len(), 2);
    }
}

#[test]
fn new_track_ends_where_a_known_one_begins() {
    for seed in 0..10 {
        let line = Train::new(seed, 0.0).line;
        let mut learner = TrackLearner::begin_at(line.place(30_000.0));
        let (mut metres, begin) = (0.0, start());
        for step in 0..800 {
            let place = line.place(30_000.0 + 50.0 * f64::from(step));
            let found = learner.find(place, Hint { metres, reach: 500.0 }).unwrap();
            metres = found.metres;
            learner.learn(begin + seconds(f64::from(step)), place, 8.0, &found);
        }
        let mut positioner = Positioner::new([(ROUTE, learner.settled())]);
        let mut dice = Dice::new(seed);
        let mut last = None;
        for second in 0..500 {
            let at = begin + seconds(f64::from(second));
            let metres = 10_000.0 + 80.0 * f64::from(second);
            let fix = line.fix(&mut dice, at, metres, 8.0);
            positioner.observe_fix(at, &fix, &mut fresh());
            last = positioner.place(at).or(last);
            if let Some(place) = last.filter(|_| !(30_000.0..32_500.0).contains(&metres)) {
                assert_eq!(place.route == ROUTE, metres > 31_000.0, "seed {seed} {metres}");
            }
        }
        let place = last.unwrap();
        let truth = 10_000.0 + 80.0 * 499.0 - 30_000.0;
        assert!((place.metres - truth).abs() < 100.0, "seed {seed}: {}", place.metres);
    }
}

/// Each trip begins before a known track; the line must not become two tracks.
#[test]
fn track_does_not_grow_along_a_known_one() {
    for (seed, before) in [(0, 400.0), (1, 700.0), (2, 3_000.0), (3, 3_000.0), (4, 6_000.0)] {
        let line = Train::new(seed, 0.0).line;
        let mut positioner = Positioner::new([]);
        let (begin, mut draw) = (start(), fresh());
        let mut dice = Dice::new(seed);
        let mut pass = |positioner: &mut Positioner, from: f64, to: f64| {
            let mut routes = Vec::new();
            for second in 0..((to - from).abs() / 80.0) as u32 {
                let at = begin + seconds(f64::from(second));
                let metres = from + (to - from).signum() * 80.0 * f64::from(second);
                let fix = line.fix(&mut dice, at, metres, 8.0);
                positioner.observe_fix(at, &fix, &mut draw);
                routes.extend(positioner.place(at).map(|place| (metres, place.route)));
            }
            routes
        };
        pass(&mut positioner, 50_000.0, 10_000.0);
        let mut tracks = positioner.settle();
        let [(known, _)] = tracks[..] else { panic!("{}", tracks.len()) };
        for trip in 0..8 {
            positioner = Positioner::new(tracks.clone());
            let routes = pass(&mut positioner, 10_000.0 - before, 45_000.0);
            let other = routes.iter().filter(|(_, route)| *route != known).map(|one| one.0);
            let last = other.fold(0.0, f64::max);
            assert!(last < 12_500.0, "seed {seed} trip {trip}: at {last} not on the known one");
            for (route, track) in positioner.settle() {
                tracks.retain(|(known, _)| *known != route);
                tracks.push((route, track));
            }
            assert!(tracks.len() <= 2, "seed {seed} trip {trip}: {} tracks", tracks.len());
            let twice = |track: &Track| track.length() - before;
            let own = tracks.iter().filter(|(route, _)| *route != known);
            for (_, track) in own {
                assert!(twice(track) < 300.0, "seed {seed} trip {trip}: {}", track.length());
            }
        }
    }
}

#[test]
fn odometer_determines_the_position() {
    for seed in 0..20 {
        let (mut dice, begin) = (Dice::new(seed), start());
        let mut positioner = Positioner::new([]);
        let mut all = Misses::default();
        for second in 0..300 {
            let at = begin + seconds(f64::from(second));
            let truth = 50_000.0 - 83.0 * f64::from(second);
            let metres = truth + 8.0 * dice.normal();
            let odometer = Odometer { at, route: ROUTE, metres, velocity: -83.0, error: 8.0 };
            positioner.observe_odometer(at, &odometer);
            for (metres, velocity, error) in [
                (f64::NAN, 1.0, 1.0),
                (1.0, f64::NAN, 1.0),
                (1.0, 1.0, f64::NAN),
                (1e12, 1.0, 1.0),
                (truth, 5_000.0, 1.0),
                (truth + 900.0, -83.0, 5.0),
            ] {
                let bad = Odometer { metres, velocity, error, ..odometer };
                positioner.observe_odometer(at, &bad);
            }
            // Fixes are ignored.
            let elsewhere = LatLon::from_degrees(10.0, 10.0).unwrap().moved(Vector::default());
            positioner.observe_fix(at, &fix(at, elsewhere, 5.0), &mut fresh());
            if second > 10 {
                all.add(positioner.place(at), truth);
            }
        }
        let place = positioner.place(begin + seconds(299.0)).unwrap();
        assert_eq!((place.route, place.direction), (ROUTE, Direction::Down));
        assert!(all.missing == 0 && all.mean() < 6.0 && all.most < 20.0, "seed {seed}");
        let then = positioner.place_at(begin + seconds(250.5)).unwrap();
        assert!((then.metres - (50_000.0 - 83.0 * 250.5)).abs() < 20.0, "seed {seed}");
        assert_eq!(positioner.place_at(begin + seconds(400.0)), None);
    }
}

/// With all places taken, resuming the oldest track must not evict it.
#[test]
fn track_used_longest_ago_is_dropped() {
    let far = known(&Line::new(1, LatLon::from_degrees(50.0, 8.0).unwrap(), 60.0, 5_000.0));
    let tracks = (0..TRACKS_MAX as u64).map(|route| (RouteId(route), far.clone()));
    let mut positioner = Positioner::new(tracks);
    let line = Line::new(2, LatLon::from_degrees(40.0, 8.0).unwrap(), 60.0, 9_000.0);
    let (mut dice, begin) = (Dice::new(3), start());
    for second in 0..100 {
        let (time, metres) = (f64::from(second), 80.0 * f64::from(second));
        let fix = line.fix(&mut dice, begin + seconds(time), metres, 4.0);
        positioner.observe_fix(begin + seconds(time), &fix, &mut fresh());
    }
    let begun = positioner.place(begin + seconds(99.0)).unwrap().route;
    assert!(begun.0 >= TRACKS_MAX as u64);
    let mut shown = |time: f64, route: RouteId| {
        let at = begin + seconds(time);
        let odometer = Odometer { at, route, metres: 1_000.0, velocity: 30.0, error: 5.0 };
        positioner.observe_odometer(at, &odometer);
        positioner.following.as_ref().unwrap().learner.is_some()
    };
    assert!(shown(100.0, RouteId(0)), "the oldest is still known");
    assert!(shown(101.0, RouteId(1)) && shown(102.0, begun));
    assert!(shown(103.0, RouteId(0)), "the last used is known");
}

#[test]
fn memory_is_bounded() {
    let line = Line::new(1, LatLon::from_degrees(50.0, 8.0).unwrap(), 60.0, 5_000.0);
    let track = known(&line);
    let tracks = (0..2 * TRACKS_MAX as u64).map(|route| (RouteId(route), track.clone()));
    let mut positioner = Positioner::new(tracks);
    assert_eq!(positioner.tracks.len(), TRACKS_MAX);
    // A receiver that reports another town with each reading, for hours.
    let mut dice = Dice::new(1);
    let begin = start();
    for second in 0..10_000 {
        let at = begin + seconds(f64::from(second));
        let place = LatLon::from_degrees(dice.between(-80.0, 80.0), dice.between(-180.0, 180.0));
        positioner.observe_fix(at, &fix(at, place.unwrap(), 5.0), &mut fresh());
        assert_eq!(positioner.place(at), None);
    }
    assert!(positioner.course.readings().len() <= 16 && positioner.settle().is_empty());
}

/// Random readings in any order: no panic, and positions are plausible.
#[test]
fn fuzz_any_readings() {
    for seed in 0..60 {
        let mut train = Train::new(seed, 10_000.0);
        let mut dice = Dice::new(seed + 9);
        let mut positioner = Positioner::new([(ROUTE, known(&train.line))]);
        let mut draw = fresh();
        for _ in 0..1_500 {
            let pause = if dice.share() < 0.01 { dice.between(0.0, 3_000.0) } else { 0.0 };
            train.time += pause;
            train.step();
            train.sign = if dice.share() < 0.003 { -train.sign } else { train.sign };
            train.metres = if dice.share() < 0.003 { dice.between(0.0, 1e5) } else { train.metres };
            train.metres = train.metres.clamp(0.0, 1e5);
            let mut fix = train.some_fix(seed);
            fix.at += seconds(if dice.share() < 0.1 { 50.0 } else { 0.0 });
            fix.latitude += if dice.share() < 0.1 { dice.between(-0.1, 0.1) } else { 0.0 };
            fix.speed =
                if dice.share() < 0.1 { Some(dice.between(-9.0, 300.0)) } else { fix.speed };
            fix.error =
                if dice.share() < 0.1 { Some(dice.between(-9.0, 400.0)) } else { fix.error };
            positioner.observe_fix(train.now(), &fix, &mut draw);
            if dice.share() < 0.02 {
                let route = RouteId((dice.share() * 3.0) as u64 + 6);
                let (metres, velocity) = (dice.between(-1e8, 1e8), dice.between(-200.0, 200.0));
                let odometer = Odometer { at: fix.at, route, metres, velocity, error: 9.0 };
                positioner.observe_odometer(train.now(), &odometer);
            }
            if dice.share() < 0.01 {
                for (_, track) in positioner.settle() {
                    assert_eq!(Track::decode(&track.encode()), Ok(track), "seed {seed}");
                }
            }
            let Some(place) = positioner.place(train.now()) else { continue };
            assert!(
                place.metres.abs() < 1.1e7 && place.at <= train.now(),
                "seed {seed}: {place:?}"
            );
            assert!((0.0..=ERROR_MAX).contains(&place.error), "seed {seed}: {place:?}");
            assert!((0.0..400.0).contains(&place.speed), "seed {seed}: {place:?}");
        }
    }
}
