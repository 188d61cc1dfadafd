//! The client's tickets for resuming sessions over one carrier.
//!
//! Each ticket is used once (RFC 8446 C.4), the newest first; at the bound the oldest is dropped.
//! Each is kept with the cloud's certificate of its handshake, because TLS does not check it again,
//! and early data is sent before the cloud answers. So the certificate is judged when the ticket is
//! taken, and a ticket of a certificate that is not valid any more is dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polyrail_identity::PeerVerifier;
use rustls::NamedGroup;
use rustls::client::{
    ClientSessionStore, TicketRequest, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::{CertificateDer, ServerName};

use super::TICKETS_MAX;
use crate::Early;

/// Tickets of one cloud over one carrier. The server's name is always the same, so it is no key.
#[derive(Debug, Default)]
pub(super) struct TicketStore {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    group: Option<NamedGroup>,
    tickets: VecDeque<Ticket>,
}

#[derive(Debug)]
struct Ticket {
    value: Tls13ClientSessionValue,
    chain: Chain,
}

/// A certificate chain that several tickets share.
type Chain = Arc<[CertificateDer<'static>]>;

impl TicketStore {
    /// Drops all tickets: the next handshake is a full one.
    pub(super) fn forget(&self) {
        lock(&self.held).tickets.clear();
    }
}

/// The store as one connection uses it: it takes judged tickets, and adds new tickets with the
/// certificate of its cloud.
#[derive(Debug)]
pub(super) struct Tickets {
    store: Arc<TicketStore>,
    verifier: Arc<PeerVerifier>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    /// The cloud's certificate, once the handshake was checked.
    chain: Option<Chain>,
    /// The cloud's identity by the ticket that was taken.
    early: Option<Early>,
}

impl Tickets {
    pub(super) fn new(store: Arc<TicketStore>, verifier: Arc<PeerVerifier>) -> Self {
        Self { store, verifier, shown: Mutex::default() }
    }

    /// Drops all tickets of the carrier.
    pub(super) fn forget(&self) {
        self.store.forget();
    }

    /// The cloud's identity by the ticket that this connection took.
    pub(super) fn early(&self) -> Option<Early> {
        lock(&self.shown).early.clone()
    }

    /// Keeps tickets from now on, because the cloud's certificate passed the checks.
    pub(super) fn learn(&self, chain: &[CertificateDer<'static>]) {
        lock(&self.shown).chain = Some(chain.into());
    }

    /// How many tickets to request (RFC 9149): all after a full handshake; after a resumed one the
    /// missing tickets, and as many as racing attempts may have taken.
    pub(super) fn request(&self) -> TicketRequest {
        let missing = TICKETS_MAX - lock(&self.store.held).tickets.len().min(TICKETS_MAX);
        let wanted = (missing + TAKEN_BY_A_RACE).min(TICKETS_MAX);
        TicketRequest { new_session_count: TICKETS_MAX as u8, resumption_count: wanted as u8 }
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        lock(&self.store.held).group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        lock(&self.store.held).group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let Some(chain) = lock(&self.shown).chain.clone() else { return };
        let tickets = &mut lock(&self.store.held).tickets;
        if tickets.len() == TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(Ticket { value, chain });
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let tickets = &mut lock(&self.store.held).tickets;
        while let Some(Ticket { value, chain }) = tickets.pop_back() {
            if let Ok(peer) = self.verifier.judge(&chain) {
                lock(&self.shown).early = Some(peer.into());
                return Some(value);
            }
        }
        None
    }
}

/// The content is consistent at every step, even if a holder panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Attempts of a path restart that race each other, each with a ticket.
const TAKEN_BY_A_RACE: usize = 3;
