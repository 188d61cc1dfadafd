//! Makes two databases of handovers hold the same, over a session that may lose any message.
//!
//! Both sides run the same machine; `docs/protocol.md`, "The train and its handovers", has the
//! rules. It knows no socket, thread or clock, and holds no handovers but those that have just been
//! seen and did not leave yet: all else it reads from its [`Ledger`] when it is to be said.
//!
//! ```text
//!              digests differ                 digest behind each page
//!   Quiet ----------------------> Telling <--------------------------+
//!     ^  ^                         |   |  the newest trips first, ----+
//!     |  +--- digests are equal ---+   |  a page at a time
//!     +--- again after a pause, longer when nothing came of it (see `walk`)
//! ```
//! Beside that, in any state: who hears of a trip that it knows better sends a page of records and
//! waits for the answer; who hears of one that it knows worse says so; records are answered. What
//! this side has seen itself goes at once, what another peer has said within seconds (see `relay`).
//! A trip of which something is on its way to the peer, or waits to go, is compared as far as the
//! peer has answered: digests are equal while nothing is amiss, though both sides write.
//!
//! # Drain contract
//! After every input ([`Sync::connected`], [`Sync::added`], [`Sync::relayed`],
//! [`Sync::on_message`]), and when [`Sync::next_timeout`] has come: [`Sync::poll`] until it answers
//! `None`.
//!
//! Invariants: every set and queue has a bound; one page of records is out at a time; nothing is
//! said to a silent peer but a digest every [`INTERVAL`], and of what goes unasked ever less.

mod bounded;
mod compare;
mod hear;
mod known;
mod ledger;
mod relay;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::wire::{SyncMessage, TripKnown};
use polyrail_model::{Delivery, Handover, TripId};

use bounded::BoundedSet;
pub(crate) use known::KnownTrips;
pub use ledger::{Ledger, MemoryLedger, Rank};
use relay::Relays;
use walk::Walk;

/// Which trips a peer is told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// All: they belong to one operator. Default.
    #[default]
    All,
    /// Those that the peer has named itself since it connected; their numbers are drawn at random.
    Own,
}

/// One side of the synchronisation with one peer.
#[derive(Debug)]
pub struct Sync {
    share: Share,
    /// The rest holds only while connected.
    connected: bool,
    /// The peer has said something.
    heard: bool,
    /// Seen just now, and to be said at once.
    live: VecDeque<Handover>,
    /// Said by push, and not answered yet.
    unsure: BTreeMap<TripId, Unsure>,
    /// What other peers have said.
    relays: Relays,
    /// Trips of which the peer is to hear how far they are known.
    answers: BTreeSet<TripId>,
    /// Trips that one of the sides wants to leave out.
    left_out: BoundedSet,
    /// Trips that the peer has named, for [`Share::Own`].
    named: BoundedSet,
    /// What the peer lacks, and from which number on.
    lacking: VecDeque<(TripId, u32)>,
    page: Option<Page>,
    /// A digest of the peer is to be answered.
    digest_asked: bool,
    digest_asked_at: Option<Instant>,
    /// A digest was sent and is not answered.
    digest_out: bool,
    digest_at: Instant,
    /// How long to wait for the answer to the next one.
    digest_wait: Duration,
    /// Which trips the peer is told of while digests differ.
    walk: Walk,
}

/// Handovers of a trip that went to the peer unasked and are not answered.
#[derive(Clone, Copy, Debug)]
struct Unsure {
    from: u32,
    /// Up to below this one.
    to: u32,
    /// How long to wait.
    until: Instant,
}

/// Records that are out and not answered.
#[derive(Clone, Copy, Debug)]
struct Page {
    trip: TripId,
    from: u32,
    /// When it goes once more.
    at: Instant,
    wait: Duration,
    sent: u32,
}

impl Sync {
    /// Not connected yet. `now` is only the base of what has not happened.
    pub fn new(now: Instant, share: Share) -> Self {
        Self {
            share,
            connected: false,
            heard: false,
            live: VecDeque::new(),
            unsure: BTreeMap::new(),
            relays: Relays::new(now),
            answers: BTreeSet::new(),
            left_out: BoundedSet::new(LEFT_OUT_MAX),
            named: BoundedSet::new(NAMED_MAX),
            lacking: VecDeque::new(),
            page: None,
            digest_asked: false,
            digest_asked_at: None,
            digest_out: false,
            digest_at: now,
            digest_wait: RETRY,
            walk: Walk::new(now),
        }
    }

    /// A session with the peer has begun. Everything of an earlier one is forgotten.
    pub fn connected(&mut self, now: Instant) {
        *self = Self { connected: true, ..Self::new(now, self.share) };
    }

