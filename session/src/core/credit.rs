//! Memory bounds between the two sides: session credit, and the shares of flows that stall.
//!
//! Credit counts the sum of the flows' highest numbers, as QUIC's MAX_DATA does (RFC 9000 section
//! 4.1), so that sending something again needs none. What this side grants is what its readers
//! have taken plus its memory. Beyond credit, a flow that has nothing at the peer may always send
//! one segment: its number is the cumulative one, which is always accepted.
//!
//! A sender knows of each flow what the peer holds for its reader (sent, not drained). Flows whose
//! readers have not drained lately may hold half of the peer's memory together and one eighth a
//! user; the other half stays for those that drain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use polyrail_model::{FlowId, UserId};
use polyrail_scheduler::SEGMENT;

use super::Session;
use crate::flow::Flow;
use crate::limits::{
    STALLED_AFTER, STALLED_FLOOR, STALLED_SHARE, STALLED_USER_SHARE, WINDOW_INITIAL, WINDOW_SHARE,
};

#[derive(Debug)]
pub(super) struct Credit {
    /// What this side may hold.
    memory: u64,
    /// The sum of what readers have taken.
    released: u64,
    /// The sum of the highest numbers that came.
    received: u64,
    /// The limit that the peer knows.
    told: u64,
    /// In order and unread, by user.
    unread: BTreeMap<UserId, u64>,
    /// What the peer may hold.
    peer_memory: u64,
    limit: u64,
    /// The sum of the highest numbers sent.
    used: u64,
    stalled: u64,
    stalled_of: BTreeMap<UserId, u64>,
    /// What this side holds for the writers of flows whose readers do not drain.
    pub kept: u64,
    draining: BTreeSet<FlowId>,
    check_at: Option<Instant>,
}

impl Credit {
    /// Nothing is granted by the peer before its terms are known.
    pub fn new(memory: u64) -> Self {
        Self {
            memory,
            released: 0,
            received: 0,
            told: memory,
            unread: BTreeMap::new(),
            peer_memory: 0,
            limit: 0,
            used: 0,
            stalled: 0,
            stalled_of: BTreeMap::new(),
            kept: 0,
            draining: BTreeSet::new(),
            check_at: None,
        }
    }

    pub fn agree(&mut self, credit: u64) {
        self.peer_memory = self.peer_memory.max(credit);
        self.limit = self.limit.max(credit);
    }

    pub fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// What may be sent before the peer grants more.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// What the peer may have sent in all. Sums saturate: a peer that lies may reach their end.
    fn allowed(&self) -> u64 {
        self.released.saturating_add(self.memory)
    }

    /// The peer has used so many more numbers.
    pub fn receive(&mut self, more: u64) {
        self.received = self.received.saturating_add(more);
    }

    /// So many of them are free again.
    pub fn release(&mut self, more: u64) {
        self.released = self.released.saturating_add(more);
    }

    /// Whether the peer should learn how much was released: an eighth of the memory.
    pub fn wants_update(&self) -> bool {
        self.allowed() >= self.told.saturating_add(self.memory / 8)
    }

    /// The limit to tell the peer, and what was released.
    pub fn advertise(&mut self) -> (u64, u64) {
        self.told = self.allowed();
        (self.told, self.released)
    }

    /// Whether the peer has kept to its credit, `flows` segments at the cumulative numbers and two
    /// marks a flow apart. Such segments need no credit, one after the other as they are drained:
    /// so what was released counts, although the peer was not told yet.
    pub fn is_kept(&self, flows: usize) -> bool {
        let limit = self.told.max(self.allowed());
        self.received <= limit.saturating_add((flows as u64 + 1) * (SEGMENT + 2))
    }

    pub fn arrived(&mut self, user: UserId, bytes: u64) {
        if bytes > 0 {
            *self.unread.entry(user).or_default() += bytes;
        }
    }

    pub fn read(&mut self, user: UserId, bytes: u64) {
        subtract(&mut self.unread, user, bytes);
    }

    /// Whether windows of this user may grow: its unread bytes are under an eighth of the memory.
    pub fn may_grow(&self, user: UserId) -> bool {
        self.unread.get(&user).copied().unwrap_or(0) < self.memory / STALLED_USER_SHARE
    }

    pub fn sent(&mut self, flow: &Flow, fresh: u64) {
        self.used += fresh;
        if !flow.draining {
            self.hold(flow.user, fresh);
        }
    }

    fn hold(&mut self, user: UserId, bytes: u64) {
        if bytes > 0 {
            self.stalled += bytes;
            *self.stalled_of.entry(user).or_default() += bytes;
        }
    }

    fn unhold(&mut self, user: UserId, bytes: u64) {
        self.stalled = self.stalled.saturating_sub(bytes);
        subtract(&mut self.stalled_of, user, bytes);
    }

