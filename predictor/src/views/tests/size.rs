//! The time and memory of views of 1,000,000 entries, measured on demand.

use std::time::Instant;

use polyrail_model::{CellId, Direction, Handover, HandoverOutcome, Position, RouteId, TripId};

use super::fleet::{learned, name};
use crate::entry::{Entry, EntryKey, LogNumber, WriterNumber};
use crate::forecast::Forecaster;
use crate::record::tests::handover;
use crate::simulated::{Dice, Line};
use crate::track::{LatLon, Track};
use crate::views::{Views, creator_hash, new_route};
use polyrail_model::NodeRole;

/// Trains on one line, each with a track of its own.
struct Fleet {
    tracks: Vec<(RouteId, Track)>,
    trips: u64,
    /// Handovers of a trip, of four carriers.
    per_trip: u64,
    spots: bool,
}

impl Fleet {
    fn new(trains: u32, metres: f64, trips: u64, per_trip: u64, spots: bool) -> Self {
        let line = Line::new(3, LatLon::from_degrees(50.0, 8.0).unwrap(), 60.0, metres);
        let one = |writer: u32| {
            let route = new_route(creator_hash(&name(WriterNumber(writer))), 1);
            (route, learned(&line, &mut Dice::new(writer.into()), 0.0, line.length()))
        };
        Self { tracks: (1..=trains).map(one).collect(), trips, per_trip, spots }
    }

    fn visit(&self, take: &mut dyn FnMut(WriterNumber, EntryKey, &Entry)) -> Result<(), ()> {
        let mut sequence = 0;
        let mut next = |writer: u32| {
            sequence += 1;
            (WriterNumber(writer), EntryKey { log: LogNumber(writer), sequence })
        };
        for (writer, (route, track)) in (1..).zip(&self.tracks) {
            for piece in track.pieces(*route) {
                let (writer, key) = next(writer);
                take(writer, key, &Entry::Track(piece));
            }
        }
        let mut dice = Dice::new(9);
        for (writer, (route, track)) in (1..).zip(&self.tracks) {
            let apart = (track.length() - 4_000.0) / (self.per_trip / 4) as f64;
            for trip in (0..self.trips)
                .filter(|trip| trip % self.tracks.len() as u64 + 1 == u64::from(writer))
            {
                let back = trip / self.tracks.len() as u64 % 2 == 1;
                let direction = if back { Direction::Down } else { Direction::Up };
                for number in 0..self.per_trip {
                    let (cell, carrier) = (number / 4, (number % 4) as usize);
                    let metres = 2_000.0 + apart * cell as f64 + 80.0 * dice.normal();
                    let position = Position::from_metres(metres);
                    let spot = self.spots.then(|| track.spot(position, direction)).flatten();
                    let fails = dice.share() < 0.06;
                    let handover = Handover {
                        trip: TripId(trip),
                        sequence: number as u32,
                        carrier: ["modem-one", "modem-two", "modem-three", "modem-four"][carrier]
                            .to_owned(),
                        route: *route,
                        direction,
                        position,
                        from: CellId(cell),
                        outcome: if fails {
                            HandoverOutcome::TypeII
                        } else {
                            HandoverOutcome::Success
                        },
                        ..handover()
                    };
                    let (writer, key) = next(writer);
                    take(writer, key, &Entry::Handover(handover, spot));
                }
            }
        }
        Ok(())
    }
}

/// Resident memory in megabytes.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1e3
}

/// `cargo test --release -p polyrail-predictor --lib -- --ignored --nocapture views_of_a_million`
#[test]
#[ignore = "a measurement of some seconds"]
#[allow(clippy::disallowed_methods)] // A measurement.
fn views_of_a_million_entries() {
    // The largest first, because later ones reuse its memory.
    for (what, fleet) in [
        ("four tracks of 1,300 km", Fleet::new(4, 1_300_000.0, 219, 4_560, true)),
        ("one track, 250 per trip", Fleet::new(1, 100_000.0, 4_000, 250, false)),
        ("one track, 1,300 km", Fleet::new(1, 1_300_000.0, 219, 4_560, true)),
    ] {
        let mut entries = 0;
        let began = Instant::now();
        for _ in 0..2 {
            fleet.visit(&mut |_, _, _| entries += 1).unwrap();
        }
        let made = began.elapsed().as_secs_f64();
        let before = memory();
        let mut views = Views::new(NodeRole::Cloud);
        for writer in 0..9 {
            views.introduce(WriterNumber(writer), &name(WriterNumber(writer)));
        }
        let began = Instant::now();
        let useless = views.rebuild(|take| fleet.visit(take)).unwrap();
        let took = began.elapsed().as_secs_f64() - made;
        let megabytes = memory() - before;
        let began = Instant::now();
        Forecaster::default().refresh(views.cells());
        let pool = began.elapsed().as_secs_f64();
        let passages: usize =
            views.cells().iter().map(|(_, history)| history.passages().len()).sum();
        println!(
            "{what}: {} entries, {took:.2} s (made in {made:.2} s), {megabytes:.0} MB, pool \
             {pool:.2} s, {:?}, {passages} passages, {} useless entries",
            entries / 2,
            views.sizes(),
            useless.len(),
        );
    }
}
