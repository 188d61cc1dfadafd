//! Both databases come to hold the same, whatever the session does.

use crate::sync::{Ledger, MemoryLedger, Share, Sync};
use crate::wire::{SyncMessage, TripKnown};
use polyrail_model::{Delivery, Direction, HandoverOutcome, Position, Speed, TripId};

use super::*;

#[test]
fn both_databases_hold_the_same() {
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
fn a_session_that_comes_back_is_told_all_and_gets_what_it_missed() {
    let mut world = World::in_memory(settings());
    world.connect();
    world.ride_on(0..TRIPS);
    let mut sessions = Vec::new();
    world.ride(TRIPS, |world, metres| {
        // In the middle of the cells that fail.
        let middle = (1_300.0..1_308.0).contains(&metres) || (4_300.0..4_308.0).contains(&metres);
        if !middle {
            return;
        }
        world.disconnect();
        world.train.forget();
        world.ground.forget();
        world.connect();
        world.rest(2);
        for told in [&world.train.told, &world.ground.told] {
            assert!(told.iter().any(|one| one.forecast.is_some()), "{metres}: told anew");
        }
        let (train, ground) = (world.on_train(), world.on_ground());
        assert!(world.train.told.iter().all(|one| one.session == train));
        assert!(world.ground.told.iter().all(|one| one.session == ground));
        sessions.push(world.sessions);
    });
    assert_eq!(sessions, [2, 3]);
    // A whole trip without a session: nothing is told, all is recorded.
    world.disconnect();
    world.train.forget();
    world.telemetry = 0;
    world.ride_on(TRIPS + 1..TRIPS + 2);
    assert!(world.train.told.is_empty() && world.telemetry == 0);
    let events = |state: &WorkerState| state.store.stats.unwrap().events;
    let [train, ground] = world.states();
    assert!(events(&train) > events(&ground));
    world.connect();
    world.rest(30);
    let [train, ground] = world.states();
    assert_eq!(events(&train), events(&ground));
    // What the ground learned so it forecasts from, too.
    assert_eq!(train.store.stats.unwrap().cells, ground.store.stats.unwrap().cells);
}

#[test]
fn a_gateway_learns_from_what_others_told_the_cloud() {
    let folder = tempfile::tempdir().unwrap();
    let path = learned(folder.path(), "ground", TRIPS);
    let now = Instant::now();
    let train = BufferedStore::open(now, None, settings());
    let ground = BufferedStore::open(now, Some(path), settings());
    let mut world = World::new(now, 1, train, ground, settings());
    world.connect();
    world.rest(30);
    let [train, ground] = world.states();
    assert_eq!(train.received, ground.store.stats.unwrap().events);
    let met = world.ride(99, |_, _| {});
    for Met { at, .. } in met {
        assert!(world.train.holds("a", at).is_some() && world.ground.holds("a", at).is_some());
    }
}

/// What the protocol asks of a ledger: a gap is not known beyond, what fell out is left out.
#[test]
fn a_keeper_says_how_far_it_knows_a_trip() {
    let now = Instant::now();
    let records: Vec<Handover> = {
        let folder = tempfile::tempdir().unwrap();
        handovers(learned(folder.path(), "train", 1)).into_values().collect()
    };
    let trip = records[0].trip;
    let mut store = BufferedStore::open(now, None, Settings { events_max: 1_000, ..settings() });
    store.set_time(now, WALL_MS);
    assert_eq!(store.next_of(trip).unwrap(), 0);
    Ledger::append(&mut store, &records[2..4]).unwrap();
    assert_eq!(store.next_of(trip).unwrap(), 0, "0 and 1 are missing");
    Ledger::append(&mut store, &records[..2]).unwrap();
    assert_eq!(store.next_of(trip).unwrap(), 4);
    // Newer trips push it out.
    for number in 0..2 {
        let newer = (0..600).map(|sequence| {
            let at_ms = WALL_MS + 86_400_000;
            Handover { trip: TripId(number), sequence, at_ms, ..records[0].clone() }
        });
        Ledger::append(&mut store, &newer.collect::<Vec<_>>()).unwrap();
    }
    assert_eq!(store.next_of(trip).unwrap(), TripKnown::LEFT_OUT);
    // It is not compared any more.
    let known = store.known_before(None, 10).unwrap();
    assert!(known.len() == 1 && known[0].1.trip != trip, "{known:?}");
    assert_eq!(store.digest().unwrap().trips, 1);
}

#[test]
fn a_clock_that_is_wrong_stops_nothing() {
    // 1970, and the year 2201.
    for wall_ms in [0, 5, 7_300_000_000_000] {
        let mut world = World::in_memory(settings());
        world.wall_ms = wall_ms;
        world.connect();
        world.ride_on(0..TRIPS);
        let met = world.ride(TRIPS, |_, _| {});
        for Met { at, .. } in met {
            assert!(world.train.holds("a", at).is_some(), "{wall_ms}");
            assert!(world.ground.holds("a", at).is_some(), "{wall_ms}");
        }
        let [train, ground] = world.states();
        assert_eq!(train.recorded, ground.received, "{wall_ms}");
        assert_eq!(train.store.stats.unwrap().cells, ground.store.stats.unwrap().cells);
    }
}

#[test]
fn what_peers_say_out_of_place_is_nothing() {
    let mut world = World::in_memory(settings());
    let strangers = [SessionKey(5), SessionKey(u64::MAX)];
    for session in strangers {
        let message = SyncMessage::Known(vec![TripKnown { trip: TripId(1), next: 5 }]);
        world.tell(Input::Sync { session, message });
        world.tell(Input::Down(session));
        let (carrier, rate) = ("a".to_owned(), Bitrate::from_bps(1));
        world.tell(Input::Measured { session, carrier, rate, srtt: Duration::ZERO });
    }
    world.connect();
    world.ride_on(0..1);
    assert_eq!(world.states()[1].received, world.states()[0].recorded);
}

/// A cloud, and gateways that are nothing but their databases.
struct Circle {
    now: Instant,
    ground: CloudEngine,
    gateways: BTreeMap<SessionKey, (MemoryLedger, Sync)>,
    /// What the cloud has said: to whom, how urgent, and how many handovers.
    said: Vec<(SessionKey, Delivery, usize)>,
}

impl Circle {
    fn new(settings: Settings, gateways: u64) -> Self {
        let now = Instant::now();
        let ground = CloudEngine::new(now, BufferedStore::open(now, None, settings), settings);
        let mut circle = Self { now, ground, gateways: BTreeMap::new(), said: Vec::new() };
        for session in (1..=gateways).map(SessionKey) {
            let mut sync = Sync::new(now, Share::All);
            sync.connected(now);
            circle.gateways.insert(session, (MemoryLedger::default(), sync));
            circle.ground.take(now, WALL_MS, Input::Up { session, peer: "a train".to_owned() });
        }
        circle.pump();
        circle
    }

    fn pump(&mut self) {
        let mut any = true;
        while std::mem::take(&mut any) {
            for (&session, (ledger, sync)) in &mut self.gateways {
                while let Some((_, message)) = sync.poll(self.now, ledger).unwrap() {
                    any = true;
                    self.ground.take(self.now, WALL_MS, Input::Sync { session, message });
                }
            }
            any |= self.ground.write(self.now, WALL_MS);
            while let Some(output) = self.ground.poll(self.now) {
                any = true;
                let Output::Sync { session, delivery, message } = output else { continue };
                if let SyncMessage::Records(records) = &message {
                    self.said.push((session, delivery, records.len()));
                }
                let (ledger, sync) = self.gateways.get_mut(&session).unwrap();
                sync.on_message(self.now, ledger, message).unwrap();
            }
        }
    }

    /// A gateway's train sees a handover.
    fn see(&mut self, session: u64, sequence: u32) {
        let seen = Handover {
            trip: TripId(session),
            sequence,
            at_ms: WALL_MS + u64::from(sequence),
            carrier: "a".to_owned(),
            route: ROUTE,
            direction: Direction::Up,
            position: Position::from_metres(1_000.0),
            speed: Speed::from_metres_per_second(80.0),
            from: CellId(1),
            to: Some(CellId(2)),
            rsrp: None,
            outcome: HandoverOutcome::Success,
            dark: Duration::from_millis(40),
        };
        let (ledger, sync) = self.gateways.get_mut(&SessionKey(session)).unwrap();
        ledger.append(std::slice::from_ref(&seen)).unwrap();
        sync.added(self.now, &seen);
        self.pump();
    }

    fn rest(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.ground.on_timeout(self.now, WALL_MS);
            self.pump();
        }
    }

    fn held(&self) -> Vec<usize> {
        self.gateways.values().map(|(ledger, _)| ledger.handovers().count()).collect()
    }
}

