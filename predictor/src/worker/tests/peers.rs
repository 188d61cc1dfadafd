//! Both databases converge, whatever happens to the session.

use crate::sync::{Ledger, MemoryLedger, Share, Sync};
use crate::wire::{SyncMessage, TripKnown};
use polyrail_model::{Delivery, Direction, HandoverOutcome, Position, Speed, TripId};

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
    let events = |state: &WorkerState| state.store.stats.unwrap().events;
    let [train, ground] = world.states();
    assert!(events(&train) > events(&ground));
    world.connect();
    world.rest(30);
    let [train, ground] = world.states();
    assert_eq!(events(&train), events(&ground));
    // The cells of the ground have learned them, too.
    assert_eq!(train.store.stats.unwrap().cells, ground.store.stats.unwrap().cells);
}

#[test]
fn gateway_learns_from_handovers_of_others() {
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
        assert!(
            world.train.forecast_of("a", at).is_some()
                && world.ground.forecast_of("a", at).is_some()
        );
    }
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
        assert_eq!(train.store.stats.unwrap().cells, ground.store.stats.unwrap().cells);
    }
}

#[test]
fn inputs_of_unknown_sessions_are_ignored() {
    let mut world = World::in_memory(settings());
    let strangers = [SessionKey(5), SessionKey(u64::MAX)];
    for session in strangers {
        let message = SyncMessage::Known(vec![TripKnown { trip: TripId(1), next: 5 }]);
        world.feed(Input::Sync { session, message });
        world.feed(Input::Down(session));
        let (carrier, rate) = ("a".to_owned(), Bitrate::from_bps(1));
        world.feed(Input::Measured { session, carrier, rate, srtt: Duration::ZERO });
    }
    world.connect();
    world.ride_on(0..1);
    assert_eq!(world.states()[1].received, world.states()[0].recorded);
}

/// A cloud, and gateways that consist of their databases.
struct Fleet {
    now: Instant,
    ground: CloudEngine,
    gateways: BTreeMap<SessionKey, (MemoryLedger, Sync)>,
    /// Messages of the cloud: receiver, delivery and number of handovers.
    sent: Vec<(SessionKey, Delivery, usize)>,
}

impl Fleet {
    fn new(settings: LinkDbSettings, gateways: u64) -> Self {
        let now = Instant::now();
        let ground = CloudEngine::new(now, BufferedStore::open(now, None, settings), settings);
        let mut fleet = Self { now, ground, gateways: BTreeMap::new(), sent: Vec::new() };
        for session in (1..=gateways).map(SessionKey) {
            let mut sync = Sync::new(now, Share::All);
            sync.connected(now);
            fleet.gateways.insert(session, (MemoryLedger::default(), sync));
            fleet.ground.take(now, WALL_MS, Input::Up { session, peer: "a train".to_owned() });
        }
        fleet.pump();
        fleet
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
                    self.sent.push((session, delivery, records.len()));
                }
                let (ledger, sync) = self.gateways.get_mut(&session).unwrap();
                sync.on_message(self.now, ledger, message).unwrap();
            }
        }
    }

    /// A gateway observes a handover.
    fn observe(&mut self, session: u64, sequence: u32) {
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
fn handovers_of_one_gateway_reach_the_others_within_seconds() {
    let mut fleet = Fleet::new(settings(), 3);
    fleet.rest(60);
    (0..3).for_each(|sequence| fleet.observe(1, sequence));
    fleet.observe(2, 0);
    fleet.rest(6);
    assert_eq!(fleet.held(), [4, 4, 4]);
    // Each once, together, in the background, and none to its sender.
    fleet.sent.sort_unstable();
    let later = |session, count| (SessionKey(session), Delivery::Background, count);
    assert_eq!(fleet.sent, [later(1, 1), later(2, 3), later(3, 4)]);
    fleet.rest(600);
    assert_eq!(fleet.sent.len(), 3);
    // An ended session gets nothing, the others still do.
    fleet.ground.take(fleet.now, WALL_MS, Input::Down(SessionKey(2)));
    fleet.observe(1, 3);
    fleet.rest(6);
    assert_eq!(fleet.held(), [5, 4, 5]);
}

#[test]
fn gateways_that_do_not_share_receive_nothing_of_each_other() {
    let mut fleet = Fleet::new(LinkDbSettings { share: false, ..settings() }, 2);
    fleet.rest(60);
    (0..5).for_each(|sequence| fleet.observe(1, sequence));
    fleet.rest(600);
    assert_eq!(fleet.held(), [5, 0]);
    assert_eq!(fleet.sent, []);
}
