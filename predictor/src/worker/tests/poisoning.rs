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

/// A flood of one session delays the messages of another by one turn.
#[test]
fn sessions_take_turns() {
    let mut world = World::in_memory(settings());
    let up =
        |session, peer: &str| Input::Up { session: SessionKey(session), peer: peer.to_owned() };
    let ground = &mut world.ground.worker;
    ground.take(world.now, world.wall_ms, up(7, "mallory"));
    ground.take(world.now, world.wall_ms, up(8, "train-8"));
    let message = |writer: &str, first: u64| {
        let log = LogId { writer: writer.to_owned(), incarnation: 1 };
        let entries = vec![(first, Entry::Handover(forged(first, 0, 1), None))];
        SyncMessage::Entries { log, floor: 0, first, end: first + 1, entries }
    };
    for first in 0..4_096 {
        let (session, message) = (SessionKey(7), message("mallory", first));
        ground.take(world.now, world.wall_ms, Input::Sync { session, message });
    }
    let (session, message) = (SessionKey(8), message("train-8", 0));
    ground.take(world.now, world.wall_ms, Input::Sync { session, message });
    assert!(ground.write(world.now, world.wall_ms));
    assert!(ground.write(world.now, world.wall_ms));
    let state = ground.state(world.now);
    assert_eq!((state.received, state.store.stats.unwrap().writers), (2, 3));
    assert_eq!(state.inputs_dropped, 4_096 - 256);
}

/// The rates that a cloud measures with a gateway's positions count as that gateway's.
#[test]
fn rates_of_a_cloud_belong_to_the_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::on_disk(folder.path(), settings());
    world.connect();
    world.ride(1, |world, _| world.measure("a"));
    world.close();
    let mut ground = Store::open(folder.path().join("ground"), Limits::default()).unwrap();
    let rates = |store: &Store| {
        let mut writers = BTreeMap::new();
        let visited = store.visit(|_, key, entry| {
            if matches!(entry, Entry::Rates(_)) {
                let writer = store.log(key.log).unwrap().id.writer.clone();
                *writers.entry(writer).or_insert(0) += 1;
            }
            Ok::<_, StoreError>(())
        });
        visited.unwrap();
        writers
    };
    let on_board = Store::open(folder.path().join("train"), Limits::default()).unwrap();
    let (on_board, on_ground) = (rates(&on_board), rates(&ground));
    assert_eq!(on_ground.keys().collect::<Vec<_>>(), ["train-7"]);
    assert!(on_ground["train-7"] > on_board["train-7"], "{on_ground:?} {on_board:?}");
    ground.purge("train-7").unwrap();
    assert!(rates(&ground).is_empty());
}

/// 20,001 trips dated tomorrow, with failures in all real cells, fill the file of the cloud.
#[test]
fn forger_of_20001_trips_neither_creates_nor_removes_forecasts() {
    let mut world = World::in_memory(LinkDbSettings { events_max: 2_000, ..settings() });
    world.connect();
    world.ride_on(0..TRIPS);
    let session = SessionKey(7);
    let peer = "mallory".to_owned();
    world.ground.worker.take(world.now, world.wall_ms, Input::Up { session, peer });
    for first in (0..20_001).step_by(64) {
        let end = 20_001.min(first + 64);
        let entry = |trip| (trip, Entry::Handover(forged(trip, 0, trip % 9), None));
        let entries = (first..end).map(entry).collect();
        let log = LogId { writer: "mallory".to_owned(), incarnation: 1 };
        let message = SyncMessage::Entries { log, floor: 0, first, end, entries };
        world.ground.worker.take(world.now, world.wall_ms, Input::Sync { session, message });
        world.ground.worker.write(world.now, world.wall_ms);
    }
    world.rest(30);
    let state = world.states()[1].clone();
    assert!(state.received >= 20_001 && state.store.stats.unwrap().entries <= 2_000);
    world.train.forget();
    world.ground.forget();
    for Met { at, .. } in world.ride(TRIPS, |_, _| {}) {
        assert!(world.train.forecast_of("a", at).is_some(), "on board");
        assert!(world.ground.forecast_of("a", at).is_some(), "in the cloud");
    }
    let is_forged = |one: &Reported| one.carrier == "b" && one.forecast.is_some();
    assert!(!world.train.reported.iter().any(is_forged), "on board");
    assert!(!world.ground.reported.iter().any(is_forged), "in the cloud");
}
