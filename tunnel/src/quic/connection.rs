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
//! [`handshake`](super::handshake), ends and timeouts in [`ending`](super::ending).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_model::{LinkSample, Unit};
use quiche::{PathEvent, RecvInfo};

use super::admission::Admission;
use super::egress::{Egress, Flow, Stop};
use super::ids::Ids;
use super::inbox::Inbox;
use super::meter::{Meter, SizeWatch};
use super::outbox::Outbox;
use super::pacer::Pacer;
use super::paths::Left;
use super::socket::{Arrival, Departure, Udp};
use super::{PATHS_MAX, context, paths, reason};
use crate::events::Events;
use crate::phase::{TunnelLife, TunnelPhase};
use crate::{CONTROL_EXCESS, CloseReason, FRAMES_MAX, SocketOptions, TunnelDrops};

/// A connection without its socket.
pub(super) struct Engine {
    pub(super) connection: quiche::Connection,
    pub(super) admission: Admission,
    pub(super) peer: SocketAddr,
    pub(super) options: SocketOptions,
    pub(super) ids: Ids,
    pub(super) life: TunnelLife,
    pub(super) events: Events,
    /// When the next keep-alive is due, on the client's side while it is up.
    pub(super) keepalive_at: Option<Instant>,
    pub(super) outbox: Outbox,
    inbox: Inbox,
    pub(super) egress: Egress,
    pub(super) meter: Meter,
    pub(super) size_watch: SizeWatch,
    /// Why it ends as soon as all received units are read.
    pub(super) parting: Option<CloseReason>,
    /// Whether the last packet is still to be sent.
    pub(super) farewell: bool,
    /// Bytes sent as early data.
    early_sent: usize,
    /// Packets declared lost so far.
    lost: usize,
    /// Paths whose packets are to be recalled; see [`recall`](Self::recall).
    pub(super) recalls: Vec<Left>,
    /// Whether the validation of an address has failed.
    has_failed_path: bool,
}

impl Engine {
    pub(super) fn new(
        now: Instant,
        connection: quiche::Connection,
        admission: Admission,
        ids: Ids,
        peer: SocketAddr,
        options: SocketOptions,
    ) -> Self {
        let is_server = connection.is_server();
        let limit = if is_server { options.handshake_timeout } else { options.connect_timeout };
        Self {
            connection,
            admission,
            peer,
            options,
            ids,
            life: TunnelLife::new(now, TunnelPhase::Handshaking, limit),
            events: Events::default(),
            keepalive_at: None,
            outbox: Outbox::new(is_server),
            inbox: Inbox::new(is_server),
            egress: Egress::new(context::payload_max(peer)),
            meter: Meter::default(),
            size_watch: SizeWatch::default(),
            parting: None,
            farewell: false,
            early_sent: 0,
            lost: 0,
            recalls: Vec::new(),
            has_failed_path: false,
        }
    }

    /// Feeds datagrams that arrived together.
    pub(super) fn absorb(&mut self, arrival: &Arrival, datagrams: &mut [u8]) {
        let info = RecvInfo { from: arrival.from, to: arrival.to };
        for datagram in datagrams.chunks_mut(arrival.stride) {
            if self.ids.waits && !self.ids.are_valid_for(datagram, &self.connection) {
                continue;
            }
            // When an address speaks whose validation has failed, no path is active until its next
            // challenge is sent, and another datagram would end the connection.
            if self.has_failed_path && paths::active(&self.connection).is_none() {
                return;
            }
            if let Err(error) = self.connection.recv(datagram, info) {
                tracing::trace!(peer = %self.peer, %error, "datagram refused");
            }
            if let Some(pacer) = &mut self.meter.pacer {
                pacer.on_datagram(&self.connection);
            }
        }
    }

