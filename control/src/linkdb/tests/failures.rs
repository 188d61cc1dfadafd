//! The database fails: the worker goes on from memory, says why, and writes when it can.

use std::fs;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use polyrail_model::{Fix, HandoverOutcome, LedgerMessage, Reported, TripId, Urgency};
use polyrail_predictor::position::TRACKS_MAX;
use polyrail_predictor::sync::Ledger;

use super::*;
use polyrail_config::LogConfig;

/// A train alone with a database somewhere.
fn alone(path: &Path) -> World {
    numbered(path, 2)
}

fn numbered(path: &Path, seed: u64) -> World {
    let now = Instant::now();
    let keeper = Keeper::open(now, Some(path.to_owned()), tuning());
    let mut world = World::new(now, seed, keeper, Keeper::open(now, None, tuning()), tuning());
    world.connect();
    world
}

/// The train's state.
fn state(world: &World) -> super::super::StoreState {
    world.states()[0].store.clone()
}

fn complains(world: &World, reason: &str) {
    let store = state(world);
    let error = store.error.unwrap_or_default();
    assert!(!store.open && error.contains(reason), "{error:?} lacks {reason:?}");
    assert_eq!(store.stats, None);
}

#[test]
fn without_its_folder_all_waits_and_forecasts_come_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/linkdb.redb");
    let mut world = alone(&path);
    complains(&world, "none/linkdb.redb");
    world.ride_on(0..TRIPS);
    let met = world.ride(TRIPS, |_, _| {});
    for Met { at, .. } in met {
        assert!(world.train.holds("a", at).is_some());
    }
    complains(&world, "check its disk and that its folder exists");
    let [train, ground] = world.states();
    assert_eq!((train.store.waiting as u64, train.store.lost), (train.recorded, 0));
    // The cloud heard of each at once.
    assert_eq!(ground.received, train.recorded);
    fs::create_dir(folder.path().join("none")).unwrap();
    world.rest(11);
    let [train, ground] = world.states();
    assert!(train.store.open && train.store.error.is_none() && train.store.waiting == 0);
    assert_eq!(train.store.stats.unwrap().events, train.recorded);
    world.close();
    assert_eq!(handovers(&path).len() as u64, ground.received);
}

#[test]
fn a_failure_is_tried_again_after_ten_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/linkdb.redb");
    let now = Instant::now();
    let mut keeper = Keeper::open(now, Some(path), tuning());
    fs::create_dir(folder.path().join("none")).unwrap();
    keeper.on_timeout(now + Duration::from_millis(9_900), WALL_MS);
    assert!(!keeper.state().open);
    assert_eq!(keeper.next_timeout(), Some(now + Duration::from_secs(10)));
    keeper.on_timeout(now + Duration::from_secs(10), WALL_MS);
    assert!(keeper.state().open && keeper.state().error.is_none());
}

#[test]
fn what_is_no_database_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    fs::write(&path, "someone's letters\n".repeat(1_000)).unwrap();
    let mut world = alone(&path);
    complains(&world, "is not a LinkDB");
    world.ride_on(0..1);
    world.rest(20);
    complains(&world, "is not a LinkDB");
    assert!(state(&world).waiting > 10);
    assert_eq!(fs::read_to_string(&path).unwrap(), "someone's letters\n".repeat(1_000));
    // It is moved away.
    fs::rename(&path, folder.path().join("letters")).unwrap();
    world.rest(11);
    assert_eq!((state(&world).error, state(&world).waiting), (None, 0));

    let world = alone(folder.path());
    complains(&world, "is no ordinary file");
}

#[test]
fn a_damaged_database_is_moved_aside_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = learned(folder.path(), "linkdb.redb", 1);
    let before = handovers(&path).len() as u64;
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let mut world = alone(&path);
    let store = state(&world);
    assert!(store.open && store.error.is_none());
    let damaged = store.damaged.unwrap();
    assert!(damaged.contains("is damaged") && damaged.contains("linkdb.redb.damaged-1"));
    assert!(folder.path().join("linkdb.redb.damaged-1").exists());
    assert_eq!(store.stats.unwrap().events, 0);
    world.ride_on(0..1);
    assert_eq!(state(&world).stats.unwrap().events, before);
}

