//! The next flow: proportional fair between users, round-robin between a user's flows,
//! interactive flows first within a user (POLYCORN 4.7).
//!
//! A user's weight is its recent rate: bytes over the last second, exponentially forgotten. All
//! rates decay alike, so their order changes only when somebody sends: rates are kept scaled to
//! one reference time and sorted in a set, which makes a turn cost O(log users). An idle user
//! keeps its place until its rate has decayed to nothing, so that pausing gains no advantage.
//!
//! Invariant: a flow is in at most one queue, that of its user and class.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{FlowId, UserId};

/// A flow and its place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its user.
    pub user: UserId,
    /// The flow.
    pub flow: FlowId,
    /// Whether it waits in the interactive class.
    pub interactive: bool,
}

/// The flows that have data to send, ordered by turn.
#[derive(Debug)]
pub struct FairQueue {
    users: BTreeMap<UserId, User>,
    /// Users with waiting flows, by scaled rate: the bits of a non-negative float sort like it.
    order: BTreeSet<(u64, UserId)>,
    interactive: usize,
    /// The time to which all rates are scaled.
    epoch: Instant,
}

#[derive(Debug, Default)]
struct User {
    /// Bytes sent, each counted e^((t - epoch) / WINDOW) times.
    scaled: f64,
    interactive: VecDeque<FlowId>,
    bulk: VecDeque<FlowId>,
}

impl User {
    /// Whether a flow of the user waits.
    fn waits(&self) -> bool {
        !self.interactive.is_empty() || !self.bulk.is_empty()
    }
}

/// The window over which a user's rate is taken.
const WINDOW: Duration = Duration::from_secs(1);
/// Rates are rescaled when the exponent passes this, long before a double overflows.
const RESCALE_AFTER: Duration = Duration::from_secs(60);
/// Users without waiting flows are forgotten below this scaled rate, in bytes.
const NEGLIGIBLE: f64 = 1.0;

impl FairQueue {
    /// An empty queue.
    pub fn new(now: Instant) -> Self {
        Self { users: BTreeMap::new(), order: BTreeSet::new(), interactive: 0, epoch: now }
    }

    /// Appends a flow to its user's queue of its class. The flow must not be queued yet.
    pub fn push(&mut self, turn: Turn) {
        self.queue(turn).push_back(turn.flow);
    }

    /// Takes the next flow out.
    pub fn pop(&mut self) -> Option<Turn> {
        let &(rate, id) = self.order.first()?;
        let user = self.users.get_mut(&id)?;
        let interactive = !user.interactive.is_empty();
        let queue = if interactive { &mut user.interactive } else { &mut user.bulk };
        let flow = queue.pop_front()?;
        self.interactive -= usize::from(interactive);
        if !user.waits() {
            self.order.remove(&(rate, id));
        }
        Some(Turn { user: id, flow, interactive })
    }

    /// Returns a flow to the front, because its turn was not used up.
    pub fn push_front(&mut self, turn: Turn) {
        self.queue(turn).push_front(turn.flow);
    }

    /// The queue of the flow's user and class.
    fn queue(&mut self, turn: Turn) -> &mut VecDeque<FlowId> {
        let user = self.users.entry(turn.user).or_default();
        self.interactive += usize::from(turn.interactive);
        if !user.waits() {
            self.order.insert((user.scaled.to_bits(), turn.user));
        }
        if turn.interactive { &mut user.interactive } else { &mut user.bulk }
    }

    /// Removes a flow. The cost is linear in the waiting flows of its user.
    pub fn remove(&mut self, id: UserId, flow: FlowId) {
        let Some(user) = self.users.get_mut(&id) else { return };
        let before = user.interactive.len();
        user.interactive.retain(|&f| f != flow);
        self.interactive -= before - user.interactive.len();
        user.bulk.retain(|&f| f != flow);
        if !user.waits() {
            self.order.remove(&(user.scaled.to_bits(), id));
        }
    }

    /// Counts bytes that a user has sent.
    pub fn charge(&mut self, id: UserId, bytes: u64, now: Instant) {
        if now.saturating_duration_since(self.epoch) > RESCALE_AFTER {
            self.rescale(now);
        }
        let age = now.saturating_duration_since(self.epoch);
        let weight = (age.as_secs_f64() / WINDOW.as_secs_f64()).exp();
        let user = self.users.entry(id).or_default();
        let before = user.scaled.to_bits();
        user.scaled += bytes as f64 * weight;
        if user.waits() {
            self.order.remove(&(before, id));
            self.order.insert((user.scaled.to_bits(), id));
        }
    }

    /// Whether an interactive flow waits.
    pub fn interactive_waits(&self) -> bool {
        self.interactive > 0
    }

