//! The exchange with a database that several clouds share.
//!
//! The shared database keeps, of each log, a floor and a mark, and all entries between. It appends
//! in order, one cloud at a time per writer. So an entry below a mark that is visible never
//! appears later, and this database's own mark of a log is the only cursor that there is. What the
//! shared database lacks is what lies above its mark here: this file is the outbox.
//!
//! Sans-IO: another thread reaches the server. It reports its news ([`News`]) and receives the
//! next entries to append and to read ([`Answer`]). After a failure it lists all marks again,
//! so nothing else is kept.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, LogId, LogNumber};
use crate::record;
use crate::store::{Appended, Store, StoreError, WRITER_LOGS_MAX};
use crate::sync::Heard;
use crate::wire::Mark;

/// This database's view of the shared one.
#[derive(Debug)]
pub struct SharedLogs {
    /// The floors and marks of its logs; none before it was reached.
    marks: Option<BTreeMap<LogId, Reach>>,
    /// Logs that wait after an exchange without effect.
    rests: BTreeMap<LogId, Instant>,
    /// The last log that was offered; others come first.
    offered: LogNumber,
    error: Option<String>,
    /// When it was reached or lost.
    since: Instant,
    sent: u64,
    received: u64,
    refused: u64,
}

/// The floor and the mark of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reach {
    floor: u64,
    next: u64,
}

/// Consecutive entries of a log, encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The log.
    pub log: LogId,
    /// Entries below this were purged.
    pub floor: u64,
    /// The receiver must know everything below this.
    pub first: u64,
    /// It knows everything below this afterwards.
    pub end: u64,
    /// Entries and their sequence numbers, ascending.
    pub entries: Vec<(u64, Vec<u8>)>,
}

/// Entries of a log that are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The log.
    pub log: LogId,
    /// Pieces of tracks from this number on.
    pub since: u64,
    /// Other entries from this number on: there is no room for earlier ones.
    pub recent: u64,
}

/// News of the shared database.
#[derive(Debug, Default)]
pub struct News {
    /// It was just reached: `marks` has all its logs.
    pub is_whole: bool,
    /// Logs that may have changed.
    pub marks: Vec<Mark>,
    /// Entries that were read.
    pub spans: Vec<Span>,
    /// Entries that it took from this cloud.
    pub sent: u64,
    /// Logs of which it took nothing, because another cloud appends to the same writer's logs at
    /// this moment, or because the writer has no quota left.
    pub refused: Vec<LogId>,
    /// Why it cannot be reached.
    pub error: Option<String>,
}

/// The next work of the shared database's thread.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Entries to be appended.
    pub offers: Vec<Span>,
    /// Entries to be read.
    pub wants: Vec<Want>,
}

/// The shared database, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedState {
    /// Whether it is reachable.
    pub connected: bool,
    /// Why it is not.
    pub error: Option<String>,
    /// For how many seconds it has been so.
    pub for_s: u64,
    /// Entries here that it lacks, of the marks that were last seen.
    pub waiting: u64,
    /// Entries there that are not yet here.
    pub behind: u64,
    /// Entries that it took from this cloud since the start.
    pub sent: u64,
    /// Entries received from it since the start.
    pub received: u64,
    /// How many times it did not take a log's entries, as [`News::refused`] states.
    pub refused: u64,
}

impl SharedLogs {
    /// Not yet reached.
    pub fn new(now: Instant) -> Self {
        Self {
            marks: None,
            rests: BTreeMap::new(),
            offered: LogNumber::default(),
            error: Some("not yet reached".to_owned()),
            since: now,
            sent: 0,
            received: 0,
            refused: 0,
        }
    }