    /// Acts on the absorbed datagrams.
    pub(super) fn after_absorb(&mut self, now: Instant) {
        let was_answered = self.was_answered();
        let control = self.outbox.control_stream();
        if self.meter.on_received(&mut self.connection, control, now) {
            if !was_answered && self.life.phase() == TunnelPhase::Handshaking {
                let deadline = now + self.options.handshake_timeout;
                self.life.enter(TunnelPhase::Handshaking, Some(deadline));
            }
            self.egress.refusals = 0;
            self.egress.acks.on_received(now, self.meter.received_packets);
            self.hurry_after_loss();
            self.check_size(now);
            self.rearm_keepalive(now);
        }
        self.progress(now);
        self.follow_paths();
        let is_announced = self.is_announced();
        self.ids.exchange(&mut self.connection, is_announced);
    }

    /// Lost packets are sent again at once.
    pub(super) fn hurry_after_loss(&mut self) {
        let lost = self.connection.stats().lost;
        if std::mem::replace(&mut self.lost, lost) != lost {
            self.egress.acks.hurry();
        }
    }

    /// Whether a valid packet of the peer has arrived.
    pub(super) fn was_answered(&self) -> bool {
        self.meter.received_packets > 0
    }

    /// Follows changes of the peer's address and of the path MTU.
    pub(super) fn follow_paths(&mut self) {
        let mut crowded = false;
        while let Some(event) = self.connection.path_event_next() {
            match event {
                PathEvent::PmtuUpdated { pmtu, .. } => self.size_watch.mtu = pmtu,
                PathEvent::PeerMigrated(local, peer) => {
                    tracing::debug!(from = %self.peer, to = %peer, "the peer's address changed");
                    let left = std::mem::replace(&mut self.peer, peer);
                    self.recalls.push((local, left));
                    if let Some(pacer) = &mut self.meter.pacer {
                        pacer.on_path_change();
                    }
                    // quiche searches the MTU on a connection's first path only.
                    self.egress.limit_datagrams(self.size_watch.mtu);
                }
                event => {
                    tracing::trace!(peer = %self.peer, ?event, "path");
                    crowded |= matches!(event, PathEvent::New(..));
                    self.has_failed_path |= matches!(event, PathEvent::FailedValidation(..));
                }
            }
        }
        if crowded && self.connection.path_stats().count() as u64 >= PATHS_MAX {
            tracing::debug!(peer = %self.peer, "address changed too often: closing the connection");
            self.say_goodbye();
        }
    }

    /// Sends all pending packets, a close notice included.
    pub(super) fn settle(&mut self, udp: &Udp, now: Instant) {
        if std::mem::take(&mut self.farewell) {
            self.egress.unblock();
            let _ = self.pump_once(udp, now, true);
        }
        if self.life.is_closed() {
            return;
        }
        if let Err(Stop::Socket(error)) = self.pump_once(udp, now, false) {
            self.on_socket_error(&error);
        }
        for left in std::mem::take(&mut self.recalls) {
            self.recall(udp, left);
        }
        if let Some(fault) = self.admission.verdict.take() {
            self.fail(CloseReason::PeerCertificate(fault));
        }
        self.check_refusals();
        // `send` goes on with the handshake, too.
        self.progress(now);
        if std::mem::take(&mut self.farewell) {
            let _ = self.pump_once(udp, now, true);
        }
    }

    /// Sends a ping that counts as sent to an address that the peer has left, but to the present
    /// one. When it is acknowledged, `quiche` takes the packets before it for lost and sends their
    /// contents again; by itself it repeats only the two oldest.
    fn recall(&mut self, udp: &Udp, (local, left): Left) {
        let Some(active) = paths::active(&self.connection) else { return };
        if active.peer_addr == left
            || self.connection.send_ack_eliciting_on_path(local, left).is_err()
        {
            return;
        }
        let mut packet = [0; quiche::MIN_CLIENT_INITIAL_LEN];
        let made = self.connection.send_on_path(&mut packet, Some(local), Some(left));
        if let Ok((length, info)) = made {
            let (from, to, bytes) = (info.from, active.peer_addr, &packet[..length]);
            // If it does not leave, the timer of the left path asks again.
            let _ = udp.send(&Departure { from, to, segment: length, bytes });
        }
    }

    /// The server knows its congestion control when the first packet has arrived.
    pub(super) fn begin_pacing(&mut self, now: Instant) {
        if self.meter.is_fresh() && context::is_unbound(&self.connection) {
            self.meter.pacer.get_or_insert_with(|| Pacer::new(now));
        }
    }

