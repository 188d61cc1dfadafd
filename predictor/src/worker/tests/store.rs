//! A database that fails to open.

use std::fs;

use polyrail_model::{Position, RouteId, TripId};

use super::*;
use crate::entry::{LogId, TrackPiece, TrackPoint};
use crate::sync::{Side, Sync};
use crate::views::{creator_hash, new_route};
use crate::wire::SyncMessage;

#[test]
fn unavailable_database_is_retried_and_forecasts_come_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/linkdb.redb");
    let now = Instant::now();
    let store = train_store(now, Some(path.clone()), settings());
    let cloud = cloud_store(now, None, settings());
    let mut world = World::new(now, 2, store, cloud, settings());
    world.connect();
    world.ride_on(0..TRIPS);
    let met = world.ride(TRIPS, |_, _| {});
    for Met { at, .. } in met {
        assert!(world.train.forecast_of("a", at).is_some());
    }
    let [train, cloud] = world.states();
    assert!(train.store.error.unwrap().contains("check its disk and that its folder exists"));
    assert!(!train.store.open && train.store.stats.is_none());
    assert_eq!((train.store.waiting as u64, train.store.lost), (train.recorded, 0));
    assert_eq!(cloud.received, 0, "entries have no numbers before they are written");
    fs::create_dir(folder.path().join("none")).unwrap();
    world.rest(30);
    let [train, cloud] = world.states();
    assert!(train.store.open && train.store.error.is_none() && train.store.waiting == 0);
    assert_eq!(train.store.stats.unwrap().entries, train.recorded);
    world.close();
    assert_eq!(handovers(&path).len() as u64, cloud.received);
}

#[test]
fn reload_changes_the_limits_of_an_open_database() {
    let now = Instant::now();
    let mut store = train_store(now, None, settings());
    store.set_time(now, WALL_MS);
    let mut record = {
        let folder = tempfile::tempdir().unwrap();
        let path = learned(folder.path(), "train", 1);
        handovers(path).into_values().next().unwrap()
    };
    for trip in 0..4 {
        (record.trip, record.sequence) = (TripId(trip), 0);
        store.record(Entry::Handover(record.clone(), None));
    }
    assert_eq!(store.state().stats.unwrap().entries, 4);
    store.reload(LinkDbSettings { events_max: 2, ..settings() });
    (record.trip, record.sequence) = (TripId(9), 0);
    store.record(Entry::Handover(record.clone(), None));
    assert_eq!(store.state().stats.unwrap().entries, 2);
}

/// A full disk must not cost the processor.
#[test]
fn thread_waits_while_the_database_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let mut now = Instant::now();
    let mut store = train_store(now, Some(folder.path().join("none/linkdb.redb")), settings());
    store.set_time(now, WALL_MS);
    store.record(piece(3));
    for _ in 0..30 {
        now += Duration::from_secs(10);
        store.on_timeout(now, WALL_MS);
        assert!(store.next_timeout().unwrap() > now);
    }
}

/// Messages to a peer that are due wait, too, and go on when the database is open again.
#[test]
fn engines_wait_while_their_databases_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| Some(folder.path().join("none").join(name));
    let now = Instant::now();
    let (train, cloud) = (path("train"), path("cloud"));
    let store = train_store(now, train, settings());
    let cloud = cloud_store(now, cloud, settings());
    let mut world = World::new(now, 2, store, cloud, settings());
    world.connect();
    for second in 0..60 {
        world.pass(Duration::from_secs(1));
        // A second turn of the thread, at the same moment, leaves nothing due.
        world.pass(Duration::ZERO);
        let engines: [&dyn Engine; 2] = [&world.train.worker, &world.ground.worker];
        for engine in engines {
            assert!(engine.next_timeout().unwrap() > world.now, "second {second}");
        }
    }
    fs::create_dir(folder.path().join("none")).unwrap();
    world.ride_on(0..1);
    world.rest(30);
    let [train, cloud] = world.states();
    assert!(train.recorded > 0 && cloud.received == train.recorded, "{}", cloud.received);
}

/// An own piece of a track to the north, with a point each 50 m.
fn piece(points: i32) -> Entry {
    let point = |number: i32| TrackPoint {
        latitude: 500_000_000 + 4_500 * number,
        longitude: 80_000_000,
        position: Position { decimetres: 500 * number },
        weight: 1,
    };
    let points = (0..points).map(point).collect();
    Entry::Track(TrackPiece { route: RouteId(1), piece: 0, points })
}

#[test]
fn tracks_that_change_all_the_time_cost_a_tenth_of_a_processor() {
    let folder = tempfile::tempdir().unwrap();
    let record = handovers(learned(folder.path(), "train", 1)).into_values().next().unwrap();
    let mut now = Instant::now();
    let mut store = train_store(now, None, settings());
    store.set_time(now, WALL_MS);
    for trip in 0..1_000 {
        let handover = Handover { trip: TripId(trip), from: CellId(trip), ..record.clone() };
        store.record(Entry::Handover(handover, None));
    }
    let mut turns = 0;
    for turn in 0..1_000 {
        store.record(piece(2 + turn % 50));
        now += Duration::from_secs(20);
        store.on_timeout(now, WALL_MS);
        turns += i32::from(store.next_timeout().unwrap() <= now);
    }
    assert!((30..=100).contains(&turns), "{turns}");
}

/// The next piece of the node's own must not hide them.
#[test]
fn tracks_of_others_are_offered() {
    let mut now = Instant::now();
    let mut store = train_store(now, None, settings());
    let mut sync = Sync::new(now, Side::Gateway, "cloud");
    assert!(store.take_tracks_changed());
    for number in 0..3 {
        store.set_time(now, WALL_MS);
        let Entry::Track(one) = piece(9) else { unreachable!() };
        let route = new_route(creator_hash("train-1"), number);
        let entries = vec![(number.into(), Entry::Track(TrackPiece { route, ..one }))];
        let log = LogId { writer: "train-1".to_owned(), incarnation: 1 };
        let (first, end) = (number.into(), u64::from(number) + 1);
        store.hear(&mut sync, SyncMessage::Entries { log, floor: 0, first, end, entries });
        assert!(!store.take_tracks_changed(), "not built yet");
        if number % 2 == 0 {
            store.record(piece(10 + number as i32));
        }
        now += Duration::from_secs(5);
        store.on_timeout(now, WALL_MS);
        assert!(store.take_tracks_changed());
        assert_eq!(store.views().shared_tracks(9).len(), 1 + number as usize);
    }
}
