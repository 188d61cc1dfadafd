//! Both databases converge, whatever happens to the session.

use crate::wire::SyncMessage;

use super::*;

#[test]
fn both_databases_converge() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::on_disk(folder.path(), settings());
    world.connect();
    world.ride_on(0..2);
    let [train, ground] = world.states();
    assert_eq!((train.store.error, ground.store.error), (None, None));
    assert_eq!(train.recorded, ground.received);
    assert!(train.recorded > 30 && world.telemetry > 200);
    assert_eq!(train.trips[0].carriers.len(), 2);
    assert_eq!(ground.trips[0].gateway.as_deref(), Some("train-7"));
    assert_eq!(ground.trips[0].trip, train.trips[0].trip);
    world.close();
    let train = handovers(folder.path().join("train"));
    assert_eq!(train, handovers(folder.path().join("ground")));
    // Two trips, each numbered from 0 without a gap.
    let trips: std::collections::BTreeSet<u64> = train.keys().map(|(trip, _)| *trip).collect();
    assert_eq!(trips.len(), 2);
    for trip in trips {
        let numbers: Vec<u32> =
            train.keys().filter(|(one, _)| *one == trip).map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..numbers.len() as u32).collect::<Vec<_>>());
    }
    assert!(train.values().all(|one| one.at_ms > WALL_MS));
}

#[test]
fn new_session_gets_all_forecasts_and_missing_records() {
    let mut world = World::in_memory(settings());
    world.connect();
    world.ride_on(0..TRIPS);
    let mut sessions = Vec::new();
    world.ride(TRIPS, |world, metres| {
        // In the middle of the failing cells.
        let middle = (1_300.0..1_308.0).contains(&metres) || (4_300.0..4_308.0).contains(&metres);
        if !middle {
            return;
        }
        world.disconnect();
        world.train.forget();
        world.ground.forget();
        world.connect();
        world.rest(2);
        for reported in [&world.train.reported, &world.ground.reported] {
            assert!(reported.iter().any(|one| one.forecast.is_some()), "{metres}: repeated");
        }
        let (train, ground) = (world.on_train(), world.on_ground());
        assert!(world.train.reported.iter().all(|one| one.session == train));
        assert!(world.ground.reported.iter().all(|one| one.session == ground));
        sessions.push(world.sessions);
    });
    assert_eq!(sessions, [2, 3]);
    // A trip without a session: no output, and all handovers are recorded.
    world.disconnect();
    world.train.forget();
    world.telemetry = 0;
    world.ride_on(TRIPS + 1..TRIPS + 2);
    assert!(world.train.reported.is_empty() && world.telemetry == 0);
    let events = |state: &WorkerState| state.store.stats.unwrap().entries;
    let [train, ground] = world.states();
    assert!(events(&train) > events(&ground));
    world.connect();
    world.rest(30);
    let [train, ground] = world.states();
    assert_eq!(events(&train), events(&ground));
    // The cells of the ground have learned them, too.
    assert_eq!(train.store.views.cells, ground.store.views.cells);
}

/// The logs of several trains that have been on the line, in one file of the cloud.
fn cloud_file(folder: &Path, trains: &[&str]) -> PathBuf {
    let path = folder.join("ground");
    let mut cloud = Store::open(&path, Limits::default()).unwrap();
    cloud.set_own_name("cloud").unwrap();
    for name in trains {
        let train = Store::open(learned(folder, name, TRIPS), Limits::default()).unwrap();
        let (own, next) = (train.own_log(), train.log(train.own_log()).unwrap().next);
        let page = train.since(own, 0, usize::MAX).unwrap();
        let id = &train.log(own).unwrap().id;
        cloud.append(id, 0, (0, next), &page.entries, WALL_MS).unwrap();
    }
    path
}

/// A train with an empty database forecasts on its first trip what others know, in every cell.
#[test]
fn empty_train_forecasts_from_three_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = cloud_file(folder.path(), &["train-1", "train-2", "train-3"]);
    let now = Instant::now();
    let train = train_store(now, None, settings());
    let ground = cloud_store(now, Some(path), settings());
    let mut world = World::new(now, 1, train, ground, settings());
    world.connect();
    world.rest(60);
    let [train, ground] = world.states();
    assert_eq!(train.store.stats.unwrap().entries, ground.store.stats.unwrap().entries,);
    let met = world.ride(99, |_, _| {});
    for Met { at, .. } in met {
        assert!(world.train.forecast_of("a", at).is_some(), "on board");
        assert!(world.ground.forecast_of("a", at).is_some(), "in the cloud");
    }
}

