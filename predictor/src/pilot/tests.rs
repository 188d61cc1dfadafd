//! Whole simulated trips with several carriers.

use std::collections::BTreeMap;

use polyrail_model::{CellId, Fix, HandoverOutcome, Heard, Reported, Rsrp, Serving, Silence};

use super::*;
use crate::simulated::{Dice, Line, seconds, start};
use crate::track::LatLon;

const CARRIERS: [&str; 3] = ["a", "b", "c"];
const WALL: u64 = 1_700_000_000_000;

/// A true handover, on a line at 83 m/s.
#[derive(Clone, Copy, Debug)]
struct Truth {
    carrier: usize,
    /// Seconds since the trip began.
    at: f64,
    metres: f64,
    from: u64,
    outcome: HandoverOutcome,
    dark: f64,
    /// The modem reports the outcome.
    said: bool,
}

struct World {
    line: Line,
    /// Cells of each carrier end here, in metres.
    borders: Vec<Vec<f64>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let line = Line::new(seed, LatLon::from_degrees(50.0, 8.0).unwrap(), 60.0, 60_000.0);
        let mut dice = Dice::new(seed);
        let borders = CARRIERS.iter().map(|_| {
            let mut at = dice.between(1_500.0, 3_000.0);
            let mut borders = Vec::new();
            while at < 58_000.0 {
                borders.push(at);
                at += dice.between(900.0, 3_000.0);
            }
            borders
        });
        Self { borders: borders.collect(), line }
    }

    /// The handovers of a trip, up or down the line, from `from` on, in their order.
    fn handovers(&self, seed: u64, from: f64, to: f64) -> Vec<Truth> {
        let mut dice = Dice::new(seed);
        let sign = (to - from).signum();
        let mut all = Vec::new();
        for (carrier, borders) in self.borders.iter().enumerate() {
            let mut free = 0.0;
            let count = borders.len();
            for place in 0..count {
                let index = if sign > 0.0 { place } else { count - 1 - place };
                let metres = borders[index] + dice.between(-80.0, 80.0);
                let at = (metres - from) * sign / SPEED;
                let ahead = (to - metres) * sign;
                if at < 15.0 || ahead < 2_000.0 {
                    continue;
                }
                let fails = dice.share() < 0.15 && at > free;
                let (held, said) = (dice.share() < 0.5, carrier == 2);
                let (outcome, dark) = match (fails, held) {
                    (false, _) => (HandoverOutcome::Success, dice.between(0.02, 0.1)),
                    (true, true) => (HandoverOutcome::TypeII, dice.between(0.4, 3.0)),
                    (true, false) => (HandoverOutcome::TypeIII, dice.between(0.4, 7.0)),
                };
                free = at + dark + 3.0;
                let from = if sign > 0.0 { index } else { index + 1 } as u64;
                all.push(Truth { carrier, at, metres, from, outcome, dark, said });
            }
        }
        all.sort_by(|one, other| one.at.total_cmp(&other.at));
        // A handover that begins during the outage of another cannot be distinguished from it.
        let hidden = |one: &Truth, all: &[Truth]| {
            all.iter().any(|other| {
                other.carrier == one.carrier
                    && other.at < one.at
                    && one.at < other.at + other.dark + 1.5
                    && other.outcome.is_failure()
            })
        };
        let seen: Vec<Truth> = all.iter().filter(|one| !hidden(one, &all)).copied().collect();
        seen
    }
}

/// The outputs of a trip.
#[derive(Default)]
struct Outputs {
    handovers: Vec<Handover>,
    trips: Vec<TripId>,
    tracks: BTreeMap<RouteId, Track>,
}

impl Outputs {
    fn drain(&mut self, pilot: &mut Pilot) {
        while let Some(output) = pilot.poll() {
            match output {
                PilotOutput::TripBegan(trip, _) => self.trips.push(trip),
                PilotOutput::Handover(handover, _) => self.handovers.push(handover),
                PilotOutput::Track(route, track) => {
                    assert_eq!(Track::decode(&track.encode()).as_ref(), Ok(&track));
                    self.tracks.insert(route, track);
                }
            }
        }
    }
}

