//! One QUIC connection of either side: `quiche` and the state that makes it a tunnel.
//!
//! ```text
//! Handshaking ──[Early]──> Up ──close()──> Closing ──> Closed
//!      │           │        ├──peer ended──> Leaving ──^   (received units are still read)
//!      └───────────┴────────┴────── any failure ───────^
//! ```
//!
//! The engine owns no socket: datagrams are fed in by [`absorb`](Engine::absorb), and
//! [`settle`](Engine::settle) sends. The handshake's verdicts are in
//! [`handshake`](super::handshake), ends and timeouts in [`life`](super::life).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_identity::{CertificateFault, PeerVerifier};
use polyrail_model::{LinkSample, Unit};
use quiche::{PathEvent, RecvInfo};

use super::cid::{Cid, Mint, random};
use super::egress::{Egress, Flow, Stop};
use super::inbox::Inbox;
use super::meter::{Meter, SizeWatch};
use super::outbox::Outbox;
use super::socket::{Arrival, Udp};
use super::spent::Spent;
use super::tickets::Place;
use super::{PATHS_MAX, context, reason};
use crate::{
    CONTROL_EXCESS, CloseReason, Early, Established, FRAMES_MAX, SocketOptions, TunnelEvent, fault,
};

/// The parts of a new engine.
pub(super) struct Start {
    pub(super) connection: quiche::Connection,
    pub(super) judge: Arc<PeerVerifier>,
    pub(super) peer: SocketAddr,
    pub(super) options: SocketOptions,
    /// The client's tickets for this carrier and address.
    pub(super) tickets: Option<Place>,
    /// The server's maker of connection ids.
    pub(super) mint: Option<Rc<Mint>>,
    /// The server's list of accepted early data.
    pub(super) spent: Option<Rc<RefCell<Spent>>>,
}

/// See the module's drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Handshaking,
    Early,
    Up,
    Closing,
    Leaving,
    Closed,
}

/// A connection without its socket.
pub(super) struct Engine {
    pub(super) connection: quiche::Connection,
    pub(super) judge: Arc<PeerVerifier>,
    pub(super) peer: SocketAddr,
    pub(super) options: SocketOptions,
    pub(super) tickets: Option<Place>,
    pub(super) spent: Option<Rc<RefCell<Spent>>>,
    mint: Option<Rc<Mint>>,
    pub(super) state: State,
    pub(super) began: Instant,
    /// Of the handshake or of an orderly end.
    pub(super) deadline: Option<Instant>,
    /// When the next keep-alive is due, on the client's side.
    pub(super) keepalive_at: Option<Instant>,
    pub(super) outbox: Outbox,
    inbox: Inbox,
    pub(super) egress: Egress,
    pub(super) meter: Meter,
    pub(super) size_watch: SizeWatch,
    /// Events that wait to be polled, and whether units may be received.
    pub(super) early: Option<Early>,
    pub(super) up: Option<Established>,
    pub(super) closed: Option<CloseReason>,
    announced: bool,
    /// Why it ends as soon as all received units are read.
    pub(super) parting: Option<CloseReason>,
    /// Why our verifier rejected the peer in the handshake.
    pub(super) fault: Option<CertificateFault>,
    /// Why early data is refused: sent to the peer after the first flight.
    pub(super) verdict: Option<CertificateFault>,
    /// Whether the last packet is still to be sent.
    pub(super) farewell: bool,
    /// Bytes sent as early data.
    early_sent: usize,
    /// Whether its first flight is a replay.
    pub(super) is_copy: bool,
    pub(super) resumed: bool,
    /// Packets received so far.
    heard: usize,
    /// The longest datagram that passes.
    pub(super) path_mtu: usize,
    /// Ids that the listener must add to and remove from its routes; none on the client's side,
    /// whose socket has only one connection.
    pub(super) new_ids: Vec<Cid>,
    pub(super) old_ids: Vec<Cid>,
}

