//! Early windows: what flows begin with beyond the least window, and who holds shares of it.
//!
//! A share counts for a while after the flow was opened, and after that as far as the flow uses it:
//! as much as is held for its reader beyond the least window. A flow that rests, or is read as fast
//! as it comes, leaves the early windows to those that are opened next.
//!
//! A limit that was told cannot be taken back: the peer may still fill a window whose share counts
//! no more, and more may be promised in all than this pool has. What bounds memory is not the
//! pool but the session's credit, and within it the sender, which lets readers that do not keep up
//! hold one half of the memory together and one eighth a user (`backpressure`). A flow that comes
//! back from rest and is not read is one of those. A pool that is exceeded costs
//! the next flows their early windows, until the readers have drained, and nobody else anything.
//!
//! Invariant: of each flow of whose share something counts, one entry stands in `line`.

use std::collections::VecDeque;
use std::time::Instant;

use polyrail_model::{FlowId, UserId};
use polyrail_scheduler::SEGMENT;

use super::Session;
use super::pool::Pool;
use crate::flow::Flow;
use crate::limits::{
    WINDOW_EARLY_MAX, WINDOW_EARLY_SHARE, WINDOW_EARLY_TIME, WINDOW_EARLY_USER_SHARE,
    WINDOW_INITIAL,
};

#[derive(Debug, Default)]
pub(super) struct Early {
    /// What counts.
    granted: Pool,
    /// Flows whose shares count, with the time to see whether they are in use.
    line: VecDeque<(Instant, FlowId)>,
}

impl Early {
    /// What a flow of this user may begin with: half of what is left of the pool, and of its
    /// user's part.
    fn share(&self, memory: u64, user: UserId) -> u64 {
        let left = |part: u64, taken: u64| (memory / part).saturating_sub(taken) / 2;
        let all = left(WINDOW_EARLY_SHARE, self.granted.all());
        let of_user = left(WINDOW_EARLY_USER_SHARE, self.granted.of_user(user));
        let share = of_user.min(all).min(WINDOW_EARLY_MAX);
        if share < SEGMENT { 0 } else { share }
    }

    /// All of the share of this flow counts from now on.
    pub fn count(&mut self, now: Instant, flow: &mut Flow) {
        self.set(now, flow, flow.early);
    }

    /// It counts no more.
    pub fn forget(&mut self, flow: &mut Flow) {
        self.granted.set(flow.user, &mut flow.early_counted, 0);
    }

    /// So much of the share counts.
    fn set(&mut self, now: Instant, flow: &mut Flow, bytes: u64) {
        if flow.early_counted == 0 && bytes > 0 {
            self.line.push_back((now + WINDOW_EARLY_TIME, flow.id));
        }
        self.granted.set(flow.user, &mut flow.early_counted, bytes);
    }

    /// Something has come for the reader, or was taken by it.
    pub fn moved(&mut self, now: Instant, flow: &mut Flow) {
        if flow.recv.finished() || flow.recv.drained() >= WINDOW_INITIAL + flow.early {
            self.forget(flow);
            flow.early = 0;
        } else if used(flow) > flow.early_counted {
            self.set(now, flow, used(flow));
        }
    }
}

/// What the flow holds beyond what it could without its share.
fn used(flow: &Flow) -> u64 {
    (flow.recv.held()).saturating_sub(WINDOW_INITIAL).min(flow.early)
}