/// The observations of a trip, in order.
fn observations(
    world: &World,
    truth: &[Truth],
    seed: u64,
    begin: Instant,
    from: f64,
    to: f64,
) -> Vec<(f64, Observation)> {
    let mut dice = Dice::new(seed + 900);
    let (sign, length) = ((to - from).signum(), ((to - from).abs() / SPEED) as u32);
    let at = |time: f64| begin + seconds(time);
    let mut all = Vec::new();
    for second in 0..length {
        let time = f64::from(second);
        let metres = from + sign * SPEED * time;
        // There is a tunnel of 20 s every two minutes.
        if second % 120 < 100 {
            let mut fix: Fix = world.line.fix(&mut dice, at(time), metres, 8.0);
            fix.speed = Some(SPEED + 0.3 * dice.normal());
            all.push((time, Observation::Fix(fix)));
        }
        for (carrier, name) in CARRIERS.iter().enumerate() {
            for quarter in 0..4 {
                let time = time + 0.25 * f64::from(quarter);
                let dark = |one: &Truth| {
                    let over = one.at + one.dark + 0.25;
                    one.carrier == carrier && (one.at..over).contains(&time)
                };
                if !truth.iter().any(dark) {
                    let heard = Heard { at: at(time), carrier: (*name).to_owned() };
                    all.push((time, Observation::Heard(heard)));
                }
            }
            let last = truth.iter().rev().find(|one| one.carrier == carrier && one.at <= time);
            let next = truth.iter().find(|one| one.carrier == carrier && one.at > time);
            let lost = last.is_some_and(|one| one.outcome.is_failure() && time < one.at + one.dark);
            let other = |from: u64| if sign > 0.0 { from + 1 } else { from - 1 };
            let cell = next.map(|one| one.from).or(last.map(|one| other(one.from)));
            let cell = cell.filter(|_| !lost).map(CellId);
            let rsrp = Rsrp::from_dbm(-95.0);
            let carrier = (*name).to_owned();
            all.push((time, Observation::Serving(Serving { at: at(time), carrier, cell, rsrp })));
        }
    }
    for one in truth {
        let carrier = || CARRIERS[one.carrier].to_owned();
        if one.outcome.is_failure() {
            let noticed = one.at + 0.3;
            let (silent, over) = (at(one.at), one.at + one.dark + dice.between(0.1, 0.25));
            let since = Some(silent);
            let silence = Silence { at: at(noticed), carrier: carrier(), since, kept: None };
            all.push((noticed, Observation::Silence(silence)));
            let kept = Some(one.outcome == HandoverOutcome::TypeII);
            let silence = Silence { at: at(over), carrier: carrier(), since: None, kept };
            all.push((over, Observation::Silence(silence)));
        }
        if one.said {
            let over = one.at + one.dark;
            let (outcome, dark) = (one.outcome, Some(seconds(one.dark)));
            let says = Reported { at: at(over), carrier: carrier(), outcome, dark };
            all.push((over, Observation::Reported(says)));
        }
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    all
}

fn ride(
    pilot: &mut Pilot,
    world: &World,
    truth: &[Truth],
    seed: u64,
    begin: Instant,
    way: (f64, f64),
) -> Outputs {
    let mut outputs = Outputs::default();
    let wall = |time: f64| WALL + (time * 1e3) as u64;
    for (time, observation) in observations(world, truth, seed, begin, way.0, way.1) {
        pilot.observe(begin + seconds(time), wall(time), &observation);
        outputs.drain(pilot);
    }
    let end = (way.1 - way.0).abs() / SPEED + 30.0;
    pilot.advance(begin + seconds(end), wall(end));
    outputs.drain(pilot);
    outputs
}

/// The position of a place of the line on the track.
fn on(track: &Track, line: &Line, metres: f64) -> f64 {
    track.nearest(line.place(metres), None).unwrap().metres
}

/// Checks that each handover is recorded once with its outcome. Returns the distances of those with
/// and without a silence or a report of the modem.
fn compare(
    outputs: &Outputs,
    truth: &[Truth],
    track: &Track,
    line: &Line,
    name: &str,
) -> [Vec<f64>; 2] {
    let mut misses = [Vec::new(), Vec::new()];
    assert_eq!((outputs.trips.len(), outputs.handovers.len()), (1, truth.len()), "{name}");
    for (place, handover) in outputs.handovers.iter().enumerate() {
        assert_eq!(handover.sequence as usize, place, "{name}");
        assert_eq!(handover.trip, outputs.trips[0], "{name}");
    }
    for one in truth {
        let is = |handover: &&Handover| {
            handover.carrier == CARRIERS[one.carrier] && handover.from == CellId(one.from)
        };
        let found: Vec<&Handover> = outputs.handovers.iter().filter(is).collect();
        assert_eq!(found.len(), 1, "{name}: {one:?}");
        let found = found[0];
        assert_eq!(found.outcome, one.outcome, "{name}: {one:?} {found:?}");
        let miss = (found.position.metres() - on(track, line, one.metres)).abs();
        let exact = one.said || one.outcome.is_failure();
        misses[usize::from(!exact)].push(miss);
        let late = (found.at_ms as f64 - (WALL as f64 + one.at * 1e3)).abs();
        assert!(late < if exact { 5.0 } else { 520.0 }, "{name}: {late} ms");
        let slow = (found.speed.metres_per_second() - SPEED).abs();
        assert!(slow < 2.0 && found.rsrp == Rsrp::from_dbm(-95.0), "{name}: {found:?}");
        let dark = found.dark.as_secs_f64() - one.dark;
        assert!((-0.11..0.26).contains(&dark), "{name}: {dark}");
    }
    misses
}

#[test]
fn every_handover_of_a_trip_is_recorded_once_at_its_place() {
    let (mut count, mut failures, mut misses) = (0, 0, [Vec::new(), Vec::new()]);
    for seed in 0..30 {
        let world = World::new(seed);
        let (begin, name) = (start() + Duration::from_secs(9_999), format!("seed {seed}"));
        let up = (0.0, 59_000.0);
        // The first trip learns the track.
        let truth = world.handovers(seed * 3, up.0, up.1);
        let mut pilot = Pilot::new(seed, "", []);
        let mut first = ride(&mut pilot, &world, &truth, seed, begin, up);
        pilot.end_trip();
        first.drain(&mut pilot);
        assert_eq!((first.trips.len(), first.tracks.len()), (1, 1), "{name}");
        assert_eq!(pilot.unrecorded(), Unrecorded::default(), "{name}");
        let (route, track) = first.tracks.clone().into_iter().next().unwrap();
        let there = compare(&first, &truth, &track, &world.line, &name);
        // The second goes back along it.
        let down = (57_500.0, 1_000.0);
        let back = world.handovers(seed * 3 + 1, down.0, down.1);
        let mut pilot = Pilot::new(seed + 500, "", first.tracks.clone());
        let second = ride(&mut pilot, &world, &back, seed + 50, begin, down);
        assert_eq!(pilot.unrecorded(), Unrecorded::default(), "{name}");
        let again = compare(&second, &back, &track, &world.line, &name);
        for handover in &second.handovers {
            assert_eq!((handover.route, handover.direction), (route, Direction::Down), "{name}");
        }
        for trip in [there, again] {
            misses.iter_mut().zip(trip).for_each(|(all, some)| all.extend(some));
        }
        let all = || truth.iter().chain(&back);
        count += all().count();
        failures += all().filter(|one| one.outcome.is_failure()).count();
    }
    let most = misses.each_ref().map(|all| all.iter().copied().fold(0.0, f64::max));
    let square = |all: &Vec<f64>| all.iter().map(|miss| miss * miss).sum::<f64>();
    let mean = misses.each_ref().map(|all| (square(all) / all.len() as f64).sqrt());
    println!("{count} handovers, {failures} failures: off by {mean:.1?} m, at most {most:.1?} m");
    assert!(count > 3_000 && failures > 300);
    // The error of GPS; and half a second at 83 m/s if only polls of the modem show the time.
    assert!(mean[0] < 8.0 && most[0] < 50.0);
    assert!(mean[1] < 27.0 && most[1] < 42.0 + 50.0);
}

#[test]
fn trip_ends_at_the_terminus_and_after_a_long_rest() {
    for seed in 0..5 {
        let world = World::new(seed);
        let mut dice = Dice::new(seed);
        let begin = start();
        let mut pilot = Pilot::new(seed, "", []);
        let mut outputs = Outputs::default();
        let (mut time, mut metres, mut speed) = (0.0, 0.0, 0.0);
        // Runs for some seconds, accelerating or braking to this speed.
        let mut go = |pilot: &mut Pilot, outputs: &mut Outputs, lasting: u32, aim: f64| {
            for _ in 0..lasting {
                time += 1.0;
                speed += (aim - speed).clamp(-1.0, 1.0);
                metres += speed;
                let now = begin + seconds(time);
                let fix = world.line.fix(&mut dice, now, metres, 8.0);
                pilot.observe(now, WALL, &Observation::Fix(fix));
                outputs.drain(pilot);
            }
            begin + seconds(time)
        };
        let now = go(&mut pilot, &mut outputs, 300, 60.0);
        assert_eq!(outputs.trips.len(), 1, "seed {seed}");
        let (first, telemetry) = (pilot.trip(), pilot.telemetry(now).unwrap());
        assert_eq!(Some(telemetry.trip), first);
        let cloud = TrainPosition::from_telemetry(now + seconds(0.2), &telemetry).unwrap();
        let old = Telemetry { age: Duration::MAX, ..telemetry.clone() };
        assert_eq!(TrainPosition::from_telemetry(now, &old), None, "it does not become fresh");
        let place = pilot.place(now).unwrap();
        assert!((cloud.metres - place.metres).abs() < 0.06 && cloud.route == place.route);
        // It stands for 20 minutes, then returns: another trip, and the track is output.
        go(&mut pilot, &mut outputs, 1_200, 0.0);
        assert_eq!((outputs.trips.len(), pilot.trip()), (1, first), "seed {seed}");
        go(&mut pilot, &mut outputs, 100, -60.0);
        assert_eq!((outputs.trips.len(), outputs.tracks.len()), (2, 1), "seed {seed}");
        // It rests for an hour: no trip, until it moves.
        let now = go(&mut pilot, &mut outputs, 3_600, 0.0);
        assert_eq!((outputs.trips.len(), pilot.trip()), (2, None), "seed {seed}");
        assert_eq!(pilot.telemetry(now), None);
        go(&mut pilot, &mut outputs, 60, -60.0);
        assert_eq!(outputs.trips.len(), 3, "seed {seed}");
        let distinct: std::collections::BTreeSet<_> = outputs.trips.iter().collect();
        assert_eq!((distinct.len(), outputs.tracks.len()), (3, 1), "seed {seed}");
    }
}

/// A night in the depot, where a modem alternates between two cells.
#[test]
fn handovers_after_a_trip_do_not_belong_to_it() {
    let (mut pilot, mut outputs, begin) = (Pilot::new(1, "", []), Outputs::default(), start());
    let wall = |second: u32| WALL + 1_000 * u64::from(second);
    let (arrives, night) = (600, 20_000);
    for second in 0..night {
        let at = begin + seconds(f64::from(second));
        let (metres, velocity) =
            (80.0 * f64::from(second.min(arrives)), if second < arrives { 80.0 } else { 0.0 });
        let odometer =
            polyrail_model::Odometer { at, route: RouteId(1), metres, velocity, error: 5.0 };
        pilot.observe(at, wall(second), &Observation::Odometer(odometer));
        let carrier = || "a".to_owned();
        let heard = Observation::Heard(Heard { at, carrier: carrier() });
        pilot.observe(at, wall(second), &heard);
        let cell = Some(CellId(u64::from(second) / 10 % 2));
        let serving = Serving { at, carrier: carrier(), cell, rsrp: None };
        pilot.observe(at, wall(second), &Observation::Serving(serving));
        outputs.drain(&mut pilot);
    }
    assert_eq!((outputs.trips.len(), pilot.trip()), (1, None));
    let last = outputs.handovers.last().unwrap().at_ms;
    let over = wall(arrives) + REST.as_millis() as u64;
    assert!((over - 15_000..=over).contains(&last), "{} s after", (last - over) / 1_000);
    let unplaced = pilot.unrecorded().unplaced;
    assert_eq!(outputs.handovers.len() as u64 + unplaced, u64::from(night) / 10 - 1);
    let stood = outputs.handovers.iter().filter(|one| one.speed.metres_per_second() < 1.0);
    assert!(stood.count() > 150, "they are recorded as long as the trip lasts");
}

#[test]
fn handovers_without_a_position_are_counted() {
    let mut pilot = Pilot::new(1, "", []);
    let begin = start();
    for second in 0..3_000 {
        let at = begin + seconds(f64::from(second));
        let cell = Some(CellId(second as u64 / 10));
        let serving = Serving { at, carrier: "a".to_owned(), cell, rsrp: None };
        pilot.observe(at, 0, &Observation::Heard(Heard { at, carrier: "a".to_owned() }));
        pilot.observe(at, 0, &Observation::Serving(serving));
    }
    assert_eq!((pilot.poll(), pilot.unrecorded().unplaced), (None, 299));
    assert_eq!(pilot.trip(), None);
}

#[test]
fn unpolled_outputs_are_bounded() {
    let (mut pilot, begin) = (Pilot::new(1, "", []), start());
    for second in 0..6_000_u32 {
        let at = begin + seconds(f64::from(second));
        let metres = 80.0 * f64::from(second);
        let odometer =
            polyrail_model::Odometer { at, route: RouteId(1), metres, velocity: 80.0, error: 5.0 };
        pilot.observe(at, WALL, &Observation::Odometer(odometer));
        let cell = Some(CellId(u64::from(second) / 10));
        let carrier = || "a".to_owned();
        pilot.observe(at, WALL, &Observation::Heard(Heard { at, carrier: carrier() }));
        let serving = Serving { at, carrier: carrier(), cell, rsrp: None };
        pilot.observe(at, WALL, &Observation::Serving(serving));
    }
    let mut outputs = 0;
    let mut last = None;
    while let Some(output) = pilot.poll() {
        outputs += 1;
        last = Some(output);
    }
    assert_eq!(outputs, OUTPUTS_MAX);
    assert_eq!(pilot.unrecorded().dropped, 1 + 599 - OUTPUTS_MAX as u64);
    assert!(matches!(last, Some(PilotOutput::Handover(one, _)) if one.sequence == 598));
}

const SPEED: f64 = 83.0;
