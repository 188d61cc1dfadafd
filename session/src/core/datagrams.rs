//! The bindings of a session, and which of them have datagrams that wait.
//!
//! Real-time datagrams are sent before everything else, as long as their user has few of them; the
//! others wait for the turn of their user, together with the flows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use polyrail_model::{BindingId, Bucket, FlowId, UserId};
use polyrail_scheduler::{Chain, FairQueue, Turn};

use super::streams::Streams;
use super::turns::Turns;
use crate::datagram::{Binding, Patience, Queued};
use crate::limits::{BINDING_IDLE, BINDINGS_MAX};
use crate::settings::{DatagramStatus, Settings};

#[derive(Debug)]
pub(crate) struct Datagrams {
    pub chain: Chain,
    pub(super) bindings: BTreeMap<BindingId, Binding>,
    /// Bindings with real-time datagrams that wait, in the fair order of their users.
    pub(super) urgent: FairQueue,
    users: BTreeMap<UserId, Share>,
    /// How many bytes of all users may still go before everything else.
    priority: Bucket,
    /// Bytes that wait, of all users.
    queued_bytes: usize,
    /// The streams of bindings.
    pub(super) streams: Streams,
    /// When bindings stop to hold received datagrams back.
    pub(super) held_until: BTreeSet<(Instant, BindingId)>,
    /// When idle bindings and users were last forgotten.
    swept_at: Instant,
    pub(super) counts: DatagramStatus,
}

/// The share of one user.
#[derive(Debug)]
struct Share {
    /// How many bytes may still go before everything else.
    priority: Bucket,
    /// How many bytes of copies may still be sent.
    copies: Bucket,
    queued_bytes: usize,
}

impl Datagrams {
    pub fn new(now: Instant, settings: &Settings) -> Self {
        Self {
            chain: settings.datagram_chain.build(),
            bindings: BTreeMap::new(),
            urgent: FairQueue::new(now),
            users: BTreeMap::new(),
            priority: Bucket::new(now, ALL_PRIORITY_RATE, ALL_PRIORITY_RATE),
            queued_bytes: 0,
            streams: Streams::default(),
            held_until: BTreeSet::new(),
            swept_at: now,
            counts: DatagramStatus::default(),
        }
    }

    /// The binding is over: nothing of it is kept.
    pub fn forget(&mut self, id: BindingId, turns: &mut Turns) {
        let Some(binding) = self.bindings.remove(&id) else { return };
        self.counts.drops.ended += binding.waiting() as u64;
        self.count(binding.user, binding.queued_bytes(), 0);
        if binding.waits {
            turns.queue.remove(binding.user, flow_of(id));
            self.urgent.remove(binding.user, flow_of(id));
        }
    }

    pub fn status(&self) -> DatagramStatus {
        let (bindings, streams) = (self.bindings.len(), self.streams.len());
        DatagramStatus { bindings, streams, ..self.counts }
    }

    /// The binding, if there is room for it. A new one begins to send with this number.
    pub(super) fn binding(
        &mut self,
        now: Instant,
        (id, user, sequence): (BindingId, UserId, u64),
        turns: &mut Turns,
    ) -> Option<&mut Binding> {
        if !self.bindings.contains_key(&id) {
            self.sweep(now, turns);
            if self.bindings.len() >= BINDINGS_MAX {
                self.counts.drops.bindings += 1;
                return None;
            }
        }
        Some(self.bindings.entry(id).or_insert_with(|| Binding::new(now, user, sequence)))
    }

    /// Forgets idle bindings and users, at most once a second.
    fn sweep(&mut self, now: Instant, turns: &mut Turns) {
        if now.saturating_duration_since(self.swept_at) < SWEEP_EVERY {
            return;
        }
        self.swept_at = now;
        let idle =
            |binding: &Binding| now.saturating_duration_since(binding.used_at) >= BINDING_IDLE;
        let over = self.bindings.iter().filter(|(_, binding)| idle(binding));
        let over: Vec<BindingId> = over.map(|(&id, _)| id).collect();
        over.into_iter().for_each(|id| self.forget(id, turns));
        self.users.retain(|_, share| share.queued_bytes > 0 || !share.priority.is_full(now));
    }