impl Session {
    /// What a flow that this user opens now begins with beyond the least window.
    pub(super) fn early_window(&mut self, now: Instant, user: UserId) -> u64 {
        while let Some(&(at, id)) = self.early.line.front()
            && at <= now
        {
            self.early.line.pop_front();
            let counted = self.flows.get_mut(&id).filter(|flow| flow.early_counted > 0);
            if let Some(flow) = counted {
                self.early.forget(flow);
                self.early.set(now, flow, used(flow));
            }
        }
        let largest = self.largest_window().saturating_sub(WINDOW_INITIAL);
        self.early.share(self.settings.memory.0, user).min(largest)
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::{Bytes, Destination, HostName};

    use super::*;
    use crate::flow::Run;
    use crate::{Role, SessionKey, Settings};

    const MIB: u64 = 1 << 20;

    fn session(now: Instant) -> Session {
        let settings = Settings { memory: Bytes(16 * MIB), ..Settings::default() };
        Session::new(now, SessionKey(1), Role::Gateway, settings)
    }

    fn open(session: &mut Session, now: Instant, user: u64) -> (FlowId, u64) {
        let server = Destination::Name(HostName::new("a.example").unwrap(), 80);
        let id = session.open(now, UserId(user), server).unwrap().flow;
        (id, session.flows[&id].early)
    }

    /// So many bytes come for the reader.
    fn receive(session: &mut Session, now: Instant, id: FlowId, bytes: u64) {
        let flow = session.flows.get_mut(&id).unwrap();
        let data = vec![0; bytes as usize];
        let sequence = flow.recv.highest();
        flow.recv.accept(&Run { sequence, open: false, data: &data, fin: false }).unwrap();
        session.held_received += bytes;
        session.after_drain(now, id);
    }

    #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
    fn base() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_user_leaves_the_early_windows_of_others_alone() {
        let now = base();
        let mut session = session(now);
        let mut greedy = (0..100).map(|_| open(&mut session, now, 1).1);
        assert_eq!(greedy.next(), Some(2 * MIB));
        assert_eq!(greedy.next(), Some(MIB));
        assert!(3 * MIB + greedy.sum::<u64>() <= 4 * MIB);
        assert_eq!(open(&mut session, now, 2).1, 2 * MIB);
        (3..200).for_each(|user| _ = open(&mut session, now, user));
        assert!(session.early.granted.all() <= 8 * MIB);
    }

    #[test]
    fn a_share_that_is_not_used_is_free_after_a_while_and_counts_when_it_is_used_again() {
        let start = base();
        let mut session = session(start);
        let flows: Vec<FlowId> = (0..20).map(|_| open(&mut session, start, 1).0).collect();
        // One is not read; the others have got something and rest.
        receive(&mut session, start, flows[0], WINDOW_INITIAL + 5_000);
        for &id in &flows[1..] {
            receive(&mut session, start, id, 10_000);
            session.consume(start, id, 10_000);
        }
        assert!(open(&mut session, start, 1).1 < SEGMENT);
        let now = start + WINDOW_EARLY_TIME;
        let next = open(&mut session, now, 1).1;
        assert_eq!(next, (4 * MIB - 5_000) / 2, "what is held counts");
        assert_eq!(session.early.granted.all(), next + 5_000);
        receive(&mut session, now, flows[1], WINDOW_INITIAL);
        assert_eq!(session.early.granted.all(), next + 5_000, "no more than the least window");
        receive(&mut session, now, flows[1], 1);
        assert_eq!(session.early.granted.all(), next + 5_001, "what it leaves lying counts again");
        receive(&mut session, now, flows[1], 1);
        assert_eq!(session.early.granted.all(), next + 5_002);
        session.consume(now, flows[1], usize::MAX);
        let later = open(&mut session, now + WINDOW_EARLY_TIME, 1).1;
        assert_eq!((later, session.early.granted.all()), (next, next + 5_000));
        assert_eq!(session.early.line.len(), 2);
    }

    #[test]
    fn ends_leave_no_shares() {
        let now = base();
        let mut session = session(now);
        let flows: Vec<FlowId> = (0..9).map(|user| open(&mut session, now, user).0).collect();
        receive(&mut session, now, flows[0], WINDOW_INITIAL);
        flows.into_iter().for_each(|id| session.bury(now, id));
        assert_eq!((session.early.granted.all(), session.early.granted.users()), (0, 0));
        open(&mut session, now + WINDOW_EARLY_TIME, 1);
        assert_eq!(session.early.line.len(), 1);
    }
}
