//! Flow control beyond the windows of single flows: the session's credit and each user's share.
//!
//! A reader may stop at any time, and then withholds its unread bytes. The sender therefore limits
//! the bytes of a flow *at the peer* (sent and not drained):
//!
//! - The **pace** of a flow is the number of bytes that its reader took within the last two periods
//!   of [`PACE_PERIOD`]. A reader **follows** while it has a pace and leaves at most [`FLOOR`]
//!   bytes of in-order data unread. Its flow may send while all flows of its user together have at
//!   most as much at the peer as is left of the peer's memory: if the readers stop, they withhold
//!   the bytes in flight, of one user at most half of the memory. Any other flow may have its pace
//!   at the peer.
//! - Other bytes at the peer are **withheld**. All flows together may withhold one half of the
//!   peer's memory, and the flows of one user one sixteenth, at most [`WITHHELD_MAX`].
//! - Readers that follow and then stop, one after the other, could still fill the peer's memory.
//!   While less than a quarter is left, a flow may have at most a sixteenth of the bytes that its
//!   reader ever took at the peer.
//! - The receiver resets flows that are not read while others need its memory ([`Stopped`]).
//! - [`FLOOR`] bytes a flow need no share, and one segment needs no credit, so every flow can move.
//!
//! Writers may queue half of the memory here, and those of one user one eighth. A writer has only
//! the floor while its flow may not send.
//!
//! Buffers of sent bytes shrink while they allocate more than this side's memory together.
//!
//! All runs in flight may take a part of this side's memory, because small writes make many of few
//! bytes. Beyond, a flow sends new data when nothing of it is in flight, and a peer that splits
//! runs with its acknowledgements breaks the protocol.
//!
//! Invariant: the pools are the sums of the counts of their flows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use polyrail_model::{FlowId, UserId};
use polyrail_scheduler::SEGMENT;

use super::credit::Credit;
use super::flows::Flows;
use super::stopped::Stopped;
use crate::flow::{Flow, Run, SendHalf, Shares, Violation};
use crate::limits::{
    FLOOR, PACE_PERIOD, POOL_SHARE, PROOF_SHARE, QUEUED_SHARE, RANGE_BYTES, RANGES_SHARE,
    RUN_BYTES, RUNS_SHARE, SCARCE_SHARE, UNSENT_MAX, WITHHELD_MAX, WITHHELD_SHARE,
};

#[derive(Debug, Default)]
pub(crate) struct FlowControl {
    /// Bytes that this side may hold in each direction.
    memory: u64,
    pub credit: Credit,
    /// Bytes at the peer.
    at_peer: Pool,
    /// Bytes at the peer beyond the pace of their readers.
    withheld: Pool,
    /// Bytes written and never sent.
    unsent: Pool,
    /// Bytes written and not acknowledged.
    pub held_sent: u64,
    /// Bytes received and not read.
    pub held_received: u64,
    /// Ranges received out of order.
    ranges: usize,
    /// Bytes that the buffers of sent bytes allocate.
    allocated: u64,
    /// Runs in flight, and gaps.
    runs: usize,
    /// Bytes that a new flow may send before its first acknowledgement.
    pub peer_window: u64,
    /// Flows whose pace is not zero.
    paced: BTreeSet<FlowId>,
    pub next_period: Option<Instant>,
    pub stopped: Stopped,
}

impl FlowControl {
    pub fn new(memory: u64) -> Self {
        Self { memory, credit: Credit::new(memory), ..Self::default() }
    }

    /// A flow takes a run that the credit permits. Returns whether its reader has new data.
    ///
    /// # Errors
    /// The run breaks the protocol, or the session has too many ranges out of order.
    pub fn accept(&mut self, flow: &mut Flow, run: &Run<'_>) -> Result<bool, Violation> {
        let (held, ranges) = (flow.recv.held(), flow.recv.ranges());
        let accepted = flow.recv.accept(run);
        self.held_received = self.held_received + flow.recv.held() - held;
        self.ranges = self.ranges + flow.recv.ranges() - ranges;
        let most = self.memory / RANGES_SHARE / RANGE_BYTES;
        if self.ranges as u64 > most && flow.recv.ranges() > ranges {
            return Err(Violation("too many pieces out of order in the session"));
        }
        Ok(accepted)
    }

    /// Discards the received bytes of a flow.
    pub fn discard(&mut self, flow: &mut Flow) {
        self.held_received -= flow.recv.held();
        self.ranges -= flow.recv.ranges();
        flow.recv.discard();
    }

    /// The peer's reader has taken all bytes below `drained`. Returns whether this is progress.
    pub fn drained(&mut self, now: Instant, flow: &mut Flow, drained: u64) -> bool {
        let more = drained.min(flow.send.next).saturating_sub(flow.send.drained);
        if more == 0 {
            return false;
        }
        flow.send.drained += more;
        flow.shares.drained[0] += more;
        self.paced.insert(flow.id);
        self.next_period.get_or_insert(now + PACE_PERIOD);
        true
    }

