//! What may be held for readers that do not keep up, at the peer and here.
//!
//! A sender knows of each flow what the peer may hold for its reader (sent, not drained), and what
//! the reader leaves lying of that (arrived in order, not drained). A reader follows while it
//! drains and leaves next to nothing lying. What others withhold of the peer's memory counts: what
//! is left lying, and all that is out to a reader that has drained nothing for a while.
//!
//! Half of the peer's memory is there to be withheld, and of that an eighth of the memory for one
//! user; of what is left of that a flow whose reader is slow takes one half. Beyond, a slow reader
//! has out what it has taken lately, a new one what shows that it is read. Of the other half
//! readers that follow take what they need. They may stop at any time, and then withhold what they
//! have out: so, when no more may be withheld, one whose user withholds a part of that has out no
//! more than a few times what it has taken before, and less when little credit is left. Of one that
//! takes a little and stops little stays. A user that withholds a quarter of the memory all the
//! same has no more than what its readers have just taken.
//!
//! Here half of the memory is for what was never sent, a quarter of it for one user; a flow takes a
//! quarter of what is left, and while less than half is left no more than a quarter of what its
//! reader has taken. What a flow needs to go on it has in any case, out of a further quarter of the
//! memory. So what writers put there for readers that then stop leaves the rest to what is on its
//! way.
//!
//! These are shares of what readers left lying when they were last heard of. What is on its way to
//! readers that follow comes on top when they stop: at most what the paths have in flight then.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polyrail_model::FlowId;
use polyrail_scheduler::SEGMENT;

use super::Session;
use super::pool::Pool;
use crate::flow::{Flow, Lately, Life};
use crate::limits::{
    LATELY, STALLED_AFTER, STALLED_FLOOR, STALLED_LITTLE_SHARE, STALLED_SHARE, STALLED_USER_MOST,
    STALLED_USER_SHARE, UNSENT_MAX, UNSENT_RESERVE, UNSENT_SHARE, UNSENT_STALLED_MAX,
};

#[derive(Debug, Default)]
pub(super) struct Backpressure {
    /// What readers that do not keep up hold of the peer's memory.
    withheld: Pool,
    /// What was never sent.
    unsent: Pool,
    draining: BTreeSet<FlowId>,
    check_at: Option<Instant>,
}

impl Backpressure {
    /// The peer's reader has taken all below `drained`. Returns whether it took anything. What it
    /// takes within `span`, and within the one before, is what it has taken lately.
    pub fn drained(&mut self, now: Instant, flow: &mut Flow, drained: u64, span: Duration) -> bool {
        let drained = drained.min(flow.send.next());
        if drained <= flow.send.drained {
            return false;
        }
        flow.lately.add(now, span, drained - flow.send.drained);
        if !flow.draining {
            flow.draining = true;
            self.draining.insert(flow.id);
            self.check_at.get_or_insert(now + STALLED_AFTER);
        }
        flow.send.drained = drained;
        flow.send.drained_at = now;
        true
    }

    /// What the flow has out, what was drained of it or what it has to send has changed.
    pub fn recount(&mut self, flow: &mut Flow) {
        let withheld = if flow.draining { flow.send.left_lying() } else { flow.send.at_peer() };
        self.withheld.set(flow.user, &mut flow.withheld, withheld);
        self.unsent.set(flow.user, &mut flow.unsent, flow.send.unsent());
    }

    /// What was never sent, of all flows.
    pub fn backlog(&self) -> u64 {
        self.unsent.all()
    }

    pub fn forget(&mut self, flow: &mut Flow) {
        self.draining.remove(&flow.id);
        self.withheld.set(flow.user, &mut flow.withheld, 0);
        self.unsent.set(flow.user, &mut flow.unsent, 0);
    }

    pub fn check_at(&self) -> Option<Instant> {
        self.check_at
    }
}

/// Whether next to nothing is left lying.
fn is_prompt(flow: &Flow) -> bool {
    flow.send.left_lying() <= STALLED_FLOOR
}