/// Something else cuts the file while it is open.
#[test]
fn a_database_that_is_cut_while_it_is_open_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = learned(folder.path(), "linkdb.redb", TRIPS);
    let mut world = alone(&path);
    let before = world.states()[1].received;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4_096).unwrap();
    let met = world.ride(TRIPS, |_, _| {});
    for Met { at, .. } in met {
        assert!(world.train.holds("a", at).is_some(), "from memory");
    }
    world.rest(11);
    let [train, ground] = world.states();
    assert!(train.store.open, "{:?}", train.store);
    assert!(train.store.damaged.is_some());
    assert_eq!((train.store.waiting, ground.received), (0, before + train.recorded));
    // The cloud gives back what was lost.
    world.rest(300);
    assert_eq!(state(&world).stats.unwrap().events, ground.received);
}

/// What was in memory outlives the empty database that is begun, though no peer gives it back.
#[test]
fn an_empty_database_makes_nothing_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = learned(folder.path(), "linkdb.redb", TRIPS);
    let mut world = alone(&path);
    // The session stands, and nothing of it arrives.
    world.session = None;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4_096).unwrap();
    world.ride_on(TRIPS..TRIPS + 1);
    world.rest(11);
    let store = state(&world);
    assert!(store.open && store.damaged.is_some() && store.waiting == 0, "{store:?}");
    let met = world.ride(TRIPS + 1, |_, _| {});
    assert_eq!(met.len(), 3);
    for Met { at, .. } in met {
        assert!(world.train.holds("a", at).is_some(), "from memory");
    }
}

/// A disk may stall: what follows from an observation is told before anything is written.
#[test]
fn forecasts_do_not_wait_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = alone(&learned(folder.path(), "linkdb.redb", TRIPS));
    world.observe(odometer(world.now, 1_900.0));
    world.observe(serving(world.now, "a", Some(1)));
    assert!(world.train.holds("a", world.now).is_some());
    (0..5).for_each(|_| world.pass(TICK));
    let now = world.now;
    let events = |world: &World| (state(world).stats.unwrap().events, world.states()[0].recorded);
    let (before, recorded) = events(&world);
    // It finds a cell that is sound, and all of it is told: nothing has to settle.
    let (carrier, dark) = ("a".to_owned(), Some(Duration::from_millis(5)));
    let outcome = HandoverOutcome::Success;
    let reported = Observation::Reported(Reported { at: now, carrier, outcome, dark });
    for observation in [serving(now, "a", Some(2)), reported] {
        world.train.worker.take(now, world.wall_ms, Input::Observed(observation));
    }
    world.train.worker.on_timeout(now, world.wall_ms);
    let mut said: Vec<Output> = std::iter::from_fn(|| world.train.worker.poll(now)).collect();
    let taken_back = |one: &Output| matches!(one, Output::Forecast { forecast: None, .. });
    assert!(said.iter().any(taken_back), "{said:?}");
    assert!(said.iter().any(|one| matches!(one, Output::Telemetry(_))), "{said:?}");
    assert_eq!(events(&world), (before, recorded), "nothing is written yet");
    world.train.worker.write(now, world.wall_ms);
    assert_eq!(events(&world), (before + 1, recorded + 1));
    said = std::iter::from_fn(|| world.train.worker.poll(now)).collect();
    let seen = |one: &Output| match one {
        Output::Ledger { urgency: Urgency::Now, message: LedgerMessage::Records(all), .. } => {
            all.len() == 1
        }
        _ => false,
    };
    assert!(said.iter().any(seen), "{said:?}");
    // What the peer has said does not hold up the end: it says it again.
    let message = LedgerMessage::Records(vec![Handover { trip: TripId(5), ..first(&folder) }]);
    let session = world.on_train();
    world.train.worker.take(now, world.wall_ms, Input::Ledger { session, message });
    world.close();
    let all = handovers(folder.path().join("linkdb.redb"));
    assert_eq!(all.len() as u64, before + 1);
}

