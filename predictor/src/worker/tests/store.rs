//! A database that fails to open.

use std::fs;

use polyrail_model::TripId;

use super::*;

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
