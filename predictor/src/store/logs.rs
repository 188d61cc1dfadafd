//! The logs of a database, in memory as committed.

use std::collections::BTreeMap;

use polyrail_model::codec::FieldError;
use redb::{ReadTransaction, ReadableTable};

use super::error::StoreError;
use super::tables::{LOGS, META};
use crate::entry::{LogId, LogNumber, SEQUENCE_END, WriterNumber};
use crate::record::{Reader, Writer};

/// The state of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Its name.
    pub id: LogId,
    /// Entries below this were purged and are refused.
    pub floor: u64,
    /// All entries below this are known; useless and evicted ones are not here.
    pub next: u64,
    /// The entries that are here.
    pub count: u64,
    /// The number of its last write.
    pub(super) written: u64,
    /// Below this are only pieces of tracks; found by evictions.
    pub(super) trips_from: u64,
}

/// All logs.
#[derive(Debug, Default)]
pub(super) struct Logs {
    pub(super) own: LogNumber,
    pub(super) logs: BTreeMap<LogNumber, Log>,
    pub(super) ids: BTreeMap<LogId, LogNumber>,
    /// The numbers of the writers, which stay while the database is open.
    pub(super) writers: BTreeMap<String, WriterNumber>,
    pub(super) entries: u64,
    pub(super) written: u64,
}

impl Log {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(VERSION);
        out.text(&self.id.writer);
        out.fixed(self.id.incarnation);
        for number in [self.floor, self.next, self.count, self.written] {
            out.varint(number);
        }
        out.0
    }

    fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut from = Reader::new(bytes, VERSION)?;
        let id = LogId { writer: from.text()?, incarnation: from.fixed()? };
        let [floor, next, count, written] =
            [from.varint()?, from.varint()?, from.varint()?, from.varint()?];
        from.finish()?;
        let is_valid = floor <= next && next <= SEQUENCE_END;
        is_valid
            .then_some(Self { id, floor, next, count, written, trips_from: 0 })
            .ok_or(FieldError::Invalid("log"))
    }
}

impl Logs {
    /// Reads all logs; keeps the numbers of writers.
    pub(super) fn load(&mut self, reading: &ReadTransaction) -> Result<(), StoreError> {
        let meta = reading.open_table(META)?;
        let number = |name| -> Result<u64, StoreError> {
            Ok(meta.get(name)?.map_or(0, |value| value.value()))
        };
        let own = u32::try_from(number("own")?).map_err(|_| StoreError::damaged("own log"))?;
        let writers = std::mem::take(&mut self.writers);
        *self =
            Self { own: LogNumber(own), writers, written: number("written")?, ..Self::default() };
        for row in reading.open_table(LOGS)?.iter()? {
            let (log, bytes) = row?;
            self.insert(LogNumber(log.value()), Log::decode(bytes.value())?);
        }
        self.number_writers();
        Ok(())
    }

    pub(super) fn number_writers(&mut self) {
        let own = self.own_name().to_owned();
        self.writers.insert(own, WriterNumber::OWN);
        for log in self.logs.values() {
            let next = WriterNumber(self.writers.len() as u32);
            self.writers.entry(log.id.writer.clone()).or_insert(next);
        }
    }

    pub(super) fn insert(&mut self, number: LogNumber, log: Log) {
        self.ids.insert(log.id.clone(), number);
        self.entries += log.count;
        self.logs.insert(number, log);
    }

    pub(super) fn remove(&mut self, number: LogNumber) {
        if let Some(log) = self.logs.remove(&number) {
            self.ids.remove(&log.id);
            self.entries -= log.count;
        }
    }

    pub(super) fn own_incarnation(&self) -> u64 {
        self.logs.get(&self.own).map_or(0, |log| log.id.incarnation)
    }

    /// The name of the node; empty until it is known.
    pub(super) fn own_name(&self) -> &str {
        self.logs.get(&self.own).map_or("", |log| &log.id.writer)
    }

    pub(super) fn writer(&mut self, name: &str) -> WriterNumber {
        let next = WriterNumber(self.writers.len() as u32);
        *self.writers.entry(name.to_owned()).or_insert(next)
    }

    /// The logs of a writer, the one written longest ago first.
    pub(super) fn of(&self, writer: &str) -> Vec<LogNumber> {
        let of = self.logs.iter().filter(|(_, log)| log.id.writer == writer);
        let mut of: Vec<_> = of.map(|(number, log)| (log.written, *number)).collect();
        of.sort_unstable();
        of.into_iter().map(|(_, number)| number).collect()
    }

    /// The number of entries of each writer, most first.
    pub(super) fn by_weight(&self) -> Vec<(u64, String)> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for log in self.logs.values() {
            *counts.entry(&log.id.writer).or_default() += log.count;
        }
        let mut all: Vec<_> =
            counts.into_iter().map(|(name, count)| (count, name.to_owned())).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        all
    }
}

const VERSION: u8 = 1;
