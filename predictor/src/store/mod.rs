//! The database: the logs of all writers in one file, on redb.
//!
//! - Each entry is in the log of the writer that observed it, under a sequence number that is never
//!   used again. Entries that are useless or evicted leave holes.
//! - Everything is bounded ([`Limits`]). If the entries are full, the writer with most loses its
//!   oldest trip.
//! - A floor removes the beginning of a log in all databases; it is never lowered.
//! - Entries come from peers: implausible times are replaced (see `clock`).
//! - An error states its remedy ([`StoreError`]). After an I/O error, open the store again.
//!
//! The store belongs to one thread and waits for the disk: the data plane never calls it. It reads
//! no clock. One process at a time can open a file.

mod batch;
mod clock;
mod error;
mod file;
mod limits;
mod logs;
mod tables;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable};
use serde::{Deserialize, Serialize};

pub(crate) use batch::Batch;
pub use error::StoreError;
pub use limits::{ENTRIES_A_DAY, LOGS_MAX, Limits, WRITER_LOGS_MAX};
pub use logs::Log;
use logs::Logs;
use tables::{ENTRIES, META, split};

use crate::entry::{Entry, EntryKey, Link, LogId, LogNumber, WriterNumber};
use crate::record;

/// The format that this program writes.
const FORMAT: u64 = 2;

/// An open database.
#[derive(Debug)]
pub struct Store {
    database: Database,
    /// Its file; none in memory.
    path: Option<PathBuf>,
    limits: Limits,
    logs: Logs,
    /// Peers may know entries of this file's logs below these numbers: those that the file had when
    /// it was opened, and those that were offered since then. None after it has left these logs.
    known: Option<BTreeMap<LogNumber, u64>>,
}

/// The result of an append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// New entries.
    pub fresh: Vec<(EntryKey, Entry)>,
    /// The number of known entries.
    pub known: usize,
    /// The number of refused entries: invalid, or of a log for which there is no room.
    pub refused: usize,
    /// Logs whose entries below a sequence number are gone.
    pub forgotten: Vec<(LogNumber, u64)>,
}

/// Consecutive entries of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Everything that is held below this is in the page.
    pub end: u64,
    /// Entries and their sequence numbers.
    pub entries: Vec<(u64, Entry)>,
}

/// The contents of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// Entries: handovers, pieces of tracks, and rates.
    pub entries: u64,
    /// Writers with a log.
    pub writers: u64,
    /// Logs.
    pub logs: u64,
    /// Bytes of the file; 0 in memory.
    pub file_bytes: u64,
    /// When the first entry arrived, in milliseconds since 1970.
    pub created_at_ms: Option<u64>,
}

impl Store {
    /// Opens a database, or creates it. Verifies the whole file.
    ///
    /// # Errors
    /// The file is unusable; it is unchanged.
    pub fn open(path: impl AsRef<Path>, limits: Limits) -> Result<Self, StoreError> {
        let path = path.as_ref();
        Self::new(file::open(path)?, Some(path.to_owned()), limits)
    }

    /// A database in memory.
    ///
    /// # Errors
    /// None are known.
    pub fn in_memory(limits: Limits) -> Result<Self, StoreError> {
        Self::new(file::in_memory()?, None, limits)
    }

    /// Opens a database. Renames a damaged file to `<name>.damaged`, replacing an earlier one, and
    /// creates an empty database; then the second value is the reason.
    ///
    /// # Errors
    /// Any other error of [`Store::open`].
    pub fn open_or_replace(
        path: impl AsRef<Path>,
        limits: Limits,
    ) -> Result<(Self, Option<String>), StoreError> {
        let path = path.as_ref();
        match Self::open(path, limits) {
            Ok(store) => Ok((store, None)),
            Err(reason @ StoreError::Damaged(_)) => {
                let to = file::set_aside(path)?;
                let text = format!("{reason}; it was renamed to {}", to.display());
                Ok((Self::open(path, limits)?, Some(text)))
            }
            Err(error) => Err(error),
        }
    }

