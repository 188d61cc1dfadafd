//! One TLS connection as a [`Tunnel`]: received and sent records, and a graceful close. The
//! handshake is in `handshake`, TLS itself in `engine`.
//!
//! Received data is not buffered: `receive` reads the socket into a scratch buffer of the thread,
//! decrypts and delivers at once, so that an idle tunnel holds no large buffer. Frames are
//! encrypted when they are sent and queued, bounded by [`Queue`], until the kernel takes them;
//! `send` flushes when its quantum is full, so that the room is used up only when the kernel takes
//! no more.

use std::collections::VecDeque;
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
use super::queue::Queue;
use super::reason;
use crate::carrier::{internal, set_congestion};
use crate::events::Events;
use crate::kernel::TcpInfo;
use crate::phase::{TunnelLife, TunnelPhase};
use crate::scratch::with_scratch;
use crate::{CloseReason, FRAMES_MAX, Parcel, SocketOptions, Tunnel, TunnelDrops, TunnelEvent};

/// The parts of a new tunnel.
pub(super) struct Start {
    pub(super) socket: TcpStream,
    pub(super) engine: Engine,
    pub(super) verifier: Arc<PeerVerifier>,
    pub(super) peer: SocketAddr,
    pub(super) options: SocketOptions,
}

/// A tunnel of TLS 1.3 over TCP.
pub(super) struct TlsTunnel {
    pub(super) socket: TcpStream,
    pub(super) engine: Engine,
    pub(super) verifier: Arc<PeerVerifier>,
    pub(super) peer: SocketAddr,
    pub(super) options: SocketOptions,
    pub(super) life: TunnelLife,
    pub(super) events: Events,
    pub(super) queue: Queue,
    /// Datagrams that wait until few bytes are before them, and until when they are of use.
    datagrams: VecDeque<(Instant, Vec<u8>)>,
    drops: TunnelDrops,
    /// Whether the socket may be readable; readiness is edge-triggered.
    pub(super) readable: bool,
    /// Whether the kernel's buffer was full at the last write.
    blocked: bool,
    /// Bytes received in the handshake.
    pub(super) taken: usize,
    /// Whether the server has not answered a resumed session yet.
    pub(super) unanswered: bool,
    /// Whether the peer's close notice arrived with the handshake's last flight.
    pub(super) peer_closed: bool,
    write_ended: bool,
}

impl TlsTunnel {
    /// A tunnel whose socket is being connected, or was accepted and begins the handshake.
    pub(super) fn new(now: Instant, phase: TunnelPhase, start: Start) -> Self {
        let Start { socket, engine, verifier, peer, options } = start;
        let connecting = phase == TunnelPhase::Connecting;
        let limit = if connecting { options.connect_timeout } else { options.handshake_timeout };
        Self {
            socket,
            engine,
            verifier,
            peer,
            options,
            life: TunnelLife::new(now, phase, limit),
            events: Events::default(),
            queue: Queue::default(),
            datagrams: VecDeque::new(),
            drops: TunnelDrops::default(),
            readable: false,
            blocked: false,
            taken: 0,
            unanswered: false,
            peer_closed: false,
            write_ended: false,
        }
    }

