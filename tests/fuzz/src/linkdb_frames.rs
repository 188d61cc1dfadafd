//! LinkDB's messages from a hostile peer, into a database with the logs of others.
//!
//! Promises: a cloud changes no other writer's log, a gateway loses own entries only below a floor,
//! and the database keeps its bounds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::codec::NUMBER_MAX;
use polyrail_predictor::entry::{Entry, EntryKey, LogId};
use polyrail_predictor::store::{Limits, Store, StoreError, WRITER_LOGS_MAX};
use polyrail_predictor::sync::{Quotas, Side, Sync};
use polyrail_predictor::wire::{Mark, Message, SYNC, SyncMessage, TELEMETRY, decode, encode_sync};

use crate::input::Input;

struct World {
    now: Instant,
    side: Side,
    store: Store,
    sync: Sync,
    quotas: Quotas,
}

/// The entries of a writer by incarnation and sequence.
type Entries = BTreeMap<(u64, u64), Entry>;

/// The peer of a cloud is `train-7`, that of a gateway is `cloud`.
pub fn linkdb_frames(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(input.byte());
    let before = world.others();
    for _ in 0..OPERATIONS_MAX {
        if input.is_over() {
            break;
        }
        match input.byte() % 8 {
            0 | 1 => world.receive(input.part()),
            2..=4 => world.alter(&mut input),
            5 => world.receive(&encode_sync(&marks(&mut input))),
            6 => {
                if let Ok(Some(message)) = decode(TELEMETRY, input.part()) {
                    assert!(matches!(message, Message::Telemetry(_)));
                }
            }
            _ => world.now += Duration::from_millis(input.short().into()),
        }
        world.send();
    }
    world.check(&before);
}

impl World {
    fn new(bits: u8) -> Self {
        let now = Instant::now();
        let side = match bits % 3 {
            0 => Side::Gateway,
            one => Side::Cloud { share: one == 1 },
        };
        let (own, peer) =
            if side == Side::Gateway { ("train-1", "cloud") } else { ("cloud", "train-7") };
        let limits = Limits { events_max: ENTRIES_MAX, logs_max: LOGS_MAX };
        let mut store = Store::in_memory(limits).expect("a database");
        store.set_own_name(own).expect("a name");
        store.append_own(&entries(), NOW_MS).expect("room");
        let log = LogId { writer: "train-2".to_owned(), incarnation: 1 };
        let held: Vec<(u64, Entry)> = (0..).zip(entries()).collect();
        store.append(&log, 0, (0, held.len() as u64), &held, NOW_MS).expect("room");
        let sync = Sync::new(now, side, peer);
        Self { now, side, store, sync, quotas: Quotas::default() }
    }

    fn receive(&mut self, payload: &[u8]) {
        let Ok(Some(Message::Sync(message))) = decode(SYNC, payload) else { return };
        let again = decode(SYNC, &encode_sync(&message));
        assert_eq!(again, Ok(Some(Message::Sync(message.clone()))), "it survives encoding");
        let Self { now, store, sync, quotas, .. } = self;
        sync.on_message(*now, NOW_MS, store, quotas, message).expect("a working database");
    }

    /// Entries for a log and with numbers of the fuzzer's choice.
    fn alter(&mut self, input: &mut Input<'_>) {
        let log = log(input);
        let (floor, first, end) = (number(input), number(input), number(input));
        let held: Vec<(u64, Entry)> = match decode(SYNC, input.part()) {
            Ok(Some(Message::Sync(SyncMessage::Entries { entries, .. }))) => entries,
            _ => entries().into_iter().map(|entry| (0, entry)).collect(),
        };
        let step = 1 + u64::from(input.byte() % 3);
        let numbered = |(at, (_, entry))| (first + step * at, entry);
        let entries = (0..).zip(held).map(numbered).collect();
        self.receive(&encode_sync(&SyncMessage::Entries { log, floor, first, end, entries }));
    }

