//! The loop's state: the session's endpoint, the tunnels and the legs, and one turn of them.
//!
//! The daemon's loop: hand every event of the poll to [`Relay::on_event`], keep those that it
//! does not know, then [`Relay::turn`] and [`Relay::poll_event`] until `None`; again while there
//! were events, and then poll for at most [`Relay::timeout`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use polyrail_model::{Bitrate, Identity, TunnelMode};
use polyrail_session::{Endpoint, Event, FlowKey, ResetReason, SessionKey, TunnelKey};
use polyrail_tunnel::{CloseReason, Established, Tunnel};
use slab::Slab;

use crate::farewell::Farewells;
use crate::ledger::{Carried, Ledger};
use crate::leg::{Leg, Outcome};
use crate::tunnels::{Happened, Tunnels};
use crate::{Label, TunnelView};

/// Tokens below this are the daemon's own.
pub const SHELL_TOKENS: usize = 1 << 32;

/// The most that one turn moves between sockets and flows before tunnels have their turn.
pub const TURN_BYTES: usize = 1024 * 1024;

/// How a relay behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelaySettings {
    /// How long a flow lives with one direction ended and nothing moving in the other; default
    /// 10 min. Servers that answer a half-closed request later than that are rare, and peers that
    /// vanished half-closed would stay forever.
    pub half_closed_idle: Duration,
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self { half_closed_idle: Duration::from_secs(600) }
    }
}

/// What the daemon is to know or to act on.
#[derive(Debug)]
pub enum RelayEvent {
    /// What the session says and no leg takes: sessions, paths, dials, alarms, and the flows that
    /// have no leg. [`Event::CloseTunnel`] is not among them.
    Session(Event),
    /// The session uses a tunnel whose handshake goes on; [`RelayEvent::TunnelUp`] follows.
    TunnelEarly {
        /// The tunnel.
        tunnel: TunnelKey,
    },
    /// A tunnel's handshake is over.
    TunnelUp {
        /// The tunnel.
        tunnel: TunnelKey,
        /// What the handshake brought.
        established: Established,
    },
    /// What we send over a QUIC tunnel looks policed, see [`crate::Suspicion`]; told again every
    /// few seconds while it does.
    TunnelPoliced {
        /// The tunnel.
        tunnel: TunnelKey,
        /// What gets through.
        rate: Bitrate,
    },
    /// The session does not want the tunnel; it is being closed.
    TunnelRefused {
        /// The tunnel.
        tunnel: TunnelKey,
        /// Why, for people.
        reason: String,
        /// The peer.
        peer: Option<Identity>,
        /// Where the peer is.
        address: Option<SocketAddr>,
        /// A newer tunnel of its carrier has taken over.
        superseded: bool,
    },
    /// A tunnel is over and forgotten.
    TunnelClosed {
        /// The tunnel.
        tunnel: TunnelKey,
        /// Why.
        reason: CloseReason,
        /// The peer, if the handshake came so far.
        peer: Option<Identity>,
        /// Where the peer is.
        address: Option<SocketAddr>,
    },
}

/// Tunnels, legs and the session between them.
#[derive(Debug)]
pub struct Relay {
    registry: Registry,
    settings: RelaySettings,
    endpoint: Endpoint,
    tunnels: Tunnels,
    legs: Slab<Leg>,
    by_flow: HashMap<FlowKey, usize>,
    /// Legs to be served, each at most once.
    queue: VecDeque<usize>,
    farewells: Farewells,
    ledger: Ledger,
    stock_at: Option<Instant>,
    /// Since when a session is up.
    sessions: BTreeMap<SessionKey, Instant>,
    events: VecDeque<RelayEvent>,
    /// Tunnels to be closed once the session's last words to them are out.
    closing: Vec<TunnelKey>,
    scratch: Box<[u8]>,
    scan_at: Option<Instant>,
}

impl Relay {
    /// A relay for `endpoint` that registers its sockets with `registry`.
    pub fn new(registry: Registry, endpoint: Endpoint, settings: RelaySettings) -> Self {
        Self {
            registry,
            settings,
            endpoint,
            tunnels: Tunnels::default(),
            legs: Slab::new(),
            by_flow: HashMap::new(),
            queue: VecDeque::new(),
            farewells: Farewells::default(),
            ledger: Ledger::default(),
            stock_at: None,
            sessions: BTreeMap::new(),
            events: VecDeque::new(),
            closing: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            scan_at: None,
        }
    }