impl Engine {
    pub(super) fn new(now: Instant, start: Start) -> Self {
        let Start { connection, judge, peer, options, tickets, mint, spent } = start;
        let is_server = connection.is_server();
        let wait = if is_server { options.handshake_timeout } else { options.connect_timeout };
        Self {
            judge,
            peer,
            tickets,
            spent,
            mint,
            state: State::Handshaking,
            began: now,
            deadline: Some(now + wait),
            keepalive_at: None,
            outbox: Outbox::new(is_server),
            inbox: Inbox::new(is_server),
            egress: Egress::new(context::payload_max(peer)),
            meter: Meter::default(),
            size_watch: SizeWatch::default(),
            early: None,
            up: None,
            closed: None,
            announced: false,
            parting: None,
            fault: None,
            verdict: None,
            farewell: false,
            early_sent: 0,
            is_copy: false,
            resumed: false,
            heard: 0,
            path_mtu: quiche::MIN_CLIENT_INITIAL_LEN,
            new_ids: Vec::new(),
            old_ids: Vec::new(),
            options,
            connection,
        }
    }

    /// Feeds datagrams that arrived together.
    pub(super) fn absorb(&mut self, arrival: &Arrival, datagrams: &mut [u8]) {
        let info = RecvInfo { from: arrival.from, to: arrival.to };
        for datagram in datagrams.chunks_mut(arrival.stride) {
            if let Err(error) = self.connection.recv(datagram, info) {
                tracing::trace!(peer = %self.peer, %error, "datagram refused");
            }
        }
    }

    /// Acts on the absorbed datagrams.
    pub(super) fn after_absorb(&mut self, now: Instant) {
        let heard = self.connection.stats().recv;
        if heard > self.heard {
            if self.heard == 0 && self.state == State::Handshaking {
                self.deadline = Some(now + self.options.handshake_timeout);
            }
            self.heard = heard;
            self.egress.refusals = 0;
            let control_stream = self.outbox.control_stream();
            self.meter.on_received(&mut self.connection, control_stream);
            self.check_size(now);
            self.rearm_keepalive(now);
        }
        self.progress(now);
        self.follow_paths();
        self.exchange_ids();
    }

    /// Whether a valid packet of the peer has arrived.
    pub(super) fn was_answered(&self) -> bool {
        self.heard > 0
    }

    /// Follows changes of the peer's address and of the path MTU.
    fn follow_paths(&mut self) {
        let mut crowded = false;
        while let Some(event) = self.connection.path_event_next() {
            match event {
                PathEvent::PmtuUpdated { pmtu, .. } => self.path_mtu = pmtu,
                PathEvent::PeerMigrated(_, peer) => {
                    tracing::info!(from = %self.peer, to = %peer, "the peer's address changed");
                    self.peer = peer;
                    // quiche searches the MTU on a connection's first path only.
                    self.egress.limit_datagrams(self.path_mtu);
                }
                event => {
                    tracing::trace!(peer = %self.peer, ?event, "path");
                    crowded |= matches!(event, PathEvent::New(..));
                }
            }
        }
        if crowded && self.connection.path_stats().count() as u64 >= PATHS_MAX {
            tracing::info!(peer = %self.peer, "address changed too often: closing the connection");
            self.say_goodbye();
        }
    }

    /// Gives the peer spare ids and collects the changes for the listener.
    fn exchange_ids(&mut self) {
        while let Some(id) = self.connection.retired_scid_next() {
            if self.mint.is_some() {
                self.old_ids.extend(Cid::new(&id));
            }
        }
        if !self.connection.is_established() {
            return;
        }
        while self.connection.scids_left() > 0 {
            let (id, token) = match &self.mint {
                Some(mint) => {
                    let id = mint.cid();
                    (id.to_vec(), mint.reset_token(&id))
                }
                None => {
                    let id = random::<{ context::CLIENT_CID_LENGTH }>();
                    (id.to_vec(), u128::from_be_bytes(random()))
                }
            };
            let added = Cid::new(&id);
            if self.connection.new_scid(&quiche::ConnectionId::from_vec(id), token, false).is_err()
            {
                return;
            }
            if self.mint.is_some() {
                self.new_ids.extend(added);
            }
        }
    }

    /// Sends all pending packets, a close notice included.
    pub(super) fn settle(&mut self, udp: &Udp, now: Instant) {
        if self.farewell {
            self.farewell = false;
            self.egress.unblock();
            let _ = self.pump_once(udp, now, true);
        }
        if self.state == State::Closed {
            return;
        }
        if let Err(Stop::Socket(error)) = self.pump_once(udp, now, false) {
            self.on_socket_error(&error);
        }
        if let Some(fault) = self.verdict.take() {
            self.fail(CloseReason::PeerCertificate(fault));
        }
        self.check_refusals();
        // `send` goes on with the handshake, too.
        self.progress(now);
        if self.farewell {
            self.farewell = false;
            let _ = self.pump_once(udp, now, true);
        }
    }

