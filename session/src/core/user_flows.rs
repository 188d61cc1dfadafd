//! How many flows each user has, and which user has the most.
//!
//! A flow counts as open until its caller no longer knows it, and as leaving until it is removed: a
//! reset flow stays for the peer's answer, which a dark path delays. Flows without an OPEN belong
//! to nobody yet and do not count.
//!
//! Invariant: a flow is in at most one set; users without flows have no entry.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{FlowId, UserId};

#[derive(Debug, Default)]
pub(crate) struct UserFlows {
    users: BTreeMap<UserId, Sets>,
    /// Users by their number of open flows.
    loads: BTreeSet<(usize, UserId)>,
    open: usize,
    leaving: usize,
    /// Flows that were ever added.
    opened: u64,
}

#[derive(Debug, Default)]
struct Sets {
    open: BTreeSet<FlowId>,
    leaving: BTreeSet<FlowId>,
}

impl UserFlows {
    /// The user has opened a flow.
    pub fn add(&mut self, user: UserId, flow: FlowId) {
        self.opened += 1;
        self.change(user, |sets| {
            sets.open.insert(flow);
        });
    }

    /// The caller no longer knows the flow.
    pub fn leave(&mut self, user: UserId, flow: FlowId) {
        self.change(user, |sets| {
            if sets.open.remove(&flow) {
                sets.leaving.insert(flow);
            }
        });
    }

    /// The flow is removed.
    pub fn remove(&mut self, user: UserId, flow: FlowId) {
        self.change(user, |sets| {
            if !sets.open.remove(&flow) {
                sets.leaving.remove(&flow);
            }
        });
    }

    /// The open flows of all users.
    pub fn open(&self) -> usize {
        self.open
    }

    /// The flows of all users, including those that leave.
    pub fn all(&self) -> usize {
        self.open + self.leaving
    }

    /// The number of users with open flows.
    pub fn users(&self) -> usize {
        self.loads.len()
    }

    /// The flows that all users have opened so far.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// The open flows of a user.
    pub fn open_of(&self, user: UserId) -> usize {
        self.users.get(&user).map_or(0, |sets| sets.open.len())
    }

    /// The flows of a user, including those that leave.
    pub fn all_of(&self, user: UserId) -> usize {
        self.users.get(&user).map_or(0, |sets| sets.open.len() + sets.leaving.len())
    }

    /// The user with the most open flows, and their number.
    pub fn heaviest(&self) -> Option<(UserId, usize)> {
        self.loads.last().map(|&(count, user)| (user, count))
    }

    /// The open flows of a user, by id.
    pub fn flows_of(&self, user: UserId) -> impl Iterator<Item = FlowId> {
        self.users.get(&user).into_iter().flat_map(|sets| sets.open.iter().copied())
    }

    /// Each user's number of open flows.
    pub fn counts(&self) -> impl Iterator<Item = (UserId, usize)> {
        self.users.iter().map(|(user, sets)| (*user, sets.open.len()))
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn change(&mut self, user: UserId, act: impl FnOnce(&mut Sets)) {
        let sets = self.users.entry(user).or_default();
        let (before, left) = (sets.open.len(), sets.leaving.len());
        act(sets);
        let after = sets.open.len();
        self.leaving = self.leaving + sets.leaving.len() - left;
        if sets.open.is_empty() && sets.leaving.is_empty() {
            self.users.remove(&user);
        }
        if before != after {
            self.loads.remove(&(before, user));
            self.open = self.open + after - before;
            if after > 0 {
                self.loads.insert((after, user));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_and_leaving_flows_are_counted_per_user() {
        let mut flows = UserFlows::default();
        let (one, two) = (UserId(1), UserId(2));
        for id in 1..=5 {
            flows.add(one, FlowId(id));
        }
        (6..=8).for_each(|id| flows.add(two, FlowId(id)));
        assert_eq!((flows.open(), flows.heaviest()), (8, Some((one, 5))));
        for id in [1, 2, 3] {
            flows.leave(one, FlowId(id));
        }
        assert_eq!((flows.open_of(one), flows.all_of(one)), (2, 5));
        assert_eq!((flows.open(), flows.heaviest()), (5, Some((two, 3))));
        assert_eq!((flows.all(), flows.users(), flows.opened()), (8, 2, 8));
        flows.leave(one, FlowId(99));
        flows.remove(two, FlowId(99));
        (1..=8).for_each(|id| [one, two].iter().for_each(|user| flows.remove(*user, FlowId(id))));
        assert!(flows.users.is_empty() && flows.loads.is_empty() && flows.all() == 0);
    }
}
