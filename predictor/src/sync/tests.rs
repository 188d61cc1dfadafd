//! Two or more databases over channels that lose, duplicate and reorder messages.

#![allow(clippy::disallowed_methods, reason = "the base of a simulated clock")]

use std::collections::BTreeMap;

use polyrail_model::{Bitrate, Direction, Position, RouteId, TripId};
use proptest::prelude::*;

use super::*;
use crate::entry::{EntryKey, Link, RateSample, Rates};
use crate::simulated::Dice;
use crate::store::tests::entries;
use crate::store::{ENTRIES_A_DAY, Limits};
use crate::wire;

const WALL_MS: u64 = 1_790_000_000_000;

/// A cloud and its gateways.
struct Fleet {
    now: Instant,
    dice: Dice,
    /// The part of messages that are lost, repeated or late.
    trouble: f64,
    cloud: Store,
    gateways: Vec<Store>,
    sessions: Vec<[Sync; 2]>,
    quotas: Quotas,
    flying: Vec<(usize, bool, SyncMessage)>,
}

fn named(name: &str, limits: Limits) -> Store {
    let mut store = Store::in_memory(limits).unwrap();
    store.set_own_name(name).unwrap();
    store
}

fn session(now: Instant, gateway: usize) -> [Sync; 2] {
    let cloud = Sync::new(now, Side::Cloud { share: true }, &format!("train-{gateway}"));
    [Sync::new(now, Side::Gateway, "cloud"), cloud]
}

/// All entries of a writer, by incarnation and sequence.
fn held(store: &Store, writer: &str) -> BTreeMap<(u64, u64), Entry> {
    let mut held = BTreeMap::new();
    let visited = store.visit(|_, EntryKey { log, sequence }, entry| {
        let id = &store.log(log).unwrap().id;
        if id.writer == writer {
            held.insert((id.incarnation, sequence), entry);
        }
        Ok::<_, StoreError>(())
    });
    visited.unwrap();
    held
}

impl Fleet {
    fn new(gateways: usize, seed: u64, trouble: f64) -> Self {
        let now = Instant::now();
        Self {
            now,
            dice: Dice::new(seed),
            trouble,
            cloud: named("cloud", Limits::default()),
            gateways: (0..gateways)
                .map(|one| named(&format!("train-{one}"), Limits::default()))
                .collect(),
            sessions: (0..gateways).map(|one| session(now, one)).collect(),
            quotas: Quotas::default(),
            flying: Vec::new(),
        }
    }

    fn append(&mut self, gateway: usize, trip: u64, count: u32) {
        let store = &mut self.gateways[gateway];
        store.append_own(&entries(trip, count), WALL_MS).unwrap();
        self.sessions[gateway][0].added(store.own_log());
    }

    fn reconnect(&mut self, gateway: usize) {
        self.flying.retain(|(to, ..)| *to != gateway);
        self.sessions[gateway] = session(self.now, gateway);
    }

    fn deliver(&mut self, gateway: usize, to_cloud: bool, message: SyncMessage) {
        let sync = &mut self.sessions[gateway][usize::from(to_cloud)];
        let store = if to_cloud { &mut self.cloud } else { &mut self.gateways[gateway] };
        let heard = sync.on_message(self.now, WALL_MS, store, &mut self.quotas, message).unwrap();
        for log in heard.changed.into_iter().filter(|_| to_cloud) {
            for (other, [_, cloud]) in self.sessions.iter_mut().enumerate() {
                if other != gateway {
                    cloud.relayed(self.now, log);
                }
            }
        }
    }

    fn step(&mut self) {
        for gateway in 0..self.gateways.len() {
            for to_cloud in [true, false] {
                let sync = &mut self.sessions[gateway][usize::from(!to_cloud)];
                let store = if to_cloud { &mut self.gateways[gateway] } else { &mut self.cloud };
                for _ in 0..100 {
                    let Some((_, message)) = sync.poll(self.now, store).unwrap() else { break };
                    let payload = wire::encode_sync(&message);
                    assert!(payload.len() <= 1_178, "{} bytes", payload.len());
                    let decoded = wire::decode(wire::SYNC, &payload).unwrap();
                    assert_eq!(decoded, Some(wire::Message::Sync(message.clone())));
                    if self.dice.share() >= self.trouble {
                        self.flying.push((gateway, to_cloud, message.clone()));
                    }
                    if self.dice.share() < self.trouble {
                        self.flying.push((gateway, to_cloud, message));
                    }
                }
            }
        }
        let mut late = Vec::new();
        for message in std::mem::take(&mut self.flying) {
            let (gateway, to_cloud, ref content) = message;
            if self.dice.share() < self.trouble {
                late.push(message);
            } else {
                self.deliver(gateway, to_cloud, content.clone());
            }
        }
        late.reverse();
        self.flying.extend(late);
        self.now += Duration::from_millis(200);
    }

    fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    /// The cloud and all gateways hold what each writer holds.
    fn assert_equal(&self) {
        for (one, store) in self.gateways.iter().enumerate() {
            let name = format!("train-{one}");
            let all = held(store, &name);
            assert_eq!(held(&self.cloud, &name), all, "{name} in the cloud");
            for other in &self.gateways {
                assert_eq!(held(other, &name), all, "{name} on board");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Losses, copies, reordering, new sessions, holes and new incarnations.
    #[test]
    fn databases_converge(
        seed in any::<u64>(),
        acts in prop::collection::vec((0usize..3, 0u8..6, 1u32..60), 1..20),
    ) {
        let mut fleet = Fleet::new(3, seed, 0.3);
        for (trip, (gateway, act, count)) in (0..).zip(acts) {
            match act {
                0..3 => fleet.append(gateway, trip, count),
                3 => fleet.reconnect(gateway),
                4 => {
                    // Useless entries are deleted before they are sent.
                    let own = fleet.gateways[gateway].own_log();
                    fleet.append(gateway, trip, 5);
                    let next = fleet.gateways[gateway].log(own).unwrap().next;
                    let keys: Vec<_> = (next - 4..next - 1)
                        .map(|sequence| EntryKey { log: own, sequence })
                        .collect();
                    fleet.gateways[gateway].delete(&keys).unwrap();
                }
                _ => {
                    let limits = Limits { logs_max: 100, ..Limits::default() };
                    let new = named(&format!("train-{gateway}"), limits);
                    let before = std::mem::replace(&mut fleet.gateways[gateway], new);
                    drop(before);
                    fleet.reconnect(gateway);
                }
            }
            fleet.run(5);
        }
        fleet.trouble = 0.0;
        fleet.run(900);
        for (one, store) in fleet.gateways.iter().enumerate() {
            let own = held(store, &format!("train-{one}"));
            let cloud = held(&fleet.cloud, &format!("train-{one}"));
            prop_assert!(own.iter().all(|(key, entry)| cloud.get(key) == Some(entry)));
            for other in fleet.gateways.iter().enumerate().filter(|(other, _)| *other != one) {
                prop_assert_eq!(&held(other.1, &format!("train-{one}")), &cloud);
            }
        }
    }
}

#[test]
fn purge_reaches_all_and_survives_the_next_upload() {
    let mut fleet = Fleet::new(3, 1, 0.0);
    for gateway in 0..3 {
        fleet.append(gateway, gateway as u64, 30);
    }
    fleet.run(200);
    fleet.assert_equal();
    assert_eq!(held(&fleet.gateways[1], "train-0").len(), 30);
    assert_eq!(fleet.cloud.purge("train-0").unwrap(), (30, 1));
    (0..3).for_each(|gateway| fleet.reconnect(gateway));
    fleet.append(0, 9, 2);
    fleet.run(300);
    fleet.assert_equal();
    for store in fleet.gateways.iter().chain([&fleet.cloud]) {
        assert_eq!(held(store, "train-0").len(), 2, "only what is new");
        assert_eq!(held(store, "train-1").len(), 30);
    }
}

/// A node that has never known a log receives what follows the log's floor.
#[test]
fn purged_log_reaches_new_databases() {
    let mut fleet = Fleet::new(2, 1, 0.0);
    fleet.append(0, 1, 30);
    fleet.run(100);
    assert_eq!(fleet.cloud.purge("train-0").unwrap(), (30, 1));
    (0..2).for_each(|gateway| fleet.reconnect(gateway));
    fleet.append(0, 2, 2);
    fleet.run(100);
    fleet.gateways[1] = named("train-1", Limits::default());
    fleet.reconnect(1);
    fleet.run(100);
    fleet.assert_equal();
    assert_eq!(held(&fleet.gateways[1], "train-0").len(), 2);
    assert!(fleet.sessions[1][1].flights.is_empty());
    fleet.cloud = named("cloud", Limits::default());
    (0..2).for_each(|gateway| fleet.reconnect(gateway));
    fleet.run(100);
    fleet.assert_equal();
    assert_eq!(held(&fleet.cloud, "train-0").len(), 2);
}

fn of(writer: &str, trip: u64) -> SyncMessage {
    let all: Vec<_> = (0..).zip(entries(trip, 10)).collect();
    let log = LogId { writer: writer.to_owned(), incarnation: 5 };
    SyncMessage::Entries { log, floor: 0, first: 0, end: 10, entries: all }
}

#[test]
fn cloud_takes_only_the_entries_of_the_session_and_a_gateway_none_of_its_own() {
    let mut fleet = Fleet::new(2, 1, 0.0);
    for writer in ["train-1", "cloud"] {
        fleet.deliver(0, true, of(writer, 1));
        assert_eq!(held(&fleet.cloud, writer).len(), 0, "{writer}");
    }
    fleet.deliver(0, false, of("train-0", 1));
    assert_eq!(held(&fleet.gateways[0], "train-0").len(), 0);
    assert_eq!((fleet.sessions[0][1].refused, fleet.sessions[0][0].refused), (2, 1));
    fleet.deliver(1, true, of("train-1", 1));
    // Nor a floor of another writer.
    let id = LogId { writer: "train-1".to_owned(), incarnation: 5 };
    let marks = vec![Mark { log: id, floor: 10, next: 10 }];
    fleet.deliver(0, true, SyncMessage::Marks { end: false, heard: false, marks });
    assert_eq!(held(&fleet.cloud, "train-1").len(), 10);
}

/// Another version replicates in another way: both sides of its session stay silent.
#[test]
fn session_with_an_older_peer_exchanges_nothing() {
    let mut fleet = Fleet::new(2, 1, 0.0);
    for to_cloud in [true, false] {
        fleet.deliver(0, to_cloud, SyncMessage::Older);
        fleet.deliver(0, to_cloud, SyncMessage::Older);
    }
    for gateway in 0..2 {
        fleet.append(gateway, 1, 10);
    }
    fleet.deliver(0, true, of("train-0", 1));
    fleet.run(200);
    assert_eq!(held(&fleet.cloud, "train-0").len(), 0);
    assert_eq!(held(&fleet.gateways[0], "train-1").len(), 0);
    assert_eq!(held(&fleet.cloud, "train-1").len(), 10);
    for side in &mut fleet.sessions[0] {
        assert_eq!(side.next_timeout(), None);
        assert!(side.queue.len() + side.relays.len() + side.answers.len() <= 2);
    }
    // The peer was updated, and begins another session.
    fleet.reconnect(0);
    fleet.run(200);
    fleet.assert_equal();
}

#[test]
fn writers_have_quotas() {
    let mut quotas = Quotas::default();
    let now = Instant::now();
    for _ in 0..ENTRIES_A_DAY / 50 {
        assert!(quotas.take(now, "mallory", 50));
    }
    assert!(!quotas.take(now, "mallory", 1));
    assert!(quotas.take(now, "train-1", 50));
    assert!(quotas.take(now + Duration::from_secs(86_400), "mallory", ENTRIES_A_DAY as usize));
    for writer in 0..LOGS_MAX * 2 {
        quotas.take(now, &writer.to_string(), 1);
    }
    // A message without tokens is dropped without an answer.
    let mut fleet = Fleet::new(1, 1, 0.0);
    assert!(fleet.quotas.take(fleet.now, "train-0", ENTRIES_A_DAY as usize));
    fleet.deliver(0, true, of("train-0", 1));
    assert_eq!(held(&fleet.cloud, "train-0").len(), 0);
    assert!(fleet.sessions[0][1].answers.is_empty());
}

/// New logs and floors are costly for all nodes.
#[test]
fn floors_and_new_logs_have_quotas() {
    let mut fleet = Fleet::new(1, 1, 0.0);
    let log = |incarnation| LogId { writer: "train-0".to_owned(), incarnation };
    for end in 1..1_000 {
        let entries = vec![];
        let message = SyncMessage::Entries { log: log(1), floor: end, first: end, end, entries };
        fleet.deliver(0, true, message);
    }
    let most = u64::from(ENTRIES_A_DAY) / CHANGE_COST as u64;
    let one = fleet.cloud.find(&log(1)).unwrap();
    let floor = fleet.cloud.log(one).unwrap().floor;
    assert!((most - 1..=most).contains(&floor), "{floor}");
    let marks = vec![Mark { log: log(1), floor: 2_000, next: 2_000 }];
    fleet.deliver(0, true, SyncMessage::Marks { end: false, heard: false, marks });
    assert_eq!(fleet.cloud.log(one).unwrap().floor, floor);
    // A gateway takes all floors of its cloud.
    for writer in 0..500 {
        let log = LogId { writer: format!("train-{}", writer + 1), incarnation: 1 };
        let message =
            SyncMessage::Entries { log: log.clone(), floor: 9, first: 9, end: 9, entries: vec![] };
        fleet.deliver(0, false, message);
        assert!(fleet.gateways[0].find(&log).is_some());
    }
}

/// A few entries before a handover do not delay it, even if they were sent and not confirmed.
#[test]
fn fresh_handover_is_urgent_with_the_entries_before_it() {
    let mut fleet = Fleet::new(1, 1, 0.0);
    fleet.run(20);
    let now = fleet.now;
    let ([gateway, _], store) = (&mut fleet.sessions[0], &mut fleet.gateways[0]);
    let log = store.own_log();
    store.append_own(&entries(1, 15), WALL_MS).unwrap();
    gateway.relayed(now - RELAY_WAIT, log);
    let (delivery, _) = gateway.poll(now, store).unwrap().unwrap();
    assert_eq!(delivery, Delivery::Background);
    store.append_own(&entries(2, 1), WALL_MS).unwrap();
    gateway.added(log);
    let mut sent = Vec::new();
    while let Some((delivery, message)) = gateway.poll(now, store).unwrap() {
        assert_eq!(delivery, Delivery::Urgent);
        let SyncMessage::Entries { first, end, .. } = message else { panic!("{message:?}") };
        sent.push((first, end));
    }
    assert_eq!((sent[0].0, sent.last().unwrap().1), (0, 16));
    // With more before it, all is in the background.
    store.append_own(&entries(3, 60), WALL_MS).unwrap();
    gateway.added(log);
    while let Some((delivery, _)) = gateway.poll(now, store).unwrap() {
        assert_eq!(delivery, Delivery::Background);
    }
}

/// The log numbers of a replaced file begin again, while the session continues.
#[test]
fn replaced_file_is_uploaded_in_the_same_session() {
    let mut fleet = Fleet::new(2, 1, 0.0);
    fleet.append(0, 1, 30);
    fleet.run(100);
    fleet.gateways[0] = named("train-0", Limits::default());
    fleet.append(0, 2, 3);
    fleet.run(100);
    assert_eq!(held(&fleet.cloud, "train-0").len(), 33);
    assert_eq!(held(&fleet.gateways[1], "train-0"), held(&fleet.cloud, "train-0"));
}

/// A file from a backup has lost entries that the cloud knows, and was written since then.
#[test]
fn restored_file_continues_in_a_new_log() {
    let folder = tempfile::tempdir().unwrap();
    let [path, backup] = ["linkdb", "backup"].map(|name| folder.path().join(name));
    let open = || Store::open(&path, Limits::default()).unwrap();
    // Fewer entries than were lost, and more.
    for count in [5, 50] {
        let mut fleet = Fleet::new(1, 1, 0.0);
        let mut store = open();
        store.set_own_name("train-0").unwrap();
        fleet.gateways[0] = store;
        fleet.append(0, 1, 10);
        fleet.run(50);
        fleet.gateways[0] = named("train-0", Limits::default());
        std::fs::copy(&path, &backup).unwrap();
        fleet.gateways[0] = open();
        fleet.reconnect(0);
        fleet.append(0, 2, 20);
        fleet.run(50);
        fleet.gateways[0] = named("train-0", Limits::default());
        std::fs::rename(&backup, &path).unwrap();
        fleet.gateways[0] = open();
        fleet.reconnect(0);
        fleet.append(0, 3, count);
        fleet.run(100);
        fleet.append(0, 4, 1);
        fleet.reconnect(0);
        fleet.run(100);
        let of_trip = |trip| {
            let is_of = |one: &Entry| matches!(one, Entry::Handover(one, _) if one.trip.0 == trip);
            held(&fleet.cloud, "train-0").into_values().filter(is_of).collect::<Vec<_>>()
        };
        for (trip, count) in [(1, 10), (2, 20), (3, count), (4, 1)] {
            assert_eq!(of_trip(trip), entries(trip, count), "trip {trip}");
        }
        assert_eq!(fleet.cloud.logs().count(), 3, "the cloud's own, and two of the train");
        drop(fleet);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn observations_of_another_cloud_reach_no_gateway() {
    let mut fleet = Fleet::new(2, 5, 0.0);
    let rates = |link| {
        let sample =
            RateSample { position: Position::default(), spot: None, rate: None, delay: None };
        let samples = vec![RateSample { rate: Some(Bitrate::from_bps(1)), ..sample }];
        let (trip, carrier, route) = (TripId(1), "alpha".to_owned(), RouteId(1));
        Entry::Rates(Rates { trip, carrier, route, direction: Direction::Up, link, samples })
    };
    for (incarnation, link) in [(7, Link::Down), (8, Link::Up)] {
        let id = LogId { writer: "train-0".to_owned(), incarnation };
        let entries = [(0, rates(link))];
        fleet.cloud.append(&id, 0, (0, 1), &entries, WALL_MS).unwrap();
    }
    fleet.run(60);
    let incarnations: Vec<u64> =
        held(&fleet.gateways[1], "train-0").keys().map(|key| key.0).collect();
    assert_eq!(incarnations, [8]);
    // Nor does the gateway append to them.
    let id = LogId { writer: "train-0".to_owned(), incarnation: 7 };
    let forged = vec![(1, rates(Link::Up))];
    let message =
        SyncMessage::Entries { log: id.clone(), floor: 0, first: 1, end: 2, entries: forged };
    fleet.deliver(0, true, message);
    let log = fleet.cloud.find(&id).unwrap();
    assert_eq!(fleet.cloud.log(log).unwrap().next, 1);
}
