//! Replicates logs between two databases, over a session that may lose any message.
//!
//! Both sides run the same machine; `docs/protocol.md` has the rules. It knows no socket, thread or
//! clock, and holds no entries: all else it reads from the [`Store`] when it is to be sent.
//!
//! Each side states its mark of each log. The sender then sends the entries above the mark, in
//! order, at most [`FLIGHTS_MAX`] messages at once. The receiver ignores entries that begin above
//! its mark, and answers each message with its mark. Unanswered messages are sent again, less and
//! less often. Nothing else is kept: entries in order need no list of gaps.
//!
//! A gateway offers its own logs. A cloud offers those of all other gateways, if it shares. A cloud
//! accepts entries and floors of the session's writer only, a gateway all entries but its own, and
//! all floors.
//!
//! # Drain contract
//! After every input ([`Sync::added`], [`Sync::relayed`], [`Sync::on_message`]), and when
//! [`Sync::next_timeout`] has come: [`Sync::poll`] until it returns `None`.

mod quota;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::Delivery;

use crate::entry::{Entry, LogId, LogNumber, WriterNumber};
use crate::store::{Appended, LOGS_MAX, Log, Store, StoreError};
use crate::wire::{Mark, SyncMessage};
pub use quota::Quotas;

/// The side of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Of a gateway.
    Gateway,
    /// Of a cloud.
    Cloud {
        /// Whether gateways receive each other's entries.
        share: bool,
    },
}

/// One side of the replication in one session.
#[derive(Debug)]
pub struct Sync {
    side: Side,
    /// The name in the peer's certificate.
    peer: String,
    /// The incarnation of the own log: another one means another file, with other log numbers.
    file: Option<u64>,
    /// What the peer knows of logs.
    known: BTreeMap<LogNumber, Known>,
    /// The next log to be listed; none after the last one.
    listing: Option<LogNumber>,
    /// When the next page of the list is sent, or the end of it again.
    page_at: Instant,
    page_wait: Duration,
    /// The peer has received the end of this side's list.
    confirmed: bool,
    /// The peer's list is complete.
    listed: bool,
    owes_confirmation: bool,
    /// Logs whose marks are to be stated; at most [`LOGS_MAX`].
    answers: BTreeSet<LogId>,
    /// Logs that may have something to send.
    queue: VecDeque<LogNumber>,
    /// Logs that have grown by other peers' entries, and when they are looked at.
    relays: BTreeSet<LogNumber>,
    relay_at: Option<Instant>,
    /// Messages that are not answered: log and end.
    flights: Vec<(LogNumber, u64)>,
    resend_at: Instant,
    wait: Duration,
    /// The log to which an entry was just appended.
    urgent: Option<LogNumber>,
    /// The peer's version replicates in another way: nothing is exchanged in this session.
    is_older: bool,
    refused: u64,
}

/// The peer's mark of a log, and how far entries were sent.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    next: u64,
    floor: u64,
    sent: u64,
    floor_sent: u64,
}

/// The effect of a message.
#[derive(Debug, Default)]
pub struct Heard {
    /// The appended entries.
    pub appended: Appended,
    /// Logs that have changed; other peers want them ([`Sync::relayed`]).
    pub changed: BTreeSet<LogNumber>,
    /// The file was restored from a backup: its newest entries are in a new log.
    pub moved: bool,
    /// The message was dropped: the peer may not send it, or its writer has no quota left.
    pub dropped: bool,
}

impl Sync {
    /// A session with the peer of this name has begun.
    pub fn new(now: Instant, side: Side, peer: &str) -> Self {
        Self {
            side,
            peer: peer.to_owned(),
            file: None,
            known: BTreeMap::new(),
            listing: Some(LogNumber(0)),
            page_at: now,
            page_wait: RETRY,
            confirmed: false,
            listed: false,
            owes_confirmation: false,
            answers: BTreeSet::new(),
            queue: VecDeque::new(),
            relays: BTreeSet::new(),
            relay_at: None,
            flights: Vec::new(),
            resend_at: now,
            wait: RETRY,
            urgent: None,
            is_older: false,
            refused: 0,
        }
    }

    /// This node has appended a handover to its log, which is sent at once, with the entries before
    /// it that the peer has not confirmed, if these are few.
    pub fn added(&mut self, log: LogNumber) {
        self.urgent = Some(log);
        if let Some(known) = self.known.get_mut(&log)
            && known.sent.saturating_sub(known.next) <= URGENT_MAX
        {
            // The peer ignores entries above its mark.
            known.sent = known.next;
            self.flights.retain(|(flight, _)| *flight != log);
        }
        self.look_at(log);
    }