    fn pump_once(&mut self, udp: &Udp, now: Instant, forced: bool) -> Result<(), Stop> {
        self.begin_pacing(now);
        let open = !forced && (self.life.is_open() || self.life.phase() == TunnelPhase::Closing);
        let mut flow = Flow {
            connection: &mut self.connection,
            outbox: &mut self.outbox,
            meter: &mut self.meter,
            open,
        };
        let result = self.egress.pump(&mut flow, udp, now, forced);
        self.admission.keep_fault();
        result
    }

    /// Delivers whole units; returns how many bytes left the streams.
    pub(super) fn hand_out(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let leaving = self.life.phase() == TunnelPhase::Leaving;
        if !self.is_announced() || !(self.life.is_open() || leaving) {
            return 0;
        }
        let result = self.inbox.take(&mut self.connection, HANDED_OUT_MAX, sink);
        // After the greeting that may have arrived with them.
        let datagrams = self.outbox.datagrams.take(&mut self.connection, sink);
        if self.inbox.take_skip() {
            self.egress.acks.hurry();
        }
        match result {
            Ok(0) if leaving && datagrams == 0 => {
                self.leave();
                0
            }
            Ok(taken) => taken + datagrams,
            Err(bad) => {
                let detail = bad.0.to_owned();
                self.end_with(true, reason::BAD_UNITS, CloseReason::ProtocolError { detail });
                0
            }
        }
    }

    /// Whether units can be delivered.
    pub(super) fn is_readable(&self) -> bool {
        self.is_announced() && !self.life.is_closed() && self.connection.is_readable()
    }

    /// Whether the caller knows the peer.
    fn is_announced(&self) -> bool {
        self.events.early_polled || self.events.up_polled
    }

    pub(super) fn room(&self) -> usize {
        if self.egress.is_blocked() {
            return 0;
        }
        let taken = self.outbox.waiting() + self.outbox.datagrams.bytes() + self.egress.held();
        let quantum = self.quantum();
        let (room, least) = match self.life.phase() {
            // Units in groups make long runs of packets.
            TunnelPhase::Up => (quantum.saturating_sub(taken), quantum / 4),
            TunnelPhase::Early => (EARLY_MAX.saturating_sub(self.early_sent), 0),
            _ => (0, 0),
        };
        if room < least.max(ROOM_MIN) { 0 } else { room }
    }

    /// How many bytes may be queued for the path.
    fn quantum(&self) -> usize {
        self.meter.bytes_in(AHEAD).clamp(QUANTUM_MIN, QUANTUM_MAX)
    }

    pub(super) fn send(&mut self, unit: Unit, frames: &[u8], udp: &Udp) {
        debug_assert!(frames.len() <= FRAMES_MAX, "one send is one unit");
        if let Unit::Datagram { expires } = unit {
            let datagrams = &mut self.outbox.datagrams;
            if datagrams.drops.permit(self.life.phase()) {
                datagrams.push(expires, frames);
            }
            return;
        }
        if !self.life.is_open() || frames.is_empty() {
            return;
        }
        if self.outbox.waiting() + frames.len() > WAITING_MAX {
            let detail = "the caller sent more than the tunnel has room for".to_owned();
            return self.fail(CloseReason::Internal { action: "send".to_owned(), detail });
        }
        if self.life.phase() == TunnelPhase::Early {
            self.early_sent += frames.len();
        }
        self.outbox.push(unit, frames);
        if self.outbox.waiting() + ROOM_MIN > self.quantum() {
            self.settle(udp, Instant::now());
        }
    }

    pub(super) fn datagram_drops(&self) -> TunnelDrops {
        self.outbox.datagrams.drops(&self.connection)
    }

    pub(super) fn withdraw(&mut self, tag: u64) {
        if !self.life.is_closed() {
            let held = self.egress.held();
            let freed = self.outbox.withdraw(&mut self.connection, tag, held);
            self.egress.on_withdrawn(freed);
        }
    }

    pub(super) fn sample(&mut self, now: Instant) -> Option<LinkSample> {
        if self.life.phase() != TunnelPhase::Up {
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
