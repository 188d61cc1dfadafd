//! The loop's state: the session's endpoint, the tunnels and the legs, and one turn of them.
//!
//! A daemon's loop passes every event of the poll to [`Relay::on_event`] and handles those that the
//! relay does not know. Then it calls [`Relay::turn`] and drains [`Relay::poll_event`], again while
//! there were events, and polls for at most [`Relay::timeout`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use polyrail_model::{Bytes, FlowId, FlowKind, FlowName, Identity, PathWish, TunnelMode};
use polyrail_session::{Endpoint, Event, FlowKey, FlowPhase, ResetReason, SessionKey, TunnelKey};
use polyrail_tunnel::{Tunnel, TunnelDrops, TunnelEvent};
use slab::Slab;

use crate::leg::{Leg, Served};
use crate::leg_buffers::LegBuffers;
use crate::pending_reset::PendingResets;
use crate::traffic::{Traffic, TrafficTotals};
use crate::tunnels::Tunnels;
use crate::{Label, RelayEvent, TunnelView, TurnTimes, Workers};

/// Tokens below this belong to the daemon.
pub const SHELL_TOKENS: usize = 1 << 32;

/// The maximum number of bytes that one turn moves between sockets and flows before it serves
/// tunnels.
pub const TURN_BYTES: usize = 1024 * 1024;

/// Settings of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelaySettings {
    /// How long a half-closed flow may be idle; default 10 min. Servers rarely answer a half-closed
    /// request later, and without a limit flows of vanished peers would stay forever.
    pub half_closed_idle: Duration,
    /// How long any flow may be idle; default 2 h 4 min, the least that RFC 5382 REQ-5 permits.
    /// Without a limit, idle flows would stay for as long as their devices answer keep-alives.
    pub idle: Duration,
    /// The budget of the kernel's receive buffers of one session's legs, beyond the size that each
    /// begins with; default 16 MiB, as the session's memory.
    pub buffers: Bytes,
}

impl Default for RelaySettings {
    fn default() -> Self {
        let idle = Duration::from_secs(124 * 60);
        let buffers = Bytes::from_mib(16);
        Self { half_closed_idle: Duration::from_secs(600), idle, buffers }
    }
}