    /// Takes news. `wall_ms`: milliseconds since 1970.
    ///
    /// # Errors
    /// The local database fails; the entries are read again.
    pub fn take(
        &mut self,
        now: Instant,
        wall_ms: u64,
        store: &mut Store,
        news: News,
    ) -> Result<Heard, StoreError> {
        let mut heard = Heard::default();
        if self.error.is_some() != news.error.is_some() {
            self.since = now;
        }
        self.error = news.error;
        if self.error.is_some() {
            return Ok(heard);
        }
        if news.is_whole {
            self.marks = None;
            self.rests.clear();
        }
        let marks = self.marks.get_or_insert_default();
        marks.extend(
            news.marks.into_iter().map(|Mark { log, floor, next }| (log, Reach { floor, next })),
        );
        self.sent += news.sent;
        self.refused += news.refused.len() as u64;
        self.rests.retain(|_, until| *until > now);
        self.rests.extend(news.refused.into_iter().map(|log| (log, now + REST)));
        // A file that was restored from a backup would use sequence numbers again.
        let mut marks = self.marks.iter().flatten();
        if marks.any(|(log, reach)| store.is_restored(log, reach.next)) {
            tracing::warn!(
                "LinkDB's file is older than what the shared database knows of it: new entries \
                 go to new logs"
            );
            store.leave_own_logs()?;
            heard.moved = true;
        }
        let mut spans = news.spans;
        // A log that was emptied in the meantime.
        spans.retain(|span| span.floor < span.end || store.find(&span.log).is_some());
        if !spans.is_empty() {
            heard.appended = append(store, &spans, wall_ms)?;
        }
        self.received += heard.appended.fresh.len() as u64;
        for span in spans {
            let log = store.find(&span.log);
            match log.filter(|_| local(store, &span.log).next >= span.end) {
                Some(log) => {
                    heard.changed.insert(log);
                }
                // There is no room for the log.
                None => {
                    self.rests.insert(span.log, now + LONG_REST);
                }
            }
        }
        Ok(heard)
    }

    /// The next entries to append and to read. `room`: how many entries this database keeps.
    ///
    /// # Errors
    /// The local database fails.
    pub fn answer(
        &mut self,
        now: Instant,
        store: &mut Store,
        room: u64,
    ) -> Result<Answer, StoreError> {
        if self.error.is_some() || self.marks.is_none() {
            return Ok(Answer::default());
        }
        Ok(Answer { offers: self.offers(now, store)?, wants: self.wants(now, store, room) })
    }

    fn offers(&mut self, now: Instant, store: &mut Store) -> Result<Vec<Span>, StoreError> {
        let behind: Vec<LogNumber> = store.logs().map(|(number, _)| number).collect();
        let turn = behind.partition_point(|number| *number <= self.offered);
        let (mut offers, mut count) = (Vec::new(), 0);
        for &number in behind[turn..].iter().chain(&behind[..turn]) {
            let Some(log) = store.log(number) else { continue };
            let Some(reach) = self.lacks(store, number) else { continue };
            if self.rests.get(&log.id).is_some_and(|until| *until > now) {
                continue;
            }
            let first = reach.next.max(log.floor).min(log.next);
            let page = store.since(number, first, OFFER_BYTES)?;
            let encoded = |(sequence, entry): &(u64, Entry)| (*sequence, record::encode(entry));
            let entries: Vec<_> = page.entries.iter().map(encoded).collect();
            count += entries.len();
            let (log, floor) = (log.id.clone(), log.floor);
            offers.push(Span { log, floor, first, end: page.end, entries });
            store.offered(number, page.end);
            self.offered = number;
            if count >= ENTRIES_MAX || offers.len() >= LOGS_AT_ONCE {
                break;
            }
        }
        Ok(offers)
    }

    /// The shared database's floor and mark of a log of which it lacks something.
    fn lacks(&self, store: &Store, number: LogNumber) -> Option<Reach> {
        let log = store.log(number).filter(|log| !log.id.writer.is_empty())?;
        let reach = self.marks.as_ref()?.get(&log.id).copied().unwrap_or_default();
        let lacks = log.floor > reach.floor || (log.next > reach.next && log.count > 0);
        lacks.then_some(reach)
    }

    fn wants(&self, now: Instant, store: &Store, room: u64) -> Vec<Want> {
        let all: Vec<_> = self.behind(store).collect();
        let most = share(all.iter().map(|(_, since, next)| next - since), room);
        let awake = |id: &LogId| self.rests.get(id).is_none_or(|until| *until <= now);
        let wants = all.into_iter().filter(|(id, ..)| awake(id));
        let wants = wants.map(|(id, since, next)| Want {
            log: id.clone(),
            since,
            recent: since.max(next.saturating_sub(most)),
        });
        wants.take(LOGS_AT_ONCE).collect()
    }

