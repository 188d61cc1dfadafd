//! The flows of a session: open ones by id, and how ended ones ended.
//!
//! The id of a flow is its name on this side. Its **number** is its name on the wire. In a cloud
//! both are equal. A gateway numbers a flow when its OPEN is first sent, so that flows that end
//! before leave no gaps. Ended flows are known by their number.
//!
//! A reset flow leaves a tombstone, so that a peer that missed the end gets an answer. Of too many
//! the oldest is evicted, and counts as delivered. So delivered flows need none: the peer has used
//! no number above the end mark.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use polyrail_model::FlowId;

use super::user_flows::UserFlows;
use crate::counters::Counters;
use crate::flow::{Flow, Life};
use crate::limits::{FLOW_RANGES_MAX, TOMBSTONES_MAX};
use crate::wire::ResetReason;

#[derive(Debug)]
pub(crate) struct Flows {
    open: BTreeMap<FlowId, Flow>,
    /// The flows of each user; those without an OPEN belong to nobody yet.
    pub users: UserFlows,
    /// The open flows that have a number, by number.
    numbered: BTreeMap<FlowId, FlowId>,
    /// Open flows that are streams of datagrams; they count for no user.
    pub streams: usize,
    /// Flows that this side has opened.
    opened: u64,
    /// Numbers that were ever used.
    seen: Counters,
    tombstones: BTreeMap<FlowId, Tombstone>,
    /// The flows with a tombstone, the oldest first.
    burials: VecDeque<FlowId>,
}

/// A flow that was reset.
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

impl Default for Flows {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            users: UserFlows::default(),
            numbered: BTreeMap::new(),
            streams: 0,
            opened: 0,
            seen: Counters::new(FLOW_RANGES_MAX),
            tombstones: BTreeMap::new(),
            burials: VecDeque::new(),
        }
    }
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

    /// The number of flows whose OPEN has not arrived: they belong to no user.
    pub fn unopened(&self) -> usize {
        self.open.len() - self.users.all() - self.streams
    }

    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.open.values()
    }

    /// The open flows from this one on, by id.
    pub fn from(&self, first: Bound<FlowId>) -> impl Iterator<Item = &Flow> {
        self.open.range((first, Bound::Unbounded)).map(|(_, flow)| flow)
    }

    /// The id of the next flow that this side opens.
    pub fn next_id(&mut self) -> FlowId {
        self.opened += 1;
        FlowId(self.opened)
    }

    pub fn insert(&mut self, flow: Flow) {
        if let Some(number) = flow.number {
            self.numbered.insert(number, flow.id);
        }
        self.streams += usize::from(flow.binding().is_some());
        if flow.destination().is_some() {
            self.users.add(flow.user, flow.id);
        }
        self.open.insert(flow.id, flow);
    }

    /// Gives a flow its number, because its OPEN is sent.
    pub fn number(&mut self, id: FlowId) {
        let Some(flow) = self.open.get_mut(&id).filter(|flow| flow.number.is_none()) else {
            return;
        };
        let number = FlowId(self.seen.end().max(1));
        self.seen.accept(number.0);
        flow.number = Some(number);
        self.numbered.insert(number, id);
    }

    /// The open flow with this number.
    pub fn numbered(&self, number: FlowId) -> Option<FlowId> {
        self.numbered.get(&number).copied()
    }

    /// Whether a flow has, or had, this number.
    pub fn has_seen(&self, number: FlowId) -> bool {
        self.seen.is_used(number.0)
    }

    /// Notes a new number of the peer.
    pub fn see(&mut self, number: FlowId) {
        self.seen.accept(number.0);
    }

    /// Removes an open flow and remembers a reset.
    pub fn bury(&mut self, id: FlowId) -> Option<Flow> {
        let flow = self.open.remove(&id)?;
        self.users.remove(flow.user, id);
        self.streams -= usize::from(flow.binding().is_some());
        // Without a number the peer does not know it.
        let Some(number) = flow.number else { return Some(flow) };
        self.numbered.remove(&number);
        let last = flow.send.next;
        let outcome = match flow.life {
            Life::Live => return Some(flow),
            Life::Ending { reason, .. } => FlowOutcome::Reset { reason, last, after: 0 },
            Life::Resetting { reason, after, .. } => FlowOutcome::Reset { reason, last, after },
        };
        self.remember(number, outcome, flow.recv.highest);
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

    /// How many of the peer's numbers up to `end` of an ended flow were not counted yet.
    pub fn uncounted(&self, id: FlowId, end: u64) -> u64 {
        self.tombstones.get(&id).map_or(0, |tombstone| end.saturating_sub(tombstone.counted))
    }

    /// Another `more` numbers of an ended flow were counted.
    pub fn count_ended(&mut self, id: FlowId, more: u64) {
        if let Some(tombstone) = self.tombstones.get_mut(&id) {
            tombstone.counted += more;
        }
    }

    /// Removes all open flows.
    pub fn clear(&mut self) {
        self.open.clear();
        self.numbered.clear();
        self.users.clear();
        self.streams = 0;
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
    fn numbers_are_used_once_and_ends_are_remembered() {
        let mut flows = Flows::default();
        let [never, id] = [(); 2].map(|()| {
            let id = flows.next_id();
            flows.insert(flow(id));
            id
        });
        assert!(flows.bury(never).is_some() && !flows.has_seen(FlowId(1)), "without a number");
        flows.number(id);
        let number = FlowId(1);
        assert!(id != number && flows.numbered(number) == Some(id) && flows.has_seen(number));
        flows.get_mut(id).unwrap().life = Life::Ending { reason: ResetReason::Idle, after: 7 };
        assert!(flows.bury(id).is_some() && flows.bury(id).is_none());
        assert!(flows.has_seen(number) && flows.numbered(number).is_none());
        let reset = FlowOutcome::Reset { reason: ResetReason::Idle, last: 0, after: 0 };
        assert_eq!(flows.outcome(number), reset);
        let id = number;
        assert_eq!(flows.uncounted(id, 5), 5);
        flows.count_ended(id, 5);
        assert_eq!((flows.uncounted(id, 5), flows.uncounted(id, 7)), (0, 2));
    }

    /// Most flows are delivered: a session that lasts must not hold memory for each.
    #[test]
    fn delivered_flows_leave_nothing() {
        let mut flows = Flows::default();
        for _ in 0..1_000 {
            let id = flows.next_id();
            flows.insert(flow(id));
            flows.number(id);
            let number = flows.get(id).unwrap().number.unwrap();
            assert!(flows.bury(id).is_some() && flows.has_seen(number));
            assert_eq!(
                (flows.outcome(number), flows.uncounted(number, 9)),
                (FlowOutcome::Delivered, 0)
            );
        }
        assert!(flows.tombstones.is_empty() && flows.burials.is_empty());
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
    fn gaps_between_numbers_are_bounded() {
        let mut flows = Flows::default();
        let most = 4 * FLOW_RANGES_MAX as u64;
        for number in (1..most).step_by(2) {
            flows.see(FlowId(number));
        }
        assert!(flows.has_seen(FlowId(2)), "the oldest gaps are closed");
        assert!(!flows.has_seen(FlowId(most - 2)), "the newest are open");
        flows.see(FlowId((1 << 62) - 1));
        assert!(!flows.has_seen(FlowId(most - 2)), "also after a jump");
    }
}