/// Nor what a cloud says of one gateway for what others tell its database.
#[test]
fn forecasts_of_a_cloud_do_not_wait_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let record = first(&folder);
    let now = Instant::now();
    let keeper = Keeper::open(now, Some(learned(folder.path(), "ground", TRIPS)), tuning());
    let train = Keeper::open(now, None, tuning());
    let mut world = World::new(now, 1, train, keeper, tuning());
    world.connect();
    world.observe(odometer(now, 1_900.0));
    world.observe(serving(now, "a", Some(1)));
    (0..5).for_each(|_| world.pass(TICK));
    assert!(world.ground.holds("a", world.now).is_some());
    let (now, wall_ms, ours) = (world.now, world.wall_ms, world.on_ground());
    let others = 2_000..2_003;
    let ground = &mut world.ground.worker;
    for session in others.clone().map(SessionNumber) {
        ground.take(now, wall_ms, Input::Up { session, peer: "another".to_owned() });
        ground.write(now, wall_ms);
    }
    let before = ground.state(now);
    let tell = |number: u64, sequence: u32| {
        let one = Handover { trip: TripId(number), sequence, ..record.clone() };
        let (session, message) = (SessionNumber(number), LedgerMessage::Records(vec![one]));
        Input::Ledger { session, message }
    };
    // Each of these is a transaction on the disk.
    for number in others.clone() {
        (0..2).for_each(|sequence| ground.take(now, wall_ms, tell(number, sequence)));
    }
    world.train.worker.take(now, wall_ms, Input::Observed(serving(now, "a", Some(2))));
    world.train.worker.on_timeout(now, wall_ms);
    let said = std::iter::from_fn(|| world.train.worker.poll(now));
    let telemetry = said.filter_map(|one| match one {
        Output::Telemetry(telemetry) => Some(telemetry),
        _ => None,
    });
    let telemetry = telemetry.last().unwrap();
    let ground = &mut world.ground.worker;
    ground.take(now, wall_ms, Input::Telemetry { session: ours, at: now, telemetry });
    ground.on_timeout(now, wall_ms);
    let said: Vec<Output> = std::iter::from_fn(|| ground.poll(now)).collect();
    let taken_back = |one: &Output| match one {
        Output::Forecast { session, forecast: None, .. } => *session == ours,
        _ => false,
    };
    assert!(said.iter().any(taken_back), "{said:?}");
    assert_eq!(ground.state(now), LinkDbState { trips: ground.state(now).trips, ..before.clone() });
    // Then one at a time, each gateway's in the order in which it told them.
    for written in 1..=6 {
        assert_eq!(ground.next_timeout(), None);
        assert!(ground.write(now, wall_ms));
        assert_eq!(ground.state(now).received, before.received + written);
    }
    assert!(!ground.write(now, wall_ms) && ground.next_timeout().is_some());
    // So it is with those that cannot be: far beyond the first of a trip nobody knows.
    (0..3).for_each(|_| ground.take(now, wall_ms, tell(2_000, 1_000_000)));
    for left in (0..3).rev() {
        assert!(ground.write(now, wall_ms));
        assert_eq!(ground.next_timeout().is_none(), left > 0);
    }
    assert_eq!(ground.state(now).received, before.received + 6);
    world.close();
    let all = handovers(folder.path().join("ground"));
    for number in others {
        assert!((0..2).all(|sequence| all.contains_key(&(number, sequence))), "{number}");
    }
}

/// What gateways say faster than the disk takes it is bounded, and what is lost is counted.
#[test]
fn what_waits_for_the_disk_of_a_cloud_is_bounded() {
    let mut world = World::in_memory(tuning());
    world.connect();
    let session = world.on_ground();
    let message = LedgerMessage::Known(Vec::new());
    for _ in 0..5_000 {
        let input = Input::Ledger { session, message: message.clone() };
        world.ground.worker.take(world.now, world.wall_ms, input);
    }
    assert_eq!(world.states()[1].inputs_dropped, 5_000 - 4_096);
    world.pump();
    world.ride_on(0..1);
    assert_eq!(world.states()[1].received, world.states()[0].recorded);
}