#[test]
fn what_one_gateway_tells_the_others_hear_within_seconds() {
    let mut circle = Circle::new(settings(), 3);
    circle.rest(60);
    (0..3).for_each(|sequence| circle.see(1, sequence));
    circle.see(2, 0);
    circle.rest(6);
    assert_eq!(circle.held(), [4, 4, 4]);
    // Each once, together, at little cost, and none to whom it came from.
    circle.said.sort_unstable();
    let later = |session, count| (SessionKey(session), Delivery::Background, count);
    assert_eq!(circle.said, [later(1, 1), later(2, 3), later(3, 4)]);
    circle.rest(600);
    assert_eq!(circle.said.len(), 3);
    // One that has left is not told, and the others still are.
    circle.ground.take(circle.now, WALL_MS, Input::Down(SessionKey(2)));
    circle.see(1, 3);
    circle.rest(6);
    assert_eq!(circle.held(), [5, 4, 5]);
}

#[test]
fn gateways_that_do_not_share_hear_nothing_of_each_other() {
    let mut circle = Circle::new(Settings { share: false, ..settings() }, 2);
    circle.rest(60);
    (0..5).for_each(|sequence| circle.see(1, sequence));
    circle.rest(600);
    assert_eq!(circle.held(), [5, 0]);
    assert_eq!(circle.said, []);
}
