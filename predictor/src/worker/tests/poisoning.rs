//! A forged gateway: a session with a valid certificate that uploads harmful records.

use crate::entry::LogId;
use crate::wire::SyncMessage;
use polyrail_model::{Direction, HandoverOutcome, Position, Speed, TripId};

use super::*;

/// A handover that never happened: carrier `b` fails in a real cell.
fn forged(trip: u64, sequence: u32, cell: u64) -> Handover {
    Handover {
        trip: TripId(trip),
        sequence,
        at_ms: WALL_MS + 86_400_000,
        carrier: "b".to_owned(),
        route: ROUTE,
        direction: Direction::Up,
        position: Position::from_metres(cell as f64 * CELL + 1_400.0),
        speed: Speed::from_metres_per_second(SPEED),
        from: CellId(cell),
        to: Some(CellId(cell + 1)),
        rsrp: None,
        outcome: HandoverOutcome::TypeIII,
        dark: Duration::from_secs(3),
    }
}

/// It uploads failures in every cell of a carrier that never fails.
#[test]
fn forged_failures_create_no_forecast_on_another_train() {
    let mut world = World::in_memory(settings());
    let session = SessionKey(7);
    let peer = "mallory".to_owned();
    world.ground.worker.take(world.now, world.wall_ms, Input::Up { session, peer });
    let mut sequence = 0;
    for trip in 0..6 {
        for writer in ["mallory", "train-7"] {
            let entries = (0..8).map(|cell| {
                (sequence + cell, Entry::Handover(forged(trip, cell as u32, cell), None))
            });
            let entries = entries.collect();
            let log = LogId { writer: writer.to_owned(), incarnation: 1 };
            let (first, end) = (sequence, sequence + 8);
            let message = SyncMessage::Entries { log, floor: 0, first, end, entries };
            world.ground.worker.take(world.now, world.wall_ms, Input::Sync { session, message });
            world.ground.worker.write(world.now, world.wall_ms);
        }
        sequence += 8;
    }
    assert_eq!(world.states()[1].received, 48, "nothing under another name");
    world.connect();
    world.rest(30);
    world.ride_on(0..TRIPS);
    let forecasts = |reported: &[Reported]| reported.iter().any(|one| one.carrier == "b");
    assert!(!forecasts(&world.train.reported), "on board");
    assert!(!forecasts(&world.ground.reported), "in the cloud");
}