/// Whether the peer's reader takes all as it comes.
fn follows(flow: &Flow) -> bool {
    flow.draining && is_prompt(flow)
}

impl Session {
    /// How many new numbers the flow may use now.
    pub(super) fn allowance(&self, flow: &Flow) -> u64 {
        let (memory, send, left) = (self.credit.peer_memory(), &flow.send, self.credit.left());
        let (all, of_user) = self.backpressure.withheld.sums(flow.user);
        let user = (memory / STALLED_USER_SHARE).saturating_sub(of_user);
        let share = (memory / STALLED_SHARE).saturating_sub(all).min(user);
        let slow = flow.draining && !is_prompt(flow);
        let share = if slow { share.saturating_sub(send.at_peer()) } else { share };
        let (free, taken) = (memory.saturating_sub(all), send.drained);
        let (scarce, dire) = (free <= memory / 4, free <= memory / 8);
        let little = of_user <= memory / STALLED_LITTLE_SHARE;
        let own = match follows(flow) {
            _ if of_user >= memory / STALLED_USER_MOST => 0,
            _ if dire => STALLED_FLOOR.min(free / 64).max(taken / 16),
            false => STALLED_FLOOR,
            true if little && !scarce => u64::MAX,
            true if little => STALLED_FLOOR.max(taken),
            true if !scarce => STALLED_FLOOR.max(taken.saturating_mul(4)),
            true => STALLED_FLOOR.max(taken / 4),
        };
        let lately = flow.lately.sum().min(if dire { taken / 16 } else { taken / 4 });
        let own = own.max(lately).saturating_sub(send.at_peer());
        let allowance = left.min(share.max(own));
        if send.at_peer() == 0 {
            allowance.max(SEGMENT)
        } else if allowance < SEGMENT.min(send.unsent()) {
            0 // no scraps
        } else {
            allowance
        }
    }

    /// How much the flow's writer may write now.
    pub(super) fn room_of(&self, now: Instant, id: FlowId) -> u64 {
        let Some(flow) = self.flows.get(&id) else { return 0 };
        if flow.life != Life::Live || flow.send.is_finished() {
            // What a reset flow still writes is taken and thrown away.
            return UNSENT_MAX;
        }
        let (memory, send, unsent) = (self.settings.memory.0, &flow.send, flow.send.unsent());
        let window = send.limit.saturating_sub(send.next()).min(self.allowance(flow));
        let waits = window == 0 && (self.is_stalled(now, flow) || !is_prompt(flow));
        let ahead = if waits { UNSENT_STALLED_MAX } else { UNSENT_MAX };
        let own = (window + ahead).saturating_sub(unsent);
        // What is left of a part of the memory, and of half of that for the user.
        let (all, of_user) = self.backpressure.unsent.sums(flow.user);
        let left = |part: u64| (part.saturating_sub(all), (part / 2).saturating_sub(of_user));
        let (floor, proven) = match follows(flow) {
            true => (UNSENT_STALLED_MAX, send.drained / 4),
            false => (STALLED_FLOOR, 0),
        };
        let half = memory / UNSENT_SHARE;
        let proven = if all < half / 2 { u64::MAX } else { proven };
        let (of_all, user) = left(half);
        let share = (of_all / 4).saturating_sub(unsent / 4).min(user);
        let share = share.min(proven.saturating_sub(unsent));
        let (of_all, user) = left(memory - memory / UNSENT_RESERVE);
        let floor = floor.min((of_all.min(user) / 8).max(send.drained / 8)).max(2 * SEGMENT);
        let share = share.max(floor.saturating_sub(unsent));
        // Of all, too, some is always left: each flow holds a part of what is free.
        let rest = (memory.saturating_sub(self.held_sent) / 2).saturating_sub(send.held() / 4);
        let least = if send.held() == 0 { SEGMENT } else { 0 };
        own.min(share).min(rest).max(least)
    }

    /// The time within which something counts as taken lately.
    pub(super) fn lately(&self) -> Duration {
        LATELY.max(self.slowest_rtt() * 2)
    }