    /// The session, for flows without legs and for questions. Call [`Relay::turn`] afterwards.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// The session, for questions only.
    pub fn endpoint_ref(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Takes a tunnel in, whatever its state.
    ///
    /// # Errors
    /// The poll refuses its socket.
    pub fn add_tunnel(&mut self, tunnel: Box<dyn Tunnel>, label: Label) -> io::Result<TunnelKey> {
        self.tunnels.add(&self.registry, TUNNEL_TOKENS, tunnel, label)
    }

    /// Ends a tunnel in order; [`RelayEvent::TunnelClosed`] follows.
    pub fn close_tunnel(&mut self, now: Instant, tunnel: TunnelKey) {
        self.tunnels.close(now, tunnel, &mut self.endpoint);
    }

    /// What is known of a tunnel; `None` when it is gone.
    pub fn tunnel(&self, tunnel: TunnelKey) -> Option<TunnelView<'_>> {
        self.tunnels.view(tunnel)
    }

    /// Sets the congestion control of what goes out through a tunnel, by the kernel's name.
    ///
    /// # Errors
    /// The tunnel is gone, or the kernel has no such control or does not allow it.
    pub fn set_congestion(&mut self, tunnel: TunnelKey, name: &str) -> io::Result<()> {
        self.tunnels.set_congestion(tunnel, name)
    }

    /// How many tunnels of a mode have not finished their handshake, early ones included.
    pub fn handshaking(&self, mode: TunnelMode) -> usize {
        self.tunnels.handshaking(mode)
    }

    /// The tunnel of a mode whose handshake has been under way longest.
    pub fn oldest_handshake(&self, mode: TunnelMode) -> Option<TunnelKey> {
        self.tunnels.oldest_handshake(mode)
    }

    /// Drops a tunnel at once if its handshake is under way still, and else ends it in order;
    /// [`RelayEvent::TunnelClosed`] follows.
    pub fn give_up(&mut self, now: Instant, tunnel: TunnelKey) {
        self.tunnels.give_up(now, &self.registry, &mut self.endpoint, tunnel);
    }

    /// How many tunnels of a mode there are.
    pub fn tunnels_of(&self, mode: TunnelMode) -> usize {
        self.tunnels.of_mode(mode)
    }

    /// The tunnels.
    pub fn tunnel_keys(&self) -> Vec<TunnelKey> {
        self.tunnels.keys()
    }

    /// What the paths of each carrier carried since the start, by peer and carrier; as of the last
    /// [`Relay::take_stock`].
    pub fn carried(&self) -> BTreeMap<(Option<Identity>, String), Carried> {
        self.ledger.totals()
    }

    /// Brings [`Relay::carried`] up to date. While the loop turns that happens several times a
    /// second.
    pub fn take_stock(&mut self, now: Instant) {
        self.stock_at = Some(now);
        self.ledger.update(&self.endpoint.status().sessions);
    }

    /// Since when a session is up.
    pub fn session_since(&self, session: SessionKey) -> Option<Instant> {
        self.sessions.get(&session).copied()
    }

    /// How many sockets wait for their peer before they are reset.
    pub fn farewell_count(&self) -> usize {
        self.farewells.len()
    }

    /// How many tunnels there are.
    pub fn tunnel_count(&self) -> usize {
        self.tunnels.len()
    }

    /// How many legs there are.
    pub fn leg_count(&self) -> usize {
        self.legs.len()
    }

    /// Joins a connected socket to a flow. The socket is in no poll, or in this relay's poll under
    /// a token of the daemon's, which it then loses.
    pub fn attach(&mut self, now: Instant, flow: FlowKey, stream: TcpStream) {
        debug_assert!(!self.by_flow.contains_key(&flow), "a flow has one leg");
        let index = self.legs.insert(Leg::new(now, stream, flow));
        let token = Token(LEG_TOKENS + index);
        let both = Interest::READABLE | Interest::WRITABLE;
        let stream = &mut self.legs[index].stream;
        let registered = self
            .registry
            .register(stream, token, both)
            .or_else(|_| self.registry.reregister(stream, token, both));
        self.by_flow.insert(flow, index);
        if let Err(error) = registered {
            tracing::warn!(%error, "a connection cannot be watched");
            return self.fail_leg(now, index, ResetReason::Internal);
        }
        self.enqueue(index);
    }

