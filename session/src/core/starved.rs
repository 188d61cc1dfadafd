//! The flows that wait for credit, not for a path, and when each is examined again.
//!
//! Any progress of the peer's readers may be credit for any of them, and a passenger may have
//! thousands. So an event examines at most [`FED_AT_ONCE`], of the users in turn and of each user's
//! flows in turn. Once nothing else is left to send, the others follow, as many in each
//! millisecond, so that each of them is examined after the last event.
//!
//! Invariant: users without such flows have no entry.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{FlowId, UserId};

use crate::limits::FED_AT_ONCE;

#[derive(Debug, Default)]
pub(crate) struct Starved {
    flows: BTreeMap<FlowId, UserId>,
    users: BTreeMap<UserId, Waiting>,
    /// The next user in turn.
    next: UserId,
    /// Flows from this one on were not examined since the last event.
    rest: Option<FlowId>,
}

#[derive(Debug, Default)]
struct Waiting {
    flows: BTreeSet<FlowId>,
    /// The next flow in turn.
    next: FlowId,
}

impl Starved {
    pub fn insert(&mut self, user: UserId, flow: FlowId) {
        self.users.entry(user).or_default().flows.insert(flow);
        self.flows.insert(flow, user);
    }

    pub fn remove(&mut self, flow: FlowId) {
        let Some(user) = self.flows.remove(&flow) else { return };
        let Some(waiting) = self.users.get_mut(&user) else { return };
        waiting.flows.remove(&flow);
        if waiting.flows.is_empty() {
            self.users.remove(&user);
        }
    }

    /// There may be credit for any of them: takes out the flows to examine now.
    pub fn take(&mut self) -> Vec<FlowId> {
        self.rest = Some(FlowId(0));
        let mut taken = Vec::new();
        while taken.len() < FED_AT_ONCE {
            let turn = self.users.range_mut(self.next..).next().map(|(user, _)| *user);
            let turn = turn.or_else(|| self.users.keys().next().copied());
            let Some((user, waiting)) =
                turn.and_then(|user| Some((user, self.users.get_mut(&user)?)))
            else {
                break;
            };
            let flow = waiting.flows.range(waiting.next..).next();
            let Some(flow) = flow.or_else(|| waiting.flows.first()).copied() else { break };
            waiting.next = FlowId(flow.0 + 1);
            self.next = UserId(user.0.wrapping_add(1));
            self.remove(flow);
            taken.push(flow);
        }
        taken
    }

    /// Whether some were not examined since the last event.
    pub fn has_rest(&self) -> bool {
        self.rest.is_some_and(|from| self.flows.range(from..).next().is_some())
    }

    /// Takes out further flows to examine.
    pub fn take_rest(&mut self) -> Vec<FlowId> {
        let Some(from) = self.rest else { return Vec::new() };
        let taken: Vec<FlowId> =
            self.flows.range(from..).map(|(flow, _)| *flow).take(FED_AT_ONCE).collect();
        self.rest = taken.last().map(|last| FlowId(last.0 + 1));
        taken.iter().for_each(|flow| self.remove(*flow));
        taken
    }

    #[cfg(test)]
    pub fn holds(&self, flow: FlowId) -> bool {
        self.flows.contains_key(&flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_examines_few_flows_and_users_take_turns() {
        let (mut starved, heavy, light) = (Starved::default(), UserId(1), UserId(2));
        (1..=1_000).for_each(|id| starved.insert(heavy, FlowId(id)));
        starved.insert(light, FlowId(5_000));
        let mut seen = BTreeSet::new();
        for event in 0..400 {
            let taken = starved.take();
            assert_eq!(taken.len(), FED_AT_ONCE, "event {event}");
            assert!(taken.contains(&FlowId(5_000)), "the light user has its turn each time");
            for flow in taken {
                seen.insert(flow);
                starved.insert(if flow.0 == 5_000 { light } else { heavy }, flow);
            }
        }
        assert_eq!(seen.len(), 1_001, "all of them have their turn");
    }

    #[test]
    fn all_are_examined_once_after_the_last_event() {
        let mut starved = Starved::default();
        let user = |flow: FlowId| UserId(flow.0 % 7 / 6);
        let all: Vec<FlowId> = (1..=100).map(FlowId).collect();
        all.iter().for_each(|&flow| starved.insert(user(flow), flow));
        assert!(!starved.has_rest(), "no event yet");
        starved.take().into_iter().for_each(|flow| starved.insert(user(flow), flow));
        let mut seen = Vec::new();
        while starved.has_rest() {
            let taken = starved.take_rest();
            assert!(taken.len() <= FED_AT_ONCE);
            taken.iter().for_each(|&flow| starved.insert(user(flow), flow));
            seen.extend(taken);
        }
        assert_eq!(seen, all);
        all.iter().for_each(|&flow| starved.remove(flow));
        assert!(starved.users.is_empty() && starved.flows.is_empty());
    }
}