    fn new(database: Database, path: Option<PathBuf>, limits: Limits) -> Result<Self, StoreError> {
        let mut store = Self { database, path, limits, logs: Logs::default(), known: None };
        store.load()?;
        if store.logs.logs.is_empty() {
            // A log without a name, which the daemon gives it.
            store.write(|batch| batch.set_own("", random()))?;
        }
        store.known = Some(store.own_marks());
        // A table of another type is damage, too.
        store.read(|reading| Ok(reading.open_table(ENTRIES)?.first()?.is_some()))?;
        Ok(store)
    }

    fn load(&mut self) -> Result<(), StoreError> {
        let reading = self.database.begin_read()?;
        self.logs.load(&reading)
    }

    /// Runs one durable transaction; after an error nothing was written.
    pub(crate) fn write<T, E: From<StoreError>>(
        &mut self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let attempt = || -> Result<T, E> {
            let writing = self.database.begin_write().map_err(StoreError::from)?;
            let mut batch = Batch::begin(&writing, &mut self.logs, self.limits)?;
            let result = work(&mut batch)?;
            batch.finish()?;
            writing.commit().map_err(StoreError::from)?;
            Ok(result)
        };
        let written = attempt();
        if written.is_err() {
            self.load()?;
        }
        written
    }

    /// Appends entries, or raises floors, in one durable transaction.
    pub(crate) fn append_with(
        &mut self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<(), StoreError>,
    ) -> Result<Appended, StoreError> {
        self.write(|batch| work(batch).map(|()| std::mem::take(&mut batch.appended)))
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        work(&self.database.begin_read()?)
    }

    /// Changes the limits, from the next write on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Names the node, as its certificate does. If the own log has another name, it becomes one of
    /// another writer, and a new own log begins. Numbers the writers again.
    ///
    /// # Errors
    /// Nothing was written; the same applies to all writers.
    pub fn set_own_name(&mut self, name: &str) -> Result<(), StoreError> {
        if self.own_name() == name {
            return Ok(());
        }
        self.write(|batch| batch.set_own(name, random()))?;
        self.known = Some(self.own_marks());
        Ok(())
    }

    /// The random number of this file.
    pub fn own_incarnation(&self) -> u64 {
        self.logs.own_incarnation()
    }

    /// The marks of the logs that this file writes: the own log, and logs of observations of
    /// others.
    fn own_marks(&self) -> BTreeMap<LogNumber, u64> {
        let own = self.own_incarnation();
        let logs = self.logs().filter(|(_, log)| log.id.incarnation == own);
        logs.map(|(number, log)| (number, log.next)).collect()
    }

    /// Entries of a log below `end` were offered to a peer.
    pub(crate) fn offered(&mut self, log: LogNumber, end: u64) {
        let own = self.own_incarnation();
        let is_of_file = self.log(log).is_some_and(|log| log.id.incarnation == own);
        if let Some(known) = self.known.as_mut().filter(|_| is_of_file) {
            let known = known.entry(log).or_default();
            *known = end.max(*known);
        }
    }

    /// Whether a peer that knows a log of this file up to `next` knows more than this file can have
    /// sent: the file was restored from a backup. Found at most once after the file was opened.
    pub(crate) fn is_restored(&self, id: &LogId, next: u64) -> bool {
        let Some(known) = self.known.as_ref().filter(|_| id.incarnation == self.own_incarnation())
        else {
            return false;
        };
        let known = self.find(id).and_then(|log| known.get(&log));
        next > known.copied().unwrap_or(0)
    }

    /// Begins a new incarnation, and moves the entries of a restored file to its logs that no peer
    /// knows.
    pub(crate) fn leave_own_logs(&mut self) -> Result<(), StoreError> {
        let known = self.known.take().unwrap_or_default();
        self.write(|batch| batch.leave_own(&known, random()))
    }

