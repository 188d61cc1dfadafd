//! Plays generated trips to a [`Pilot`], one after another, and keeps its output.
//!
//! The gateway starts for each trip, with the tracks that it stored before.

use std::time::Instant;

use anyhow::{Context, Result};
use polyrail_emulator::rail;
use polyrail_model::{CellId, Handover, Observation, Position, RouteId, Rsrp, Speed, TripId};
use polyrail_predictor::detect::Unrecorded;
use polyrail_predictor::pilot::{Pilot, PilotOutput};
use polyrail_predictor::position::TrainPosition;
use polyrail_predictor::track::{Hint, Track};

use super::Variant;
use super::drive::{Clock, Course, Drive, Setup};
use super::modem::Radio;
use super::path;
use crate::dice::Dice;
use crate::linkdb::records::outcome;

/// The outcome of a trip.
#[derive(Clone, Debug, Default)]
pub struct Passage {
    /// The gateway's records.
    pub records: Vec<Handover>,
    /// The true handovers.
    pub truths: Vec<Truth>,
    /// Counts of observations without a record.
    pub counts: Unrecorded,
}

/// A true handover.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// The handover at the gateway's own estimate of the place, where a forecast would apply.
    pub handover: Handover,
    /// Its true position on the same track, in metres.
    pub metres: f64,
}

/// A gateway's stored tracks, the newest last.
#[derive(Clone, Debug, Default)]
pub struct Tracks(Vec<(RouteId, Track)>);

/// A true handover, and the pilot's estimate of its place.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    carrier: &'a str,
    handover: &'a rail::Handover,
    /// The estimate, once the pilot was asked.
    place: Option<(TripId, TrainPosition)>,
}

/// An event of a trip.
enum Event {
    Observed(Observation),
    /// The pilot is asked for its position, for the handover of this number.
    Asked(usize),
}

/// Plays all trips of a route in one variant.
///
/// # Errors
/// The track is not learned.
pub fn play(
    course: &Course,
    drives: &[Drive],
    variant: Variant,
    setup: &Setup,
) -> Result<Vec<Passage>> {
    let mut tracks = Tracks::default();
    let start = Instant::now();
    if course.is_down() {
        let fixes = course.fixes_back(Clock::new(start), setup);
        let mut pilot = Pilot::new(course.route.seed, "", []);
        for (at, fix) in &fixes {
            pilot.observe(Clock::new(start).at(*at), Clock::wall_ms(0, *at), fix);
        }
        pilot.end_trip();
        tracks.drain(&mut pilot);
    }
    drives
        .iter()
        .map(|drive| {
            // Each on its own day.
            let clock = Clock::new(start + DAY * drive.number as u32);
            passage(course, drive, variant, setup, clock, &mut tracks)
        })
        .collect()
}

fn passage(
    course: &Course,
    drive: &Drive,
    variant: Variant,
    setup: &Setup,
    clock: Clock,
    tracks: &mut Tracks,
) -> Result<Passage> {
    let mut asked = asked(course, drive);
    let mut events = course.fixes(drive, clock, setup);
    events.extend(carriers(course, drive, variant, setup, clock));
    let mut events: Vec<(f64, Event)> =
        events.into_iter().map(|(at, seen)| (at, Event::Observed(seen))).collect();
    let questions = asked.iter().map(|one| one.handover.at.as_secs_f64()).zip(0..);
    events.extend(questions.map(|(at, place)| (at, Event::Asked(place))));
    events.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut pilot = Pilot::new(drive.trip.seed, "", tracks.0.iter().cloned());
    let mut passage = Passage::default();
    for (at, event) in events {
        let now = clock.at(at);
        match event {
            Event::Observed(seen) => pilot.observe(now, Clock::wall_ms(drive.number, at), &seen),
            Event::Asked(place) => asked[place].place = pilot.trip().zip(pilot.place(now)),
        }
        passage.records.extend(tracks.drain(&mut pilot));
    }
    pilot.end_trip();
    passage.records.extend(tracks.drain(&mut pilot));
    passage.counts = pilot.unrecorded();
    let trip = asked.iter().find_map(|one| one.place).map(|(trip, _)| trip);
    let truth = |(sequence, one): (u32, &Asked<'_>)| {
        let trip = trip.context("the pilot knew no trip")?;
        tracks.truth(course, drive.number, sequence, trip, one)
    };
    passage.truths = (0..).zip(&asked).map(truth).collect::<Result<_>>()?;
    Ok(passage)
}