    fn is_stalled(&self, now: Instant, flow: &Flow) -> bool {
        !flow.draining
            && flow.send.at_peer() > 0
            && now.saturating_duration_since(flow.send.drained_at) > self.stalled_after()
    }

    fn stalled_after(&self) -> Duration {
        STALLED_AFTER.max(self.slowest_rtt() * 4)
    }

    /// Counts those whose readers have stopped as stalled.
    pub(super) fn check_draining(&mut self, now: Instant) {
        if self.backpressure.check_at.is_none_or(|at| now < at) {
            return;
        }
        let patience = self.stalled_after();
        let mut draining = std::mem::take(&mut self.backpressure.draining);
        draining.retain(|id| {
            let Some(flow) = self.flows.get_mut(id) else { return false };
            flow.draining = now.saturating_duration_since(flow.send.drained_at) < patience;
            if !flow.draining {
                flow.lately = Lately::default();
            }
            self.backpressure.recount(flow);
            flow.draining
        });
        self.backpressure.check_at = (!draining.is_empty()).then(|| now + STALLED_AFTER);
        self.backpressure.draining = draining;
        debug_assert_eq!(
            (self.backpressure.withheld.all(), self.backpressure.backlog()),
            self.flows.values().fold((0, 0), |(withheld, unsent), flow| {
                (withheld + flow.withheld, unsent + flow.send.unsent())
            }),
        );
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::{Bytes, Destination, HostName, UserId};
    use polyrail_scheduler::PathSet;

    use super::*;
    use crate::{Role, SessionKey, Settings};

    const MIB: u64 = 1 << 20;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
        Instant::now()
    }

    /// A side of 16 MiB whose peer has as much, with flows that have plenty to send.
    struct Sender {
        session: Session,
        now: Instant,
    }

    impl Sender {
        fn new() -> Self {
            let settings = Settings { memory: Bytes(16 * MIB), ..Settings::default() };
            let now = base();
            let mut session = Session::new(now, SessionKey(1), Role::Gateway, settings);
            session.credit.agree(16 * MIB);
            Self { session, now }
        }

        fn open(&mut self, user: u64) -> FlowId {
            let server = Destination::Name(HostName::new("a.example").unwrap(), 80);
            let id = self.session.open(self.now, UserId(user), server).unwrap().flow;
            self.flow(id).send.limit = u64::MAX >> 8;
            id
        }

        fn flow(&mut self, id: FlowId) -> &mut Flow {
            self.session.flows.get_mut(&id).unwrap()
        }

        fn allowance(&self, id: FlowId) -> u64 {
            self.session.allowance(&self.session.flows[&id])
        }

        /// So many bytes go out and arrive.
        fn send(&mut self, id: FlowId, bytes: u64) {
            self.session.credit.sent(bytes);
            let now = self.now;
            let flow = self.flow(id);
            let end = flow.send.next() + bytes;
            flow.send.write(&vec![0; (end - flow.send.written()) as usize]);
            let piece = flow.send.piece(bytes).unwrap();
            flow.send.sent(now, &piece, end, PathSet::only(0), 0, 0);
            assert!(flow.send.acknowledge(end, &[], |_, _, _| {}));
            let flow = self.session.flows.get_mut(&id).unwrap();
            self.session.backpressure.recount(flow);
        }

        /// The reader takes so many bytes more.
        fn drain(&mut self, id: FlowId, bytes: u64) {
            let flow = self.session.flows.get_mut(&id).unwrap();
            let drained = flow.send.drained + bytes;
            self.session.backpressure.drained(self.now, flow, drained, LATELY);
            self.session.backpressure.recount(flow);
        }

        /// Each of these users withholds so much.
        fn withhold(&mut self, users: std::ops::Range<u64>, bytes: u64) {
            for user in users {
                let id = self.open(user);
                self.send(id, bytes);
            }
        }
    }

