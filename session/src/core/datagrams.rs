//! The bindings of a session, and which of them have datagrams that wait.
//!
//! Real-time datagrams are sent before everything else, as long as their user has few of them; the
//! others wait for the turn of their user, together with the flows.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use polyrail_model::{BindingId, Bucket, FlowId, UserId};
use polyrail_scheduler::{Chain, Turn};

use super::turns::Turns;
use crate::datagram::Binding;
use crate::limits::{BINDING_IDLE, BINDINGS_MAX};
use crate::settings::{DatagramStatus, Settings};

#[derive(Debug)]
pub(crate) struct Datagrams {
    pub chain: Chain,
    pub(super) bindings: BTreeMap<BindingId, Binding>,
    /// Bindings with real-time datagrams that wait.
    pub(super) urgent: VecDeque<BindingId>,
    /// How many bytes of each user may still go before everything else.
    priority: BTreeMap<UserId, Bucket>,
    pub(super) counts: DatagramStatus,
}

impl Datagrams {
    pub fn new(settings: &Settings) -> Self {
        Self {
            chain: settings.datagram_chain.build(),
            bindings: BTreeMap::new(),
            urgent: VecDeque::new(),
            priority: BTreeMap::new(),
            counts: DatagramStatus::default(),
        }
    }

    /// The binding is over: nothing of it is kept.
    pub fn forget(&mut self, id: BindingId, turns: &mut Turns) {
        let Some(binding) = self.bindings.remove(&id) else { return };
        if binding.waits {
            turns.queue.remove(binding.user, flow_of(id));
            self.urgent.retain(|waiting| *waiting != id);
        }
    }

    pub fn status(&self) -> DatagramStatus {
        DatagramStatus { bindings: self.bindings.len(), ..self.counts }
    }

    /// The binding, if there is room for it.
    pub(super) fn binding(
        &mut self,
        now: Instant,
        id: BindingId,
        user: UserId,
        turns: &mut Turns,
    ) -> Option<&mut Binding> {
        if !self.bindings.contains_key(&id) {
            if self.bindings.len() >= BINDINGS_MAX {
                self.forget_idle(now, turns);
            }
            if self.bindings.len() >= BINDINGS_MAX {
                self.counts.dropped += 1;
                return None;
            }
        }
        Some(self.bindings.entry(id).or_insert_with(|| Binding::new(now, user)))
    }

    fn forget_idle(&mut self, now: Instant, turns: &mut Turns) {
        let idle =
            |binding: &Binding| now.saturating_duration_since(binding.used_at) >= BINDING_IDLE;
        let over = self.bindings.iter().filter(|(_, binding)| idle(binding));
        let over: Vec<BindingId> = over.map(|(&id, _)| id).collect();
        over.into_iter().for_each(|id| self.forget(id, turns));
        self.priority.retain(|_, bucket| !bucket.is_full(now));
    }

    /// Gives a binding with datagrams its turn.
    pub(super) fn enqueue(&mut self, now: Instant, id: BindingId, turns: &mut Turns) {
        let Some(binding) = self.bindings.get_mut(&id) else { return };
        if binding.is_empty() || std::mem::replace(&mut binding.waits, true) {
            return;
        }
        let bucket = self.priority.entry(binding.user);
        let bucket = bucket.or_insert_with(|| Bucket::new(now, PRIORITY_RATE, PRIORITY_BURST));
        if binding.is_realtime() && bucket.take(now, binding.next_length()) {
            self.urgent.push_back(id);
        } else {
            let interactive = binding.is_realtime();
            turns.queue.push(Turn { user: binding.user, flow: flow_of(id), interactive });
        }
    }
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
