//! Timeouts and the end of a connection.

use std::io;
use std::time::{Duration, Instant};

use super::connection::{Engine, State};
use super::socket::Udp;
use super::{reason, verify};
use crate::CloseReason;
use crate::carrier::connect_failure;

impl Engine {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.state == State::Closed {
            return None;
        }
        let pace = self.egress.due().filter(|_| !self.egress.is_blocked());
        [self.deadline, self.keepalive_at, self.connection.timeout_instant(), pace]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn on_timeout(&mut self, udp: &Udp, now: Instant) {
        if self.state == State::Closed {
            return;
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.on_deadline();
        }
        if self.keepalive_at.is_some_and(|at| now >= at) {
            let _ = self.connection.send_ack_eliciting();
            self.rearm_keepalive(now);
        }
        if self.connection.timeout_instant().is_some_and(|at| now >= at) {
            let timed_out = self.meter.on_timeout(&mut self.connection);
            if timed_out {
                self.egress.on_probe_timeout();
            }
            if timed_out && self.meter.timeouts() == BLACK_HOLE_TIMEOUTS {
                // The MTU may have shrunk: fall back and search again.
                self.connection.revalidate_pmtu();
            }
            self.check_size(now);
        }
        self.progress(now);
        self.settle(udp, now);
    }

    /// Falls back to the minimum datagram size if the current one does not pass.
    pub(super) fn check_size(&mut self, now: Instant) {
        if self.size_watch.is_black_hole(&self.connection.stats(), self.path_mtu, now) {
            self.connection.revalidate_pmtu();
        }
    }

    /// Gives its place at the listener to another handshake.
    pub(super) fn give_way(&mut self, now: Instant) {
        if matches!(self.state, State::Handshaking | State::Early) {
            let after = now.saturating_duration_since(self.began);
            self.fail(CloseReason::HandshakeTimedOut { after });
        }
    }

    fn on_deadline(&mut self) {
        match self.state {
            State::Handshaking | State::Early => {
                let reason = if self.was_answered() {
                    CloseReason::HandshakeTimedOut { after: self.options.handshake_timeout }
                } else {
                    let after = self.options.connect_timeout;
                    CloseReason::ConnectTimedOut { peer: self.peer, after }
                };
                self.fail(reason);
            }
            State::Closing => self.say_goodbye(),
            State::Leaving => self.leave(),
            State::Up | State::Closed => self.deadline = None,
        }
    }

    pub(super) fn rearm_keepalive(&mut self, now: Instant) {
        let wanted = self.state == State::Up && !self.connection.is_server();
        let interval = self.options.keepalive.min(KEEPALIVE_MAX);
        self.keepalive_at = wanted.then(|| now + interval);
    }

    /// Closes: queued units leave first.
    pub(super) fn close(&mut self, now: Instant) {
        match self.state {
            State::Handshaking => {
                let _ = self.connection.close(true, reason::BYE, b"");
                self.farewell = true;
                self.end(CloseReason::Local);
            }
            State::Early | State::Up => {
                self.state = State::Closing;
                self.deadline = Some(now + CLOSING_TIME);
                self.keepalive_at = None;
            }
            State::Leaving => self.leave(),
            State::Closing | State::Closed => {}
        }
    }

    /// Sends the close notice when the peer has acknowledged everything.
    pub(super) fn go_on_closing(&mut self) {
        if self.outbox.waiting() == 0 {
            self.outbox.end(&mut self.connection);
        }
        if self.outbox.is_delivered(&mut self.connection) {
            self.say_goodbye();
        }
    }

    /// Sends the close notice at once.
    pub(super) fn say_goodbye(&mut self) {
        let _ = self.connection.close(true, reason::BYE, b"");
        self.farewell = true;
        self.end(CloseReason::Local);
    }

    /// The caller dropped the tunnel.
    pub(super) fn abandon(&mut self) {
        if self.state != State::Closed {
            let _ = self.connection.close(true, reason::ABANDONED, b"");
            self.farewell = true;
            self.end(CloseReason::Local);
        }
    }

    /// The peer closed it: received units can still be read for a while.
    pub(super) fn depart(&mut self, now: Instant, reason: CloseReason) {
        if self.state == State::Up && self.connection.is_readable() {
            self.state = State::Leaving;
            self.parting = Some(reason);
            self.deadline = Some(now + CLOSING_TIME);
            self.keepalive_at = None;
            return;
        }
        self.end(reason);
    }

    /// All received units are read.
    pub(super) fn leave(&mut self) {
        let reason = self.parting.take().unwrap_or(CloseReason::PeerClosed);
        self.end(reason);
    }

    /// `quiche` ended the connection without an error of either side.
    pub(super) fn on_silent_end(&mut self, now: Instant) {
        let reason = match self.state {
            State::Handshaking | State::Early => {
                let after = now.saturating_duration_since(self.began);
                CloseReason::HandshakeTimedOut { after }
            }
            _ if self.connection.is_timed_out() => CloseReason::TimedOut,
            // A stateless reset (RFC 9000 10.3): the peer has forgotten the connection.
            _ => CloseReason::Reset,
        };
        self.end(reason);
    }

    /// Ends the connection and sends the reason to the peer.
    pub(super) fn fail(&mut self, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        let _ = match &reason {
            CloseReason::PeerCertificate(fault) => {
                self.connection.close(false, verify::close_code_of(fault), b"")
            }
            _ => self.connection.close(true, reason::ABANDONED, b""),
        };
        self.farewell = true;
        self.end(reason);
    }

    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        let refused = matches!(
            reason,
            CloseReason::PeerRefused(_)
                | CloseReason::PeerCertificate(_)
                | CloseReason::ProtocolError { .. }
                | CloseReason::Incompatible { .. }
        );
        if let Some(tickets) = self.tickets.as_mut().filter(|_| refused) {
            // A full handshake shows whether the session was the cause.
            tickets.forget();
        }
        tracing::debug!(peer = %self.peer, state = ?self.state, %reason, "tunnel ended");
        self.state = State::Closed;
        self.deadline = None;
        self.keepalive_at = None;
        self.outbox.clear();
        self.early = None;
        self.up = None;
        self.closed = Some(reason);
    }

    /// A socket error ends a connection that the peer has not answered yet.
    pub(super) fn on_socket_error(&mut self, error: &io::Error) {
        if self.connection.is_server() || self.was_answered() {
            return;
        }
        if self.state == State::Handshaking || self.state == State::Early {
            self.end(connect_failure(error, self.peer, self.options.connect_timeout));
        }
    }

    /// The peer's host reports that no process listens there.
    pub(super) fn check_refusals(&mut self) {
        match self.state {
            State::Handshaking | State::Early
                if self.egress.refusals > 0 && !self.was_answered() =>
            {
                self.end(CloseReason::Refused { peer: self.peer });
            }
            State::Up if self.egress.refusals >= REFUSALS_MAX => self.end(CloseReason::Reset),
            _ => {}
        }
    }
}

/// How long an orderly end may take.
const CLOSING_TIME: Duration = Duration::from_millis(1_500);
/// Short enough for address translators that forget after 30 s.
const KEEPALIVE_MAX: Duration = Duration::from_secs(20);
/// Consecutive timeouts after which the path's MTU is in doubt.
const BLACK_HOLE_TIMEOUTS: u32 = 2;
/// Consecutive refusals that end a connection: a single one may be forged or late.
const REFUSALS_MAX: u32 = 3;
