//! The handshake's verdicts: who the peer is, before the first unit passes.
//!
//! The certificate is judged after every handshake, in addition to the hook of
//! [`verify`](super::verify): a resumed handshake presents none, so the session's is judged by the
//! current time and revocation lists. With early data that happens before early units are sent or
//! delivered, and again after the handshake.

use std::io;
use std::time::Instant;

use boring::ssl::SslRef;

use super::connection::Engine;
use super::{ALPN, EXPORTER_LABEL, reason};
use crate::carrier::internal;
use crate::phase::TunnelPhase;
use crate::{CloseReason, Established, TunnelEvent};

impl Engine {
    /// Acts on the state of `quiche`.
    pub(super) fn progress(&mut self, now: Instant) {
        self.admission.keep_fault();
        if matches!(self.life.phase(), TunnelPhase::Closed | TunnelPhase::Leaving) {
            return;
        }
        let handshaking = !self.connection.is_established();
        if let Some(error) = self.connection.peer_error() {
            return self.depart(now, reason::of_peer(error, handshaking));
        }
        if let Some(error) = self.connection.local_error() {
            let reason = reason::of_local(error, self.admission.fault.take());
            self.farewell = true;
            return self.end(reason);
        }
        if self.connection.is_closed() {
            return self.on_silent_end(now);
        }
        match self.life.phase() {
            TunnelPhase::Handshaking | TunnelPhase::Early => self.go_on_with_handshake(now),
            TunnelPhase::Up => self.admission.keep_ticket(&self.connection),
            TunnelPhase::Closing => self.go_on_closing(),
            TunnelPhase::Connecting | TunnelPhase::Leaving | TunnelPhase::Closed => {}
        }
    }

    fn go_on_with_handshake(&mut self, now: Instant) {
        if self.connection.is_established() {
            return match self.established(now) {
                Ok(established) => self.come_up(now, established),
                Err(reason) => self.fail(reason),
            };
        }
        let undecided =
            self.life.phase() == TunnelPhase::Handshaking && self.admission.verdict.is_none();
        if undecided && self.connection.is_in_early_data() {
            self.admission.note(&mut self.connection, now);
            if self.admission.is_replay {
                // It receives no answer.
                let detail = "replay of a first flight with early data".to_owned();
                return self.end(CloseReason::ProtocolError { detail });
            }
            match self.admission.judge(&self.connection) {
                Ok(peer) => {
                    self.life.enter(TunnelPhase::Early, self.life.deadline());
                    self.events.push(TunnelEvent::Early(peer.into()));
                }
                // The peer can read the refusal only after the server's first flight.
                Err(fault) => self.admission.verdict = Some(fault),
            }
        }
    }

    fn come_up(&mut self, now: Instant, established: Established) {
        self.life.enter(TunnelPhase::Up, None);
        self.events.push(TunnelEvent::Up(established));
        self.rearm_keepalive(now);
        self.admission.keep_ticket(&self.connection);
    }

    fn established(&mut self, now: Instant) -> Result<Established, CloseReason> {
        if self.connection.application_proto() != ALPN {
            return Err(CloseReason::WrongProtocol);
        }
        let peer = self.admission.judge(&self.connection).map_err(CloseReason::PeerCertificate)?;
        let mut exporter = [0; 32];
        let ssl: &mut SslRef = self.connection.as_mut();
        ssl.export_keying_material(&mut exporter, EXPORTER_LABEL, None)
            .map_err(|error| internal("export a secret from TLS", &io::Error::other(error)))?;
        Ok(Established {
            peer: peer.name,
            serial: peer.serial,
            expires: peer.expires,
            exporter,
            resumed: self.connection.is_resumed(),
            handshake: self.life.age(now),
        })
    }
}