/// What a single other writer says is no forecast.
#[test]
fn one_other_train_makes_no_forecast() {
    let folder = tempfile::tempdir().unwrap();
    let path = cloud_file(folder.path(), &["train-1"]);
    let now = Instant::now();
    let train = train_store(now, None, settings());
    let ground = cloud_store(now, Some(path), settings());
    let mut world = World::new(now, 1, train, ground, settings());
    world.connect();
    world.rest(60);
    assert!(world.states()[0].received > 30);
    world.ride_on(99..100);
    assert!(world.train.reported.is_empty() && world.ground.reported.is_empty());
}

#[test]
fn wrong_clock_does_not_stop_forecasts() {
    // 1970, and the year 2201.
    for wall_ms in [0, 5, 7_300_000_000_000] {
        let mut world = World::in_memory(settings());
        world.wall_ms = wall_ms;
        world.connect();
        world.ride_on(0..TRIPS);
        let met = world.ride(TRIPS, |_, _| {});
        for Met { at, .. } in met {
            assert!(world.train.forecast_of("a", at).is_some(), "{wall_ms}");
            assert!(world.ground.forecast_of("a", at).is_some(), "{wall_ms}");
        }
        let [train, ground] = world.states();
        assert_eq!(train.recorded, ground.received, "{wall_ms}");
        assert_eq!(train.store.views.cells, ground.store.views.cells);
    }
}

#[test]
fn inputs_of_unknown_sessions_are_ignored() {
    let mut world = World::in_memory(settings());
    let strangers = [SessionKey(5), SessionKey(u64::MAX)];
    for session in strangers {
        let message = SyncMessage::Marks { end: true, heard: true, marks: vec![] };
        world.feed(Input::Sync { session, message });
        world.feed(Input::Down(session));
        let (carrier, rate) = ("a".to_owned(), Bitrate::from_bps(1));
        world.feed(Input::Measured { session, carrier, rate, srtt: Duration::ZERO });
    }
    world.connect();
    world.ride_on(0..1);
    assert_eq!(world.states()[1].received, world.states()[0].recorded);
}

#[test]
fn train_replicates_with_every_cloud_and_telemetry_follows_its_users() {
    let mut world = World::in_memory(settings());
    world.connect();
    let (second, peer) = (SessionKey(500), "cloud-2".to_owned());
    world.second = Some(second);
    world.train.worker.take(world.now, world.wall_ms, Input::Up { session: second, peer });
    let telemetry = |world: &World| {
        let is = |output: &&Output| matches!(output, Output::Telemetry { .. });
        (world.telemetry, world.to_second.iter().filter(is).count())
    };
    world.ride_on(0..1);
    let before = telemetry(&world);
    assert!(before.0 > 100 && before.1 == 0, "{before:?}");
    world.train.worker.take(world.now, world.wall_ms, Input::Follow(second));
    world.train.forget();
    world.ride_on(1..TRIPS);
    let after = telemetry(&world);
    assert!(after.0 == before.0 && after.1 > 100, "{after:?}");
    assert!(world.train.reported.iter().all(|one| one.session == second));
    // The first cloud went on receiving records; the second one is owed all of them.
    let [train, ground] = world.states();
    assert_eq!(train.recorded, ground.received);
    let ground = cloud_store(world.now, None, settings());
    let mut cloud = CloudEngine::new(world.now, ground, settings());
    let (own, peer) = (SessionKey(9), "train-7".to_owned());
    cloud.take(world.now, world.wall_ms, Input::Up { session: own, peer });
    world.to_second.clear();
    for _ in 0..300 {
        world.rest(1);
        for output in std::mem::take(&mut world.to_second) {
            let Output::Sync { message, .. } = output else { continue };
            cloud.take(world.now, world.wall_ms, Input::Sync { session: own, message });
        }
        cloud.on_timeout(world.now, world.wall_ms);
        while cloud.write(world.now, world.wall_ms) {}
        while let Some(output) = cloud.poll(world.now) {
            let Output::Sync { message, .. } = output else { continue };
            let input = Input::Sync { session: second, message };
            world.train.worker.take(world.now, world.wall_ms, input);
        }
    }
    assert_eq!(cloud.state(world.now).received, world.states()[0].recorded);
}
