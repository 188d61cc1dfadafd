//! The flows of a session: open ones by id, and how ended ones ended.
//!
//! Ended flows leave a tombstone, so that a peer that missed the end gets an answer. Of too many
//! the oldest is evicted, and counts as delivered.

use std::collections::{BTreeMap, VecDeque};

use polyrail_model::FlowId;

use super::user_flows::UserFlows;
use crate::flow::{Flow, Life, Violation};
use crate::limits::{FLOWS_AHEAD_MAX, TOMBSTONES_MAX};
use crate::ranges::RangeSet;
use crate::wire::ResetReason;

#[derive(Debug, Default)]
pub(crate) struct Flows {
    open: BTreeMap<FlowId, Flow>,
    /// The flows of each user; those without an OPEN belong to nobody yet.
    pub users: UserFlows,
    /// Ids that were ever used.
    seen: RangeSet,
    tombstones: BTreeMap<FlowId, Tombstone>,
    /// The flows with a tombstone, the oldest first.
    burials: VecDeque<FlowId>,
}

/// A flow that has ended.
#[derive(Clone, Copy, Debug)]
struct Tombstone {
    outcome: FlowOutcome,
    /// The peer's sequence numbers that were counted as credit; it may have used more.
    counted: u64,
}

/// How a flow ended, for a peer that asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowOutcome {
    Delivered,
    Reset {
        reason: ResetReason,
        last: u64,
        /// Delivered before the reset.
        after: u64,
    },
}

impl Flows {
    pub fn get(&self, id: FlowId) -> Option<&Flow> {
        self.open.get(&id)
    }

    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.open.get_mut(&id)
    }

    pub fn contains(&self, id: FlowId) -> bool {
        self.open.contains_key(&id)
    }

    /// The number of open flows.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.open.values()
    }

    /// The id of the next flow that this side opens.
    pub fn next_id(&self) -> FlowId {
        FlowId(self.seen.end().max(1))
    }

    pub fn insert(&mut self, flow: Flow) {
        self.seen.insert(flow.id.0..flow.id.0 + 1);
        if flow.destination.is_some() {
            self.users.add(flow.user, flow.id);
        }
        self.open.insert(flow.id, flow);
    }

    /// Whether a flow has, or had, this id.
    pub fn has_seen(&self, id: FlowId) -> bool {
        self.seen.contains(id.0)
    }

    /// Notes a new id of the peer.
    ///
    /// # Errors
    /// The id is far ahead of all others.
    pub fn see(&mut self, id: FlowId) -> Result<(), Violation> {
        if id.0 > self.seen.end() + FLOWS_AHEAD_MAX {
            return Err(Violation("a flow far ahead of all others"));
        }
        self.seen.insert(id.0..id.0 + 1);
        Ok(())
    }

    /// Removes an open flow and remembers how it ended.
    pub fn bury(&mut self, id: FlowId) -> Option<Flow> {
        let flow = self.open.remove(&id)?;
        self.users.remove(flow.user, id);
        let last = flow.send.next;
        let outcome = match flow.life {
            Life::Live => FlowOutcome::Delivered,
            Life::Ending { reason, .. } => FlowOutcome::Reset { reason, last, after: 0 },
            Life::Resetting { reason, after, .. } => FlowOutcome::Reset { reason, last, after },
        };
        self.remember(id, outcome, flow.recv.highest);
        Some(flow)
    }

    /// Remembers how a flow ended of which the peer has used `counted` sequence numbers.
    pub fn remember(&mut self, id: FlowId, outcome: FlowOutcome, counted: u64) {
        if self.tombstones.insert(id, Tombstone { outcome, counted }).is_none() {
            self.burials.push_back(id);
        }
        if self.burials.len() > TOMBSTONES_MAX
            && let Some(oldest) = self.burials.pop_front()
        {
            self.tombstones.remove(&oldest);
        }
    }

    /// How an ended flow ended.
    pub fn outcome(&self, id: FlowId) -> FlowOutcome {
        self.tombstones.get(&id).map_or(FlowOutcome::Delivered, |tombstone| tombstone.outcome)
    }

    /// The peer has used the sequence numbers of an ended flow up to `end`; returns how many of
    /// them were not counted yet.
    pub fn count_ended(&mut self, id: FlowId, end: u64) -> u64 {
        let Some(tombstone) = self.tombstones.get_mut(&id) else { return 0 };
        let more = end.saturating_sub(tombstone.counted);
        tombstone.counted += more;
        more
    }

    /// Removes all open flows.
    pub fn clear(&mut self) {
        self.open.clear();
        self.users.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use polyrail_model::UserId;

    use super::*;

    fn flow(id: FlowId) -> Flow {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
        Flow::new(Instant::now(), id, UserId(1), false, 0, 1_000)
    }

    #[test]
    fn ids_are_used_once_and_ends_are_remembered() {
        let mut flows = Flows::default();
        let id = flows.next_id();
        flows.insert(flow(id));
        flows.get_mut(id).unwrap().life = Life::Ending { reason: ResetReason::Idle, after: 7 };
        assert!(flows.bury(id).is_some() && flows.bury(id).is_none());
        assert!(flows.has_seen(id) && !flows.contains(id) && flows.next_id() > id);
        let reset = FlowOutcome::Reset { reason: ResetReason::Idle, last: 0, after: 0 };
        assert_eq!(flows.outcome(id), reset);
        assert_eq!((flows.count_ended(id, 5), flows.count_ended(id, 5)), (5, 0));
    }

    #[test]
    fn oldest_tombstone_is_evicted_and_counts_as_delivered() {
        let mut flows = Flows::default();
        let reset = FlowOutcome::Reset { reason: ResetReason::Idle, last: 0, after: 0 };
        for id in 0..=TOMBSTONES_MAX as u64 {
            flows.remember(FlowId(id), reset, 0);
        }
        assert_eq!(
            (flows.outcome(FlowId(0)), flows.outcome(FlowId(1))),
            (FlowOutcome::Delivered, reset)
        );
        assert_eq!(flows.tombstones.len(), TOMBSTONES_MAX);
    }

    #[test]
    fn id_far_ahead_of_all_others_is_rejected() {
        let mut flows = Flows::default();
        assert!(flows.see(FlowId(FLOWS_AHEAD_MAX)).is_ok());
        assert!(flows.see(FlowId(2 * FLOWS_AHEAD_MAX + 2)).is_err());
    }
}