    /// Logs of which the shared database has more, with the first number and the end of that. Of
    /// this file's logs only floors are news: others have purged the writer.
    fn behind(&self, store: &Store) -> impl Iterator<Item = (&LogId, u64, u64)> {
        let own = store.own_incarnation();
        let full = full_writers(store);
        self.marks.iter().flatten().filter_map(move |(id, reach)| {
            let here = local(store, id);
            let has_more = reach.next > here.next && id.incarnation != own;
            let is_news = has_more || reach.floor > here.floor;
            let is_empty = reach.floor >= reach.next || full.contains(&id.writer);
            let is_useless = is_empty && store.find(id).is_none();
            let since = here.next.max(reach.floor);
            (is_news && !is_useless).then_some((id, since, reach.next.max(since)))
        })
    }

    /// The state for operators.
    pub fn state(&self, now: Instant, store: Option<&Store>) -> SharedState {
        let waiting = |store: &Store| -> u64 {
            let lacking = |(number, log): (LogNumber, &crate::store::Log)| {
                let reach = self.lacks(store, number)?;
                Some(log.next.saturating_sub(reach.next.max(log.floor)))
            };
            store.logs().filter_map(lacking).sum()
        };
        let behind = |store: &Store| -> u64 {
            self.behind(store).map(|(_, since, next)| next - since).sum()
        };
        SharedState {
            connected: self.error.is_none(),
            error: self.error.clone(),
            for_s: now.saturating_duration_since(self.since).as_secs(),
            waiting: store.map_or(0, waiting),
            behind: store.map_or(0, behind),
            sent: self.sent,
            received: self.received,
            refused: self.refused,
        }
    }
}

/// The most entries of each log, so that all together have at most `room`: small logs are complete,
/// and large ones have as many each.
fn share(sizes: impl Iterator<Item = u64>, room: u64) -> u64 {
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable();
    let mut left = room;
    for (index, size) in sizes.iter().enumerate() {
        let each = left / (sizes.len() - index) as u64;
        if *size > each {
            return each;
        }
        left -= size;
    }
    u64::MAX
}

/// The floor and the mark of a log in this database.
fn local(store: &Store, id: &LogId) -> Reach {
    let log = store.find(id).and_then(|log| store.log(log));
    log.map_or(Reach::default(), |log| Reach { floor: log.floor, next: log.next })
}

/// Writers with as many logs here as they may have, none of them empty. A further log would replace
/// one of them, which would be read again and replace the next one, without end.
fn full_writers(store: &Store) -> BTreeSet<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, log) in store.logs().filter(|(_, log)| log.count > 0) {
        *counts.entry(&log.id.writer).or_default() += 1;
    }
    counts.retain(|_, count| *count >= WRITER_LOGS_MAX);
    counts.into_keys().map(str::to_owned).collect()
}

/// Appends spans in one durable transaction. Invalid entries become holes.
fn append(store: &mut Store, spans: &[Span], wall_ms: u64) -> Result<Appended, StoreError> {
    let mut invalid = 0;
    let appended = store.append_with(|batch| {
        for Span { log, floor, first, end, entries } in spans {
            let decoded = entries.iter().filter_map(|(sequence, bytes)| {
                let entry = record::decode(bytes).inspect_err(|_| invalid += 1).ok()?;
                Some((*sequence, entry))
            });
            let entries: Vec<_> = decoded.collect();
            batch.append(log, *floor, (*first, *end), &entries, wall_ms)?;
        }
        Ok(())
    })?;
    if invalid > 0 {
        tracing::warn!(invalid, "skipped entries of the shared database that are invalid");
    }
    Ok(appended)
}

/// Logs in one answer, to be appended and to be read each.
pub const LOGS_AT_ONCE: usize = 128;
/// Entries that are appended, and read, at once; of the last log some more. To apply as many takes
/// about 0.06 s of LinkDB's thread (`make bench-scale`), for which forecasts wait.
pub const ENTRIES_MAX: usize = 2_000;
/// Bytes of a log's entries that are appended at once.
const OFFER_BYTES: usize = 65_536;
/// How long a log waits that the shared database refused.
const REST: Duration = Duration::from_secs(1);
/// How long a log waits for which there is no room here.
const LONG_REST: Duration = Duration::from_secs(60);
