//! One TLS connection as a [`Tunnel`]: received and sent records, and a graceful close. The
//! handshake is in `handshake`, TLS itself in `engine`.
//!
//! Received data is not buffered: `receive` reads the socket into a scratch buffer of the thread,
//! decrypts and delivers at once, so that an idle tunnel holds no large buffer. Frames are
//! encrypted when they are sent and queued, bounded by [`Feed`], until the kernel takes them;
//! `send` flushes when its quantum is full, so that the room is used up only when the kernel takes
//! no more.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use polyrail_identity::PeerVerifier;
use polyrail_model::{LinkSample, TunnelMode, Unit};
use socket2::SockRef;

use super::engine::Engine;
use super::feed::{AMOUNT_MAX, Feed};
use super::reason;
use crate::carrier::{internal, set_congestion};
use crate::kernel::TcpInfo;
use crate::scratch::with_scratch;
use crate::{
    CONTROL_EXCESS, CloseReason, Early, Established, FRAMES_MAX, SocketOptions, Tunnel, TunnelEvent,
};

/// The parts of a new tunnel.
pub(super) struct Start {
    pub(super) socket: TcpStream,
    pub(super) engine: Engine,
    pub(super) verifier: Arc<PeerVerifier>,
    pub(super) peer: SocketAddr,
    pub(super) options: SocketOptions,
}

/// See the drawing at [`Tunnel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Handshaking,
    /// In the handshake, with early data: the client may send it, or the server has received it.
    Early,
    Up,
    Closing,
    Closed,
}

/// A tunnel of TLS 1.3 over TCP.
pub(super) struct TlsTunnel {
    pub(super) socket: TcpStream,
    pub(super) engine: Engine,
    pub(super) verifier: Arc<PeerVerifier>,
    pub(super) peer: SocketAddr,
    pub(super) options: SocketOptions,
    pub(super) state: State,
    pub(super) began: Instant,
    /// Of the connect, the handshake or the orderly end.
    pub(super) deadline: Option<Instant>,
    /// Events that wait to be polled.
    pub(super) early: Option<Early>,
    pub(super) up: Option<Established>,
    closed: Option<CloseReason>,
    /// Whether `Early` and `Up` were polled.
    early_reported: bool,
    reported: bool,
    /// Whether the socket may be readable; readiness is edge-triggered.
    pub(super) readable: bool,
    /// Whether the kernel's buffer was full at the last write.
    blocked: bool,
    /// Bytes of ciphertext from `send` that the kernel has not taken.
    pub(super) pending: usize,
    /// Bytes received in the handshake.
    pub(super) taken: usize,
    feed: Feed,
    pub(super) resumed: bool,
    received: bool,
    /// Whether the peer's close notice arrived with the handshake's last flight.
    pub(super) peer_closed: bool,
    write_ended: bool,
}

impl TlsTunnel {
    /// A tunnel whose socket is being connected.
    pub(super) fn connecting(now: Instant, start: Start) -> Self {
        let deadline = now + start.options.connect_timeout;
        Self::new(now, start, State::Connecting, deadline)
    }

    /// A tunnel whose socket was accepted.
    pub(super) fn accepted(now: Instant, start: Start) -> Self {
        let deadline = now + start.options.handshake_timeout;
        Self::new(now, start, State::Handshaking, deadline)
    }

    fn new(now: Instant, start: Start, state: State, deadline: Instant) -> Self {
        let Start { socket, engine, verifier, peer, options } = start;
        Self {
            socket,
            engine,
            verifier,
            peer,
            options,
            state,
            began: now,
            deadline: Some(deadline),
            early: None,
            up: None,
            closed: None,
            early_reported: false,
            reported: false,
            readable: false,
            blocked: false,
            pending: 0,
            taken: 0,
            feed: Feed::new(),
            resumed: false,
            received: false,
            peer_closed: false,
            write_ended: false,
        }
    }