    /// Recounts a flow after it was sent, written or drained.
    pub fn recount(&mut self, flow: &mut Flow) {
        if self.allocated > self.memory {
            // A peer that acknowledges all but the last bytes would keep the memory of every flow.
            flow.send.shrink();
        }
        let shares = &mut flow.shares;
        let allocated = std::mem::replace(&mut shares.allocated, flow.send.allocated());
        self.allocated = self.allocated + shares.allocated - allocated;
        let runs = std::mem::replace(&mut shares.runs, flow.send.runs.len());
        self.runs = self.runs + shares.runs - runs;
        let withheld = match flow.send.at_peer().saturating_sub(shares.pace()) {
            _ if follows(shares, &flow.send) => 0,
            beyond => beyond,
        };
        self.at_peer.set(flow.user, &mut shares.at_peer, flow.send.at_peer());
        self.withheld.set(flow.user, &mut shares.withheld, withheld);
        self.unsent.set(flow.user, &mut shares.unsent, flow.send.unsent());
    }

    /// The flow is over.
    pub fn forget(&mut self, flow: &mut Flow) {
        self.paced.remove(&flow.id);
        self.allocated -= std::mem::take(&mut flow.shares.allocated);
        self.runs -= std::mem::take(&mut flow.shares.runs);
        self.at_peer.set(flow.user, &mut flow.shares.at_peer, 0);
        self.withheld.set(flow.user, &mut flow.shares.withheld, 0);
        self.unsent.set(flow.user, &mut flow.shares.unsent, 0);
        self.held_sent -= flow.send.held();
        self.held_received -= flow.recv.held();
        self.ranges -= flow.recv.ranges();
        self.credit.release(flow.recv.highest - flow.recv.released);
    }

    /// Bytes of all flows that were never sent.
    pub fn backlog(&self) -> u64 {
        self.unsent.all
    }

    /// Whether all runs in flight take their part of the memory.
    pub fn is_short_of_runs(&self) -> bool {
        self.runs as u64 >= self.memory / RUNS_SHARE / RUN_BYTES
    }

    /// How many new sequence numbers the flow may use now.
    pub fn allowance(&self, flow: &Flow) -> u64 {
        if self.is_short_of_runs() && flow.shares.runs > 0 {
            return 0;
        }
        let (at_peer, left) = (flow.send.at_peer(), self.credit.left());
        let memory = self.credit.peer_memory;
        let most = (memory / WITHHELD_SHARE).min(WITHHELD_MAX);
        let share = self.withheld.left(memory, most, flow.user);
        let own = match flow.shares.pace() {
            _ if left < self.credit.peer_memory / SCARCE_SHARE => flow.send.drained / PROOF_SHARE,
            _ if follows(&flow.shares, &flow.send) => {
                at_peer + left.saturating_sub(self.at_peer.of(flow.user))
            }
            pace => pace,
        };
        let beyond = own.saturating_sub(at_peer).saturating_add(share);
        let allowance = left.min(beyond.max(FLOOR.saturating_sub(at_peer)));
        if at_peer == 0 {
            allowance.max(SEGMENT)
        } else if allowance < SEGMENT.min(flow.send.unsent()) {
            0 // whole segments only, but for the last one
        } else {
            allowance
        }
    }

    /// How many bytes the flow may send now.
    pub fn window(&self, flow: &Flow) -> u64 {
        flow.send.window().min(self.allowance(flow))
    }

    /// How many bytes the flow's writer may write now.
    pub fn room(&self, flow: &Flow) -> u64 {
        let (send, unsent) = (&flow.send, flow.send.unsent());
        let window = self.window(flow);
        let ahead = if window == 0 { FLOOR } else { UNSENT_MAX };
        // A flow takes at most half of its user's share.
        let share =
            (self.unsent.left(self.memory, self.memory / QUEUED_SHARE, flow.user) + unsent) / 2;
        let most = (window + ahead).min(share.max(FLOOR));
        let free = self.memory.saturating_sub(self.held_sent) / 2;
        let least = if send.held() == 0 { SEGMENT } else { 0 };
        most.saturating_sub(unsent).min(free).max(least)
    }

    /// Begins the next period when one is over. A period lasts at least two round trips.
    pub fn on_timeout(&mut self, now: Instant, rtt: Duration, flows: &mut Flows) {
        if self.next_period.is_none_or(|at| now < at) {
            return;
        }
        let mut paced = std::mem::take(&mut self.paced);
        paced.retain(|id| {
            let Some(flow) = flows.get_mut(*id) else { return false };
            flow.shares.drained = [0, flow.shares.drained[0]];
            self.recount(flow);
            flow.shares.pace() > 0
        });
        self.next_period = (!paced.is_empty()).then(|| now + PACE_PERIOD.max(rtt * 2));
        self.paced = paced;
        debug_assert!(self.is_consistent(flows));
    }

