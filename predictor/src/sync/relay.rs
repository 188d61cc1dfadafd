//! What other peers have said and this one has not: it goes soon, at little cost.
//!
//! Handovers wait a little, so that several share a message, and one message is out at a time. Only
//! their numbers are held; the ledger has the rest. When a peer does not answer the next message
//! waits longer and longer; what finds the queue full pushes out the oldest, which a comparison
//! brings back.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::wire::SyncMessage;
use polyrail_model::{Handover, TripId};

use super::{INTERVAL, Ledger, RETRY, Sync, UNSURE_MAX, Unsure};

#[derive(Debug)]
pub(super) struct Relays {
    waiting: VecDeque<(TripId, u32)>,
    /// They go no sooner.
    at: Instant,
    /// A message is out: the next goes no sooner, unless an answer comes.
    out_until: Option<Instant>,
    /// How long the next one waits for its answer.
    wait: Duration,
}

impl Relays {
    pub fn new(now: Instant) -> Self {
        Self { waiting: VecDeque::new(), at: now, out_until: None, wait: RELAY_RETRY }
    }

    fn push(&mut self, now: Instant, trip: TripId, sequence: u32) {
        if self.waiting.is_empty() {
            self.at = now + RELAY_WAIT;
        }
        if self.waiting.len() >= RELAYS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((trip, sequence));
        if self.waiting.len() >= SyncMessage::RECORDS_MAX {
            self.at = self.at.min(now);
        }
    }

    /// The first one of each trip stands before the others of it, unless handovers came in
    /// disorder.
    pub fn iter(&self) -> impl Iterator<Item = (TripId, u32)> {
        self.waiting.iter().copied()
    }

    /// Whether all of a trip from this number on is to be said.
    pub fn continues(&self, trip: TripId, next: u32) -> bool {
        self.waiting.iter().any(|&(one, sequence)| one == trip && sequence <= next)
    }

    /// The peer knows a trip up to here.
    pub fn known(&mut self, trip: TripId, next: u32) {
        self.waiting.retain(|&(one, sequence)| one != trip || sequence >= next);
    }

    /// The peer answers.
    pub fn answered(&mut self) {
        (self.out_until, self.wait) = (None, RELAY_RETRY);
    }

    /// When the next message goes, if there is anything to say.
    pub fn due(&self) -> Option<Instant> {
        let at = self.out_until.map_or(self.at, |until| until.max(self.at));
        (!self.waiting.is_empty()).then_some(at)
    }

    /// Some have left.
    fn sent(&mut self, now: Instant) {
        self.out_until = Some(now + self.wait);
        self.wait = (self.wait * 2).min(INTERVAL);
        if self.waiting.len() < SyncMessage::RECORDS_MAX {
            self.at = now + RELAY_WAIT;
        }
    }

    fn put_off(&mut self, now: Instant) {
        self.out_until = Some(now + RETRY);
    }
}

impl Sync {
    /// Another peer has said a handover, and the ledger holds it: this one hears of it within
    /// seconds, with others that wait. One that has not spoken yet learns of it by the comparison.
    /// Whether it is to hear of it at all.
    pub fn relayed(&mut self, now: Instant, handover: &Handover) -> bool {
        let Handover { trip, sequence, .. } = *handover;
        if !self.connected || !self.heard || !self.shows(trip) || self.left_out.contains(trip) {
            return false;
        }
        self.walk.moved(trip);
        self.relays.push(now, trip, sequence);
        true
    }

    /// The next handovers that others have said, when they are due.
    pub(super) fn next_relayed<L: Ledger>(
        &mut self,
        now: Instant,
        ledger: &L,
    ) -> Result<Option<Vec<Handover>>, L::Error> {
        if self.relays.due().is_none_or(|at| now < at) {
            return Ok(None);
        }
        // Also when the ledger fails: those that were taken count as lost on the way.
        self.relays.put_off(now);
        let mut records = Vec::new();
        let mut taken = BTreeSet::new();
        while records.len() < SyncMessage::RECORDS_MAX
            && let Some(&(trip, sequence)) = self.relays.waiting.front()
        {
            if self.unsure.len() >= UNSURE_MAX && !self.unsure.contains_key(&trip) {
                break;
            }
            self.relays.waiting.pop_front();
            if self.left_out.contains(trip) || !taken.insert((trip, sequence)) {
                continue;
            }
            let found = ledger.records(trip, sequence, 1)?;
            let Some(record) = found.into_iter().find(|one| one.sequence == sequence) else {
                continue;
            };
            let next = sequence.saturating_add(1);
            let unsure = Unsure { from: sequence, to: next, until: now + RELAY_RETRY };
            let unsure = self.unsure.entry(trip).or_insert(unsure);
            (unsure.from, unsure.to) = (unsure.from.min(sequence), unsure.to.max(next));
            records.push(record);
        }
        if records.is_empty() {
            return Ok(None);
        }
        self.relays.sent(now);
        Ok(Some(records))
    }
}

/// How long what others said waits for more of it.
pub(super) const RELAY_WAIT: Duration = Duration::from_secs(5);
/// How long it waits for its answer: it has time on its way.
pub(super) const RELAY_RETRY: Duration = Duration::from_secs(15);
/// Handovers of others that wait; of more the oldest is dropped, and a comparison tells of it.
pub(super) const RELAYS_MAX: usize = 128;