    /// Sends what there is.
    fn send(&mut self) {
        for _ in 0..MESSAGES_MAX {
            let polled = self.sync.poll(self.now, &mut self.store).expect("a working database");
            let Some((_, message)) = polled else { return };
            let payload = encode_sync(&message);
            assert!(payload.len() <= PAYLOAD_MAX, "{} bytes", payload.len());
        }
        panic!("more than {MESSAGES_MAX} messages at once");
    }

    /// The entries that the peer may not change.
    fn others(&self) -> (Entries, Entries) {
        let own = self.store.own_name();
        match self.side {
            Side::Gateway => (self.held(own), Entries::new()),
            Side::Cloud { .. } => (self.held(own), self.held("train-2")),
        }
    }

    fn held(&self, writer: &str) -> Entries {
        let mut held = Entries::new();
        let visited = self.store.visit(|_, EntryKey { log, sequence }, entry| {
            let id = &self.store.log(log).expect("a log of an entry").id;
            if id.writer == writer {
                held.insert((id.incarnation, sequence), entry);
            }
            Ok::<_, StoreError>(())
        });
        visited.expect("a readable database");
        held
    }

    fn check(&self, before: &(Entries, Entries)) {
        let mut after = self.others();
        if self.side == Side::Gateway {
            // A cloud may purge them everywhere.
            let own = self.store.log(self.store.own_log()).expect("the own log");
            let mut left = before.0.clone();
            left.retain(|(_, sequence), _| *sequence >= own.floor);
            after.1 = before.1.clone();
            assert_eq!(after.0, left);
        } else {
            assert_eq!(&after, before, "the peer has changed others' entries");
        }
        let stats = self.store.stats().expect("a readable database");
        assert!(stats.entries <= ENTRIES_MAX, "{stats:?}");
        let mut logs = BTreeMap::<&str, usize>::new();
        for (_, log) in self.store.logs() {
            *logs.entry(&log.id.writer).or_default() += 1;
        }
        assert!(logs.values().sum::<usize>() <= LOGS_MAX, "{logs:?}");
        assert!(logs.values().all(|count| *count <= WRITER_LOGS_MAX), "{logs:?}");
    }
}

/// A sequence number or the end of a range; may be too high.
fn number(input: &mut Input<'_>) -> u64 {
    input.number().min(NUMBER_MAX - 1_000)
}

fn log(input: &mut Input<'_>) -> LogId {
    let writer = input.pick(&["train-7", "train-7", "train-2", "cloud", "train-1", "x", ""]);
    LogId { writer: writer.to_owned(), incarnation: (input.byte() % 12).into() }
}

fn marks(input: &mut Input<'_>) -> SyncMessage {
    let (end, heard) = (input.flag(), input.flag());
    let count = usize::from(input.byte()) % (SyncMessage::MARKS_MAX + 1);
    let mark = |_| Mark { log: log(input), floor: number(input), next: number(input) };
    SyncMessage::Marks { end, heard, marks: (0..count).map(mark).collect() }
}

/// The entries of the golden vector of the wire.
fn entries() -> Vec<Entry> {
    let vectors = include_str!("../../../predictor/vectors/messages.txt");
    let line = vectors.lines().last().expect("a golden vector");
    let (_, hex) = line.split_once(' ').expect("a channel and its payload");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    let payload: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    match decode(SYNC, &payload) {
        Ok(Some(Message::Sync(SyncMessage::Entries { entries, .. }))) => {
            entries.into_iter().map(|(_, entry)| entry).collect()
        }
        other => panic!("the last golden vector is {other:?}"),
    }
}

const ENTRIES_MAX: u64 = 100;
const LOGS_MAX: usize = 12;
const OPERATIONS_MAX: usize = 100;
/// More than a list, all answers and all flights.
const MESSAGES_MAX: usize = 100;
/// The longest message of a session.
const PAYLOAD_MAX: usize = 1_178;
const NOW_MS: u64 = 1_790_000_000_000;
