//! A TLS tunnel until `Up`: connect, handshake, early data, and the checks of the peer.
//!
//! The peer's certificate is judged before its early data is reported, and again at the end of the
//! handshake. In a resumed handshake it is the certificate of the first handshake, judged by the
//! present time, authority and revocations.

use std::io;
use std::time::Instant;

use polyrail_identity::Peer;

use super::HANDSHAKE_MAX;
use super::connection::TlsTunnel;
use super::reason;
use crate::carrier::{connect_failure, internal};
use crate::phase::TunnelPhase;
use crate::{CloseReason, Early, Established, TunnelEvent};

impl TlsTunnel {
    /// Continues when the socket's connect has succeeded or failed.
    pub(super) fn check_connected(&mut self, now: Instant) {
        if let Ok(Some(error)) | Err(error) = self.socket.take_error() {
            let timeout = self.options.connect_timeout;
            return self.end(connect_failure(&error, self.peer, timeout));
        }
        if self.socket.peer_addr().is_err() {
            return;
        }
        self.life.enter(TunnelPhase::Handshaking, Some(now + self.options.handshake_timeout));
        match self.engine.begin() {
            Ok(Some(early)) => self.open_early(early),
            Ok(None) => {}
            Err(reason) => return self.end(reason),
        }
        self.continue_handshake(now);
    }

    pub(super) fn continue_handshake(&mut self, now: Instant) {
        loop {
            self.write_out();
            if !self.life.is_handshaking() {
                return;
            }
            if !self.engine.is_handshaking() {
                return self.finish_handshake(now);
            }
            if !self.readable {
                return;
            }
            match self.engine.read_tls(&mut self.socket) {
                Ok(0) => return self.fail(CloseReason::ClosedInHandshake),
                Ok(taken) => {
                    if let Err(reason) = self.take_handshake(taken) {
                        return self.fail(reason);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.readable = false,
                    io::ErrorKind::Interrupted => {}
                    _ => return self.fail(reason::of_socket(&error, self.peer, true)),
                },
            }
        }
    }

    /// Processes received bytes of the handshake.
    fn take_handshake(&mut self, taken: usize) -> Result<(), CloseReason> {
        self.taken += taken;
        let progress = self.engine.process().map_err(|error| reason::of_tls(error, true))?;
        self.peer_closed |= progress.peer_has_closed();
        if self.engine.is_handshaking() && self.taken > HANDSHAKE_MAX {
            let detail = format!("more than {HANDSHAKE_MAX} bytes of handshake");
            return Err(CloseReason::ProtocolError { detail });
        }
        if !self.engine.takes_early() {
            return Ok(());
        }
        // No early data is reported, delivered or answered before the resumed session is judged.
        let peer = self.judge().inspect_err(|_| self.engine.send_close_notify())?;
        let waits = self.engine.take_early().map_err(|error| internal("early data", &error))?;
        if waits && self.life.phase() == TunnelPhase::Handshaking {
            self.open_early(peer.into());
        }
        Ok(())
    }

    fn open_early(&mut self, early: Early) {
        self.life.enter(TunnelPhase::Early, self.life.deadline());
        self.events.push(TunnelEvent::Early(early));
    }

    /// Checks the peer after the handshake, before any frame passes.
    fn finish_handshake(&mut self, now: Instant) {
        let established = match self.established(now) {
            Ok(established) => established,
            Err(reason) => return self.fail(reason),
        };
        match self.engine.finish() {
            Ok(made) => self.queue.pending += made,
            Err(error) => return self.fail(internal("send early data again", &error)),
        }
        self.life.enter(TunnelPhase::Up, None);
        self.unanswered = established.resumed;
        self.events.push(TunnelEvent::Up(established));
        if self.queue.pending > 0 {
            self.write_out();
        }
    }

    fn established(&self, now: Instant) -> Result<Established, CloseReason> {
        let peer = self.judge()?;
        Ok(Established {
            peer: peer.name,
            serial: peer.serial,
            expires: peer.expires,
            exporter: self.engine.exporter()?,
            resumed: self.engine.is_resumed(),
            handshake: self.life.age(now),
        })
    }

    /// Judges the peer: its protocol, then its certificate.
    fn judge(&self) -> Result<Peer, CloseReason> {
        if !self.engine.has_our_protocol() {
            return Err(CloseReason::WrongProtocol);
        }
        self.verifier.judge(self.engine.peer_chain()).map_err(CloseReason::PeerCertificate)
    }
}
