//! The changes of one transaction.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::TripId;
use redb::{ReadableTable, WriteTransaction};

use super::error::StoreError;
use super::limits::{Limits, WRITER_LOGS_MAX};
use super::logs::{Log, Logs};
use super::tables::{Tables, split};
use super::{Appended, clock};
use crate::creator::creator_hash;
use crate::entry::{
    ENTRY_BYTES_MAX, Entry, EntryKey, LogId, LogNumber, SEQUENCE_END, WRITER_NAME_MAX,
};
use crate::record;

/// A transaction that is being written.
pub(crate) struct Batch<'t> {
    tables: Tables<'t>,
    logs: &'t mut Logs,
    changed: BTreeSet<LogNumber>,
    limits: Limits,
    /// The result of its appends and raised floors. It holds a copy of each entry, so a batch of
    /// many appends resets it now and then.
    pub(crate) appended: Appended,
}

impl<'t> Batch<'t> {
    pub(super) fn begin(
        writing: &'t WriteTransaction,
        logs: &'t mut Logs,
        limits: Limits,
    ) -> Result<Self, StoreError> {
        let (changed, appended) = (BTreeSet::new(), Appended::default());
        Ok(Self { tables: Tables::open(writing)?, logs, changed, limits, appended })
    }

    /// Evicts, and writes the state of the logs.
    pub(super) fn finish(mut self) -> Result<(), StoreError> {
        self.evict()?;
        for number in &self.changed {
            match self.logs.logs.get(number) {
                Some(log) => self.tables.logs.insert(number.0, &log.encode()[..])?,
                None => self.tables.logs.remove(number.0)?,
            };
        }
        self.tables.meta.insert("written", self.logs.written)?;
        self.tables.meta.insert("own", u64::from(self.logs.own.0))?;
        Ok(())
    }

    /// Begins an own log under a name. An own log without a name takes it.
    pub(super) fn set_own(&mut self, name: &str, incarnation: u64) -> Result<(), StoreError> {
        let own = self.logs.own;
        if let Some(mut log) = self.logs.logs.get(&own).cloned()
            && log.id.writer.is_empty()
        {
            self.logs.remove(own);
            name.clone_into(&mut log.id.writer);
            self.logs.insert(own, log);
            self.changed.insert(own);
            self.name_routes(own, creator_hash(name))?;
        } else {
            let id = LogId { writer: name.to_owned(), incarnation };
            self.logs.own = self.add_log(id)?;
        }
        // From the beginning, because the own name has changed.
        self.logs.writers.clear();
        self.logs.number_writers();
        Ok(())
    }

    /// Names the creator of tracks that were imported before the log had a name.
    fn name_routes(&mut self, log: LogNumber, creator: u32) -> Result<(), StoreError> {
        let mut named = Vec::new();
        for row in self.tables.entries.range((log.0, 0)..=(log.0, u64::MAX))? {
            let (key, value) = row?;
            let (time, bytes) = split(value.value())?;
            let mut entry = record::decode(bytes)?;
            if entry.name_creator(creator) {
                named.push((key.value().1, time, entry));
            }
        }
        for (sequence, time, entry) in named {
            let row = [&time.to_be_bytes()[..], &record::encode(&entry)].concat();
            self.tables.entries.insert((log.0, sequence), &row[..])?;
        }
        Ok(())
    }

    fn add_log(&mut self, id: LogId) -> Result<LogNumber, StoreError> {
        let last = self.logs.logs.last_key_value().map(|(last, _)| last.0);
        let dropped = self.changed.last().map(|last| last.0);
        let number = LogNumber(last.max(dropped).map_or(0, |last| last + 1));
        self.logs.insert(number, Log { id: id.clone(), ..Log::default() });
        self.logs.writer(&id.writer);
        self.touch(number);
        Ok(number)
    }

    fn touch(&mut self, number: LogNumber) {
        self.logs.written += 1;
        let written = self.logs.written;
        if let Some(log) = self.logs.logs.get_mut(&number) {
            log.written = written;
        }
        self.changed.insert(number);
    }