#[test]
fn what_becomes_no_record_is_counted() {
    let mut world = World::in_memory(tuning());
    // A modem far from any position.
    for cell in 1..=3 {
        world.observe(serving(world.now, "a", Some(cell)));
        let (at, carrier, outcome) = (world.now, "a".to_owned(), HandoverOutcome::Success);
        let dark = Some(Duration::from_millis(5));
        world.observe(Observation::Reported(Reported { at, carrier, outcome, dark }));
        world.rest(10);
    }
    world.observe(serving(world.now, &"a".repeat(1_000), Some(1)));
    let unrecorded = world.states()[0].unrecorded;
    assert!(unrecorded.unplaced >= 2 && unrecorded.strangers == 1, "{unrecorded:?}");
    assert_eq!(world.states()[0].recorded, 0);
}

/// A handover of another database.
fn first(folder: &tempfile::TempDir) -> Handover {
    let path = learned(folder.path(), "other", 1);
    handovers(path).into_values().next().unwrap()
}

/// The limit on the size of files is the whole process's: the test runs itself alone.
#[test]
fn a_full_disk_stops_nothing() {
    if std::env::var_os(ALONE).is_none() {
        let name = "linkdb::tests::failures::a_full_disk_stops_nothing";
        let mut own = Command::new(std::env::current_exe().unwrap());
        let output = own.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    // What is written beyond the limit fails.
    SigSet::from(Signal::SIGXFSZ).thread_block().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = learned(folder.path(), "linkdb.redb", TRIPS);
    let mut world = alone(&path);
    let events = || state(&world).stats.unwrap().events;
    let before = events();
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, 0, hard).unwrap();
    let met = world.ride(TRIPS, |world, _| world.measure("a"));
    assert_eq!(met.len(), 3);
    for Met { at, .. } in met {
        assert!(world.train.holds("a", at).is_some(), "from memory");
    }
    complains(&world, "no space is left");
    let [train, ground] = world.states();
    assert_eq!(train.store.waiting as u64, train.recorded);
    assert_eq!(ground.received, before + train.recorded);
    setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();
    world.rest(11);
    let store = state(&world);
    assert_eq!((store.error, store.waiting, store.damaged), (None, 0, None));
    let stats = store.stats.unwrap();
    assert_eq!(stats.events, before + train.recorded);
    world.rest(31);
    assert!(state(&world).stats.unwrap().places > 50, "they waited, too");
    world.close();
    assert_eq!(handovers(&path).len() as u64, stats.events);
}

/// As when an operator evaluates it while the daemon starts.
#[test]
fn a_database_that_opens_late_is_learned_then() {
    let folder = tempfile::tempdir().unwrap();
    let path = learned(folder.path(), "linkdb.redb", TRIPS);
    let held = Store::open(&path, Limits::default()).unwrap();
    let mut world = alone(&path);
    complains(&world, "is open in another process");
    let mut held = Some(held);
    let met = world.ride(TRIPS, |world, metres| {
        if metres > 2_500.0 && held.take().is_some() {
            world.rest(11);
        }
    });
    assert_eq!(met.len(), 3);
    let told = |met: &Met| world.train.holds("a", met.at).is_some();
    assert_eq!(met.iter().map(told).collect::<Vec<_>>(), [false, true, true]);
    // The ground was told nothing of earlier trips until then, and has them now.
    world.rest(30);
    let [train, ground] = world.states();
    assert_eq!(train.store.stats.unwrap().events, ground.store.stats.unwrap().events);
}

/// Northwards by satellite, at 80 m/s; on which track that was.
fn ride_north(world: &mut World, from: f64, seconds: u32) -> Option<String> {
    for second in 0..seconds {
        let latitude = from + f64::from(second) * SPEED / 111_195.0;
        let (at, error) = (world.now, Some(5.0));
        let (time_ms, speed, heading) = (None, None, None);
        let longitude = 8.0;
        let fix = Fix { at, time_ms, latitude, longitude, speed, heading, error };
        world.observe(Observation::Fix(fix));
        world.rest(1);
    }
    world.states()[0].trips[0].route.clone()
}