    /// The name of the node; empty until it is known.
    pub fn own_name(&self) -> &str {
        self.logs.own_name()
    }

    /// The own log.
    pub fn own_log(&self) -> LogNumber {
        self.logs.own
    }

    /// Appends entries of this node in one durable transaction. `now_ms`: milliseconds since 1970.
    pub fn append_own(&mut self, entries: &[Entry], now_ms: u64) -> Result<Appended, StoreError> {
        self.append_with(|batch| batch.append_own(entries, now_ms))
    }

    /// Appends what this node has observed of another one, to a log of that writer's name with the
    /// incarnation of this file: it weighs, and is purged, like that writer's own entries.
    pub fn append_of(
        &mut self,
        writer: &str,
        entries: &[Entry],
        now_ms: u64,
    ) -> Result<Appended, StoreError> {
        self.append_with(|batch| batch.append_of(writer, entries, now_ms))
    }

    /// Appends entries of another log in one durable transaction. Everything below the end of
    /// `range` is known afterwards, unless its beginning is above the log's mark: then nothing is
    /// appended.
    pub fn append(
        &mut self,
        id: &LogId,
        floor: u64,
        range: (u64, u64),
        entries: &[(u64, Entry)],
        now_ms: u64,
    ) -> Result<Appended, StoreError> {
        self.append_with(|batch| batch.append(id, floor, range, entries, now_ms))
    }

    /// Raises the floors of logs in one durable transaction; a floor is never lowered.
    pub fn raise_floors(&mut self, floors: &[(LogNumber, u64)]) -> Result<Appended, StoreError> {
        self.append_with(|batch| {
            floors.iter().try_for_each(|(log, floor)| batch.raise_floor(*log, *floor))
        })
    }