    /// The log of this name; a new one if there is room. `None`: it is refused.
    fn open_log(&mut self, id: &LogId) -> Result<Option<LogNumber>, StoreError> {
        if let Some(number) = self.logs.ids.get(id) {
            return Ok(Some(*number));
        }
        if id.writer.is_empty() || id.writer.len() > WRITER_NAME_MAX {
            return Ok(None);
        }
        // Never a log that this file writes: its numbers would be used again.
        let own = self.logs.own_incarnation();
        let others = self.logs.logs.iter().filter(|(_, log)| log.id.incarnation != own);
        let replaced = if self.logs.of(&id.writer).len() >= WRITER_LOGS_MAX {
            let of_writer = others.filter(|(_, log)| log.id.writer == id.writer);
            let replaced = of_writer.min_by_key(|(_, log)| (log.count > 0, log.written));
            replaced.map(|(number, _)| *number)
        } else if self.logs.logs.len() >= self.limits.logs_max {
            let empty = others.filter(|(_, log)| log.count == 0);
            let Some((number, _)) = empty.min_by_key(|(_, log)| (log.floor > 0, log.written))
            else {
                return Ok(None);
            };
            Some(*number)
        } else {
            None
        };
        let new = self.add_log(id.clone())?;
        if let Some(replaced) = replaced {
            self.remove_range(replaced, SEQUENCE_END)?;
            self.logs.remove(replaced);
            self.changed.insert(replaced);
            self.appended.forgotten.push((replaced, SEQUENCE_END));
        }
        Ok(Some(new))
    }

    /// Appends entries of this node to its log; counts invalid ones.
    pub(crate) fn append_own(&mut self, entries: &[Entry], now_ms: u64) -> Result<(), StoreError> {
        self.append_to(self.logs.own, entries, now_ms)
    }

    /// Appends what this node has observed of another writer; see [`super::Store::append_of`].
    pub(super) fn append_of(
        &mut self,
        writer: &str,
        entries: &[Entry],
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let incarnation = self.logs.own_incarnation();
        let id = LogId { writer: writer.to_owned(), incarnation };
        match self.open_log(&id)? {
            Some(log) => self.append_to(log, entries, now_ms)?,
            None => self.appended.refused += entries.len(),
        }
        Ok(())
    }

    fn append_to(
        &mut self,
        log: LogNumber,
        entries: &[Entry],
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let mut last = self.last_time(log)?;
        for entry in entries {
            let next = self.log(log)?.next;
            let bytes = record::encode(entry);
            let is_valid = record::check_entry(entry).is_ok() && bytes.len() <= ENTRY_BYTES_MAX;
            if !is_valid || next >= SEQUENCE_END {
                self.appended.refused += 1;
                continue;
            }
            // The node's own entries are no older than the ones before.
            let time = time_of(entry, now_ms, last).max(last.unwrap_or(0));
            last = Some(time);
            self.put(log, next, time, &bytes)?;
            self.log(log)?.next = next + 1;
            self.appended.fresh.push((EntryKey { log, sequence: next }, entry.clone()));
        }
        self.touch(log);
        self.created(now_ms)
    }

    /// Appends entries of any log, from `first` on; everything below `end` is known then. Entries
    /// that are known or below the floor change nothing. If `first` is above the log's mark,
    /// nothing is appended.
    pub(crate) fn append(
        &mut self,
        id: &LogId,
        floor: u64,
        (first, end): (u64, u64),
        entries: &[(u64, Entry)],
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let Some(log) = self.open_log(id)? else {
            self.appended.refused += entries.len();
            return Ok(());
        };
        self.raise_floor(log, floor)?;
        if first > self.log(log)?.next {
            return Ok(());
        }
        let mut last = self.last_time(log)?;
        for (sequence, entry) in entries {
            let next = self.log(log)?.next;
            if *sequence < next || *sequence >= end {
                self.appended.known += 1;
                continue;
            }
            let time = time_of(entry, now_ms, last);
            last = Some(time);
            self.put(log, *sequence, time, &record::encode(entry))?;
            self.log(log)?.next = sequence + 1;
            self.appended.fresh.push((EntryKey { log, sequence: *sequence }, entry.clone()));
        }
        let known = self.log(log)?;
        known.next = known.next.max(end);
        self.touch(log);
        self.created(now_ms)
    }

    fn created(&mut self, now_ms: u64) -> Result<(), StoreError> {
        if self.tables.meta.get("created_ms")?.is_none() {
            self.tables.meta.insert("created_ms", now_ms)?;
        }
        Ok(())
    }