    /// Sends pending ciphertext until the kernel's buffer is full.
    pub(super) fn write_out(&mut self) {
        while self.engine.wants_write() {
            match self.engine.write_tls(&mut self.socket) {
                Ok(written) => self.queue.remove(written),
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
        self.queue.pending = 0;
    }

    fn write_record(&mut self, frames: &[u8]) {
        debug_assert!(frames.len() <= FRAMES_MAX, "one send is one record");
        if !self.queue.accepts(frames.len()) {
            let detail = "more was sent than the tunnel has room for".to_owned();
            return self.fail(CloseReason::Internal { action: "send".to_owned(), detail });
        }
        match self.engine.write(frames) {
            Ok(made) => self.queue.pending += made,
            Err(error) => return self.fail(internal("encrypt a TLS record", &error)),
        }
        if !self.blocked && self.queue.is_full() {
            self.write_out();
        }
    }

    /// Sends datagrams that waited, as long as few bytes are before them.
    fn write_datagrams(&mut self, now: Instant) {
        while self.queue.pending <= DATAGRAM_PENDING_MAX
            && let Some((expires, frames)) = self.datagrams.pop_front()
        {
            if now < expires {
                self.write_record(&frames);
            } else {
                self.drops.expired += 1;
            }
        }
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
        if self.life.is_closed() {
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
        if self.life.is_closed() {
            return;
        }
        let unanswered = self.unanswered && reason != CloseReason::Local;
        let refused =
            matches!(reason, CloseReason::ClosedInHandshake | CloseReason::PeerRefused(_));
        if unanswered || (refused && self.engine.tries_early()) {
            // The server may not accept the resumed session any more: a full handshake shows the
            // reason.
            self.engine.forget_tickets();
        }
        self.engine.discard();
        tracing::debug!(peer = %self.peer, state = ?self.life.phase(), %reason, "tunnel ended");
        self.life.enter(TunnelPhase::Closed, None);
        self.readable = false;
        self.queue.pending = 0;
        self.drops.ended += std::mem::take(&mut self.datagrams).len() as u64;
        self.events.push(TunnelEvent::Closed(reason));
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
        if self.life.phase() != TunnelPhase::Closing {
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
        self.unanswered &= total == 0;
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
        self.readable |= readable && !self.life.is_closed();
        if writable {
            self.blocked = false;
        }
        match self.life.phase() {
            TunnelPhase::Connecting => self.check_connected(now),
            TunnelPhase::Handshaking | TunnelPhase::Early => self.continue_handshake(now),
            TunnelPhase::Up if writable => self.write_out(),
            TunnelPhase::Closing => self.continue_closing(),
            TunnelPhase::Up | TunnelPhase::Leaving | TunnelPhase::Closed => {}
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.life.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.life.phase() {
            TunnelPhase::Connecting => {
                let after = self.options.connect_timeout;
                self.end(CloseReason::ConnectTimedOut { peer: self.peer, after });
            }
            TunnelPhase::Handshaking | TunnelPhase::Early => {
                let after = self.options.handshake_timeout;
                self.fail(CloseReason::HandshakeTimedOut { after });
            }
            TunnelPhase::Closing => self.end(CloseReason::Local),
            TunnelPhase::Up | TunnelPhase::Leaving | TunnelPhase::Closed => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.life.deadline()
    }

    fn poll_event(&mut self) -> Option<TunnelEvent> {
        self.events.poll()
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut early = 0;
        if self.events.early_polled && self.life.is_open() {
            early += self.engine.deliver_early(sink);
        }
        if self.life.phase() != TunnelPhase::Up || !self.events.up_polled {
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
        if self.blocked || !self.life.is_open() {
            return 0;
        }
        // Further data would keep those before the datagrams from becoming few.
        if !self.datagrams.is_empty() {
            return 0;
        }
        self.engine.early_room().unwrap_or_else(|| self.queue.room())
    }

    fn send(&mut self, unit: Unit, frames: &[u8]) {
        if let Unit::Datagram { expires } = unit {
            if !self.drops.permit(self.life.phase()) {
                return;
            }
            if self.queue.pending > DATAGRAM_PENDING_MAX {
                if self.datagrams.len() >= DATAGRAMS_MAX {
                    self.datagrams.pop_front();
                    self.drops.queue += 1;
                }
                return self.datagrams.push_back((expires, frames.to_vec()));
            }
        }
        if self.life.is_open() && !frames.is_empty() {
            self.write_record(frames);
        }
    }

    fn withdraw(&mut self, _tag: u64) {}

    fn mode(&self) -> TunnelMode {
        TunnelMode::Tls
    }

    fn flush(&mut self, now: Instant) {
        match self.life.phase() {
            TunnelPhase::Early | TunnelPhase::Up if !self.blocked => {
                self.write_out();
                while !self.blocked && !self.datagrams.is_empty() && self.life.is_open() {
                    self.write_datagrams(now);
                    self.write_out();
                }
            }
            TunnelPhase::Closing => self.continue_closing(),
            _ => {}
        }
    }

    fn sample(&mut self, now: Instant) -> Option<LinkSample> {
        if self.life.phase() != TunnelPhase::Up {
            return None;
        }
        let info = TcpInfo::read(self.socket.as_fd()).ok()?;
        let sample = info.sample(now, self.queue.pending);
        if let Some(rate) = sample.delivery_rate
            && let Some(lowat) = self.queue.on_rate(now, rate, sample.application_limited)
        {
            // If the kernel refuses, the old value is still correct.
            let _ = SockRef::from(&self.socket).set_tcp_notsent_lowat(lowat);
        }
        Some(sample)
    }

    fn close(&mut self, now: Instant) {
        match self.life.phase() {
            TunnelPhase::Connecting | TunnelPhase::Handshaking => self.end(CloseReason::Local),
            TunnelPhase::Early if self.engine.tries_early() => self.end(CloseReason::Local),
            // The client still receives a server's answer to early data.
            TunnelPhase::Early | TunnelPhase::Up => {
                self.engine.send_close_notify();
                self.life.enter(TunnelPhase::Closing, Some(now + CLOSING_TIME));
                self.continue_closing();
            }
            TunnelPhase::Closing | TunnelPhase::Leaving | TunnelPhase::Closed => {}
        }
    }

    fn set_congestion(&mut self, name: &str) -> io::Result<()> {
        set_congestion(&SockRef::from(&self.socket), name).map_err(io::Error::other)
    }

    fn pack(self: Box<Self>, _worker: usize) -> Option<Parcel> {
        Some(Parcel::Whole(self))
    }

    fn datagram_drops(&self) -> TunnelDrops {
        self.drops
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        let address = self.socket.local_addr().ok()?;
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        Some(self.peer)
    }
}

/// Bytes of ciphertext that may be before a datagram.
const DATAGRAM_PENDING_MAX: usize = 4_096;
/// Datagrams that wait.
const DATAGRAMS_MAX: usize = 64;
/// How long a graceful close may take.
const CLOSING_TIME: Duration = Duration::from_secs(2);
/// Reads of 4 KiB until the peer's reason.
const REASON_READS_MAX: usize = 64;
/// Discarded reads before the socket is closed, of [`SCRATCH`](crate::scratch::SCRATCH) bytes each.
const DISCARDED_READS_MAX: usize = 16;