    /// Removes entries that are useless.
    pub fn delete(&mut self, keys: &[EntryKey]) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        self.write(|batch| keys.iter().try_for_each(|key| batch.remove(key.log, key.sequence)))
    }

    /// Removes all entries of a writer, here and, by raised floors, in all databases that replicate
    /// this one. Returns their number, and that of the writer's logs.
    pub fn purge(&mut self, writer: &str) -> Result<(u64, usize), StoreError> {
        let logs = self.logs.of(writer).len();
        Ok((self.write(|batch| batch.purge(writer))?, logs))
    }

    /// The entries of a log from a sequence number on, as many as fit into `bytes`, at least one.
    pub fn since(&self, log: LogNumber, from: u64, bytes: usize) -> Result<Page, StoreError> {
        let Some(known) = self.log(log) else { return Ok(Page { end: from, entries: vec![] }) };
        let (mut room, mut entries) = (bytes, Vec::new());
        let next = known.next;
        self.read(|reading| {
            for row in reading.open_table(ENTRIES)?.range((log.0, from)..=(log.0, u64::MAX))? {
                let (key, value) = row?;
                let (sequence, (_, bytes)) = (key.value().1, split(value.value())?);
                let takes = bytes.len() + ENTRY_OVERHEAD;
                if takes > room && !entries.is_empty() {
                    return Ok(Page { end: sequence, entries });
                }
                room = room.saturating_sub(takes);
                entries.push((sequence, record::decode(bytes)?));
            }
            Ok(Page { end: next, entries })
        })
    }

    /// A log.
    pub fn log(&self, log: LogNumber) -> Option<&Log> {
        self.logs.logs.get(&log)
    }

    /// The number of a log.
    pub fn find(&self, id: &LogId) -> Option<LogNumber> {
        self.logs.ids.get(id).copied()
    }

    /// All logs.
    pub fn logs(&self) -> impl Iterator<Item = (LogNumber, &Log)> {
        self.logs.logs.iter().map(|(number, log)| (*number, log))
    }

    /// The number of a log's writer.
    pub fn writer(&self, log: LogNumber) -> WriterNumber {
        let name = self.log(log).map(|log| log.id.writer.as_str());
        name.and_then(|name| self.writer_named(name)).unwrap_or(WriterNumber::NOBODY)
    }

    /// The number of a writer.
    pub fn writer_named(&self, name: &str) -> Option<WriterNumber> {
        self.logs.writers.get(name).copied()
    }

    /// The number of entries of each writer, most first.
    pub fn writers(&self) -> Vec<(u64, String)> {
        self.logs.by_weight()
    }

    /// Whether a log has the observations of a cloud: rates of the downlink, which no gateway
    /// measures. An error of the database counts as no, because the next access has it.
    pub(crate) fn is_of_cloud(&self, log: LogNumber) -> bool {
        let page = self.since(log, 0, 0).ok();
        let first = page.and_then(|page| page.entries.into_iter().next());
        matches!(first, Some((_, Entry::Rates(rates))) if rates.link == Link::Down)
    }

    /// Calls `visitor` with every entry, log by log; stops at its first error.
    pub fn visit<E: From<StoreError>>(
        &self,
        mut visitor: impl FnMut(WriterNumber, EntryKey, Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read(|reading| {
            for row in reading.open_table(ENTRIES)?.iter()? {
                let (key, value) = row?;
                let (log, sequence) = key.value();
                let entry = record::decode(split(value.value())?.1)?;
                let key = EntryKey { log: LogNumber(log), sequence };
                if let Err(error) = visitor(self.writer(key.log), key, entry) {
                    return Ok(Err(error));
                }
            }
            Ok(Ok(()))
        })?
    }

    /// Evicts entries that are older than `retention`, except pieces of tracks, if the clock is
    /// plausible (see `clock`). Entries from more than a day ahead then count as of now. `wall_ms`:
    /// milliseconds since 1970. Returns the time of the newest plausible entry if the clock is
    /// implausibly far ahead of it; then nothing was evicted.
    pub fn sweep(&mut self, wall_ms: u64, retention: Duration) -> Result<Option<u64>, StoreError> {
        let times = self.read(|reading| {
            let mut times = Vec::new();
            for row in reading.open_table(ENTRIES)?.iter()? {
                // In steps of an hour there are few.
                let hour = split(row?.1.value())?.0 / HOUR_MS * HOUR_MS;
                if times.last() != Some(&hour) {
                    times.push(hour);
                }
            }
            Ok(times)
        })?;
        let attested = clock::attested(times);
        if attested.is_some_and(|at| clock::is_ahead(wall_ms, at)) {
            return Ok(attested);
        }
        let retention = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        let before = wall_ms.saturating_sub(retention);
        let right = attested.is_some_and(|at| !clock::is_behind(wall_ms, at)).then_some(wall_ms);
        self.write(|batch| batch.sweep(before, right))?;
        Ok(None)
    }

    /// Evicts until the limits hold, as each write does.
    pub fn enforce_limits(&mut self) -> Result<(), StoreError> {
        self.write(|_| Ok(()))
    }

    /// Shrinks the file to its contents; true if it became smaller. Takes seconds for a full
    /// database.
    pub fn compact(&mut self) -> Result<bool, StoreError> {
        Ok(self.database.compact()?)
    }

    /// Counts the contents.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let file = self.path.as_ref().and_then(|path| std::fs::metadata(path).ok());
        let created = self.read(|reading| {
            Ok(reading.open_table(META)?.get("created_ms")?.map(|created| created.value()))
        })?;
        Ok(StoreStats {
            entries: self.logs.entries,
            writers: self.logs.by_weight().len() as u64,
            logs: self.logs.logs.len() as u64,
            file_bytes: file.map_or(0, |found| found.len()),
            created_at_ms: created,
        })
    }
}

/// A random number from the system: the keys of a hasher are random.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

const HOUR_MS: u64 = 3_600_000;
/// Bytes of an entry's sequence number and length in a message.
const ENTRY_OVERHEAD: usize = 10;