    /// Queues a datagram, unless too much of its user or of all users waits.
    pub(super) fn push(
        &mut self,
        now: Instant,
        of: (BindingId, UserId, u64),
        datagram: Queued,
        turns: &mut Turns,
    ) {
        let cost = datagram.cost();
        let Some(user) = self.binding(now, of, turns).map(|binding| binding.user) else { return };
        let share = self.users.entry(user).or_insert_with(|| Share::new(now));
        let fits = share.queued_bytes + cost <= USER_QUEUED_MAX;
        let Some(binding) = self.bindings.get_mut(&of.0) else { return };
        if !fits || self.queued_bytes + cost > QUEUED_MAX {
            self.counts.drops.queue += 1;
            return;
        }
        let patience = patience(now, &self.streams, of.0, binding);
        let before = binding.queued_bytes();
        binding.push(now, patience, datagram, &mut self.counts.drops);
        let after = binding.queued_bytes();
        self.count(user, before, after);
    }

    /// The user and the next datagram of a binding; drops those that have waited too long.
    pub(super) fn pop(&mut self, now: Instant, id: BindingId) -> Option<(UserId, Queued)> {
        let binding = self.bindings.get_mut(&id)?;
        let (user, before) = (binding.user, binding.queued_bytes());
        let patience = patience(now, &self.streams, id, binding);
        let next = binding.pop(now, patience, &mut self.counts.drops);
        let after = binding.queued_bytes();
        self.count(user, before, after);
        Some((user, next?))
    }

    /// The bytes that wait of a binding of this user have changed.
    pub(super) fn count(&mut self, user: UserId, before: usize, after: usize) {
        self.queued_bytes = self.queued_bytes + after - before;
        if let Some(share) = self.users.get_mut(&user) {
            share.queued_bytes = share.queued_bytes + after - before;
        }
    }

    /// Gives a binding with datagrams its turn.
    pub(super) fn enqueue(&mut self, now: Instant, id: BindingId, turns: &mut Turns) {
        let Some(binding) = self.bindings.get_mut(&id) else { return };
        if binding.is_empty() || std::mem::replace(&mut binding.waits, true) {
            return;
        }
        let share = self.users.entry(binding.user).or_insert_with(|| Share::new(now));
        let realtime = binding.is_realtime();
        let cost = binding.next_cost();
        let is_free = self.priority.level(now) >= cost as f64;
        if realtime && is_free && share.priority.take(now, cost) {
            self.priority.take(now, cost);
            self.urgent.push(Turn { user: binding.user, flow: flow_of(id), interactive: true });
        } else {
            let (user, flow) = (binding.user, flow_of(id));
            turns.queue.push(Turn { user, flow, interactive: realtime });
        }
    }

    /// Whether a real-time datagram of this user may have a copy.
    pub(super) fn may_copy(&self, now: Instant, user: UserId, cost: u64) -> bool {
        self.users.get(&user).is_some_and(|share| share.copies.level(now) >= cost as f64)
    }

    /// A copy was sent.
    pub(super) fn on_copied(&mut self, now: Instant, user: UserId, cost: u64) {
        if let Some(share) = self.users.get_mut(&user) {
            share.copies.take(now, cost as usize);
        }
    }
}

impl Share {
    fn new(now: Instant) -> Self {
        let priority = Bucket::new(now, PRIORITY_RATE, PRIORITY_BURST);
        Self { priority, copies: Bucket::new(now, COPY_RATE, COPY_RATE), queued_bytes: 0 }
    }
}

/// How long the datagrams of this binding may wait.
fn patience(
    now: Instant,
    streams: &Streams,
    id: BindingId,
    binding: &Binding,
) -> &'static Patience {
    let has_stream = streams.flow_of(id).is_some() && binding.prefers_stream(now);
    if has_stream { &Patience::STREAM } else { &Patience::SINGLE }
}

/// The number of a binding among the flows of the fair queue; flows of the wire have smaller ones.
pub(super) fn flow_of(id: BindingId) -> FlowId {
    FlowId(id.0 | DATAGRAMS)
}

/// The binding with this number, if it is one.
pub(super) fn binding_of(flow: FlowId) -> Option<BindingId> {
    (flow.0 & DATAGRAMS != 0).then_some(BindingId(flow.0 & !DATAGRAMS))
}

/// Above every number of the wire.
const DATAGRAMS: u64 = 1 << 63;
/// Bytes a second of one user's real-time datagrams that are sent before everything else: two
/// calls with video.
const PRIORITY_RATE: f64 = 75_000.0;
const PRIORITY_BURST: f64 = 75_000.0;
/// The same of all users, so that calls take no more than some of the carriers: twenty calls.
const ALL_PRIORITY_RATE: f64 = 250_000.0;
/// Bytes of copies of one user in a second: two calls.
const COPY_RATE: f64 = 24_000.0;
/// Bytes that wait of one user and of all users, with the cost of each datagram.
const USER_QUEUED_MAX: usize = 1_024 * 1_024;
const QUEUED_MAX: usize = 4 * 1_024 * 1_024;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
