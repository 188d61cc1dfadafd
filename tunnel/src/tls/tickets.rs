//! The client's tickets for resuming sessions over one carrier.
//!
//! Each ticket serves once (RFC 8446 C.4), the newest first; at the bound the oldest is dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

use super::TICKETS_MAX;

/// Tickets of one cloud over one carrier. The server's name is always the same, so it is no key.
#[derive(Debug, Default)]
pub(super) struct TicketStore {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    group: Option<NamedGroup>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl TicketStore {
    /// Drops all tickets: the next handshake is a full one.
    pub(super) fn forget(&self) {
        self.held().tickets.clear();
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // What is inside stays consistent at every step, also when a holder panicked.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for TicketStore {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.held().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.held().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let tickets = &mut self.held().tickets;
        if tickets.len() == TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.held().tickets.pop_back()
    }
}