#[test]
fn tracks_are_known_when_the_database_opens_late() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let mut world = numbered(&path, 2);
    let first = ride_north(&mut world, 50.0, 60);
    assert!(first.is_some());
    world.close();
    let held = Store::open(&path, Limits::default()).unwrap();
    assert_eq!(held.stats().unwrap().tracks, 1);
    let mut world = numbered(&path, 3);
    let other = ride_north(&mut world, 50.0, 20);
    assert!(other.is_some() && other != first, "a new one is begun");
    let trip = world.states()[0].trips[0].trip.clone();
    drop(held);
    world.rest(11);
    world.pass(Duration::from_secs(3_600));
    assert_eq!(ride_north(&mut world, 50.0, 60), first);
    assert_ne!(world.states()[0].trips[0].trip, trip);
}

#[test]
fn of_many_tracks_those_that_were_used_last_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linkdb.redb");
    let mut world = numbered(&path, 2);
    let known = ride_north(&mut world, 50.0, 60).unwrap();
    world.close();
    let mut store = Store::open(&path, Limits::default()).unwrap();
    let (route, track) = store.tracks().unwrap().pop().unwrap();
    assert_eq!(route.to_string(), known);
    // The same line under another number, then others with higher ones.
    store.put_track(RouteId(1), &track).unwrap();
    let elsewhere = elsewhere(folder.path());
    for number in 0..TRACKS_MAX as u64 - 1 {
        store.put_track(RouteId(u64::MAX - number), &elsewhere).unwrap();
    }
    drop(store);
    // Thirty-two were used since the first.
    let mut world = numbered(&path, 3);
    assert_eq!(ride_north(&mut world, 50.0, 20).unwrap(), RouteId(1).to_string());
    world.close();

    // A trip of which nothing is learned uses its track, too.
    let mut store = Store::open(&path, Limits::default()).unwrap();
    store.put_track(ROUTE, &track).unwrap();
    store.put_track(RouteId(2), &track).unwrap();
    drop(store);
    let mut world = numbered(&path, 4);
    world.ride_on(0..1);
    world.close();
    let store = Store::open(&path, Limits::default()).unwrap();
    assert_eq!(store.tracks().unwrap().pop(), Some((ROUTE, track)));
}

/// A track in another country, as it is encoded.
fn elsewhere(folder: &Path) -> Vec<u8> {
    let path = folder.join("elsewhere.redb");
    let mut world = numbered(&path, 9);
    ride_north(&mut world, 40.0, 60);
    world.close();
    Store::open(&path, Limits::default()).unwrap().tracks().unwrap().remove(0).1
}

#[test]
fn a_reload_of_the_bounds_keeps_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    for path in [Some(folder.path().join("linkdb.redb")), None] {
        let now = Instant::now();
        let keeper = Keeper::open(now, path.clone(), tuning());
        let mut world = World::new(now, 3, keeper, Keeper::open(now, None, tuning()), tuning());
        world.connect();
        world.ride_on(0..1);
        let before = state(&world).stats.unwrap().events;
        let second = Duration::from_secs(1);
        let other = Tuning { events_max: 1_000, guard: true, retention: second, ..tuning() };
        world.tell(Input::Retune(Tuning { retention: tuning().retention, ..other }));
        assert_eq!(state(&world).stats.unwrap().events, before, "{path:?}");
        // What is older than a second is forgotten, but not what cells remember.
        let cells = state(&world).stats.unwrap().cells;
        world.tell(Input::Retune(other));
        world.rest(3);
        let stats = state(&world).stats.unwrap();
        assert_eq!((stats.events, stats.cells), (0, cells), "{path:?}");
    }
}

#[test]
fn a_clock_that_is_years_ahead_lets_nothing_fall_out_and_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = learned(folder.path(), "linkdb.redb", 2);
    let log = std::sync::Arc::new(fs::File::create(folder.path().join("log")).unwrap());
    let (dispatch, _handle) = polyrail_config::log::dispatch(&LogConfig::default(), log);
    tracing::dispatcher::with_default(&dispatch, || {
        let now = Instant::now();
        let mut keeper = Keeper::open(now, Some(path), tuning());
        let events = |keeper: &Keeper| keeper.state().stats.unwrap().events;
        let before = events(&keeper);
        // The weeks of a GPS receiver have run over: 1,024 of them.
        let ahead = WALL_MS + 1_024 * 7 * 86_400_000;
        let sweep = |keeper: &mut Keeper, hour: u64, wall_ms: u64| {
            keeper.on_timeout(now + Duration::from_secs(hour * 3_600), wall_ms);
        };
        (1..5).for_each(|hour| sweep(&mut keeper, hour, ahead + hour * 3_600_000));
        assert_eq!(events(&keeper), before);
        let said = fs::read_to_string(folder.path().join("log")).unwrap();
        assert_eq!(said.matches("the clock is far ahead of the LinkDB's trips").count(), 1);
        // It is right again.
        let brief = Tuning { retention: Duration::from_secs(60), ..tuning() };
        keeper.retune(now + Duration::from_secs(5 * 3_600), brief);
        sweep(&mut keeper, 5, WALL_MS + 86_400_000);
        assert_eq!(events(&keeper), 0);
    });
}