    /// The flow's writer has put so much into this side's memory.
    pub fn keep(&mut self, flow: &Flow, bytes: u64) {
        if !flow.draining {
            self.kept += bytes;
        }
    }

    /// So much of it has gone.
    pub fn unkeep(&mut self, flow: &Flow, bytes: u64) {
        if !flow.draining {
            self.kept -= bytes;
        }
    }

    /// The peer's reader has taken all below `drained`. Returns whether it took anything.
    pub fn drained(&mut self, now: Instant, flow: &mut Flow, drained: u64) -> bool {
        let drained = drained.min(flow.send.next());
        if drained <= flow.send.drained {
            return false;
        }
        if !flow.draining {
            self.unhold(flow.user, flow.send.at_peer());
            self.kept -= flow.send.held();
            flow.draining = true;
            self.draining.insert(flow.id);
            self.check_at.get_or_insert(now + STALLED_AFTER);
        }
        flow.send.drained = drained;
        flow.send.drained_at = now;
        true
    }

    /// How many new numbers the flow may use now.
    pub fn allowance(&self, flow: &Flow) -> u64 {
        let at_peer = flow.send.at_peer();
        let room = self.left();
        let mut allowance = room;
        if !flow.draining {
            let all = (self.peer_memory / STALLED_SHARE).saturating_sub(self.stalled);
            let of_user = self.stalled_of.get(&flow.user).copied().unwrap_or(0);
            let user = (self.peer_memory / STALLED_USER_SHARE).saturating_sub(of_user);
            let floor = STALLED_FLOOR.saturating_sub(at_peer);
            allowance = room.min(all.min(user).max(floor));
        }
        if at_peer == 0 { allowance.max(SEGMENT) } else { allowance }
    }

    pub fn forget(&mut self, flow: &Flow) {
        self.unkeep(flow, flow.send.held());
        if !self.draining.remove(&flow.id) && !flow.draining {
            self.unhold(flow.user, flow.send.at_peer());
        }
    }

    pub fn check_at(&self) -> Option<Instant> {
        self.check_at
    }
}

impl Session {
    pub(super) fn allowance(&self, _now: Instant, flow: &Flow) -> u64 {
        self.credit.allowance(flow)
    }

    pub(super) fn is_stalled(&self, now: Instant, flow: &Flow) -> bool {
        !flow.draining
            && flow.send.at_peer() > 0
            && now.saturating_duration_since(flow.send.drained_at) > self.stalled_after()
    }

    fn stalled_after(&self) -> Duration {
        STALLED_AFTER.max(self.slowest_rtt() * 4)
    }

    /// The largest window that a flow may have now: a quarter of what is free.
    pub(super) fn largest_window(&self) -> u64 {
        let memory = self.settings.memory.0;
        let free = memory.saturating_sub(self.held_received);
        (free / WINDOW_SHARE).clamp(2 * SEGMENT, (memory / WINDOW_SHARE).max(WINDOW_INITIAL))
    }

    /// Counts those whose readers have stopped as stalled.
    pub(super) fn check_draining(&mut self, now: Instant) {
        if self.credit.check_at.is_none_or(|at| now < at) {
            return;
        }
        let patience = self.stalled_after();
        let mut gone = Vec::new();
        for &id in &self.credit.draining {
            let Some(flow) = self.flows.get_mut(&id) else {
                gone.push((id, None));
                continue;
            };
            if now.saturating_duration_since(flow.send.drained_at) >= patience {
                flow.draining = false;
                self.credit.kept += flow.send.held();
                gone.push((id, Some((flow.user, flow.send.at_peer()))));
            }
        }
        for (id, held) in gone {
            self.credit.draining.remove(&id);
            if let Some((user, bytes)) = held {
                self.credit.hold(user, bytes);
            }
        }
        let again = !self.credit.draining.is_empty();
        self.credit.check_at = again.then(|| now + STALLED_AFTER);
    }

    /// Raises the windows that were withheld from this user's flows, if they may grow again.
    pub(super) fn release_windows(&mut self, user: UserId) {
        if self.withheld.is_empty() || !self.credit.may_grow(user) {
            return;
        }
        let flows = (user, FlowId(0))..=(user, FlowId(u64::MAX));
        let ids: Vec<FlowId> = self.withheld.range(flows).map(|&(_, id)| id).collect();
        for id in ids {
            self.withheld.remove(&(user, id));
            if let Some(flow) = self.flows.get_mut(&id) {
                flow.due.window = true;
                self.list(id);
            }
        }
    }

    /// Lets flows that waited for credit try again.
    pub(super) fn feed_starved(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.starved) {
            self.enqueue(now, id);
        }
    }
}

pub(super) fn subtract(map: &mut BTreeMap<UserId, u64>, user: UserId, bytes: u64) {
    if let Some(sum) = map.get_mut(&user) {
        *sum = sum.saturating_sub(bytes);
        if *sum == 0 {
            map.remove(&user);
        }
    }
}