    /// Whether no flow waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Moves the reference time to now, and forgets idle users.
    fn rescale(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.epoch).as_secs_f64();
        let factor = (-age / WINDOW.as_secs_f64()).exp();
        self.epoch = now;
        for user in self.users.values_mut() {
            user.scaled *= factor;
        }
        self.users.retain(|_, user| user.waits() || user.scaled > NEGLIGIBLE);
        let waiting = self.users.iter().filter(|(_, user)| user.waits());
        self.order = waiting.map(|(&id, user)| (user.scaled.to_bits(), id)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(user: u64, flow: u64, interactive: bool) -> Turn {
        Turn { user: UserId(user), flow: FlowId(flow), interactive }
    }

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tables
        Instant::now()
    }

    #[test]
    fn users_share_bytes_equally_whatever_their_flows_and_runs() {
        let start = base();
        let mut queue = FairQueue::new(start);
        queue.push(turn(1, 10, false));
        (0..9).for_each(|flow| queue.push(turn(2, 20 + flow, false)));
        queue.push(turn(3, 30, false));
        let (mut sent, mut turns) = (BTreeMap::<_, u64>::new(), BTreeMap::<_, u64>::new());
        for i in 0..3_000 {
            let next = queue.pop().unwrap();
            let bytes = [0, 1_400, 5_600, 15_400][next.user.0 as usize];
            *sent.entry(next.user).or_default() += bytes;
            *turns.entry(next.flow).or_default() += 1;
            queue.charge(next.user, bytes, start + Duration::from_millis(i));
            queue.push(next);
        }
        let (least, most) = (sent.values().min().unwrap(), sent.values().max().unwrap());
        assert!(most - least <= 2 * 15_400, "{sent:?}");
        let of_user_2 = || (20..29).map(|flow| turns[&FlowId(flow)]);
        assert!(of_user_2().max().unwrap() - of_user_2().min().unwrap() <= 1, "{turns:?}");
    }

    #[test]
    fn interactive_flow_waits_for_the_turn_of_its_user() {
        let start = base();
        let mut queue = FairQueue::new(start);
        queue.charge(UserId(1), 9_000, start);
        queue.push(turn(1, 11, true));
        queue.push(turn(2, 20, false));
        assert_eq!(queue.pop(), Some(turn(2, 20, false)));
        assert_eq!(queue.pop(), Some(turn(1, 11, true)));
    }

    #[test]
    fn interactive_flows_go_first_within_their_user() {
        let mut queue = FairQueue::new(base());
        queue.push(turn(1, 10, false));
        queue.push(turn(1, 11, true));
        assert!(queue.interactive_waits());
        assert_eq!(queue.pop(), Some(turn(1, 11, true)));
        assert!(!queue.interactive_waits());
        assert_eq!(queue.pop(), Some(turn(1, 10, false)));
        assert!(queue.pop().is_none() && queue.is_empty());
    }

    #[test]
    fn user_with_the_lower_recent_rate_is_first() {
        let start = base();
        let mut queue = FairQueue::new(start);
        queue.charge(UserId(1), 1_000_000, start);
        queue.charge(UserId(2), 1_000, start + Duration::from_secs(8));
        queue.push(turn(1, 10, false));
        queue.push(turn(2, 20, false));
        // After eight seconds 1,000,000 bytes weigh less than 1,000 fresh ones.
        assert_eq!(queue.pop().map(|t| t.user), Some(UserId(1)));
        assert_eq!(queue.pop().map(|t| t.user), Some(UserId(2)));
    }

    #[test]
    fn rescaling_keeps_the_order_and_forgets_idle_users() {
        let start = base();
        let mut queue = FairQueue::new(start);
        queue.charge(UserId(3), 10, start);
        for second in 0..300 {
            let now = start + Duration::from_secs(second);
            queue.charge(UserId(1), 5_000, now);
            queue.charge(UserId(2), 4_000, now);
        }
        assert_eq!(queue.users.len(), 2);
        queue.push(turn(1, 10, false));
        queue.push(turn(2, 20, false));
        assert_eq!(queue.pop().map(|t| t.user), Some(UserId(2)));
    }

    #[test]
    fn removed_flow_gets_no_turn() {
        let mut queue = FairQueue::new(base());
        queue.push(turn(1, 10, true));
        queue.push_front(turn(1, 11, false));
        queue.remove(UserId(1), FlowId(10));
        queue.remove(UserId(9), FlowId(10));
        assert!(!queue.interactive_waits());
        assert_eq!(queue.pop(), Some(turn(1, 11, false)));
        assert!(queue.is_empty());
    }
}