    #[test]
    fn readers_that_do_not_keep_up_withhold_an_eighth_a_user_and_half_together() {
        let mut sender = Sender::new();
        let first = sender.open(1);
        assert_eq!(sender.allowance(first), 2 * MIB);
        sender.send(first, 3 * MIB / 2);
        assert_eq!(sender.allowance(first), MIB / 2);
        let second = sender.open(1);
        assert_eq!(sender.allowance(second), MIB / 2, "one user");
        sender.withhold(2..6, 3 * MIB / 2);
        let other = sender.open(6);
        assert_eq!(sender.allowance(other), MIB / 2, "all together");
        sender.send(other, MIB / 2);
        assert_eq!(sender.allowance(other), 0);
        let next = sender.open(7);
        assert_eq!(sender.allowance(next), STALLED_FLOOR, "what shows that it is read");
        // What is drained is free again, and what lies still counts although the reader drains.
        sender.drain(first, MIB / 2);
        assert_eq!(sender.allowance(next), MIB / 2);
        sender.session.bury(sender.now, first);
        assert_eq!(sender.allowance(next), 3 * MIB / 2);
    }

    #[test]
    fn who_follows_goes_on_while_others_withhold_all_that_they_may() {
        let mut sender = Sender::new();
        sender.withhold(2..6, 2 * MIB);
        let flows = [sender.open(1), sender.open(2)];
        for &id in &flows {
            sender.send(id, 10_000);
            sender.drain(id, 10_000);
        }
        let left = sender.session.credit.left();
        assert_eq!(sender.allowance(flows[0]), left, "its user withholds nothing");
        assert_eq!(sender.allowance(flows[1]), 40_000, "four times what it has taken");
        sender.send(flows[1], 40_000);
        assert_eq!(sender.allowance(flows[1]), 0, "it does not follow");
        sender.drain(flows[1], 40_000 - STALLED_FLOOR);
        let taken = 50_000 - STALLED_FLOOR;
        assert_eq!(sender.allowance(flows[1]), 4 * taken - STALLED_FLOOR);
        // Three quarters of the memory are withheld.
        sender.withhold(10..14, MIB);
        assert_eq!(sender.allowance(flows[0]), 10_000);
        assert_eq!(sender.allowance(flows[1]), taken / 4 - STALLED_FLOOR);
        // One that was slow has out what it takes.
        sender.send(flows[0], 1_000_000);
        sender.drain(flows[0], 900_000);
        assert_eq!(sender.allowance(flows[0]), 910_000 / 4 - 100_000);
        // Seven eighths; all of one user, too.
        sender.withhold(14..15, 2 * MIB);
        assert_eq!(sender.allowance(flows[0]), 0);
        let next = sender.open(16);
        assert_eq!(sender.allowance(next), STALLED_FLOOR);
        sender.withhold(2..3, 2 * MIB);
        let next = sender.open(2);
        assert_eq!(sender.allowance(next), SEGMENT);
        // It stops.
        sender.now += Duration::from_secs(1);
        sender.session.check_draining(sender.now);
        assert_eq!(sender.allowance(flows[1]), 0);
        assert_eq!(sender.session.backpressure.check_at(), None);
    }

    #[test]
    fn writers_leave_half_of_the_memory_to_what_is_on_its_way() {
        let mut sender = Sender::new();
        let flows: Vec<FlowId> = (0..1_000).map(|n| sender.open(n % 8)).collect();
        for &id in &flows {
            sender.send(id, 1_400);
            sender.drain(id, 1_400);
            sender.session.write(sender.now, id, &[0; MIB as usize]);
        }
        // The first has most, those that come when half is taken what they need to go on.
        assert!(sender.flow(flows[0]).send.unsent() > MIB / 2);
        assert_eq!(sender.flow(flows[100]).send.unsent(), UNSENT_STALLED_MAX);
        // And a segment each, which is never refused.
        let most = 12 * MIB + 1_000 * SEGMENT;
        assert!(
            sender.session.backpressure.backlog() <= most,
            "{}",
            sender.session.backpressure.backlog()
        );
        // One that has taken much, with all that is on its way.
        let next = sender.open(9);
        sender.send(next, 10_000_000);
        sender.drain(next, 10_000_000);
        let room = sender.session.room_of(sender.now, next);
        assert_eq!(room, UNSENT_STALLED_MAX);
    }
}