    /// Begins a new incarnation of this file's logs, to which their entries from the known numbers
    /// on move.
    pub(super) fn leave_own(
        &mut self,
        known: &BTreeMap<LogNumber, u64>,
        incarnation: u64,
    ) -> Result<(), StoreError> {
        let (own, before) = (self.logs.own, self.logs.own_incarnation());
        let of_file = self.logs.logs.iter().filter(|(_, log)| log.id.incarnation == before);
        for number in of_file.map(|(number, _)| *number).collect::<Vec<_>>() {
            let from = known.get(&number).copied().unwrap_or(0);
            let Log { id, floor, next, .. } = self.log(number)?.clone();
            let from = from.clamp(floor, next);
            if number != own && from == next {
                continue;
            }
            let new = self.add_log(LogId { incarnation, ..id })?;
            self.move_entries(number, from, new)?;
            if number == own {
                self.logs.own = new;
            }
        }
        Ok(())
    }

    /// Moves the entries of a log from a number on to an empty one.
    fn move_entries(&mut self, log: LogNumber, from: u64, to: LogNumber) -> Result<(), StoreError> {
        let rows = self.tables.entries.range((log.0, from)..=(log.0, u64::MAX))?;
        let rows = rows.map(|row| {
            let (key, value) = row?;
            Ok((key.value().1, value.value().to_vec()))
        });
        for (sequence, row) in rows.collect::<Result<Vec<_>, StoreError>>()? {
            let (time, entry) = split(&row)?;
            self.put(to, sequence - from, time, entry)?;
            self.remove(log, sequence)?;
        }
        let next = std::mem::replace(&mut self.log(log)?.next, from);
        self.log(to)?.next = next - from;
        self.changed.insert(log);
        Ok(())
    }

    /// Raises the floor of a log; a floor is never lowered.
    pub(super) fn raise_floor(&mut self, number: LogNumber, floor: u64) -> Result<(), StoreError> {
        let log = self.log(number)?;
        if floor <= log.floor {
            return Ok(());
        }
        log.floor = floor;
        log.next = log.next.max(floor);
        self.remove_range(number, floor)?;
        self.changed.insert(number);
        self.appended.forgotten.push((number, floor));
        Ok(())
    }

    /// Removes a whole writer: raises its floors to the next entry.
    pub(super) fn purge(&mut self, writer: &str) -> Result<u64, StoreError> {
        let before = self.logs.entries;
        for number in self.logs.of(writer) {
            let next = self.log(number)?.next;
            self.raise_floor(number, next)?;
        }
        Ok(before - self.logs.entries)
    }