    fn is_consistent(&self, flows: &Flows) -> bool {
        let sum = |one: fn(&Flow) -> u64| flows.iter().map(one).sum::<u64>();
        self.at_peer.all == sum(|flow| flow.send.at_peer())
            && self.withheld.all == sum(|flow| flow.shares.withheld)
            && self.unsent.all == sum(|flow| flow.send.unsent())
            && self.held_sent == sum(|flow| flow.send.held())
            && self.held_received == sum(|flow| flow.recv.held())
            && self.allocated == sum(|flow| flow.shares.allocated)
            && self.runs as u64 == sum(|flow| flow.send.runs.len() as u64)
            && self.ranges as u64 == sum(|flow| flow.recv.ranges() as u64)
    }
}

/// Whether the peer's reader takes bytes as they arrive.
fn follows(shares: &Shares, send: &SendHalf) -> bool {
    shares.pace() > 0 && send.unread() <= FLOOR
}

/// Sums of the counts of flows, in total and per user.
#[derive(Debug, Default)]
struct Pool {
    all: u64,
    of_user: BTreeMap<UserId, u64>,
}

impl Pool {
    /// A flow of this user counts `bytes`; `counted` is its previous count.
    fn set(&mut self, user: UserId, counted: &mut u64, bytes: u64) {
        let before = std::mem::replace(counted, bytes);
        if bytes == before {
            return;
        }
        self.all = self.all + bytes - before;
        let of_user = self.of_user.entry(user).or_default();
        *of_user = *of_user + bytes - before;
        if *of_user == 0 {
            self.of_user.remove(&user);
        }
    }

    fn of(&self, user: UserId) -> u64 {
        self.of_user.get(&user).copied().unwrap_or(0)
    }

    /// The rest of the pool's part of `memory` for this user, at most `most` with the user's bytes.
    fn left(&self, memory: u64, most: u64, user: UserId) -> u64 {
        let all = (memory / POOL_SHARE).saturating_sub(self.all);
        most.saturating_sub(self.of(user)).min(all)
    }
}

#[cfg(test)]
mod tests {
    use polyrail_scheduler::PathSet;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A side with 16 MiB and an equal peer, and flows that always have data.
    struct Sender {
        control: FlowControl,
        flows: Flows,
        now: Instant,
    }

    impl Sender {
        fn new() -> Self {
            let mut control = FlowControl::new(16 * MIB);
            control.credit.agree(16 * MIB);
            #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
            let now = Instant::now();
            Self { control, flows: Flows::default(), now }
        }

        fn open(&mut self, user: u64) -> FlowId {
            let id = self.flows.next_id();
            self.flows.insert(Flow::new(self.now, id, UserId(user), false, u64::MAX >> 8, MIB));
            id
        }

        fn allowance(&self, id: FlowId) -> u64 {
            self.control.allowance(self.flows.get(id).unwrap())
        }

        /// Writes, sends and acknowledges this many bytes.
        fn send(&mut self, id: FlowId, bytes: u64) {
            self.control.credit.sent(bytes);
            let flow = self.flows.get_mut(id).unwrap();
            flow.send.write(&vec![0; bytes as usize]);
            let piece = flow.send.piece(bytes).unwrap();
            let end = piece.start + bytes;
            flow.send.sent(self.now, &piece, end, PathSet::only(0), 0, 0);
            assert!(flow.send.acknowledge(end, &[], |_, _, _| {}));
            self.control.recount(flow);
        }

        fn drain(&mut self, id: FlowId, bytes: u64) {
            let flow = self.flows.get_mut(id).unwrap();
            let drained = flow.send.drained + bytes;
            self.control.drained(self.now, flow, drained);
            self.control.recount(flow);
            let released = self.flows.iter().map(|flow| flow.send.drained).sum::<u64>();
            self.control.credit.raise_limit(16 * MIB + released);
        }

        /// Two periods pass without a reader.
        fn rest(&mut self) {
            for _ in 0..2 {
                self.now += PACE_PERIOD;
                self.control.on_timeout(self.now, Duration::ZERO, &mut self.flows);
            }
        }
    }

