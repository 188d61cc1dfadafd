//! Readers that stop while others need the memory.
//!
//! A reader that stops withholds its unread bytes. Ten to forty of them, such as paused videos,
//! fill the memory of a session, and the other flows get hardly any credit. The sender cannot take
//! bytes back. So while more than half of the memory is taken
//! ([`POOL_SHARE`](crate::limits::POOL_SHARE)), the receiver looks at the flows with much unread
//! data, and at the next look resets those whose readers would need more than six times the time
//! between the looks for it, first those with the most, until half is left. RFC 6429 permits that
//! TCP aborts such connections when it lacks resources.
//!
//! Bytes out of order make no flow a candidate: their reader waits for a path.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::FlowId;

use super::flows::Flows;
use crate::limits::WINDOW_MIN;

/// The flows with much unread data while more than half of the memory is taken: at most one for
/// each [`WINDOW_MIN`].
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    /// When to look next.
    pub look_at: Option<Instant>,
    /// The numbers that their readers had reached at the last look.
    drained: BTreeMap<FlowId, u64>,
}

impl Stopped {
    /// Returns the flows whose readers have stopped since the last look, first those with the most
    /// unread data.
    pub fn look(&mut self, flows: &Flows) -> Vec<FlowId> {
        let before = std::mem::take(&mut self.drained);
        let mut stopped = Vec::new();
        for flow in flows.iter().filter(|flow| flow.is_callers() && flow.binding().is_none()) {
            let (unread, drained) = (flow.recv.unread(), flow.recv.drained());
            if unread < WINDOW_MIN {
                continue;
            }
            if before.get(&flow.id).is_some_and(|before| unread > (drained - before) * LOOKS) {
                stopped.push((Reverse(unread), flow.id));
            }
            self.drained.insert(flow.id, drained);
        }
        stopped.sort_unstable();
        stopped.into_iter().map(|(_, id)| id).collect()
    }
}

/// A reader that needs so many times the time between two looks has stopped.
const LOOKS: u64 = 6;

#[cfg(test)]
mod tests {
    use polyrail_model::UserId;

    use super::*;
    use crate::flow::{Flow, Run};

    /// Adds a flow with so many unread bytes.
    fn add(now: Instant, flows: &mut Flows, unread: usize) -> FlowId {
        let id = flows.next_id();
        let mut flow = Flow::new(now, id, UserId(1), true, 0, 1 << 20);
        flow.recv.accept(&Run { sequence: 0, open: false, data: &vec![0; unread], fin: false });
        flows.insert(flow);
        id
    }

    #[test]
    fn flows_whose_readers_need_more_than_six_looks_have_stopped() {
        #[allow(clippy::disallowed_methods)] // any time
        let now = Instant::now();
        let (mut flows, mut stopped) = (Flows::default(), Stopped::default());
        // Unread bytes at the first look, and those that are read until the second.
        let cases = [(65_535, 0), (65_536, 0), (200_000, 28_000), (200_000, 29_000), (300_000, 0)];
        let ids = cases.map(|(unread, _)| add(now, &mut flows, unread));
        assert!(stopped.look(&flows).is_empty(), "the first look");
        for (id, (_, read)) in ids.iter().zip(cases) {
            flows.get_mut(*id).unwrap().recv.consume(read);
        }
        let late = add(now, &mut flows, 500_000);
        assert_eq!(stopped.look(&flows), [ids[4], ids[2], ids[1]], "the most unread bytes first");
        assert_eq!(stopped.look(&flows)[..2], [late, ids[4]], "since the last look");
    }

    #[test]
    fn bytes_behind_a_gap_are_not_unread() {
        #[allow(clippy::disallowed_methods)] // any time
        let now = Instant::now();
        let (mut flows, mut stopped) = (Flows::default(), Stopped::default());
        let id = add(now, &mut flows, 0);
        let recv = &mut flows.get_mut(id).unwrap().recv;
        recv.accept(&Run { sequence: 1, open: false, data: &[0; 200_000], fin: false });
        assert!(recv.held() == 200_000 && recv.unread() == 0);
        assert!(stopped.look(&flows).is_empty() && stopped.look(&flows).is_empty());
    }
}
