//! The client's tickets for resuming sessions.
//!
//! The newest ticket of each carrier and address is kept, so that tickets never link two carriers.
//! It serves until a newer one comes: attempts that race each other all find one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Key = (String, SocketAddr);

/// All tickets of a client: at most [`TICKETS_MAX`], then all are dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Tickets(Arc<Mutex<BTreeMap<Key, Vec<u8>>>>);

/// Where one connection's tickets are kept.
#[derive(Debug)]
pub(super) struct Place {
    tickets: Tickets,
    key: Key,
    last: Vec<u8>,
}

impl Tickets {
    pub(super) fn place(&self, carrier: &str, peer: SocketAddr) -> Place {
        Place { tickets: self.clone(), key: (carrier.to_owned(), peer), last: Vec::new() }
    }

    /// Drops what one carrier has.
    pub(super) fn forget(&self, carrier: &str) {
        self.held().retain(|(name, _), _| name != carrier);
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Key, Vec<u8>>> {
        // What is inside stays consistent at every step, also when a holder panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The newest ticket.
    pub(super) fn newest(&self) -> Option<Vec<u8>> {
        self.tickets.held().get(&self.key).cloned()
    }

    /// Keeps what `quiche` calls a session; asked often, so what is known costs a comparison.
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

/// Carriers times addresses, of some 2 KiB each.
const TICKETS_MAX: usize = 64;
