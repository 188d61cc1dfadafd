//! The way of a TLS tunnel to `Up`: connect, handshake, early data, the checks of the peer.
//!
//! The peer's certificate is judged before anything of it is believed: before its early data is
//! announced, and again when the handshake is over. In a resumed handshake it is the one that the
//! first handshake showed; it counts by the clock, the authority and the revocations of now.

use std::io;
use std::time::Instant;

use polyrail_identity::Peer;

use super::HANDSHAKE_MAX;
use super::connection::{State, TlsTunnel};
use super::reason;
use crate::carrier::{connect_failure, internal};
use crate::{CloseReason, Early, Established};

impl TlsTunnel {
    /// Goes on once the socket's connect has succeeded or failed.
    pub(super) fn check_connected(&mut self, now: Instant) {
        if let Ok(Some(error)) | Err(error) = self.socket.take_error() {
            let timeout = self.options.connect_timeout;
            return self.end(connect_failure(&error, self.peer, timeout));
        }
        if self.socket.peer_addr().is_err() {
            return;
        }
        self.state = State::Handshaking;
        self.deadline = Some(now + self.options.handshake_timeout);
        match self.engine.begin() {
            Ok(Some(early)) => self.open_early(early),
            Ok(None) => {}
            Err(reason) => return self.end(reason),
        }
        self.go_on_with_handshake(now);
    }

    pub(super) fn go_on_with_handshake(&mut self, now: Instant) {
        loop {
            self.write_out();
            if !matches!(self.state, State::Handshaking | State::Early) {
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

    /// Takes in what was read.
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
        // Nothing is announced, handed out or answered before the resumed session has passed.
        let peer = self.judge().inspect_err(|_| self.engine.send_close_notify())?;
        let waits = self.engine.take_early().map_err(|error| internal("early data", &error))?;
        if waits && self.state == State::Handshaking {
            self.open_early(peer.into());
        }
        Ok(())
    }

    fn open_early(&mut self, early: Early) {
        self.state = State::Early;
        self.early = Some(early);
    }

    /// Checks what the handshake brought, resumed or not, before any frame passes.
    fn finish_handshake(&mut self, now: Instant) {
        let established = match self.established(now) {
            Ok(established) => established,
            Err(reason) => return self.fail(reason),
        };
        match self.engine.finish() {
            Ok(made) => self.pending += made,
            Err(error) => return self.fail(internal("send early data again", &error)),
        }
        self.state = State::Up;
        self.deadline = None;
        self.resumed = established.resumed;
        self.up = Some(established);
        if self.pending > 0 {
            self.write_out();
        }
    }

    fn established(&self, now: Instant) -> Result<Established, CloseReason> {
        let peer = self.judge()?;
        Ok(Established {
            peer: peer.name,
            serial: peer.serial,
            exporter: self.engine.exporter()?,
            resumed: self.engine.is_resumed(),
            handshake: now.saturating_duration_since(self.began),
        })
    }

    /// Judges the peer by now: its protocol, then its certificate.
    fn judge(&self) -> Result<Peer, CloseReason> {
        if !self.engine.speaks_ours() {
            return Err(CloseReason::WrongProtocol);
        }
        self.verifier.judge(self.engine.peer_chain()).map_err(CloseReason::PeerCertificate)
    }
}