/// The observations of modems and paths.
fn carriers(
    course: &Course,
    drive: &Drive,
    variant: Variant,
    setup: &Setup,
    clock: Clock,
) -> Vec<(f64, Observation)> {
    let mut seen = Vec::new();
    let carriers = course.route.carriers.iter().zip(&drive.trip.carriers).zip(&drive.signals);
    for (((profile, carrier), signals), number) in carriers.zip(1..) {
        let handovers = &carrier.handovers;
        let radio = Radio { carrier: profile.name, handovers, signals };
        let mut dice = Dice::new(drive.trip.seed.rotate_left(16) ^ number);
        seen.extend(radio.observed(variant.modem, clock, course.span(), setup.report, &mut dice));
        if variant.busy {
            seen.extend(path::observed(profile, handovers, clock, course.span(), &mut dice));
        }
    }
    seen
}

/// The true handovers of a trip in the order of time.
fn asked<'a>(course: &'a Course, drive: &'a Drive) -> Vec<Asked<'a>> {
    let carriers = course.route.carriers.iter().zip(&drive.trip.carriers);
    let mut all: Vec<Asked<'_>> = carriers
        .flat_map(|(profile, carrier)| {
            carrier.handovers.iter().map(|handover| (profile.name, handover))
        })
        .map(|(carrier, handover)| Asked { carrier, handover, place: None })
        .collect();
    all.sort_by_key(|one| one.handover.at);
    all
}

impl Tracks {
    /// Drains a pilot: stores its tracks, and returns its records.
    fn drain(&mut self, pilot: &mut Pilot) -> Vec<Handover> {
        let mut records = Vec::new();
        while let Some(output) = pilot.poll() {
            match output {
                PilotOutput::Handover(record, _) => records.push(record),
                PilotOutput::Track(route, track) => {
                    self.0.retain(|(known, _)| *known != route);
                    self.0.push((route, track));
                }
                PilotOutput::TripBegan(..) => {}
            }
        }
        records
    }

    /// A true handover at the pilot's estimate, or at the true place if the pilot had none.
    fn truth(
        &self,
        course: &Course,
        number: u64,
        sequence: u32,
        trip: TripId,
        asked: &Asked<'_>,
    ) -> Result<Truth> {
        let rail::Handover { from, to, at, metres, rsrp, outcome: ended, dark } = *asked.handover;
        let [latitude, longitude] = course.line.place(metres, 0.0);
        let place = asked.place.map(|(_, place)| place);
        let known = |(route, _): &&(RouteId, Track)| place.is_none_or(|at| at.route == *route);
        let (route, track) = self.0.iter().rev().find(known).context("no track was learned")?;
        let hint = place.map(|place| Hint { metres: place.metres, reach: REACH });
        let found = track.project(latitude, longitude, hint).context("not on the track")?;
        let direction = if course.is_down() {
            polyrail_model::Direction::Down
        } else {
            polyrail_model::Direction::Up
        };
        let handover = Handover {
            trip: asked.place.map_or(trip, |(trip, _)| trip),
            sequence,
            at_ms: Clock::wall_ms(number, at.as_secs_f64()),
            carrier: asked.carrier.to_owned(),
            route: *route,
            direction: place.map_or(direction, |place| place.direction),
            position: Position::from_metres(place.map_or(found.metres, |place| place.metres)),
            speed: Speed::from_metres_per_second(course.route.speed.metres_per_second()),
            from: CellId(from.into()),
            to: Some(CellId(to.into())),
            rsrp: Rsrp::from_dbm(rsrp),
            outcome: outcome(ended),
            dark,
        };
        Ok(Truth { handover, metres: found.metres })
    }
}

const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);
/// The uncertainty of a train's position, in metres.
const REACH: f64 = 2_000.0;