    /// Takes an event of the poll; false when its token is the daemon's.
    pub fn on_event(&mut self, now: Instant, event: &mio::event::Event) -> bool {
        let token = event.token().0;
        if let Some(index) = token.checked_sub(LEG_TOKENS) {
            if let Some(leg) = self.legs.get_mut(index) {
                leg.on_ready(event);
                self.enqueue(index);
            }
        } else if let Some(key) = token.checked_sub(TUNNEL_TOKENS) {
            let readable = event.is_readable() || event.is_read_closed() || event.is_error();
            let writable = event.is_writable() || event.is_write_closed() || event.is_error();
            self.tunnels.on_ready(now, key, readable, writable);
        } else {
            return false;
        }
        true
    }

    /// A tunnel of a shared socket has something to do: [`Relay::on_event`] for tunnels without a
    /// socket of their own. `token` is what the tunnel was registered with; an unknown one is
    /// ignored.
    pub fn wake(&mut self, now: Instant, token: Token) {
        if token.0 < LEG_TOKENS
            && let Some(key) = token.0.checked_sub(TUNNEL_TOKENS)
        {
            self.tunnels.on_ready(now, key, true, true);
        }
    }

    /// Does what is due: timers, tunnels in, legs, tunnels out.
    pub fn turn(&mut self, now: Instant) {
        self.run_timers(now);
        self.tunnels.settle(now, &self.registry, &mut self.endpoint);
        self.tunnels.receive(now, &mut self.endpoint);
        self.tunnels.settle(now, &self.registry, &mut self.endpoint);
        self.take_session_events(now);
        self.serve_legs(now);
        self.tunnels.transmit(now, &self.registry, &mut self.endpoint);
        self.take_session_events(now);
        let closing = std::mem::take(&mut self.closing);
        self.tunnels.dismiss(now, &self.registry, &mut self.endpoint, &closing);
        self.tunnels.settle(now, &self.registry, &mut self.endpoint);
        self.take_session_events(now);
        self.report_tunnels();
        let due = |at: Instant| now.saturating_duration_since(at) >= STOCK_EVERY;
        if self.stock_at.is_none_or(due) {
            self.take_stock(now);
        }
    }

    /// What happened, in order.
    pub fn poll_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    /// How long the poll may sleep; `None`: until an event.
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        if !self.queue.is_empty() || !self.events.is_empty() || self.tunnels.has_work() {
            return Some(Duration::ZERO);
        }
        let timers = [
            self.endpoint.next_timeout(),
            self.tunnels.next_timeout(),
            self.farewells.next_timeout(),
            self.scan_at,
        ];
        timers.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    fn run_timers(&mut self, now: Instant) {
        self.tunnels.on_timeout(now, &mut self.endpoint);
        if self.endpoint.next_timeout().is_some_and(|at| at <= now) {
            self.endpoint.on_timeout(now);
        }
        self.farewells.on_timeout(now);
        if self.scan_at.is_some_and(|at| at <= now) {
            self.scan(now);
        }
    }

    fn enqueue(&mut self, index: usize) {
        if let Some(leg) = self.legs.get_mut(index)
            && !std::mem::replace(&mut leg.queued, true)
        {
            self.queue.push_back(index);
        }
    }

    /// Serves the legs in the queue in turn, until the turn's bound.
    fn serve_legs(&mut self, now: Instant) {
        let mut moved = 0;
        let mut visits = 0;
        while moved < TURN_BYTES
            && visits < TURN_VISITS
            && let Some(index) = self.queue.pop_front()
        {
            visits += 1;
            let Some(leg) = self.legs.get_mut(index) else { continue };
            leg.queued = false;
            match leg.serve(now, &mut self.endpoint, &mut self.scratch, &mut moved) {
                Outcome::Waits => {
                    if leg.is_half_closed() {
                        self.scan_at.get_or_insert(now + self.scan_every());
                    }
                }
                Outcome::HasMore => self.enqueue(index),
                Outcome::Done => self.end_leg(index),
                Outcome::Failed(reason) => self.fail_leg(now, index, reason),
            }
        }
    }