    #[test]
    fn stopped_readers_withhold_a_sixteenth_per_user_and_half_together() {
        let mut sender = Sender::new();
        let first = sender.open(1);
        assert_eq!(sender.allowance(first), MIB);
        sender.send(first, 3 * MIB / 4);
        let second = sender.open(1);
        assert_eq!((sender.allowance(first), sender.allowance(second)), (MIB / 4, MIB / 4));
        for user in 2..11 {
            let flow = sender.open(user);
            sender.send(flow, 3 * MIB / 4);
        }
        let other = sender.open(11);
        assert_eq!(sender.allowance(other), MIB / 2, "half of the memory together");
        sender.send(other, MIB / 2);
        assert_eq!(sender.allowance(other), 0);
        let next = sender.open(12);
        assert_eq!(sender.allowance(next), FLOOR, "a new flow can move");
        let mut flow = sender.flows.bury(first).unwrap();
        sender.control.forget(&mut flow);
        assert_eq!(sender.allowance(next), 3 * MIB / 4);
    }

    #[test]
    fn window_follows_the_reader_while_others_withhold_everything() {
        let mut sender = Sender::new();
        for user in 0..8 {
            let flow = sender.open(user);
            sender.send(flow, MIB);
        }
        for (flow, others) in [(sender.open(0), MIB), (sender.open(9), 0)] {
            assert_eq!(sender.allowance(flow), FLOOR);
            sender.send(flow, FLOOR);
            sender.drain(flow, FLOOR);
            let left = sender.control.credit.left();
            assert_eq!(sender.allowance(flow), left - others, "its reader follows");
            sender.send(flow, 3 * FLOOR);
            assert_eq!(sender.allowance(flow), 0, "its reader is slow");
            sender.drain(flow, FLOOR);
            assert_eq!(sender.allowance(flow), 0, "2 of 2 floors are at the peer");
            sender.drain(flow, FLOOR / 2);
            assert_eq!(sender.allowance(flow), FLOOR);
        }
        sender.rest();
        let pace = sender.flows.iter().map(|flow| flow.shares.pace()).sum::<u64>();
        assert_eq!((pace, sender.control.next_period), (0, None));
    }

    #[test]
    fn readers_of_one_user_that_stop_at_once_withhold_half_of_the_memory() {
        let mut sender = Sender::new();
        let flows: Vec<FlowId> = (0..100).map(|_| sender.open(1)).collect();
        for &flow in &flows {
            sender.send(flow, FLOOR);
            sender.drain(flow, FLOOR);
        }
        for &flow in &flows {
            sender.send(flow, sender.allowance(flow).min(MIB));
        }
        let at_peer = sender.control.at_peer.all;
        assert!(
            (8 * MIB..=8 * MIB + 100 * FLOOR).contains(&at_peer),
            "half, and floors: {at_peer}"
        );
        let other = sender.open(2);
        sender.send(other, FLOOR);
        sender.drain(other, FLOOR);
        assert_eq!(sender.allowance(other), 16 * MIB - at_peer, "all that is left");
    }

    #[test]
    fn reader_that_stops_withholds_what_it_was_sent() {
        let mut sender = Sender::new();
        let flow = sender.open(1);
        sender.send(flow, MIB);
        sender.drain(flow, MIB);
        sender.send(flow, MIB);
        assert_eq!(sender.allowance(flow), MIB, "within its pace it withholds nothing");
        sender.rest();
        assert_eq!(sender.allowance(flow), 0);
    }

    #[test]
    fn scarce_memory_is_for_readers_that_took_much() {
        let mut sender = Sender::new();
        let flows: Vec<FlowId> = (0..9).map(|user| sender.open(user)).collect();
        for &flow in &flows {
            sender.send(flow, MIB);
            sender.drain(flow, MIB);
        }
        for &flow in &flows[..8] {
            sender.send(flow, 3 * MIB / 2);
        }
        assert_eq!(sender.allowance(flows[8]), sender.control.credit.left());
        let next = sender.open(8);
        sender.send(next, MIB / 2);
        assert!(sender.control.credit.left() < 4 * MIB);
        assert_eq!(sender.allowance(flows[8]), MIB / 16 + MIB / 2, "beyond its user's share");
    }

    #[test]
    fn writers_leave_half_of_the_memory_to_bytes_in_flight() {
        let mut sender = Sender::new();
        for user in 0..1_000 {
            let id = sender.open(user % 8);
            let flow = sender.flows.get_mut(id).unwrap();
            while sender.control.room(flow) > 0 && flow.send.unsent() < 16 * MIB {
                let room = sender.control.room(flow);
                flow.send.write(&vec![0; room as usize]);
                sender.control.held_sent += room;
                sender.control.recount(flow);
            }
        }
        assert_eq!(
            sender.flows.get(FlowId(1)).unwrap().send.unsent(),
            MIB,
            "half of a user's share"
        );
        assert_eq!(sender.flows.get(FlowId(999)).unwrap().send.unsent(), FLOOR);
        assert!(sender.control.backlog() <= 8 * MIB + 1_000 * FLOOR);
    }
}
