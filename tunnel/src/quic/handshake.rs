//! The handshake's verdicts: who the peer is, before the first unit passes.
//!
//! The certificate is judged after every handshake, in addition to the hook of
//! [`verify`](super::verify): a resumed handshake presents none, so the session's is judged by the
//! current time and revocation lists. With early data that happens before early units are sent or
//! delivered, and again after the handshake.

use std::io;
use std::time::Instant;

use boring::ssl::SslRef;
use polyrail_identity::{CertificateFault, Peer};
use rustls::pki_types::CertificateDer;

use super::connection::{Engine, State};
use super::{ALPN, EXPORTER_LABEL, reason};
use crate::carrier::internal;
use crate::{CloseReason, Established, fault};

impl Engine {
    /// Acts on the state of `quiche`.
    pub(super) fn progress(&mut self, now: Instant) {
        if let Some(fault) = fault::take() {
            self.fault = Some(fault);
        }
        if matches!(self.state, State::Closed | State::Leaving) {
            return;
        }
        let handshaking = !self.connection.is_established();
        if let Some(error) = self.connection.peer_error() {
            return self.depart(now, reason::of_peer(error, handshaking));
        }
        if let Some(error) = self.connection.local_error() {
            let reason = reason::of_local(error, self.fault.take());
            self.farewell = true;
            return self.end(reason);
        }
        if self.connection.is_closed() {
            return self.on_silent_end(now);
        }
        match self.state {
            State::Handshaking | State::Early => self.go_on_with_handshake(now),
            State::Up => self.keep_ticket(),
            State::Closing => self.go_on_closing(),
            State::Leaving | State::Closed => {}
        }
    }

    fn go_on_with_handshake(&mut self, now: Instant) {
        if self.connection.is_established() {
            return match self.established(now) {
                Ok(established) => self.come_up(now, established),
                Err(reason) => self.fail(reason),
            };
        }
        let undecided = self.state == State::Handshaking && self.verdict.is_none();
        if undecided && self.connection.is_in_early_data() {
            if !self.is_first(now) {
                // It receives no answer.
                self.is_copy = true;
                let detail = "replay of a first flight with early data".to_owned();
                return self.end(CloseReason::ProtocolError { detail });
            }
            match self.judge() {
                Ok(peer) => {
                    self.state = State::Early;
                    self.early = Some(peer.into());
                }
                // The peer can read the refusal only after the server's first flight.
                Err(fault) => self.verdict = Some(fault),
            }
        }
    }

    /// Whether the server sees this first flight for the first time.
    fn is_first(&mut self, now: Instant) -> bool {
        let Some(spent) = &self.spent else { return true };
        let mut mark = [0; 32];
        let ssl: &mut SslRef = self.connection.as_mut();
        ssl.client_random(&mut mark);
        spent.borrow_mut().note(now, mark)
    }

    fn come_up(&mut self, now: Instant, established: Established) {
        self.state = State::Up;
        self.deadline = None;
        self.resumed = established.resumed;
        self.up = Some(established);
        self.rearm_keepalive(now);
        self.keep_ticket();
    }

    fn established(&mut self, now: Instant) -> Result<Established, CloseReason> {
        if self.connection.application_proto() != ALPN {
            return Err(CloseReason::WrongProtocol);
        }
        let peer = self.judge().map_err(CloseReason::PeerCertificate)?;
        let mut exporter = [0; 32];
        let ssl: &mut SslRef = self.connection.as_mut();
        ssl.export_keying_material(&mut exporter, EXPORTER_LABEL, None)
            .map_err(|error| internal("export a secret from TLS", &io::Error::other(error)))?;
        Ok(Established {
            peer: peer.name,
            serial: peer.serial,
            exporter,
            resumed: self.connection.is_resumed(),
            handshake: now.saturating_duration_since(self.began),
        })
    }

    fn judge(&self) -> Result<Peer, CertificateFault> {
        let chain = self.connection.peer_cert_chain().unwrap_or_default();
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        self.judge.judge(&chain)
    }

    /// Stores the server's newest ticket.
    fn keep_ticket(&mut self) {
        if let (Some(place), Some(session)) = (&mut self.tickets, self.connection.session()) {
            place.keep(session);
        }
    }
}
