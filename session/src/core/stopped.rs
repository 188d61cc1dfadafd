//! Readers that stop while others need the memory.
//!
//! A reader that stops withholds its unread bytes. Ten to forty of them, such as paused videos,
//! fill the memory of a session, and the other flows get hardly any credit. The sender cannot take
//! bytes back. So while more than half of the memory is taken
//! ([`POOL_SHARE`](crate::limits::POOL_SHARE)), the receiver looks at the flows with unread data.
//! At the next look those have stopped whose readers would need more than six times the time
//! between the looks for it. If all flows together have more unread data than half of the memory,
//! it resets stopped ones until they have less: each time one of the user whose stopped flows have
//! the most. RFC 6429 permits that TCP aborts such connections when it lacks resources.
//!
//! Senders permit that readers withhold half. So with a lower bound here, other stopped flows would
//! take the place of each that is reset, again and again.
//!
//! Bytes out of order are not unread: their reader waits for a path. A flow whose server is not
//! reached yet has no reader.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::{FlowId, UserId};

use super::flows::Flows;
use crate::limits::FLOOR;

/// The flows with more unread data than [`FLOOR`] at the last look.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    /// When to look next; `None` while less than half of the memory is taken.
    pub look_at: Option<Instant>,
    /// The numbers that their readers had reached.
    drained: BTreeMap<FlowId, u64>,
}

impl Stopped {
    /// Returns the flows to reset so that all together have at most `most` unread bytes, as far as
    /// flows have stopped since the last look.
    pub fn look(&mut self, flows: &Flows, most: u64) -> Vec<FlowId> {
        let before = std::mem::take(&mut self.drained);
        let mut users: BTreeMap<UserId, Vec<(u64, FlowId)>> = BTreeMap::new();
        let mut unread_all = 0;
        for flow in flows.iter() {
            let (unread, drained) = (flow.recv.unread(), flow.recv.drained());
            unread_all += unread;
            if unread <= FLOOR || !flow.dialed || !flow.is_callers() || flow.binding().is_some() {
                continue;
            }
            if before.get(&flow.id).is_some_and(|before| unread > (drained - before) * LOOKS) {
                users.entry(flow.user).or_default().push((unread, flow.id));
            }
            self.drained.insert(flow.id, drained);
        }
        users.values_mut().for_each(|flows| flows.sort_unstable());
        let mut chosen = Vec::new();
        while unread_all > most {
            let sum =
                |flows: &Vec<(u64, FlowId)>| flows.iter().map(|(unread, _)| unread).sum::<u64>();
            let heaviest = users.values_mut().max_by_key(|flows| sum(flows));
            let Some((unread, flow)) = heaviest.and_then(Vec::pop) else { break };
            unread_all -= unread;
            chosen.push(flow);
        }
        chosen
    }
}

/// A reader that needs more than this many looks for its unread bytes has stopped.
const LOOKS: u64 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Flow, Run};

    fn now() -> Instant {
        #[allow(clippy::disallowed_methods)] // any time
        Instant::now()
    }

    /// Adds a flow of this user with so many unread bytes.
    fn add(flows: &mut Flows, user: u64, unread: usize) -> FlowId {
        let id = flows.next_id();
        let mut flow = Flow::new(now(), id, UserId(user), true, 0, 1 << 20);
        flow.dialed = true;
        flow.recv.accept(&Run { sequence: 0, open: false, data: &vec![0; unread], fin: false });
        flows.insert(flow);
        id
    }

    #[test]
    fn flows_whose_readers_need_more_than_six_looks_have_stopped() {
        let (mut flows, mut stopped) = (Flows::default(), Stopped::default());
        // Unread bytes at the first look, and the bytes that their readers take until the second.
        let cases = [(7_000, 0), (7_001, 0), (200_000, 28_000), (200_000, 29_000), (300_000, 0)];
        let mut user = 0..;
        let ids = cases.map(|(unread, _)| add(&mut flows, user.next().unwrap(), unread));
        assert!(stopped.look(&flows, 0).is_empty(), "the first look");
        for (id, (_, read)) in ids.iter().zip(cases) {
            flows.get_mut(*id).unwrap().recv.consume(read);
        }
        let late = add(&mut flows, 9, 500_000);
        assert_eq!(stopped.look(&flows, 0), [ids[4], ids[2], ids[1]], "the most first");
        assert_eq!(stopped.look(&flows, 0)[..2], [late, ids[4]], "since the last look");
    }

    #[test]
    fn flows_are_reset_until_enough_is_free_first_those_of_the_heaviest_user() {
        let (mut flows, mut stopped) = (Flows::default(), Stopped::default());
        let one = add(&mut flows, 1, 500_000);
        let many: Vec<FlowId> = (0..20).map(|_| add(&mut flows, 2, 60_000)).collect();
        stopped.look(&flows, 0);
        // 1.7 MB in all, 1.2 MB of them of the second user.
        assert!(stopped.look(&flows, 1_700_000).is_empty());
        assert_eq!(stopped.look(&flows, 1_550_000), [many[19], many[18], many[17]]);
        let most = stopped.look(&flows, 900_000);
        assert_eq!((most.len(), most.contains(&one)), (12 + 1, true), "500 KB are left to each");
        assert_eq!(stopped.look(&flows, 0).len(), 21);
    }

    #[test]
    fn bytes_behind_a_gap_or_for_an_unreached_server_are_nobodys() {
        let (mut flows, mut stopped) = (Flows::default(), Stopped::default());
        let id = add(&mut flows, 1, 0);
        let recv = &mut flows.get_mut(id).unwrap().recv;
        recv.accept(&Run { sequence: 1, open: false, data: &[0; 200_000], fin: false });
        assert!(recv.held() == 200_000 && recv.unread() == 0);
        let dials = add(&mut flows, 1, 200_000);
        flows.get_mut(dials).unwrap().dialed = false;
        assert!(stopped.look(&flows, 0).is_empty() && stopped.look(&flows, 0).is_empty());
    }
}