    /// Another peer's entries, or a floor, have changed a log. It is sent within
    /// [`RELAY_WAIT`].
    pub fn relayed(&mut self, now: Instant, log: LogNumber) {
        self.relays.insert(log);
        self.relay_at.get_or_insert(now + RELAY_WAIT);
    }

    /// Takes a message of the peer. `wall_ms`: milliseconds since 1970.
    ///
    /// # Errors
    /// The database fails; the peer sends the message again.
    pub fn on_message(
        &mut self,
        now: Instant,
        wall_ms: u64,
        store: &mut Store,
        quotas: &mut Quotas,
        message: SyncMessage,
    ) -> Result<Heard, StoreError> {
        let mut heard = Heard::default();
        if self.is_older {
            return Ok(heard);
        }
        self.meet(store);
        match message {
            SyncMessage::Marks { end, heard: confirmed, marks } => {
                self.confirmed |= confirmed;
                if self.side == Side::Gateway {
                    heard.moved = self.leave_used_numbers(store, &marks)?;
                }
                let mut floors = Vec::new();
                for mark in &marks {
                    self.on_mark(now, store, quotas, mark, &mut floors);
                }
                if !floors.is_empty() {
                    heard.appended = store.raise_floors(&floors)?;
                    heard.changed = floors.into_iter().map(|(log, _)| log).collect();
                }
                if end {
                    self.owes_confirmation = true;
                    if !std::mem::replace(&mut self.listed, true) {
                        self.look_at_all(store);
                    }
                }
            }
            SyncMessage::Entries { log, floor, first, end, entries } => {
                let before = store.find(&log).and_then(|log| store.log(log)).cloned();
                // A gateway leaves it to its cloud to charge for these.
                let is_change = before.as_ref().is_none_or(|log| log.floor < floor);
                let change = if is_change && self.side != Side::Gateway { CHANGE_COST } else { 0 };
                let is_allowed = self.accepts_entries(store, &log);
                if !is_allowed || !quotas.take(now, &log.writer, entries.len().max(1) + change) {
                    self.drop_message(&log.writer, is_allowed);
                    return Ok(Heard { dropped: true, ..heard });
                }
                let is_ahead = first > before.as_ref().map_or(floor, |log| log.next.max(floor));
                let is_news = before.is_none_or(|log| log.next < end || log.floor < floor);
                if is_news && !is_ahead {
                    heard.appended = store.append(&log, floor, (first, end), &entries, wall_ms)?;
                    heard.changed.extend(store.find(&log));
                }
                self.answer(log);
            }
            SyncMessage::Older => {
                self.is_older = true;
                tracing::warn!(
                    peer = self.peer,
                    "the peer's version is too old: LinkDB exchanges nothing with it"
                );
            }
        }
        Ok(heard)
    }

    fn on_mark(
        &mut self,
        now: Instant,
        store: &Store,
        quotas: &mut Quotas,
        mark: &Mark,
        floors: &mut Vec<(LogNumber, u64)>,
    ) {
        let Some(log) = store.find(&mark.log) else { return };
        let known = self.known.entry(log).or_default();
        (known.next, known.floor) = (mark.next, mark.floor);
        let before = self.flights.len();
        self.flights.retain(|(flight, end)| *flight != log || *end > mark.next);
        if self.flights.len() < before {
            (self.wait, self.resend_at) = (RETRY, now + RETRY);
        }
        if !self.flights.iter().any(|(flight, _)| *flight == log) {
            (known.sent, known.floor_sent) = (mark.next, mark.floor);
        }
        let Some(own) = store.log(log) else { return };
        let accepts = self.side == Side::Gateway || self.accepts_entries(store, &own.id);
        if mark.floor > own.floor && accepts {
            if self.side == Side::Gateway || quotas.take(now, &own.id.writer, CHANGE_COST) {
                floors.push((log, mark.floor));
            } else {
                self.drop_message(&own.id.writer, true);
            }
        }
        if own.floor > mark.floor && !self.offers(store, log) {
            self.answer(mark.log.clone());
        }
        self.look_at(log);
    }

