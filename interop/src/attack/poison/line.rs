//! The line of the attack: cells of four carriers, and the logs of three trains that know it.
//!
//! The line runs north. Each train learned it separately, with positions of its own.

use std::time::Duration;

use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Speed, TripId,
};
use polyrail_predictor::entry::{Entry, Spot, TrackPiece, TrackPoint};
use polyrail_predictor::views::{creator_hash, new_route};
use serde_json::{Value, json};

/// The carriers' names.
pub(super) const CARRIERS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];
/// The speed of all trains, m/s.
pub(super) const SPEED: f64 = 80.0;

/// How a cell's handovers ended on the trips of the honest trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Half of them failed, on trips of all three.
    Fails,
    /// All succeeded.
    Succeeds,
    /// One failed.
    FailedOnce,
}

/// A cell of a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) carrier: usize,
    number: u64,
}

/// Cells of the line up to this many metres.
pub(super) fn cells(length: f64) -> Vec<Cell> {
    let count = (length / CELL) as u64;
    let of = |number: u64| (0..CARRIERS.len()).map(move |carrier| Cell { carrier, number });
    (0..count).flat_map(of).collect()
}

impl Cell {
    /// The carrier's cell at this many metres of the line.
    fn at(carrier: usize, metres: f64) -> Cell {
        Cell { carrier, number: ((metres - shift(carrier)) / CELL) as u64 }
    }

    pub(super) fn id(self) -> u64 {
        0x1000 * (self.carrier as u64 + 1) + self.number
    }

    /// Where trains leave it, in metres of the line.
    pub(super) fn end(self) -> f64 {
        CELL * (self.number + 1) as f64 + shift(self.carrier)
    }

    pub(super) fn kind(self) -> Kind {
        match (self.number + self.carrier as u64) % 3 {
            0 => Kind::Fails,
            1 => Kind::Succeeds,
            _ => Kind::FailedOnce,
        }
    }
}

/// A train with a track of its own along the line.
#[derive(Clone, Debug)]
pub(super) struct Train {
    pub(super) name: String,
    number: u64,
    pub(super) route: RouteId,
}

impl Train {
    pub(super) fn new(number: u64) -> Train {
        let name = format!("train-{number}");
        let route = new_route(creator_hash(&name), 5);
        Train { name, number, route }
    }

    /// Its track of the line, then its trips, one a day until yesterday.
    pub(super) fn log(&self, length: f64, now_ms: u64) -> Vec<Entry> {
        let mut log = self.track(length);
        for trip in 0..TRIPS {
            let at_ms = now_ms - (TRIPS - trip) * DAY_MS;
            let all = cells(length).into_iter().zip(0..);
            log.extend(all.map(|(cell, sequence)| {
                let (off, fails) = self.passage(cell, trip);
                let trip = TripId(self.number << 32 | trip);
                self.handover(cell, (trip, sequence), at_ms, off, fails)
            }));
        }
        log
    }

    /// Where it left a cell on a trip, in metres behind the cell's end, and whether that failed.
    fn passage(&self, cell: Cell, trip: u64) -> (f64, bool) {
        let mixed = 7 * trip + 3 * self.number + 13 * cell.number + cell.carrier as u64;
        let noise = 10.0 * (mixed % 5) as f64 - 20.0;
        let fails = match cell.kind() {
            Kind::Fails => (trip + self.number + cell.number).is_multiple_of(2),
            Kind::Succeeds => false,
            Kind::FailedOnce => (self.number, trip) == (2, 3),
        };
        (if fails { LATE + noise } else { noise }, fails)
    }

    /// A handover this many metres behind a cell's end.
    pub(super) fn handover(
        &self,
        cell: Cell,
        (trip, sequence): (TripId, u32),
        at_ms: u64,
        off: f64,
        fails: bool,
    ) -> Entry {
        let metres = cell.end() + off;
        let (position, direction) = self.position(metres);
        let handover = Handover {
            trip,
            sequence,
            at_ms,
            carrier: CARRIERS[cell.carrier].to_owned(),
            route: self.route,
            direction,
            position,
            speed: Speed::from_metres_per_second(SPEED),
            from: CellId(cell.id()),
            to: Some(CellId(cell.id() + 1)),
            rsrp: None,
            outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
            dark: if fails { Duration::from_millis(1_500) } else { Duration::from_millis(40) },
        };
        let spot = Spot { latitude: latitude(metres), longitude: LONGITUDE, heading: 0 };
        Entry::Handover(handover, Some(spot))
    }