    /// Sends pending ciphertext until the kernel's buffer is full.
    pub(super) fn write_out(&mut self) {
        while self.engine.wants_write() {
            match self.engine.write_tls(&mut self.socket) {
                Ok(written) => self.pending = self.pending.saturating_sub(written),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.blocked = true;
                        return;
                    }
                    io::ErrorKind::Interrupted => {}
                    _ => return self.fail_writing(&error),
                },
            }
        }
        self.pending = 0;
    }

    /// A write failed: the peer may have sent the reason before it closed.
    fn fail_writing(&mut self, error: &io::Error) {
        let handshaking = self.engine.is_handshaking();
        let sent = self.read_reason(handshaking);
        self.fail(sent.unwrap_or_else(|| reason::of_socket(error, self.peer, handshaking)));
    }

    /// Reads, up to a bound, until the alert or the close notice of the peer.
    fn read_reason(&mut self, handshaking: bool) -> Option<CloseReason> {
        for _ in 0..REASON_READS_MAX {
            if !matches!(self.engine.read_tls(&mut self.socket), Ok(1..)) {
                return None;
            }
            match self.engine.process() {
                Ok(io) if io.peer_has_closed() => return Some(CloseReason::PeerClosed),
                Ok(_) => drop(self.engine.deliver(&mut |_| ())),
                Err(error) => return Some(reason::of_tls(error, handshaking)),
            }
        }
        None
    }

    /// Ends the tunnel and sends the alert of TLS to the peer.
    pub(super) fn fail(&mut self, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        if !self.engine.is_handshaking() {
            // Does nothing after a fatal alert.
            self.engine.send_close_notify();
        }
        while self.engine.wants_write()
            && matches!(self.engine.write_tls(&mut self.socket), Ok(1..))
        {}
        let _ = self.socket.shutdown(Shutdown::Write);
        // Closing with unread bytes would send a reset, which may overtake the alert.
        self.discard_input();
        self.end(reason);
    }

    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        let unanswered = self.resumed && !self.received && reason != CloseReason::Local;
        let refused =
            matches!(reason, CloseReason::ClosedInHandshake | CloseReason::PeerRefused(_));
        if unanswered || (refused && self.engine.tries_early()) {
            // The server may not accept the resumed session any more: a full handshake shows the
            // reason.
            self.engine.forget_tickets();
        }
        self.engine.discard();
        tracing::debug!(peer = %self.peer, state = ?self.state, %reason, "tunnel ended");
        self.state = State::Closed;
        self.deadline = None;
        self.readable = false;
        self.pending = 0;
        self.early = None;
        self.up = None;
        self.closed = Some(reason);
    }

    /// Discards received bytes, up to a bound; true at the end of the stream.
    fn discard_input(&mut self) -> bool {
        with_scratch(|scratch| {
            for _ in 0..DISCARDED_READS_MAX {
                match self.socket.read(scratch) {
                    Ok(0) => return true,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
                }
            }
            false
        })
    }

    /// Continues a graceful close: sends pending bytes, then waits for the peer's end.
    fn continue_closing(&mut self) {
        self.write_out();
        if self.state != State::Closing {
            return;
        }
        if !self.engine.wants_write() && !self.write_ended {
            self.write_ended = true;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        if self.discard_input() {
            self.end(CloseReason::Local);
        }
    }

    /// Decrypts received bytes and delivers them.
    fn decrypt(&mut self, mut wire: &[u8], sink: &mut dyn FnMut(&[u8])) {
        while !wire.is_empty() {
            match self.engine.read_tls(&mut wire) {
                Ok(1..) => {}
                // After the peer's close notice TLS takes no more bytes.
                Ok(0) => return self.fail(CloseReason::PeerClosed),
                Err(error) => return self.fail(internal("take a TLS record", &error)),
            }
            let progress = match self.engine.process() {
                Ok(progress) => progress,
                Err(error) => return self.fail(reason::of_tls(error, false)),
            };
            if progress.plaintext_bytes_to_read() > 0 {
                self.deliver(sink);
            }
            if progress.peer_has_closed() {
                return self.fail(CloseReason::PeerClosed);
            }
        }
    }

    /// Delivers decrypted bytes; returns their number.
    fn deliver(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let total = self.engine.deliver(sink);
        self.received |= total > 0;
        total
    }

    fn on_read_error(&mut self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::WouldBlock => self.readable = false,
            io::ErrorKind::Interrupted => {}
            _ => self.fail(reason::of_socket(error, self.peer, false)),
        }
    }
}