/// Tunnels, legs and the session between them.
#[derive(Debug)]
pub struct Relay {
    registry: Registry,
    settings: RelaySettings,
    endpoint: Endpoint,
    tunnels: Tunnels,
    legs: Slab<Leg>,
    buffers: LegBuffers,
    by_flow: HashMap<FlowKey, usize>,
    /// Legs to serve, each at most once.
    queue: VecDeque<usize>,
    /// Bytes moved between sockets and flows since the start.
    moved_bytes: u64,
    turn_times: TurnTimes,
    pending_resets: PendingResets,
    traffic: TrafficTotals,
    traffic_at: Option<Instant>,
    /// When each session came up.
    sessions: BTreeMap<SessionKey, Instant>,
    events: VecDeque<RelayEvent>,
    /// Tunnels to close once the session's last frames for them are sent.
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
            buffers: LegBuffers::default(),
            by_flow: HashMap::new(),
            queue: VecDeque::new(),
            moved_bytes: 0,
            turn_times: TurnTimes::default(),
            pending_resets: PendingResets::default(),
            traffic: TrafficTotals::default(),
            traffic_at: None,
            sessions: BTreeMap::new(),
            events: VecDeque::new(),
            closing: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            scan_at: None,
        }
    }

    /// The session. Call [`Relay::turn`] after a change.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// The session, for reading.
    pub fn endpoint_ref(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Adds a tunnel in any state.
    ///
    /// # Errors
    /// The poll refuses the tunnel's socket.
    pub fn add_tunnel(&mut self, tunnel: Box<dyn Tunnel>, label: Label) -> io::Result<TunnelKey> {
        self.tunnels.add(&self.registry, TUNNEL_TOKENS, tunnel, label)
    }

    /// This relay is that of one of several workers: tunnels of peers that another one owns leave
    /// it by [`RelayEvent::TunnelMoves`].
    pub fn set_workers(&mut self, workers: Workers) {
        self.tunnels.set_workers(workers);
    }

    /// Closes tunnels of peers that no other worker owns, from now on: this one has shut down.
    pub fn refuse_own(&mut self) {
        self.tunnels.refuse_own();
    }

    /// Adds a tunnel that has moved from another worker's relay, and acts on its event. `begun` is
    /// when it was added there.
    ///
    /// # Errors
    /// The poll refuses the tunnel's socket.
    pub fn take_in(
        &mut self,
        now: Instant,
        tunnel: Box<dyn Tunnel>,
        event: TunnelEvent,
        begun: Instant,
    ) -> io::Result<TunnelKey> {
        let key = self.add_tunnel(tunnel, Label::default())?;
        self.tunnels.welcome(now, &mut self.endpoint, key, event, begun);
        Ok(key)
    }

    /// The operator wants the paths of a carrier used in another way (gateway).
    pub fn set_wish(&mut self, now: Instant, carrier: &str, wish: PathWish) {
        self.tunnels.set_wish(carrier, wish);
        self.endpoint.set_wish(now, carrier, wish);
    }

    /// Closes a tunnel gracefully; [`RelayEvent::TunnelClosed`] follows.
    pub fn close_tunnel(&mut self, now: Instant, tunnel: TunnelKey) {
        self.tunnels.close(now, tunnel, &mut self.endpoint);
    }

    /// The state of a tunnel; `None` if it is removed.
    pub fn tunnel(&self, tunnel: TunnelKey) -> Option<TunnelView<'_>> {
        self.tunnels.view(tunnel)
    }

    /// Sets the congestion control of a tunnel's sending direction, by the kernel's name.
    ///
    /// # Errors
    /// The tunnel is removed, or the kernel lacks the congestion control or does not permit it.
    pub fn set_congestion(&mut self, tunnel: TunnelKey, name: &str) -> io::Result<()> {
        self.tunnels.set_congestion(tunnel, name)
    }

    /// The number of tunnels of a mode in their handshake, including those in early data.
    pub fn handshaking(&self, mode: TunnelMode) -> usize {
        self.tunnels.handshaking(mode)
    }

    /// The tunnel of a mode with the oldest unfinished handshake.
    pub fn oldest_handshake(&self, mode: TunnelMode) -> Option<TunnelKey> {
        self.tunnels.oldest_handshake(mode)
    }

    /// The number of unfinished handshakes of a mode with an address (of IPv6 its /64), and the
    /// oldest of them.
    pub fn handshakes_of(&self, mode: TunnelMode, address: IpAddr) -> (usize, Option<TunnelKey>) {
        self.tunnels.handshakes_of(mode, address)
    }

    /// Drops a tunnel if its handshake is unfinished, and closes it gracefully otherwise;
    /// [`RelayEvent::TunnelClosed`] follows.
    pub fn give_up(&mut self, now: Instant, tunnel: TunnelKey) {
        self.tunnels.give_up(now, &self.registry, &mut self.endpoint, tunnel);
    }

    /// Passengers' datagrams that all tunnels since the start have dropped.
    pub fn datagram_drops(&self) -> TunnelDrops {
        self.tunnels.datagram_drops()
    }

    /// The number of tunnels of a mode.
    pub fn tunnels_of(&self, mode: TunnelMode) -> usize {
        self.tunnels.of_mode(mode)
    }

    /// The keys of all tunnels.
    pub fn tunnel_keys(&self) -> Vec<TunnelKey> {
        self.tunnels.keys()
    }

    /// Traffic since the start by peer and carrier, as of the last [`Relay::update_traffic`].
    pub fn traffic(&self) -> BTreeMap<(Option<Identity>, String), Traffic> {
        self.traffic.totals()
    }

    /// Updates [`Relay::traffic`]. The loop does so several times a second while it is active.
    pub fn update_traffic(&mut self, now: Instant) {
        self.traffic_at = Some(now);
        self.traffic.update(&self.endpoint.status().sessions);
    }

    /// When a session came up.
    pub fn session_since(&self, session: SessionKey) -> Option<Instant> {
        self.sessions.get(&session).copied()
    }

    /// The number of sockets that wait for acknowledgements before their reset.
    pub fn pending_reset_count(&self) -> usize {
        self.pending_resets.len()
    }

    /// The number of tunnels.
    pub fn tunnel_count(&self) -> usize {
        self.tunnels.len()
    }

    /// Bytes moved between users' sockets and flows since the start, in both directions.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// How long the turns of the loop took since the start.
    pub fn turn_times(&self) -> &TurnTimes {
        &self.turn_times
    }

    /// Counts a turn of the loop, which [`run`](crate::run) measures.
    pub(crate) fn count_turn(&mut self, took: Duration) {
        self.turn_times.add(took);
    }

    /// Changes how long a flow may be idle, also for existing flows.
    pub fn set_idle(&mut self, now: Instant, idle: Duration) {
        self.settings.idle = idle;
        if !self.legs.is_empty() {
            self.scan_within(now, scan_every(idle));
        }
    }

    /// The number of legs.
    pub fn leg_count(&self) -> usize {
        self.legs.len()
    }

    /// The local and the remote address of a flow's leg.
    pub fn leg_addresses(&self, flow: FlowKey) -> Option<(SocketAddr, SocketAddr)> {
        let stream = &self.legs.get(*self.by_flow.get(&flow)?)?.stream;
        Some((stream.local_addr().ok()?, stream.peer_addr().ok()?))
    }

    /// Attaches a connected socket to a flow. The socket is unregistered, or registered with this
    /// relay's poll under a token of the daemon, which is replaced.
    pub fn attach(&mut self, now: Instant, flow: FlowKey, stream: TcpStream) {
        debug_assert!(!self.by_flow.contains_key(&flow), "a flow has one leg");
        let user = self.endpoint.user_of(flow);
        let index = self.legs.insert(Leg::new(now, stream, flow, user));
        let token = Token(LEG_TOKENS + index);
        let both = Interest::READABLE | Interest::WRITABLE;
        let stream = &mut self.legs[index].stream;
        let registered = self
            .registry
            .register(stream, token, both)
            .or_else(|_| self.registry.reregister(stream, token, both));
        self.by_flow.insert(flow, index);
        self.scan_within(now, scan_every(self.settings.idle));
        if let Err(error) = registered {
            tracing::warn!(%error, "cannot register the socket with epoll");
            return self.fail_leg(now, index, ResetReason::Internal);
        }
        self.enqueue(index);
    }

    /// Handles an event of the poll; returns false if its token belongs to the daemon.
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

    /// Wakes a tunnel that shares a socket with others: [`Relay::on_event`] for tunnels without
    /// their own socket. `token` is the token of its registration; unknown tokens are ignored.
    pub fn wake(&mut self, now: Instant, token: Token) {
        if token.0 < LEG_TOKENS
            && let Some(key) = token.0.checked_sub(TUNNEL_TOKENS)
        {
            self.tunnels.on_ready(now, key, true, true);
        }
    }

    /// Runs one turn: timers, receiving tunnels, legs, sending tunnels.
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
        self.tunnels.drain_and_close(now, &self.registry, &mut self.endpoint, &closing);
        self.tunnels.settle(now, &self.registry, &mut self.endpoint);
        self.take_session_events(now);
        self.events.extend(self.tunnels.take_events());
        let due = |at: Instant| now.saturating_duration_since(at) >= TRAFFIC_EVERY;
        if self.traffic_at.is_none_or(due) {
            self.update_traffic(now);
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<RelayEvent> {
        self.events.pop_front()
    }

    /// How long the poll may sleep; `None` means until an event.
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        if !self.queue.is_empty() || !self.events.is_empty() || self.tunnels.has_work() {
            return Some(Duration::ZERO);
        }
        let timers = [
            self.endpoint.next_timeout(),
            self.tunnels.next_timeout(),
            self.pending_resets.next_timeout(),
            self.scan_at,
        ];
        timers.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    fn run_timers(&mut self, now: Instant) {
        self.tunnels.on_timeout(now, &mut self.endpoint);
        if self.endpoint.next_timeout().is_some_and(|at| at <= now) {
            self.endpoint.on_timeout(now);
        }
        self.pending_resets.on_timeout(now);
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

    /// Serves queued legs until the turn's limit.
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
            let served = leg.serve(now, &mut self.endpoint, &mut self.scratch, &mut moved);
            let turn = (leg.take_read(), leg.has_unread());
            leg.buffer.on_turn(&leg.stream, turn, &mut self.buffers, self.settings.buffers);
            match served {
                Served::Waits => {
                    if leg.is_half_closed() {
                        self.scan_within(now, scan_every(self.settings.half_closed_idle));
                    }
                }
                Served::HasMore => self.enqueue(index),
                Served::Done => self.end_leg(index),
                Served::Failed(reason) => self.fail_leg(now, index, reason),
            }
        }
        self.moved_bytes += moved as u64;
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
                Event::PathUp { tunnel, .. } => {
                    self.tunnels.resume(now, *tunnel, &self.endpoint.siblings(*tunnel));
                }
                _ => {}
            }
            match (event, leg) {
                (Event::Readable { .. }, Some(leg)) => {
                    self.legs[leg].told = true;
                    self.enqueue(leg);
                }
                (Event::Writable { .. }, Some(leg)) => self.enqueue(leg),
                (Event::Reset { flow, reason }, Some(leg)) => {
                    if let Some(leg) = self.remove_leg(leg) {
                        if matches!(reason, ResetReason::Quota | ResetReason::Overload) {
                            let peer = leg.stream.peer_addr().ok();
                            self.events.push_back(RelayEvent::FlowRefused { flow, peer, reason });
                        }
                        self.pending_resets.add(now, leg.stream);
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

    /// Resets every flow that has a leg or still dials, on both sides, for a shutdown.
    pub fn abort_all(&mut self, now: Instant) {
        let all: Vec<usize> = self.legs.iter().map(|(index, _)| index).collect();
        for index in all {
            self.fail_leg(now, index, ResetReason::SessionLost);
        }
        let dialing = self
            .endpoint
            .flows_after(None, None)
            .filter(|flow| flow.name.kind == FlowKind::Tcp && flow.phase == FlowPhase::Opening);
        let dialing: Vec<FlowName> = dialing.map(|flow| flow.name).collect();
        for FlowName { session, number, .. } in dialing {
            let flow = FlowKey { session, flow: FlowId(number) };
            self.endpoint.reset(now, flow, ResetReason::SessionLost);
        }
    }

    /// Closes every tunnel gracefully.
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
        leg.buffer.forget(&mut self.buffers);
        // Fails only for an unregistered socket.
        let _ = self.registry.deregister(&mut leg.stream);
        Some(leg)
    }

    /// Resets flows that were idle for too long.
    fn scan(&mut self, now: Instant) {
        let RelaySettings { half_closed_idle, idle, .. } = self.settings;
        let mut next = None;
        let mut over = Vec::new();
        for (index, leg) in &self.legs {
            let limit = if leg.is_half_closed() { half_closed_idle.min(idle) } else { idle };
            if now.saturating_duration_since(leg.moved_at) >= limit {
                over.push(index);
            } else {
                next = Some(next.map_or(limit, |next: Duration| next.min(limit)));
            }
        }
        for index in over {
            self.fail_leg(now, index, ResetReason::Idle);
        }
        self.scan_at = next.map(|limit| now + scan_every(limit));
    }

    fn scan_within(&mut self, now: Instant, time: Duration) {
        let at = now + time;
        self.scan_at = Some(self.scan_at.map_or(at, |known| known.min(at)));
    }
}

fn scan_every(limit: Duration) -> Duration {
    (limit / 8).clamp(SCAN_MIN, SCAN_MAX)
}

/// The token of a tunnel is this plus its key.
const TUNNEL_TOKENS: usize = SHELL_TOKENS;
/// The token of a leg is this plus its index.
const LEG_TOKENS: usize = 1 << 48;
/// Bytes read from a socket at once.
const SCRATCH_BYTES: usize = 128 * 1024;
/// The maximum number of legs served in one turn.
const TURN_VISITS: usize = 1024;
/// How often traffic totals are updated while the loop is active.
const TRAFFIC_EVERY: Duration = Duration::from_millis(250);
/// Bounds of the interval between scans for idle flows.
const SCAN_MIN: Duration = Duration::from_millis(50);
const SCAN_MAX: Duration = Duration::from_secs(30);
