//! Whether a peer is admitted: its certificate, its early data, and the tickets for the next time.

use std::sync::Arc;
use std::time::Instant;

use boring::ssl::SslRef;
use polyrail_identity::{CertificateFault, Peer, PeerVerifier};
use quiche::Connection;
use rustls::pki_types::CertificateDer;

use super::spent::Spent;
use super::tickets::Place;
use crate::fault;

/// The checks of one connection's peer.
pub(super) struct Admission {
    verifier: Arc<PeerVerifier>,
    /// The client's tickets for this carrier and address.
    tickets: Option<Place>,
    /// The server's list of accepted early data.
    spent: Option<Arc<Spent>>,
    /// Why our verifier rejected the peer in the handshake.
    pub(super) fault: Option<CertificateFault>,
    /// Why early data is refused: sent to the peer after the first flight.
    pub(super) verdict: Option<CertificateFault>,
    /// Whether the peer's first flight is a replay.
    pub(super) is_replay: bool,
}

impl Admission {
    pub(super) fn new(
        verifier: Arc<PeerVerifier>,
        tickets: Option<Place>,
        spent: Option<Arc<Spent>>,
    ) -> Self {
        Self { verifier, tickets, spent, fault: None, verdict: None, is_replay: false }
    }

    pub(super) fn judge(&self, connection: &Connection) -> Result<Peer, CertificateFault> {
        let chain = connection.peer_cert_chain().unwrap_or_default();
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        self.verifier.judge(&chain)
    }

    /// Notes a first flight with early data, and whether it is a replay.
    pub(super) fn note(&mut self, connection: &mut Connection, now: Instant) {
        let Some(spent) = &self.spent else { return };
        let mut mark = [0; 32];
        let ssl: &mut SslRef = connection.as_mut();
        ssl.client_random(&mut mark);
        self.is_replay = !spent.note(now, mark);
    }

    /// Keeps the fault for which the hook rejected the peer in the last call of `quiche`.
    pub(super) fn keep_fault(&mut self) {
        self.fault = fault::take().or(self.fault.take());
    }

    /// Stores the server's newest ticket.
    pub(super) fn keep_ticket(&mut self, connection: &Connection) {
        if let (Some(place), Some(session)) = (&mut self.tickets, connection.session()) {
            place.keep(session);
        }
    }

    /// Drops the ticket: a full handshake shows whether the session was the cause of a refusal.
    pub(super) fn forget_ticket(&mut self) {
        if let Some(tickets) = &mut self.tickets {
            tickets.forget();
        }
    }
}
