//! The client's tickets for resuming sessions.
//!
//! There is one ticket for each carrier and address, so that tickets never link two carriers. It is
//! used until a newer one arrives, so that all racing attempts have one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Key = (String, SocketAddr);

/// All tickets of a client: beyond [`TICKETS_MAX`] all are dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Tickets(Arc<Mutex<BTreeMap<Key, Vec<u8>>>>);

/// The place of one connection's tickets.
#[derive(Debug)]
pub(super) struct Place {
    tickets: Tickets,
    key: Key,
    last: Vec<u8>,
}

impl Tickets {
    /// Only one thread uses a client, so nothing waits for this lock; it makes connections
    /// [`Send`].
    fn held(&self) -> MutexGuard<'_, BTreeMap<Key, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn place(&self, carrier: &str, peer: SocketAddr) -> Place {
        Place { tickets: self.clone(), key: (carrier.to_owned(), peer), last: Vec::new() }
    }
}

impl Place {
    /// The newest ticket.
    pub(super) fn newest(&self) -> Option<Vec<u8>> {
        self.tickets.held().get(&self.key).cloned()
    }

    /// Stores a session of `quiche`; called often, so a known one costs only a comparison.
    pub(super) fn keep(&mut self, session: &[u8]) {
        if self.last == session {
            return;
        }
        session.clone_into(&mut self.last);
        let mut held = self.tickets.held();
        if held.len() >= TICKETS_MAX && !held.contains_key(&self.key) {
            held.clear();
        }
        held.insert(self.key.clone(), session.to_vec());
    }

    /// Drops the ticket: the next handshake is a full one.
    pub(super) fn forget(&mut self) {
        self.tickets.held().remove(&self.key);
    }
}

/// Carriers times addresses, about 2 KiB each.
const TICKETS_MAX: usize = 64;