    fn pump_once(&mut self, udp: &Udp, now: Instant, forced: bool) -> Result<(), Stop> {
        let open = !forced && matches!(self.state, State::Early | State::Up | State::Closing);
        let mut flow = Flow {
            connection: &mut self.connection,
            outbox: &mut self.outbox,
            meter: &mut self.meter,
            open,
        };
        let result = self.egress.pump(&mut flow, udp, now, forced);
        if let Some(fault) = fault::take() {
            self.fault = Some(fault);
        }
        result
    }

    pub(super) fn poll_event(&mut self) -> Option<TunnelEvent> {
        if let Some(early) = self.early.take() {
            self.announced = true;
            return Some(TunnelEvent::Early(early));
        }
        if let Some(up) = self.up.take() {
            self.announced = true;
            return Some(TunnelEvent::Up(up));
        }
        self.closed.take().map(TunnelEvent::Closed)
    }

    /// Delivers whole units; returns how many bytes left the streams.
    pub(super) fn hand_out(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        if !self.announced || !matches!(self.state, State::Early | State::Up | State::Leaving) {
            return 0;
        }
        match self.inbox.take(&mut self.connection, HANDED_OUT_MAX, sink) {
            Ok(0) if self.state == State::Leaving => {
                self.leave();
                0
            }
            Ok(taken) => taken,
            Err(bad) => {
                let detail = bad.0.to_owned();
                let _ = self.connection.close(true, reason::BAD_UNITS, b"");
                self.farewell = true;
                self.end(CloseReason::ProtocolError { detail });
                0
            }
        }
    }

    /// Whether units can be delivered.
    pub(super) fn is_readable(&self) -> bool {
        self.announced && self.state != State::Closed && self.connection.is_readable()
    }

    pub(super) fn room(&self) -> usize {
        if self.egress.is_blocked() {
            return 0;
        }
        let taken = self.outbox.waiting() + self.egress.held();
        let room = match self.state {
            State::Up => self.quantum().saturating_sub(taken),
            State::Early => EARLY_MAX.saturating_sub(self.early_sent),
            _ => 0,
        };
        if room < ROOM_MIN { 0 } else { room }
    }

    /// How many bytes may be queued for the path.
    fn quantum(&self) -> usize {
        self.meter.bytes_in(AHEAD).clamp(QUANTUM_MIN, QUANTUM_MAX)
    }

    pub(super) fn send(&mut self, unit: Unit, frames: &[u8], udp: &Udp) {
        if !matches!(self.state, State::Early | State::Up) || frames.is_empty() {
            return;
        }
        debug_assert!(frames.len() <= FRAMES_MAX, "one send is one unit");
        if self.outbox.waiting() + frames.len() > WAITING_MAX {
            let detail = "the caller sent more than the tunnel has room for".to_owned();
            return self.fail(CloseReason::Internal { action: "send".to_owned(), detail });
        }
        if self.state == State::Early {
            self.early_sent += frames.len();
        }
        self.outbox.push(unit, frames);
        if self.outbox.waiting() + ROOM_MIN > self.quantum() {
            self.settle(udp, Instant::now());
        }
    }

    pub(super) fn withdraw(&mut self, tag: u64) {
        if self.state != State::Closed {
            let held = self.egress.held();
            let freed = self.outbox.withdraw(&mut self.connection, tag, held);
            self.egress.on_withdrawn(freed);
        }
    }

    pub(super) fn sample(&mut self, now: Instant) -> Option<LinkSample> {
        if self.state != State::Up {
            return None;
        }
        let unsent = self.outbox.waiting() + self.egress.held();
        self.meter.sample(&self.connection, now, unsent)
    }
}

/// Bytes of units that one call delivers.
const HANDED_OUT_MAX: usize = 256 * 1024;
/// How far ahead of the path's rate the queue is filled.
const AHEAD: Duration = Duration::from_millis(5);
const QUANTUM_MIN: usize = 8 * 1024;
const QUANTUM_MAX: usize = 256 * 1024;
/// The longest queue of a caller that respects the room.
const WAITING_MAX: usize = QUANTUM_MAX + 2 * FRAMES_MAX + CONTROL_EXCESS;
/// The smallest room that is offered: a segment with its header.
const ROOM_MIN: usize = 1_500;
/// Bytes of early data in the first flight: the initial window (RFC 9002 7.2) less the handshake.
const EARLY_MAX: usize = 12_000;