    fn take_session_events(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            let leg = match &event {
                Event::Readable { flow }
                | Event::Writable { flow }
                | Event::Reset { flow, .. }
                | Event::Closed { flow } => self.by_flow.get(flow).copied(),
                _ => None,
            };
            match &event {
                Event::SessionUp { session, .. } => drop(self.sessions.insert(*session, now)),
                Event::SessionEnded { session, .. } => drop(self.sessions.remove(session)),
                _ => {}
            }
            match (event, leg) {
                (Event::Readable { .. }, Some(leg)) => {
                    self.legs[leg].told = true;
                    self.enqueue(leg);
                }
                (Event::Writable { .. }, Some(leg)) => self.enqueue(leg),
                (Event::Reset { .. }, Some(leg)) => {
                    if let Some(leg) = self.remove_leg(leg) {
                        self.farewells.add(now, leg.stream);
                    }
                }
                (Event::Closed { .. }, Some(leg)) => self.end_leg(leg),
                (Event::CloseTunnel { tunnel, reason, superseded }, _) => {
                    let view = self.tunnels.view(tunnel);
                    let peer = view.and_then(|view| view.peer.cloned());
                    let address = view.and_then(|view| view.address);
                    self.closing.push(tunnel);
                    self.events.push_back(RelayEvent::TunnelRefused {
                        tunnel,
                        reason,
                        peer,
                        address,
                        superseded,
                    });
                }
                (event, _) => self.events.push_back(RelayEvent::Session(event)),
            }
        }
    }

    fn report_tunnels(&mut self) {
        for happened in self.tunnels.take_happened() {
            self.events.push_back(match happened {
                Happened::Early(tunnel) => RelayEvent::TunnelEarly { tunnel },
                Happened::Policed(tunnel, rate) => RelayEvent::TunnelPoliced { tunnel, rate },
                Happened::Up(tunnel, established) => RelayEvent::TunnelUp { tunnel, established },
                Happened::Closed { key: tunnel, reason, peer, address } => {
                    RelayEvent::TunnelClosed { tunnel, reason, peer, address }
                }
            });
        }
    }

    /// Resets every flow that has a leg, on both sides of it: the daemon ends.
    pub fn abort_all(&mut self, now: Instant) {
        let all: Vec<usize> = self.legs.iter().map(|(index, _)| index).collect();
        for index in all {
            self.fail_leg(now, index, ResetReason::SessionLost);
        }
    }

    /// Ends every tunnel in order.
    pub fn close_all(&mut self, now: Instant) {
        for key in self.tunnels.keys() {
            self.tunnels.close(now, key, &mut self.endpoint);
        }
    }

    fn fail_leg(&mut self, now: Instant, index: usize, reason: ResetReason) {
        if let Some(leg) = self.remove_leg(index) {
            self.endpoint.reset(now, leg.flow, reason);
            crate::reset_socket(leg.stream);
        }
    }

    fn end_leg(&mut self, index: usize) {
        if let Some(leg) = self.remove_leg(index) {
            leg.close_in_order();
        }
    }

    fn remove_leg(&mut self, index: usize) -> Option<Leg> {
        let mut leg = self.legs.try_remove(index)?;
        self.by_flow.remove(&leg.flow);
        // It fails only for a socket that the poll does not know.
        let _ = self.registry.deregister(&mut leg.stream);
        Some(leg)
    }

    /// Resets half-closed flows on which nothing moved for too long.
    fn scan(&mut self, now: Instant) {
        let limit = self.settings.half_closed_idle;
        let mut waiting = false;
        let mut over = Vec::new();
        for (index, leg) in self.legs.iter().filter(|(_, leg)| leg.is_half_closed()) {
            if now.saturating_duration_since(leg.moved_at) >= limit {
                over.push(index);
            } else {
                waiting = true;
            }
        }
        for index in over {
            self.fail_leg(now, index, ResetReason::Idle);
        }
        self.scan_at = waiting.then(|| now + self.scan_every());
    }

    fn scan_every(&self) -> Duration {
        (self.settings.half_closed_idle / 8).clamp(SCAN_MIN, SCAN_MAX)
    }
}

/// Tunnels' tokens: this plus the key.
const TUNNEL_TOKENS: usize = SHELL_TOKENS;
/// Legs' tokens: this plus the index.
const LEG_TOKENS: usize = 1 << 48;
/// What is read from a socket at a time.
const SCRATCH_BYTES: usize = 128 * 1024;
/// Legs that are served in one turn at most.
const TURN_VISITS: usize = 1024;
/// How often it is noted what paths carry, while the loop turns.
const STOCK_EVERY: Duration = Duration::from_millis(250);
/// Bounds of the interval between scans for idle flows.
const SCAN_MIN: Duration = Duration::from_millis(50);
const SCAN_MAX: Duration = Duration::from_secs(30);