    /// A file restored from a backup uses sequence numbers again under which the cloud knows other
    /// entries: its entries since then go to a new log.
    fn leave_used_numbers(
        &mut self,
        store: &mut Store,
        marks: &[Mark],
    ) -> Result<bool, StoreError> {
        let own = store.log(store.own_log()).map(|log| &log.id);
        let mark = marks.iter().find(|mark| Some(&mark.log) == own);
        if !mark.is_some_and(|mark| store.is_restored(&mark.log, mark.next)) {
            return Ok(false);
        }
        tracing::warn!(
            peer = self.peer,
            "LinkDB's file is older than what the peer knows of it: new entries go to a new log"
        );
        store.leave_own_logs()?;
        self.file = Some(store.own_incarnation());
        self.look_at(store.own_log());
        Ok(true)
    }

    /// Forgets what belongs to another file.
    fn meet(&mut self, store: &Store) {
        let file = Some(store.own_incarnation());
        let before = std::mem::replace(&mut self.file, file);
        if before.is_some() && before != file {
            self.known.clear();
            self.queue.clear();
            self.relays.clear();
            self.flights.clear();
            self.urgent = None;
            self.look_at_all(store);
        }
    }

    fn look_at_all(&mut self, store: &Store) {
        store.logs().for_each(|(log, _)| self.look_at(log));
    }

    /// The next message, if there is any now.
    ///
    /// # Errors
    /// The database fails.
    pub fn poll(
        &mut self,
        now: Instant,
        store: &mut Store,
    ) -> Result<Option<(Delivery, SyncMessage)>, StoreError> {
        if self.is_older {
            return Ok(None);
        }
        self.meet(store);
        self.ripen(now);
        if let Some(marks) = self.next_marks(now, store) {
            return Ok(Some((Delivery::Background, marks)));
        }
        while self.listed
            && self.flights.len() < FLIGHTS_MAX
            && let Some(log) = self.queue.pop_front()
        {
            if let Some((left, end, entries)) = self.next_entries(now, store, log)? {
                self.look_at(log);
                store.offered(log, end);
                let is_urgent = self.urgent == Some(log) && left <= URGENT_MAX;
                let is_last = store.log(log).is_none_or(|log| log.next <= end);
                self.urgent.take_if(|urgent| *urgent == log && (is_last || !is_urgent));
                let delivery = if is_urgent { Delivery::Urgent } else { Delivery::Background };
                return Ok(Some((delivery, entries)));
            }
        }
        Ok(None)
    }

