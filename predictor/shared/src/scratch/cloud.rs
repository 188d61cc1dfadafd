//! A cloud's LinkDB without its data plane.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, NodeRole, Position, RouteId, SessionKey, Speed,
    TripId,
};
use polyrail_predictor::entry::{Entry, LogId};
use polyrail_predictor::shared::SharedState;
use polyrail_predictor::store::{Limits, Store, StoreError};
use polyrail_predictor::wire::SyncMessage;
use polyrail_predictor::worker::{Input, LinkDbSettings, Options, Worker};

use crate::{Server, start};

/// The threads of a cloud's LinkDB, and its file.
#[derive(Debug)]
pub struct Cloud {
    path: PathBuf,
    worker: Worker,
    /// The sessions of trains by name.
    sessions: BTreeMap<String, SessionKey>,
}

/// All entries of a database.
pub type Contents = BTreeMap<(LogId, u64), Entry>;

impl Cloud {
    /// Starts a cloud with a file of its name in the folder, which may exist.
    ///
    /// # Errors
    /// The system cannot start threads.
    pub fn start(folder: &Path, name: &str, server: Server) -> io::Result<Self> {
        Self::with_room(folder, name, server, 10_000_000)
    }

    /// The same, with at most `room` entries.
    ///
    /// # Errors
    /// The system cannot start threads.
    pub fn with_room(folder: &Path, name: &str, server: Server, room: u64) -> io::Result<Self> {
        let path = folder.join(name);
        let settings = LinkDbSettings {
            events_max: room,
            retention: Duration::from_secs(1 << 40),
            forecast: true,
            share: true,
        };
        let worker = Worker::start(Options {
            role: NodeRole::Cloud,
            name: name.to_owned(),
            path: Some(path.clone()),
            settings,
            seed: 1,
            notify: Box::new(|| {}),
        })?;
        start(server, worker.feeder())?;
        Ok(Self { path, worker, sessions: BTreeMap::new() })
    }

    /// A train sends entries of its log, from the number `first` on, as its session does.
    pub fn send(&mut self, log: &LogId, first: u64, entries: Vec<Entry>) {
        self.send_above(log, 0, first, entries);
    }

    /// The same, from a train that purged entries below `floor`.
    pub fn send_above(&mut self, log: &LogId, floor: u64, first: u64, entries: Vec<Entry>) {
        let new = SessionKey(self.sessions.len() as u64 + 1);
        let session = *self.sessions.entry(log.writer.clone()).or_insert(new);
        if session == new {
            self.worker.feed(Input::Up { session, peer: log.writer.clone() });
        }
        let end = first + entries.len() as u64;
        let (log, entries) = (log.clone(), (first..).zip(entries).collect());
        let message = SyncMessage::Entries { log, floor, first, end, entries };
        self.worker.feed(Input::Sync { session, message });
        while self.worker.try_recv().is_some() {}
    }

    /// The number of its entries, and its view of the shared database.
    pub fn state(&self) -> Option<(u64, SharedState)> {
        let state = self.worker.feeder().state()?;
        Some((state.store.stats?.entries, state.shared.unwrap_or_default()))
    }

    /// Waits until a condition holds; returns how long that took.
    ///
    /// # Errors
    /// It does not within `limit`.
    pub fn wait(
        &self,
        limit: Duration,
        holds: impl Fn(u64, &SharedState) -> bool,
    ) -> io::Result<Duration> {
        let began = Instant::now();
        loop {
            let state = self.state();
            if state.as_ref().is_some_and(|(entries, shared)| holds(*entries, shared)) {
                return Ok(began.elapsed());
            }
            if began.elapsed() > limit {
                return Err(io::Error::other(format!("{}: {state:?}", self.path.display())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The bytes of its file.
    ///
    /// # Errors
    /// The file is missing.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.path.metadata()?.len())
    }

    /// Stops it, and returns the number of entries of each log, and the last entry's number.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn stop_and_count(self) -> Result<BTreeMap<LogId, (u64, u64)>, StoreError> {
        let mut counts: BTreeMap<LogId, (u64, u64)> = BTreeMap::new();
        self.visit(|log, sequence, _| {
            let (count, last) = counts.entry(log.clone()).or_default();
            (*count, *last) = (*count + 1, sequence.max(*last));
        })?;
        Ok(counts)
    }

    fn visit(self, mut visitor: impl FnMut(&LogId, u64, Entry)) -> Result<(), StoreError> {
        drop(self.worker);
        let limits = Limits { events_max: u64::MAX, ..Limits::default() };
        let store = Store::open(&self.path, limits)?;
        store.visit(|_, key, entry| {
            if let Some(log) = store.log(key.log) {
                visitor(&log.id, key.sequence, entry);
            }
            Ok(())
        })
    }

    /// Stops it, and returns its entries.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn stop(self) -> Result<Contents, StoreError> {
        let mut contents = Contents::new();
        self.visit(|log, sequence, entry| {
            contents.insert((log.clone(), sequence), entry);
        })?;
        Ok(contents)
    }
}

/// Handovers of a train from a number on, a thousand a trip, each trip through the same cells.
pub fn handovers(train: u64, first: u64, count: u64, at_ms: u64) -> Vec<Entry> {
    (first..first + count).map(|number| handover(train, number, at_ms)).collect()
}

fn handover(train: u64, number: u64, at_ms: u64) -> Entry {
    let cell = number % CELLS;
    let handover = Handover {
        trip: TripId(number / CELLS),
        sequence: cell as u32,
        at_ms,
        carrier: "alpha".to_owned(),
        route: RouteId(train),
        direction: Direction::Up,
        position: Position::from_metres(300.0 * cell as f64),
        speed: Speed { centimetres_per_second: 5_000 },
        from: CellId(cell),
        to: Some(CellId(cell + 1)),
        rsrp: None,
        outcome: HandoverOutcome::Success,
        dark: Duration::from_millis(50),
    };
    Entry::Handover(handover, None)
}

/// The cells of a trip.
const CELLS: u64 = 1_000;
