//! Timeouts and the end of a connection.

use std::io;
use std::time::{Duration, Instant};

use super::connection::Engine;
use super::socket::Udp;
use super::{paths, reason, verify};
use crate::carrier::connect_failure;
use crate::phase::TunnelPhase;
use crate::{CloseReason, TunnelEvent};

impl Engine {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.life.is_closed() {
            return None;
        }
        let pace = self.egress.due().filter(|_| !self.egress.is_blocked());
        [self.life.deadline(), self.keepalive_at, self.connection.timeout_instant(), pace]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn on_timeout(&mut self, udp: &Udp, now: Instant) {
        if self.life.is_closed() {
            return;
        }
        if self.life.deadline().is_some_and(|deadline| now >= deadline) {
            self.on_deadline();
        }
        if self.keepalive_at.is_some_and(|at| now >= at) {
            let _ = self.connection.send_ack_eliciting();
            self.rearm_keepalive(now);
        }
        if self.connection.timeout_instant().is_some_and(|at| now >= at) {
            let before = paths::left(&self.connection);
            let timed_out = self.meter.on_timeout(&mut self.connection);
            if timed_out {
                self.egress.on_probe_timeout();
            }
            for (left, timeouts) in paths::left(&self.connection) {
                let fired = before.iter().any(|(path, count)| *path == left && *count < timeouts);
                self.recalls.extend(fired.then_some(left));
            }
            self.follow_paths();
            self.hurry_after_loss();
            self.check_size(now);
        }
        self.progress(now);
        self.settle(udp, now);
    }

    /// Falls back to the minimum datagram size if the current one does not pass.
    pub(super) fn check_size(&mut self, now: Instant) {
        if self.size_watch.is_black_hole(&self.connection.stats(), now) {
            self.connection.revalidate_pmtu();
        }
    }

    /// Gives its place at the listener to another handshake.
    pub(super) fn give_way(&mut self, now: Instant) {
        if self.life.is_handshaking() {
            self.fail(CloseReason::HandshakeTimedOut { after: self.life.age(now) });
        }
    }

    fn on_deadline(&mut self) {
        match self.life.phase() {
            TunnelPhase::Handshaking | TunnelPhase::Early => {
                let reason = if self.was_answered() {
                    CloseReason::HandshakeTimedOut { after: self.options.handshake_timeout }
                } else {
                    let after = self.options.connect_timeout;
                    CloseReason::ConnectTimedOut { peer: self.peer, after }
                };
                self.fail(reason);
            }
            TunnelPhase::Closing => self.say_goodbye(),
            TunnelPhase::Leaving => self.leave(),
            TunnelPhase::Connecting | TunnelPhase::Up | TunnelPhase::Closed => {}
        }
    }

    pub(super) fn rearm_keepalive(&mut self, now: Instant) {
        let wanted = self.life.phase() == TunnelPhase::Up && !self.connection.is_server();
        let interval = self.options.keepalive.min(KEEPALIVE_MAX);
        self.keepalive_at = wanted.then(|| now + interval);
    }

    /// Closes: queued units leave first.
    pub(super) fn close(&mut self, now: Instant) {
        match self.life.phase() {
            TunnelPhase::Handshaking => self.say_goodbye(),
            TunnelPhase::Early | TunnelPhase::Up => {
                self.life.enter(TunnelPhase::Closing, Some(now + CLOSING_TIME));
                self.keepalive_at = None;
            }
            TunnelPhase::Leaving => self.leave(),
            TunnelPhase::Connecting | TunnelPhase::Closing | TunnelPhase::Closed => {}
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
        self.end_with(true, reason::BYE, CloseReason::Local);
    }

    /// The caller dropped the tunnel.
    pub(super) fn abandon(&mut self) {
        self.end_with(true, reason::ABANDONED, CloseReason::Local);
    }

    /// The peer closed it: received units can still be read for a while.
    pub(super) fn depart(&mut self, now: Instant, reason: CloseReason) {
        if self.life.phase() == TunnelPhase::Up && self.connection.is_readable() {
            self.life.enter(TunnelPhase::Leaving, Some(now + CLOSING_TIME));
            self.parting = Some(reason);
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
        self.end(if self.life.is_handshaking() {
            CloseReason::HandshakeTimedOut { after: self.life.age(now) }
        } else if self.connection.is_timed_out() {
            CloseReason::TimedOut
        } else {
            // A stateless reset (RFC 9000 10.3): the peer has forgotten the connection.
            CloseReason::Reset
        });
    }

    /// Ends the connection and sends the reason to the peer.
    pub(super) fn fail(&mut self, reason: CloseReason) {
        match &reason {
            CloseReason::PeerCertificate(fault) => {
                self.end_with(false, verify::close_code_of(fault), reason);
            }
            _ => self.end_with(true, reason::ABANDONED, reason),
        }
    }

    /// Ends the connection; the close notice has this code, of QUIC or of the application.
    pub(super) fn end_with(&mut self, application: bool, code: u64, reason: CloseReason) {
        if !self.life.is_closed() {
            let _ = self.connection.close(application, code, b"");
            self.farewell = true;
            self.end(reason);
        }
    }

    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.life.is_closed() {
            return;
        }
        let refused = matches!(
            reason,
            CloseReason::PeerRefused(_)
                | CloseReason::PeerCertificate(_)
                | CloseReason::ProtocolError { .. }
                | CloseReason::Incompatible { .. }
        );
        if refused {
            self.admission.forget_ticket();
        }
        tracing::debug!(peer = %self.peer, state = ?self.life.phase(), %reason, "tunnel ended");
        self.life.enter(TunnelPhase::Closed, None);
        self.keepalive_at = None;
        self.outbox.clear();
        self.outbox.datagrams.end(&self.connection);
        self.events.push(TunnelEvent::Closed(reason));
    }

    /// A socket error ends a connection that the peer has not answered yet.
    pub(super) fn on_socket_error(&mut self, error: &io::Error) {
        if self.connection.is_server() || self.was_answered() {
            return;
        }
        if self.life.is_handshaking() {
            self.end(connect_failure(error, self.peer, self.options.connect_timeout));
        }
    }

    /// The peer's host reports that no process listens there.
    pub(super) fn check_refusals(&mut self) {
        match self.life.phase() {
            TunnelPhase::Handshaking | TunnelPhase::Early
                if self.egress.refusals > 0 && !self.was_answered() =>
            {
                self.end(CloseReason::Refused { peer: self.peer });
            }
            TunnelPhase::Up if self.egress.refusals >= REFUSALS_MAX => self.end(CloseReason::Reset),
            _ => {}
        }
    }
}

/// How long an orderly end may take.
const CLOSING_TIME: Duration = Duration::from_millis(1_500);
/// Short enough for address translators that forget after 30 s.
const KEEPALIVE_MAX: Duration = Duration::from_secs(20);
/// Consecutive refusals that end a connection: a single one may be forged or late.
const REFUSALS_MAX: u32 = 3;