    /// When [`Sync::poll`] may have a message, if nothing happens before.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.is_older {
            return None;
        }
        let page = (self.listing.is_some() || !self.confirmed).then_some(self.page_at);
        let resend = (!self.flights.is_empty()).then_some(self.resend_at);
        [page, resend, self.relay_at].into_iter().flatten().min()
    }

    fn ripen(&mut self, now: Instant) {
        if self.relay_at.is_some_and(|at| now >= at) {
            self.relay_at = None;
            std::mem::take(&mut self.relays).into_iter().for_each(|log| self.look_at(log));
        }
        if !self.flights.is_empty() && now >= self.resend_at {
            self.wait = (self.wait * 2).min(RETRY_MAX);
            for (log, _) in std::mem::take(&mut self.flights) {
                let known = self.known.entry(log).or_default();
                (known.sent, known.floor_sent) = (known.next, known.floor);
                self.look_at(log);
            }
        }
    }

    fn next_marks(&mut self, now: Instant, store: &Store) -> Option<SyncMessage> {
        let (mut marks, mut end) = (Vec::new(), false);
        if let Some(from) = self.listing
            && now >= self.page_at
        {
            let all = store.logs().filter(|(log, _)| *log >= from);
            let mut listed = all.filter(|(_, log)| {
                self.side == Side::Gateway || self.accepts_entries(store, &log.id)
            });
            let page = listed.by_ref().take(SyncMessage::MARKS_MAX);
            let mark = |log: &Log| Mark { log: log.id.clone(), floor: log.floor, next: log.next };
            marks.extend(page.map(|(_, log)| mark(log)));
            self.listing = listed.next().map(|(log, _)| log);
            end = self.listing.is_none();
            self.page_at = now + if end { self.page_wait } else { PAGES_APART };
        } else if self.listing.is_none() && !self.confirmed && now >= self.page_at {
            end = true;
            self.page_wait = (self.page_wait * 2).min(RETRY_MAX);
            self.page_at = now + self.page_wait;
        } else if self.answers.is_empty() && !self.owes_confirmation {
            return None;
        }
        while marks.len() < SyncMessage::MARKS_MAX
            && let Some(id) = self.answers.pop_first()
        {
            let log = store.find(&id).and_then(|log| store.log(log));
            let (floor, next) = log.map_or((0, 0), |log| (log.floor, log.next));
            marks.push(Mark { log: id, floor, next });
        }
        self.owes_confirmation = false;
        Some(SyncMessage::Marks { end, heard: self.listed, marks })
    }

    /// The next entries of a log, their end, and how many entries there are to the end of the log.
    fn next_entries(
        &mut self,
        now: Instant,
        store: &Store,
        log: LogNumber,
    ) -> Result<Option<(u64, u64, SyncMessage)>, StoreError> {
        let Some(own) = store.log(log).filter(|_| self.offers(store, log)) else {
            return Ok(None);
        };
        let known = self.known.entry(log).or_default();
        if known.sent >= own.next && known.floor_sent >= own.floor {
            return Ok(None);
        }
        let first = known.sent.max(own.floor).min(own.next);
        let page = store.since(log, first, SyncMessage::ENTRIES_BYTES)?;
        (known.sent, known.floor_sent) = (page.end, own.floor);
        if self.flights.is_empty() {
            self.resend_at = now + self.wait;
        }
        self.flights.push((log, page.end));
        let (id, floor, end) = (own.id.clone(), own.floor, page.end);
        let entries = SyncMessage::Entries { log: id, floor, first, end, entries: page.entries };
        Ok(Some((own.next - first, end, entries)))
    }

    fn look_at(&mut self, log: LogNumber) {
        if !self.queue.contains(&log) {
            self.queue.push_back(log);
        }
    }

    fn answer(&mut self, log: LogId) {
        if self.answers.len() < LOGS_MAX {
            self.answers.insert(log);
        }
    }

    fn offers(&self, store: &Store, log: LogNumber) -> bool {
        let is_own = store.writer(log) == WriterNumber::OWN;
        match self.side {
            Side::Gateway => is_own,
            Side::Cloud { share } => {
                let is_meant = store.log(log).is_some_and(|log| {
                    log.id.writer != self.peer && log.id.incarnation != store.own_incarnation()
                });
                // Clouds exchange their observations through the shared database alone.
                share && !is_own && is_meant && !store.is_of_cloud(log)
            }
        }
    }

    fn accepts_entries(&self, store: &Store, log: &LogId) -> bool {
        match self.side {
            Side::Gateway => log.writer != store.own_name(),
            // The own incarnation marks what the cloud itself knows of a gateway.
            Side::Cloud { .. } => {
                let is_peers = log.writer == self.peer && log.writer != store.own_name();
                let is_of_cloud = || store.find(log).is_some_and(|log| store.is_of_cloud(log));
                is_peers && log.incarnation != store.own_incarnation() && !is_of_cloud()
            }
        }
    }

    /// Counts a dropped message, and logs some.
    fn drop_message(&mut self, writer: &str, is_allowed: bool) {
        self.refused += 1;
        if self.refused.is_power_of_two() {
            let (peer, dropped) = (&self.peer, self.refused);
            let reason = if is_allowed { "beyond the quota" } else { "the peer may not send them" };
            tracing::warn!(peer, writer, dropped, reason, "dropped LinkDB entries");
        }
    }
}

/// The number of handovers among entries.
pub fn handovers(entries: &[(crate::entry::EntryKey, Entry)]) -> u64 {
    entries.iter().filter(|(_, entry)| matches!(entry, Entry::Handover(..))).count() as u64
}

/// Messages with entries that are not answered. The session sends one in a round trip.
pub const FLIGHTS_MAX: usize = 4;
/// Entries that are sent at once with a handover: as many as a train with eight carriers appends
/// between two messages.
pub const URGENT_MAX: u64 = 16;
/// A new log or a raised floor takes as much of a writer's quota as this many entries, because all
/// nodes look through their views. A disk is seldom replaced, and a cloud's purge costs nothing.
pub const CHANGE_COST: usize = 1_000;
/// How long a cloud collects entries of one gateway before it sends them to the others.
pub const RELAY_WAIT: Duration = Duration::from_secs(5);
/// Unanswered messages are sent again after this time, then after twice as long each time, up to
/// [`RETRY_MAX`].
const RETRY: Duration = Duration::from_secs(3);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The time between two pages of a list.
const PAGES_APART: Duration = Duration::from_millis(100);