    /// The session is over.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// This side has seen a handover, and its ledger holds it: the peer hears of it at once. For
    /// what another peer has said see [`Sync::relayed`].
    pub fn added(&mut self, now: Instant, handover: &Handover) {
        let Handover { trip, sequence, .. } = *handover;
        if !self.connected || !self.shows(trip) {
            return;
        }
        self.walk.moved(trip);
        if self.live.len() >= LIVE_MAX {
            self.live.pop_front();
        }
        self.live.push_back(handover.clone());
        let next = sequence.saturating_add(1);
        let until = now + RETRY;
        if let Some(unsure) = self.unsure.get_mut(&trip) {
            (unsure.from, unsure.to) = (unsure.from.min(sequence), unsure.to.max(next));
        } else if self.unsure.len() < UNSURE_MAX {
            self.unsure.insert(trip, Unsure { from: sequence, to: next, until });
        }
    }

    /// The peer's ledger says something. Returns the handovers that were new; other peers want
    /// to hear of them ([`Sync::relayed`]).
    ///
    /// # Errors
    /// The ledger fails; the peer will say it again.
    pub fn on_message<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &mut L,
        message: SyncMessage,
    ) -> Result<Vec<Handover>, L::Error> {
        if !self.connected {
            return Ok(Vec::new());
        }
        self.heard = true;
        if self.digest_out {
            // It is there again, or the answer is on its way.
            self.digest_wait = RETRY;
            self.digest_at = self.digest_at.min(now + RETRY);
        }
        match message {
            SyncMessage::Known(trips) => {
                self.relays.answered();
                for TripKnown { trip, next } in trips {
                    self.on_known(now, ledger, trip, next)?;
                }
                Ok(Vec::new())
            }
            SyncMessage::Records(records) => self.on_records(now, ledger, records),
            SyncMessage::Digest(digest) => {
                self.on_digest(now, ledger, digest)?;
                Ok(Vec::new())
            }
        }
    }

    /// The next thing to say, if there is any now.
    ///
    /// # Errors
    /// The ledger fails. What was to be said is put off, not said again at once.
    pub fn poll<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &L,
    ) -> Result<Option<(Delivery, SyncMessage)>, L::Error> {
        if !self.connected {
            return Ok(None);
        }
        self.ripen(now);
        if !self.live.is_empty() {
            let most = self.live.len().min(SyncMessage::RECORDS_MAX);
            let records = SyncMessage::Records(self.live.drain(..most).collect());
            return Ok(Some((Delivery::Urgent, records)));
        }
        let later = |message| Ok(Some((Delivery::Background, message)));
        if let Some(records) = self.next_page(now, ledger)? {
            return later(SyncMessage::Records(records));
        }
        // Behind the page: it may have shown what cannot be given.
        if !self.answers.is_empty() {
            return later(self.answer(ledger)?);
        }
        if self.answer_due().is_some_and(|at| now >= at) {
            self.digest_asked = false;
            return later(SyncMessage::Digest(self.digest(ledger, true)?));
        }
        if let Some(records) = self.next_relayed(now, ledger)? {
            return later(SyncMessage::Records(records));
        }
        if let Some(page) = self.next_told(now, ledger)? {
            return later(SyncMessage::Known(page));
        }
        if self.digest_due().is_some_and(|at| now >= at) {
            self.digest_at = now + self.digest_wait;
            self.digest_wait = (self.digest_wait * 2).min(INTERVAL);
            self.digest_out = true;
            return later(SyncMessage::Digest(self.digest(ledger, false)?));
        }
        Ok(None)
    }

    /// When [`Sync::poll`] may have something to say, if nothing happens before.
    pub fn next_timeout(&self) -> Option<Instant> {
        if !self.connected {
            return None;
        }
        let unsure = self.unsure.values().map(|unsure| unsure.until).min();
        let page = self.page.map(|page| page.at);
        let digests = [self.digest_due(), self.answer_due()];
        digests.into_iter().chain([page, unsure, self.relays.due()]).flatten().min()
    }

    /// When a digest goes. What was pushed is waited for: until its answer nobody can say what the
    /// peer holds.
    fn digest_due(&self) -> Option<Instant> {
        (!self.gives()).then(|| self.digest_at + self.hold())
    }

    /// When a digest of the peer is answered.
    fn answer_due(&self) -> Option<Instant> {
        self.digest_asked_at.filter(|_| self.digest_asked).map(|at| at + self.hold())
    }

    fn hold(&self) -> Duration {
        if self.unsure.is_empty() { Duration::ZERO } else { DIGEST_HOLD }
    }

    /// Some records are on their way to the peer, or are to be.
    fn gives(&self) -> bool {
        self.page.is_some() || !self.lacking.is_empty()
    }

    fn shows(&self, trip: TripId) -> bool {
        self.share == Share::All || self.named.contains(trip)
    }

    /// How far the trips are known of which the peer is to hear.
    fn answer<L: Ledger>(&mut self, ledger: &L) -> Result<SyncMessage, L::Error> {
        let mut known = Vec::new();
        while known.len() < SyncMessage::KNOWN_MAX
            && let Some(trip) = self.answers.pop_first()
        {
            let left_out = self.left_out.contains(trip);
            let next = if left_out { TripKnown::LEFT_OUT } else { ledger.next_of(trip)? };
            known.push(TripKnown { trip, next });
        }
        Ok(SyncMessage::Known(known))
    }

    /// The next page of what the peer lacks, or the one that was not answered.
    fn next_page<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &L,
    ) -> Result<Option<Vec<Handover>>, L::Error> {
        loop {
            let mut page = match self.page.take() {
                Some(page) if now < page.at => {
                    self.page = Some(page);
                    return Ok(None);
                }
                Some(page) => page,
                None => {
                    let Some((trip, from)) = self.lacking.pop_front() else { return Ok(None) };
                    Page { trip, from, at: now, wait: RETRY, sent: 0 }
                }
            };
            if page.sent >= PAGE_TRIES {
                // The peer does not answer: the next digest shows whether it is there.
                self.lacking.clear();
                self.digest_at = now + self.digest_wait;
                return Ok(None);
            }
            // The first one shows whether the peer wants the trip at all.
            let max = if page.from == 0 { 1 } else { SyncMessage::RECORDS_MAX };
            let records = ledger.records(page.trip, page.from, max)?;
            if records.is_empty() && ledger.next_of(page.trip)? <= page.from {
                continue;
            }
            if records.first().is_none_or(|first| first.sequence != page.from) {
                self.leave_out(page.trip);
                continue;
            }
            (page.at, page.wait, page.sent) = (now + page.wait, page.wait * 2, page.sent + 1);
            self.page = Some(page);
            return Ok(Some(records));
        }
    }

    /// This side cannot give a trip, or does not want it.
    fn leave_out(&mut self, trip: TripId) {
        self.left_out.insert(trip);
        self.owe_answer(trip);
    }

    fn owe_answer(&mut self, trip: TripId) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.insert(trip);
        }
    }

    /// What waited long enough for its answer is said again.
    fn ripen(&mut self, now: Instant) {
        let due = self.unsure.iter().filter(|(_, unsure)| unsure.until <= now);
        let due: Vec<(TripId, u32)> = due.map(|(&trip, unsure)| (trip, unsure.from)).collect();
        for (trip, from) in due {
            self.unsure.remove(&trip);
            // One that has never said anything may not understand it.
            if self.heard {
                self.give(trip, from);
            }
        }
    }

    /// The peer lacks this trip from here on.
    fn give(&mut self, trip: TripId, from: u32) {
        if let Some(known) = self.lacking.iter_mut().find(|(known, _)| *known == trip) {
            known.1 = from;
        } else if self.lacking.len() < LACKING_MAX {
            self.lacking.push_back((trip, from));
        }
    }
}