impl Tunnel for TlsTunnel {
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.socket.register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.socket.deregister(registry)
    }

    fn on_ready(&mut self, now: Instant, readable: bool, writable: bool) {
        self.readable |= readable && self.state != State::Closed;
        if writable {
            self.blocked = false;
        }
        match self.state {
            State::Connecting => self.check_connected(now),
            State::Handshaking | State::Early => self.continue_handshake(now),
            State::Up if writable => self.write_out(),
            State::Up | State::Closed => {}
            State::Closing => self.continue_closing(),
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.state {
            State::Connecting => {
                let after = self.options.connect_timeout;
                self.end(CloseReason::ConnectTimedOut { peer: self.peer, after });
            }
            State::Handshaking | State::Early => {
                let after = self.options.handshake_timeout;
                self.fail(CloseReason::HandshakeTimedOut { after });
            }
            State::Closing => self.end(CloseReason::Local),
            State::Up | State::Closed => self.deadline = None,
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    fn poll_event(&mut self) -> Option<TunnelEvent> {
        if let Some(early) = self.early.take() {
            self.early_reported = true;
            return Some(TunnelEvent::Early(early));
        }
        if let Some(established) = self.up.take() {
            self.reported = true;
            return Some(TunnelEvent::Up(established));
        }
        self.closed.take().map(TunnelEvent::Closed)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut early = 0;
        if self.early_reported && matches!(self.state, State::Early | State::Up) {
            early += self.engine.deliver_early(sink);
        }
        if self.state != State::Up || !self.reported {
            return early;
        }
        // Data may have arrived with the last flight of the handshake.
        early += self.deliver(sink);
        if self.peer_closed {
            self.fail(CloseReason::PeerClosed);
        }
        if !self.readable {
            return early;
        }
        with_scratch(|scratch| match self.socket.read(scratch) {
            Ok(0) => {
                self.fail(CloseReason::Cut);
                early
            }
            Ok(read) => {
                self.decrypt(&scratch[..read], sink);
                if self.engine.wants_write() && !self.blocked {
                    self.write_out();
                }
                early + read
            }
            Err(error) => {
                self.on_read_error(&error);
                early
            }
        })
    }

    fn room(&self) -> usize {
        if self.blocked || !matches!(self.state, State::Early | State::Up) {
            return 0;
        }
        let fed = || self.feed.quantum().saturating_sub(self.pending);
        self.engine.early_room().unwrap_or_else(fed)
    }

    fn send(&mut self, _unit: Unit, frames: &[u8]) {
        if !matches!(self.state, State::Early | State::Up) || frames.is_empty() {
            return;
        }
        debug_assert!(frames.len() <= FRAMES_MAX, "one send is one record");
        if self.pending + frames.len() > PENDING_MAX {
            let detail = "more was sent than the tunnel has room for".to_owned();
            return self.fail(CloseReason::Internal { action: "send".to_owned(), detail });
        }
        match self.engine.write(frames) {
            Ok(made) => self.pending += made,
            Err(error) => return self.fail(internal("encrypt a TLS record", &error)),
        }
        if !self.blocked && self.pending + ROOM_MIN > self.feed.quantum() {
            self.write_out();
        }
    }

    fn withdraw(&mut self, _tag: u64) {}

    fn mode(&self) -> TunnelMode {
        TunnelMode::Tls
    }

    fn flush(&mut self, _now: Instant) {
        match self.state {
            State::Early | State::Up if !self.blocked => self.write_out(),
            State::Closing => self.continue_closing(),
            _ => {}
        }
    }

    fn sample(&mut self, now: Instant) -> Option<LinkSample> {
        if self.state != State::Up {
            return None;
        }
        let info = TcpInfo::read(self.socket.as_fd()).ok()?;
        let sample = info.sample(now, self.pending);
        if let Some(lowat) = self.feed.on_sample(&sample) {
            // If the kernel refuses, the old value is still correct.
            let _ = SockRef::from(&self.socket).set_tcp_notsent_lowat(lowat);
        }
        Some(sample)
    }

    fn close(&mut self, now: Instant) {
        match self.state {
            State::Connecting | State::Handshaking => self.end(CloseReason::Local),
            State::Early if self.engine.tries_early() => self.end(CloseReason::Local),
            // The client still receives a server's answer to early data.
            State::Early | State::Up => {
                self.engine.send_close_notify();
                self.state = State::Closing;
                self.deadline = Some(now + CLOSING_TIME);
                self.continue_closing();
            }
            State::Closing | State::Closed => {}
        }
    }

    fn set_congestion(&mut self, name: &str) -> io::Result<()> {
        set_congestion(&SockRef::from(&self.socket), name).map_err(io::Error::other)
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        let address = self.socket.local_addr().ok()?;
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        Some(self.peer)
    }
}

/// The smallest room that is offered: a segment with its header and record.
const ROOM_MIN: usize = 2_048;
/// The maximum of pending bytes of a caller that respects the room.
const PENDING_MAX: usize = AMOUNT_MAX + FRAMES_MAX + CONTROL_EXCESS;
/// How long a graceful close may take.
const CLOSING_TIME: Duration = Duration::from_secs(2);
/// Reads of 4 KiB until the peer's reason.
const REASON_READS_MAX: usize = 64;
/// Discarded reads before the socket is closed, of [`SCRATCH`](crate::scratch::SCRATCH) bytes each.
const DISCARDED_READS_MAX: usize = 16;