    /// Evicts until the limit holds: the writer with most entries loses its oldest trip.
    fn evict(&mut self) -> Result<(), StoreError> {
        'full: while self.logs.entries > self.limits.events_max {
            for (_, writer) in self.logs.by_weight() {
                if self.evict_trip(&writer)? {
                    continue 'full;
                }
            }
            break;
        }
        Ok(())
    }

    /// Removes the oldest trip of a writer's oldest log; if there is none, its oldest pieces of
    /// tracks. The node's own newest trip and tracks stay.
    fn evict_trip(&mut self, writer: &str) -> Result<bool, StoreError> {
        let own = self.logs.own;
        let mut logs = self.logs.of(writer);
        logs.retain(|log| self.logs.logs.get(log).is_some_and(|log| log.count > 0));
        for log in &logs {
            let (trip, is_newest) = self.oldest_trip(*log)?;
            let is_kept = is_newest && *log == own;
            if !(trip.is_empty() || is_kept) {
                trip.into_iter().try_for_each(|sequence| self.remove(*log, sequence))?;
                return Ok(true);
            }
        }
        let Some(log) = logs.into_iter().find(|log| *log != own) else { return Ok(false) };
        let pieces =
            self.tables.entries.range((log.0, 0)..=(log.0, u64::MAX))?.take(PIECES_EVICTED);
        let pieces: Result<Vec<u64>, StoreError> = pieces.map(|row| Ok(row?.0.value().1)).collect();
        pieces?.into_iter().try_for_each(|sequence| self.remove(log, sequence))?;
        Ok(true)
    }

    /// The entries of a log up to the end of its oldest trip, without pieces of tracks, and whether
    /// no other trip follows.
    fn oldest_trip(&mut self, log: LogNumber) -> Result<(Vec<u64>, bool), StoreError> {
        let mut oldest: Option<TripId> = None;
        let (mut entries, mut is_newest) = (Vec::new(), true);
        let from = self.log(log)?.trips_from;
        for row in self.tables.entries.range((log.0, from)..=(log.0, u64::MAX))? {
            let (key, value) = row?;
            let (_, bytes) = split(value.value())?;
            if record::is_piece(bytes) {
                continue;
            }
            let trip = match record::decode(bytes)? {
                Entry::Handover(handover, _) => handover.trip,
                Entry::Rates(rates) => rates.trip,
                Entry::Track(_) => continue,
            };
            if *oldest.get_or_insert(trip) != trip {
                is_newest = false;
                break;
            }
            entries.push(key.value().1);
        }
        // Pieces gather at the beginning of a log; the next eviction begins behind them.
        let known = self.log(log)?;
        known.trips_from = entries.first().copied().unwrap_or(known.next);
        Ok((entries, is_newest))
    }

    /// Removes entries with an earlier time than `before`, except pieces of tracks, and gives those
    /// of more than a day after `now_ms` the time now.
    pub(super) fn sweep(&mut self, before: u64, now_ms: Option<u64>) -> Result<(), StoreError> {
        let (mut old, mut ahead) = (Vec::new(), Vec::new());
        for row in self.tables.entries.iter()? {
            let (key, value) = row?;
            let (time, bytes) = split(value.value())?;
            let (log, sequence) = key.value();
            if time < before && !record::is_piece(bytes) {
                old.push((LogNumber(log), sequence));
            } else if let Some(now_ms) = now_ms.filter(|now| time > now + clock::DAY_MS) {
                ahead.push(((log, sequence), [&now_ms.to_be_bytes()[..], bytes].concat()));
            }
        }
        for (key, row) in ahead {
            self.tables.entries.insert(key, &row[..])?;
        }
        old.into_iter().try_for_each(|(log, sequence)| self.remove(log, sequence))
    }

    fn log(&mut self, number: LogNumber) -> Result<&mut Log, StoreError> {
        self.logs.logs.get_mut(&number).ok_or_else(|| StoreError::damaged("a log is missing"))
    }

    /// The time of the last entry of a log.
    fn last_time(&self, log: LogNumber) -> Result<Option<u64>, StoreError> {
        let last = self.tables.entries.range((log.0, 0)..=(log.0, u64::MAX))?.next_back();
        last.map(|row| Ok(split(row?.1.value())?.0)).transpose()
    }

    fn put(
        &mut self,
        log: LogNumber,
        sequence: u64,
        time: u64,
        entry: &[u8],
    ) -> Result<(), StoreError> {
        let row = [&time.to_be_bytes()[..], entry].concat();
        self.tables.entries.insert((log.0, sequence), &row[..])?;
        self.log(log)?.count += 1;
        self.logs.entries += 1;
        Ok(())
    }

    pub(super) fn remove(&mut self, log: LogNumber, sequence: u64) -> Result<(), StoreError> {
        if self.tables.entries.remove((log.0, sequence))?.is_some() {
            self.log(log)?.count -= 1;
            self.logs.entries -= 1;
            self.changed.insert(log);
        }
        Ok(())
    }

    /// Removes all entries of a log below a sequence number.
    fn remove_range(&mut self, log: LogNumber, end: u64) -> Result<(), StoreError> {
        let mut removed = 0;
        self.tables.entries.retain_in((log.0, 0)..(log.0, end), |_, _| {
            removed += 1;
            false
        })?;
        self.log(log)?.count -= removed;
        self.logs.entries -= removed;
        Ok(())
    }
}

/// The time of an entry: a handover's own if it is plausible; else that of the entry before in its
/// log, else that of its arrival.
fn time_of(entry: &Entry, now_ms: u64, last: Option<u64>) -> u64 {
    match entry {
        Entry::Handover(handover, _) => clock::plausible(handover.at_ms, now_ms, last.unwrap_or(0)),
        _ => last.unwrap_or_else(|| clock::plausible(now_ms, now_ms, 0)),
    }
}

/// Pieces of tracks that are evicted at once.
const PIECES_EVICTED: usize = 256;
