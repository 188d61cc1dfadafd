//! Trains that learn one line separately, each with a log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, NodeRole, Position, RouteId, Speed, TripId,
};

use crate::entry::{Entry, EntryKey, LogNumber, WriterNumber};
use crate::forecast::{Forecaster, TrainPosition};
use crate::simulated::{Dice, Line, seconds, start};
use crate::track::{Hint, LatLon, Track, TrackLearner};
use crate::views::{Views, creator_hash, new_route};

pub const SPEED: f64 = 80.0;
/// Cells of the line; each third one fails.
pub const CELLS: u64 = 30;

/// An entry and its writer.
pub type Written = (WriterNumber, EntryKey, Entry);

pub struct Train {
    pub writer: WriterNumber,
    pub route: RouteId,
    pub track: Track,
    dice: Dice,
    next: u64,
    trips: u64,
}

pub fn line() -> Line {
    Line::new(3, LatLon::from_degrees(50.0, 8.0).unwrap(), 60.0, 33_000.0)
}

pub fn name(writer: WriterNumber) -> String {
    format!("train-{}", writer.0)
}

impl Train {
    /// A train that learns the line on its first trip: odd ones against the direction of the line,
    /// each from another place.
    pub fn new(writer: u32, line: &Line) -> Self {
        let mut dice = Dice::new(u64::from(writer) + 50);
        let (near, far) = (40.0 * f64::from(writer), line.length() - 30.0 * f64::from(writer));
        let (from, to) = if writer % 2 == 1 { (far, near) } else { (near, far) };
        let writer = WriterNumber(writer);
        let track = learned(line, &mut dice, from, to);
        let route = new_route(creator_hash(&name(writer)), 5);
        Self { writer, route, track, dice, next: 0, trips: 0 }
    }

    pub fn key(&mut self) -> EntryKey {
        self.next += 1;
        EntryKey { log: LogNumber(self.writer.0), sequence: self.next - 1 }
    }

    pub fn write(&mut self, entry: Entry) -> Written {
        (self.writer, self.key(), entry)
    }

    pub fn pieces(&mut self) -> Vec<Written> {
        let pieces = self.track.pieces(self.route);
        pieces.into_iter().map(|piece| self.write(Entry::Track(piece))).collect()
    }

    /// A handover out of a cell at metres of the line, by a train along the line.
    pub fn handover(
        &mut self,
        line: &Line,
        trip: u64,
        cell: u64,
        metres: f64,
        fails: bool,
    ) -> Written {
        let (position, direction) = self.at(line, metres);
        let spot = self.track.spot(position, direction);
        let handover = Handover {
            trip: TripId(u64::from(self.writer.0) << 32 | trip),
            sequence: cell as u32,
            at_ms: trip * 1_000_000,
            carrier: "a".into(),
            route: self.route,
            direction,
            position,
            speed: Speed::from_metres_per_second(SPEED),
            from: CellId(cell),
            to: None,
            rsrp: None,
            outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
            dark: Duration::ZERO,
        };
        self.write(Entry::Handover(handover, spot))
    }

    /// A trip along the line: each third cell fails on this share of trips, and then 60 m later.
    pub fn trip(&mut self, line: &Line, rate: f64) -> Vec<Written> {
        self.trips += 1;
        let trip = self.trips;
        let cells = 1..=CELLS;
        let one = |cell: u64| {
            let fails = cell.is_multiple_of(3) && self.dice.share() < rate;
            let late = if fails { 60.0 } else { 0.0 };
            let metres = place_of(cell) + late + 20.0 * self.dice.normal();
            self.handover(line, trip, cell, metres, fails)
        };
        cells.map(one).collect()
    }

    pub fn trips(&mut self, line: &Line, count: usize) -> Vec<Written> {
        (0..count).flat_map(|_| self.trip(line, 0.4)).collect()
    }

    /// The position on this train's track of metres of the line, and the direction along it.
    pub fn at(&self, line: &Line, metres: f64) -> (Position, Direction) {
        on(&self.track, line, metres)
    }
}

/// The position on a track of metres of the line, and the direction along it.
pub fn on(track: &Track, line: &Line, metres: f64) -> (Position, Direction) {
    let at = |metres: f64| track.nearest(line.place(metres), None).unwrap().metres;
    let direction =
        if at(metres + 100.0) > at(metres - 100.0) { Direction::Up } else { Direction::Down };
    (Position::from_metres(at(metres)), direction)
}

/// Where trains leave a cell, in metres of the line.
pub fn place_of(cell: u64) -> f64 {
    1_000.0 * cell as f64 + 1_000.0
}

/// The track of a first trip, from fixes with 5 m of error.
pub fn learned(line: &Line, dice: &mut Dice, from: f64, to: f64) -> Track {
    let begin = start();
    let mut learner = TrackLearner::begin_at(line.place(from));
    let mut metres = 0.0;
    for step in 0..((to - from).abs() / 60.0) as usize {
        let along = from + (to - from).signum() * 60.0 * step as f64;
        let fix = line.fix(dice, begin, along, 5.0);
        let place = LatLon::from_degrees(fix.latitude, fix.longitude).unwrap();
        let found = learner.find(place, Hint { metres, reach: 500.0 }).unwrap();
        metres = found.metres;
        learner.learn(begin + seconds(step as f64), place, 5.0, &found);
    }
    learner.settled()
}

/// The views of a gateway, the train 0, of these entries.
pub fn views(entries: &[Written]) -> Views {
    let mut views = Views::new(NodeRole::Gateway);
    (0..10).map(WriterNumber).for_each(|writer| views.introduce(writer, &name(writer)));
    let visit = |take: &mut dyn FnMut(WriterNumber, EntryKey, &Entry)| {
        entries.iter().for_each(|(writer, key, entry)| take(*writer, *key, entry));
        Ok::<_, ()>(())
    };
    views.rebuild(visit).unwrap();
    views
}

/// Counts stored entries again on the tracks that have changed.
pub fn derive(views: &mut Views, entries: &[Written]) {
    views.begin_derivation();
    for (writer, key, entry) in entries {
        views.derive(*writer, *key, entry);
    }
    views.end_derivation();
}

/// The forecast of each cell for a train that follows this track, a second before the cell's place:
/// its place in metres of travel after the cell's place, and its probability.
pub fn forecasts(
    views: &Views,
    forecaster: &mut Forecaster,
    own: WriterNumber,
    line: &Line,
    route: RouteId,
) -> BTreeMap<u64, (f64, u16)> {
    let track = views.track(route).unwrap();
    let now = now();
    let one = |cell: u64| {
        let (place, direction) = on(track, line, place_of(cell));
        let metres = place.metres() - direction.sign() * SPEED;
        let train = TrainPosition { at: now, route, direction, metres, speed: SPEED, error: 5.0 };
        let forecast =
            forecaster.forecast(views.cells(), own, now, &train, "a", (CellId(cell), None))?;
        let ahead = (forecast.fails_at.saturating_duration_since(now)).as_secs_f64()
            - now.saturating_duration_since(forecast.fails_at).as_secs_f64();
        Some((cell, (SPEED * (ahead - 1.0), forecast.permille)))
    };
    (1..=CELLS).filter_map(one).collect()
}

fn now() -> Instant {
    start() + Duration::from_secs(100)
}