    /// A position of the line on its track, and the direction of a train to the north: trains with
    /// odd numbers learned the line towards the south.
    fn position(&self, metres: f64) -> (Position, Direction) {
        let shifted = metres + 40.0 * self.number as f64;
        match self.number % 2 {
            0 => (Position::from_metres(shifted), Direction::Up),
            _ => (Position::from_metres(FAR - shifted), Direction::Down),
        }
    }

    /// The pieces of its track from the line's beginning to 1 km beyond this length.
    fn track(&self, length: f64) -> Vec<Entry> {
        let count = (length / 100.0) as i32 + 10;
        let point = |number: i32| {
            let metres = 100.0 * f64::from(number);
            let (latitude, position) = (latitude(metres), self.position(metres).0);
            TrackPoint { latitude, longitude: LONGITUDE, position, weight: 4 }
        };
        let mut points: Vec<TrackPoint> = (0..count).map(point).collect();
        points.sort_by_key(|point| point.position);
        let piece_of = |point: &TrackPoint| (point.position.metres() / TrackPiece::LENGTH).floor();
        let pieces = points.chunk_by(|one, next| piece_of(one) == piece_of(next));
        let piece = |points: &[TrackPoint]| TrackPiece {
            route: self.route,
            piece: piece_of(&points[0]) as i16,
            points: points.to_vec(),
        };
        pieces.map(|points| Entry::Track(piece(points))).collect()
    }
}

/// Telemetry of a train at this many metres of the line.
pub(super) fn telemetry(metres: f64) -> String {
    let carriers = CARRIERS.iter().enumerate().map(|(carrier, name)| {
        json!({ "carrier": name, "cell": Cell::at(carrier, metres).id(), "rsrp_dbm": -95.0 })
    });
    let line = json!({
        "latitude": f64::from(latitude(metres)) / PER_DEGREE,
        "longitude": f64::from(LONGITUDE) / PER_DEGREE,
        "metres_per_second": SPEED,
        "heading": 0.0,
        "error_m": 3.0,
        "carriers": carriers.collect::<Vec<Value>>(),
    });
    line.to_string()
}

fn shift(carrier: usize) -> f64 {
    150.0 * carrier as f64
}

fn latitude(metres: f64) -> i32 {
    ((50.0 + metres / DEGREE) * PER_DEGREE).round() as i32
}

/// The trips of each honest train.
const TRIPS: u64 = 12;
/// The length of a cell, and how much later failures are, in metres.
const CELL: f64 = 600.0;
const LATE: f64 = 60.0;
/// The position of the line's beginning on tracks that were learned towards the south.
const FAR: f64 = 40_000.0;
/// A degree of latitude in metres, and the units of a degree.
const DEGREE: f64 = 111_195.08;
const PER_DEGREE: f64 = 1e7;
const LONGITUDE: i32 = 80_000_000;
pub(super) const DAY_MS: u64 = 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_have_failures_where_their_cells_fail() {
        let cells = cells(6_000.0);
        assert_eq!(cells.len(), 40);
        for cell in &cells {
            assert_eq!(Cell::at(cell.carrier, cell.end() - 1.0), *cell);
            let failed = |number: u64| {
                let train = Train::new(number);
                (0..TRIPS).filter(|trip| train.passage(*cell, *trip).1).count()
            };
            let failed: Vec<usize> = (2..5).map(failed).collect();
            let wanted = match cell.kind() {
                Kind::Fails => [6, 6, 6],
                Kind::Succeeds => [0, 0, 0],
                Kind::FailedOnce => [1, 0, 0],
            };
            assert_eq!(failed, wanted, "{cell:?}");
        }
        let log = Train::new(3).log(6_000.0, 100 * DAY_MS);
        let pieces = log.iter().filter(|entry| matches!(entry, Entry::Track(_))).count();
        assert_eq!(log.len() - pieces, 12 * cells.len());
        assert_eq!(pieces, 2, "7 km, in a stretch that begins at 33 km and ends at 40 km");
    }
}
