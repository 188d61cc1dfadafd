//! Connection ids of tunnels that moved to another event loop, and retired ids.
//!
//! The peer uses the ids of a moved tunnel until it has received ids of the new loop, about a round
//! trip; a connection whose ids expire here has been silent for longer than any connection
//! survives. A late datagram with a retired id must not be answered with a stateless reset, because
//! its connection goes on with other ids.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::cid::Cid;

/// By connection id, the worker that has the tunnel; at most [`IDS_MAX`], the oldest are evicted.
/// Retired ids have a list of their own, because a peer can retire as many as it likes.
#[derive(Debug, Default)]
pub(super) struct Away {
    of: HashMap<Cid, u8>,
    order: VecDeque<(Instant, Cid)>,
}

impl Away {
    pub(super) fn note(&mut self, now: Instant, id: Cid, worker: u8) {
        while let Some(&(at, oldest)) = self.order.front()
            && (now.saturating_duration_since(at) > KEPT || self.order.len() >= IDS_MAX)
        {
            self.order.pop_front();
            self.of.remove(&oldest);
        }
        if self.of.insert(id, worker).is_none() {
            self.order.push_back((now, id));
        }
    }

    pub(super) fn find(&self, id: &Cid) -> Option<u8> {
        self.of.get(id).copied()
    }
}

/// Twice the silence that ends a connection.
const KEPT: Duration = Duration::from_secs(120);
/// About 100 bytes each.
const IDS_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_until_they_are_old_or_evicted() {
        let (now, mut away) = (Instant::now(), Away::default());
        let id = |number: u32| Cid::new(&number.to_be_bytes()).unwrap();
        away.note(now, id(0), 1);
        away.note(now, id(1), 2);
        assert_eq!(
            (away.find(&id(0)), away.find(&id(1)), away.find(&id(2))),
            (Some(1), Some(2), None)
        );
        away.note(now + KEPT * 2, id(2), 3);
        assert_eq!((away.find(&id(0)), away.find(&id(2))), (None, Some(3)));
        for number in 3..20_000 {
            away.note(now + KEPT * 2, id(number), 1);
        }
        assert_eq!((away.of.len(), away.order.len()), (IDS_MAX, IDS_MAX));
        assert_eq!((away.find(&id(2)), away.find(&id(19_999))), (None, Some(1)));
    }
}