/// Equal databases compare their digests so often.
pub const INTERVAL: Duration = Duration::from_secs(300);
/// What is not answered is said again after this time, then after twice as long each time.
const RETRY: Duration = Duration::from_secs(3);
/// How often a page is said before the peer counts as silent.
const PAGE_TRIES: u32 = 5;
/// How long after the last movement the next digest comes while trips are told.
const SETTLE: Duration = Duration::from_secs(1);
/// How long a digest waits for the answers to what was pushed; shorter than [`RETRY`].
const DIGEST_HOLD: Duration = Duration::from_secs(2);
/// Digests of the peer that come sooner after one are not heard: each costs a look at all trips
/// that are left out or under way.
const DIGESTS_APART: Duration = Duration::from_millis(200);
/// Handovers that wait to be said at once; the oldest is dropped, and said later.
const LIVE_MAX: usize = 64;
/// Trips with handovers that were pushed and not answered; of others the next digest tells.
const UNSURE_MAX: usize = 32;
/// Trips of which the peer is to hear; of more it asks again.
const ANSWERS_MAX: usize = 256;
/// Trips that the peer lacks; of more the next digest tells.
const LACKING_MAX: usize = 128;
/// Trips that are left out; the oldest is forgotten, and left out anew.
const LEFT_OUT_MAX: usize = 16_384;
/// Trips that a peer has named; the oldest is forgotten, and not compared any more.
const NAMED_MAX: usize = 4_096;