/// A train whose database is full, with a clock that is two months late.
#[test]
fn a_late_clock_loses_no_trip_and_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let learned = learned(folder.path(), "train.redb", 1);
    let store = Store::open(learned, Limits::default()).unwrap();
    let one = store.records(store.trips().unwrap()[0].trip, 0, 1).unwrap().remove(0);
    let log = std::sync::Arc::new(fs::File::create(folder.path().join("log")).unwrap());
    let (dispatch, _handle) = polyrail_config::log::dispatch(&LogConfig::default(), log);
    tracing::dispatcher::with_default(&dispatch, || {
        let now = Instant::now();
        let mut keeper = Keeper::open(now, None, Tuning { events_max: 1_000, ..tuning() });
        let record = |trip: u64, sequence: u32, at_ms: u64| Handover {
            trip: TripId(trip),
            sequence,
            at_ms,
            ..one.clone()
        };
        keeper.at(now, WALL_MS);
        for trip in 0..2 {
            let all: Vec<_> = (0..500).map(|sequence| record(trip, sequence, WALL_MS)).collect();
            Ledger::append(&mut keeper, &all).unwrap();
        }
        let late = WALL_MS - 60 * 86_400_000;
        keeper.at(now, late);
        (0..3).for_each(|sequence| keeper.record(now, &record(7, sequence, late)));
        assert_eq!(keeper.next_of(TripId(7)).unwrap(), 3);
        let said = fs::read_to_string(folder.path().join("log")).unwrap();
        assert_eq!(said.matches("the clock is behind the LinkDB's newest trip").count(), 1);
    });
}

/// A guard that changes while there is no database must not forget what is in memory.
#[test]
fn a_reload_without_a_database_forgets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = alone(&folder.path().join("none/linkdb.redb"));
    world.ride_on(0..TRIPS);
    world.tell(Input::Retune(Tuning { guard: true, events_max: 5_000, ..tuning() }));
    let met = world.ride(TRIPS, |_, _| {});
    for Met { at, .. } in met {
        assert!(world.train.holds("a", at).is_some());
    }
    fs::create_dir(folder.path().join("none")).unwrap();
    world.tell(Input::Retune(Tuning { guard: true, events_max: 6_000, ..tuning() }));
    world.rest(1);
    let store = state(&world);
    assert!(store.open && store.waiting == 0, "{store:?}");
}

#[test]
fn what_waits_is_bounded_and_written_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/linkdb.redb");
    let now = Instant::now();
    let one = first(&folder);
    let mut keeper = Keeper::open(now, Some(path.clone()), tuning());
    keeper.at(now, WALL_MS);
    for number in 0..5_000 {
        let (trip, sequence) = (TripId(number / 1_000), (number % 1_000) as u32);
        keeper.record(now, &Handover { trip, sequence, ..one.clone() });
        keeper.put_track(now, RouteId(number), vec![0; 100]);
    }
    // A track that is too large harms nothing else.
    keeper.put_track(now, RouteId(0), vec![0; 2 << 20]);
    assert_eq!((keeper.state().waiting, keeper.state().lost), (4_096, 904));
    fs::create_dir(folder.path().join("none")).unwrap();
    keeper.close(now);
    assert_eq!((keeper.state().waiting, keeper.state().error), (0, None));
    let stats = keeper.state().stats.unwrap();
    assert_eq!((stats.events, stats.tracks), (4_096, 7));
}

const ALONE: &str = "POLYRAIL_TEST_ALONE";
