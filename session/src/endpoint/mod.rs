//! One process: its tunnels and its sessions (a gateway has one with each of its clouds, a cloud
//! one with each of its gateways).
//!
//! ```text
//!   tunnel_up --> Greeting --(HELLO/JOIN, WELCOME)--> Bound --> tunnel_down
//!                    |                                  |
//!                    +-- refused, timeout, violation ---+--> Refused: the caller closes it
//! ```
//!
//! Invariants: a tunnel belongs to at most one session; a session's certificate identity never
//! changes; a path counter is accepted once.

mod deadlines;
mod greet;
mod instances;
mod lists;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use polyrail_model::{
    BindingId, Channel, Delivery, Destination, Identity, InstanceId, LinkForecast, LinkOutlook,
    LinkSample, NodeRole, PathWish, SessionId, SessionKey, Unit, UserId, Weight,
};
use polyrail_scheduler::ChainSpec;

use crate::core::{Outlet, Session};
use crate::datagram::UserDatagram;
use crate::event::{Event, FlowKey, OpenError, PathReport, TunnelKey};
use crate::limits::{GREETING_TIMEOUT, TUNNELS_MAX, WEIGHTS_MAX};
use crate::path::Manner;
use crate::settings::{SessionStatus, Settings, Status, TunnelInfo};
use crate::wire::{Decoder, Frame, RejectCode, ResetReason, encode};

/// All sessions of one process. See the crate's documentation for the drain contract.
#[derive(Debug)]
pub struct Endpoint {
    role: NodeRole,
    settings: Settings,
    tunnels: BTreeMap<TunnelKey, Tunnel>,
    /// The number of tunnels of each certificate.
    tunnels_of: BTreeMap<Identity, usize>,
    sessions: BTreeMap<SessionKey, SessionEntry>,
    by_id: BTreeMap<SessionId, SessionKey>,
    by_peer: BTreeMap<Identity, SessionKey>,
    instances: instances::Instances,
    next_session: u64,
    /// The step from one session's key to the next.
    session_step: u64,
    seed: [u8; 32],
    /// The gateway's process and the number of sessions that it has begun.
    instance: InstanceId,
    next_counter: u64,
    /// The gateway's session for new flows.
    current: Option<SessionKey>,
    /// The cloud that it is with, if the gateway has chosen one.
    preferred: Option<Identity>,
    events: VecDeque<Event>,
    /// Sessions that may have data to send, and whose deadlines may have changed.
    dirty: BTreeSet<SessionKey>,
    deadlines: deadlines::Deadlines<SessionKey>,
    /// Tunnels that wait for a greeting or its answer.
    greetings: deadlines::Deadlines<TunnelKey>,
    /// Tunnels with greetings to send.
    outboxes: BTreeSet<TunnelKey>,
    /// The reason, and whether peers' flows are refused, too.
    going_away: Option<(String, bool)>,
    /// Weights other than 1 (gateway); at most [`WEIGHTS_MAX`], then all are forgotten.
    weights: BTreeMap<UserId, Weight>,
}

#[derive(Debug)]
struct SessionEntry {
    session: Session,
    peer: Option<Identity>,
    /// The cloud's id of the session; a gateway learns it from the WELCOME.
    id: Option<SessionId>,
    instance: InstanceId,
    /// The counter and key of the HELLO that founded it.
    founder: Option<(u64, [u8; 32])>,
    /// The HELLOs that may have founded it, until the founder is known (gateway).
    hellos: VecDeque<(u64, [u8; 32])>,
    /// Counters that were accepted (cloud).
    counters: crate::counters::Counters,
    up: bool,
}

#[derive(Debug)]
struct Tunnel {
    info: TunnelInfo,
    decoder: Decoder,
    phase: Phase,
    since: Instant,
    /// Greeting frames that wait for the next transmit.
    outbox: Vec<u8>,
    /// The greeting that was sent (gateway).
    greeting: Option<Greeted>,
    /// The room last reported, for when it is bound.
    room: usize,
    /// Its JOIN was rejected as unknown (cloud).
    rejected: bool,
}

#[derive(Clone, Copy, Debug)]
struct Greeted {
    counter: u64,
    /// The wish that the peer knows from the greeting.
    told: PathWish,
    hello: bool,
    at: Instant,
    answered: bool,
}

impl Tunnel {
    fn manner(&self, proven: bool) -> Manner<'_> {
        let &TunnelInfo { ref carrier, wish, mode, .. } = &self.info;
        Manner { carrier, wish, mode, proven }
    }

    /// Has not greeted yet, or was not answered.
    fn is_greeting(&self) -> bool {
        match self.phase {
            Phase::Greeting => true,
            Phase::Bound(_) => self.greeting.is_some_and(|greeting| !greeting.answered),
            Phase::Refused => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Bound(SessionKey),
    Refused,
}

impl Endpoint {
    /// A gateway. `instance` is random for each run of the process.
    pub fn gateway(now: Instant, settings: Settings, instance: InstanceId) -> Self {
        let mut endpoint = Self::new(NodeRole::Gateway, settings, instance, [0; 32]);
        endpoint.current = Some(endpoint.begin_session(now, None));
        endpoint
    }

    /// A cloud. `seed` is random and secret; session ids are derived from it.
    pub fn cloud(_now: Instant, settings: Settings, seed: [u8; 32]) -> Self {
        Self::new(NodeRole::Cloud, settings, InstanceId([0; 16]), seed)
    }

    fn new(role: NodeRole, settings: Settings, instance: InstanceId, seed: [u8; 32]) -> Self {
        Self {
            role,
            settings,
            tunnels: BTreeMap::new(),
            tunnels_of: BTreeMap::new(),
            sessions: BTreeMap::new(),
            by_id: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            instances: instances::Instances::default(),
            next_session: 1,
            session_step: 1,
            seed,
            instance,
            next_counter: 1,
            current: None,
            preferred: None,
            events: VecDeque::new(),
            dirty: BTreeSet::new(),
            deadlines: deadlines::Deadlines::default(),
            greetings: deadlines::Deadlines::default(),
            outboxes: BTreeSet::new(),
            going_away: None,
            weights: BTreeMap::new(),
        }
    }

    /// Numbers the sessions from `first` on in steps, before the first one begins: endpoints of one
    /// process share no key.
    pub fn number_sessions(&mut self, first: u64, step: u64) {
        (self.next_session, self.session_step) = (first, step);
    }

    /// A tunnel may carry frames, at least as early data; the peer's certificate was checked.
    pub fn tunnel_up(&mut self, now: Instant, key: TunnelKey, info: TunnelInfo) {
        let tunnel = Tunnel {
            info,
            decoder: Decoder::default(),
            phase: Phase::Greeting,
            since: now,
            outbox: Vec::new(),
            greeting: None,
            room: 0,
            rejected: false,
        };
        let of_peer = self.tunnels_of.entry(tunnel.info.peer.clone()).or_default();
        *of_peer += 1;
        let too_many = self.role == NodeRole::Cloud && *of_peer > TUNNELS_MAX;
        self.tunnels.insert(key, tunnel);
        if too_many {
            let reason = "too many tunnels of this certificate";
            return self.refuse(now, key, Some(RejectCode::Overload), reason);
        }
        if self.role == NodeRole::Gateway {
            self.greet(now, key);
        }
        self.watch(key);
    }

    /// The handshake of an early tunnel is finished.
    pub fn tunnel_confirmed(&mut self, now: Instant, key: TunnelKey, exporter: [u8; 32]) {
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return };
        tunnel.info.exporter = Some(exporter);
        // Only now can the peer be expected to answer.
        tunnel.since = now;
        if self.role == NodeRole::Gateway && tunnel.phase == Phase::Greeting {
            self.greet(now, key);
        }
        self.watch(key);
    }

    /// A tunnel is being closed: it carries no more frames, and counts for its certificate until it
    /// is down. Unknown tunnels are ignored.
    pub fn tunnel_closing(&mut self, now: Instant, key: TunnelKey) {
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return };
        let phase = std::mem::replace(&mut tunnel.phase, Phase::Refused);
        self.greetings.set(key, None);
        self.outboxes.remove(&key);
        if let Phase::Bound(session) = phase {
            self.with(session, |s| s.lose_path(now, key));
        }
    }

    /// A tunnel is gone, for any reason. Unknown tunnels are ignored.
    pub fn tunnel_down(&mut self, now: Instant, key: TunnelKey) {
        self.tunnel_closing(now, key);
        let Some(tunnel) = self.tunnels.remove(&key) else { return };
        if let Entry::Occupied(mut of_peer) = self.tunnels_of.entry(tunnel.info.peer) {
            *of_peer.get_mut() -= 1;
            if *of_peer.get() == 0 {
                of_peer.remove();
            }
        }
    }

    /// The tunnel has room for this many bytes.
    pub fn tunnel_room(&mut self, key: TunnelKey, room: usize) {
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return };
        tunnel.room = room;
        if let Phase::Bound(session) = tunnel.phase
            && let Some(entry) = self.sessions.get_mut(&session)
        {
            entry.session.set_room(key, room);
            self.dirty.insert(session);
        }
    }

    /// A sample of the tunnel's transport.
    pub fn tunnel_sample(&mut self, now: Instant, key: TunnelKey, sample: &LinkSample) {
        if let Some(session) = self.session_of(key) {
            self.with(session, |s| s.sample(now, key, sample));
        }
    }

    /// Bytes from the tunnel, cut anywhere.
    pub fn receive(&mut self, now: Instant, key: TunnelKey, bytes: &[u8]) {
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return };
        if tunnel.phase == Phase::Refused {
            return;
        }
        let mut decoder = std::mem::take(&mut tunnel.decoder);
        let fed = decoder.feed(bytes, |frame| self.on_frame(now, key, frame));
        if let Some(tunnel) = self.tunnels.get_mut(&key) {
            tunnel.decoder = decoder;
        }
        if let Err(error) = fed {
            self.refuse(now, key, None, &error.to_string());
        }
        if let Some(session) = self.session_of(key) {
            self.after(session);
        }
    }

    fn on_frame(&mut self, now: Instant, key: TunnelKey, frame: Frame<'_>) {
        let Some(tunnel) = self.tunnels.get(&key) else { return };
        match (tunnel.phase, &frame) {
            (Phase::Refused, _) => {}
            (_, Frame::Unknown { .. }) => {}
            (_, Frame::Welcome { .. } | Frame::Reject { .. }) if self.role == NodeRole::Gateway => {
                self.on_answer(now, key, &frame);
            }
            (Phase::Greeting, Frame::Hello { .. } | Frame::Join { .. })
                if self.role == NodeRole::Cloud =>
            {
                self.on_greeting(now, key, &frame);
            }
            // Frames after a rejected greeting belong to a lost session.
            (Phase::Greeting, _) => {}
            (Phase::Bound(session), _) => {
                let Some(entry) = self.sessions.get_mut(&session) else { return };
                if let Err(violation) = entry.session.input(now, key, frame) {
                    self.refuse(now, key, Some(RejectCode::Protocol), violation.0);
                }
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Hands frames to tunnels that have room.
    pub fn transmit(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        for key in std::mem::take(&mut self.outboxes) {
            if let Some(tunnel) = self.tunnels.get_mut(&key) {
                let frames = std::mem::take(&mut tunnel.outbox);
                tunnel.room = outlet.send(key, Unit::Greeting, &frames);
            }
        }
        for session in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.sessions.get_mut(&session) else { continue };
            entry.session.transmit(now, outlet);
            self.after(session);
            self.note_deadline(session);
            self.dirty.remove(&session);
        }
    }

    /// When [`Endpoint::on_timeout`] is to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let known = self.greetings.first().into_iter().chain(self.deadlines.first());
        known.chain(self.dirty.iter().filter_map(|key| self.deadline(*key))).min()
    }

    /// Runs the timers that are due.
    pub fn on_timeout(&mut self, now: Instant) {
        for key in self.greetings.due(now) {
            self.refuse(now, key, None, "no greeting in time");
        }
        for key in self.dirty.clone() {
            self.note_deadline(key);
        }
        for key in self.deadlines.due(now) {
            let Some(entry) = self.sessions.get_mut(&key) else { continue };
            let linger = self.settings.linger;
            if entry.session.lingers_since().is_some_and(|since| now >= since + linger) {
                self.end_session(now, key, "no path came back in time", None);
                continue;
            }
            self.with(key, |s| s.on_timeout(now));
        }
    }

    /// Makes the session with this cloud the current one, to which new flows go (gateway); it
    /// begins if there is none. Other sessions keep their flows and paths. From the first call on a
    /// tunnel joins the session with its own cloud; before, any tunnel joins the only session.
    pub fn prefer(&mut self, now: Instant, peer: &Identity) {
        if self.preferred.replace(peer.clone()).is_none()
            && let Some(key) = self.current
            && let Some(only) = self.sessions.get_mut(&key)
        {
            let peer = only.peer.get_or_insert_with(|| peer.clone()).clone();
            self.by_peer.insert(peer, key);
        }
        let known = self.by_peer.get(peer).copied();
        self.current = Some(known.unwrap_or_else(|| self.begin_session(now, Some(peer.clone()))));
    }

    /// Ends a session that is not the current one, because the gateway needs it no longer: its
    /// flows are reset, its tunnels closed.
    pub fn leave(&mut self, now: Instant, session: SessionKey) {
        if self.role == NodeRole::Gateway && self.current != Some(session) {
            self.end_session(now, session, "the gateway does not need it", None);
        }
    }

    /// Opens a flow (gateway), in the current session. If that is not up yet, the flow waits.
    ///
    /// # Errors
    /// Too many flows are open, or the session is going away.
    pub fn open(
        &mut self,
        now: Instant,
        user: UserId,
        destination: Destination,
    ) -> Result<FlowKey, OpenError> {
        let key = self.current.ok_or(OpenError::WrongRole)?;
        let entry = self.sessions.get_mut(&key).ok_or(OpenError::WrongRole)?;
        let flow = entry.session.open(now, user, destination);
        if let (Ok(flow), Some(&weight)) = (&flow, self.weights.get(&user)) {
            entry.session.weigh(flow.flow, weight);
        }
        self.after(key);
        flow
    }

    /// Takes bytes for the peer and returns how many; if it takes fewer than offered,
    /// [`Event::Writable`] follows.
    pub fn write(&mut self, now: Instant, flow: FlowKey, bytes: &[u8]) -> usize {
        self.with(flow.session, |s| s.write(now, flow.flow, bytes)).unwrap_or(bytes.len())
    }

    /// Sends the data of a flow only over these carriers from now on, copies and reinjections
    /// included, for a measurement. Returns false, and changes nothing, if the flow is closed or
    /// none of them has had a path in its session.
    pub fn confine(&mut self, flow: FlowKey, carriers: &[String]) -> bool {
        self.with(flow.session, |s| s.confine(flow.flow, carriers)).unwrap_or(false)
    }

    /// Bytes of confined flows since the session began, sent and received, by carrier.
    pub fn confined_traffic(&self, session: SessionKey) -> BTreeMap<String, [u64; 2]> {
        let entry = self.sessions.get(&session);
        entry.map(|entry| entry.session.confined_traffic()).unwrap_or_default()
    }

    /// The number of bytes that [`Endpoint::write`] takes now. If it is small, [`Event::Writable`]
    /// follows when there is more room.
    pub fn write_room(&mut self, flow: FlowKey) -> usize {
        let entry = self.sessions.get_mut(&flow.session);
        let room = entry.map_or(0, |entry| entry.session.write_room(flow.flow));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Ends this side's direction of the flow; written data is delivered.
    pub fn finish(&mut self, now: Instant, flow: FlowKey) {
        self.with(flow.session, |s| s.finish(now, flow.flow));
    }

    /// Resets the flow. For [`ResetReason::PeerReset`] written data is delivered first. The key is
    /// dead from now on.
    pub fn reset(&mut self, now: Instant, flow: FlowKey, reason: ResetReason) {
        self.with(flow.session, |s| s.reset(now, flow.flow, reason));
    }

    /// The connection to the flow's server is established (cloud).
    pub fn dialed(&mut self, _now: Instant, flow: FlowKey) {
        self.with(flow.session, |s| s.dialed(flow.flow));
    }

    /// The unread bytes in order, in two parts.
    pub fn readable(&self, flow: FlowKey) -> [&[u8]; 2] {
        self.sessions
            .get(&flow.session)
            .map_or([&[], &[]], |entry| entry.session.readable(flow.flow))
    }

    /// The reader has taken this many bytes.
    pub fn consume(&mut self, now: Instant, flow: FlowKey, count: usize) {
        self.with(flow.session, |s| s.consume(now, flow.flow, count));
    }

    /// The peer has ended its direction, and all bytes were consumed.
    pub fn finished(&self, flow: FlowKey) -> bool {
        self.sessions.get(&flow.session).is_some_and(|entry| entry.session.finished(flow.flow))
    }

    /// Opens and accepts no more flows, sends GOAWAY in each session, and lets open flows end.
    pub fn go_away(&mut self, _now: Instant, reason: &str) {
        self.announce_end(reason, true);
    }

    /// The same, but accepts the flows that peers open before they know.
    pub fn drain(&mut self, _now: Instant, reason: &str) {
        self.announce_end(reason, false);
    }

    fn announce_end(&mut self, reason: &str, refuses_flows: bool) {
        self.going_away = Some((reason.to_owned(), refuses_flows));
        self.with_all(|session| session.go_away(reason, refuses_flows));
    }

    /// Ends a session at once, because its peer has no valid certificate any more: its flows are
    /// reset on both sides, its tunnels closed. A gateway begins the next current one.
    pub fn end(&mut self, now: Instant, session: SessionKey) {
        let reason = "its peer has no valid certificate any more";
        self.end_session_with(now, session, (RejectCode::Unauthorized, reason), None);
    }

    /// Reports a problem of a path to the peer, over all paths. A cloud reports stalls by itself.
    pub fn report_path(&mut self, _now: Instant, tunnel: TunnelKey, report: PathReport) {
        if let Some(session) = self.session_of(tunnel) {
            self.with(session, |s| s.report(tunnel, report));
        }
    }

    /// Changes the scheduler of all sessions; data in flight stays on its paths.
    pub fn set_chain(&mut self, now: Instant, chain: ChainSpec) {
        self.set_settings(now, Settings { chain, ..self.settings.clone() });
    }

    /// Changes the linger, the bound on flows, the scheduler and the reinjection of all sessions.
    /// Flows beyond a lower bound stay. The memory and the families keep their values, because
    /// peers rely on the granted terms.
    pub fn set_settings(&mut self, _now: Instant, settings: Settings) {
        let (memory, families) = (self.settings.memory, self.settings.families);
        self.settings = Settings { memory, families, ..settings };
        let settings = self.settings.clone();
        self.with_all(|session| session.set_settings(&settings));
    }

    /// The operator wants the paths of this carrier used in another way, on both sides (gateway).
    pub fn set_wish(&mut self, now: Instant, carrier: &str, wish: PathWish) {
        for tunnel in self.tunnels.values_mut().filter(|tunnel| tunnel.info.carrier == carrier) {
            tunnel.info.wish = wish;
        }
        self.with_all(|session| session.set_wish(now, carrier, wish));
    }

    /// Sets the weight of a user, on both sides (gateway). A cloud learns it with the user's next
    /// data or datagram.
    pub fn set_weight(&mut self, user: UserId, weight: Weight) {
        if weight == Weight::default() {
            if self.weights.remove(&user).is_none() {
                return;
            }
        } else if self.weights.get(&user) == Some(&weight) {
            return;
        } else {
            if self.weights.len() >= WEIGHTS_MAX && !self.weights.contains_key(&user) {
                self.weights.clear();
            }
            self.weights.insert(user, weight);
        }
        self.with_all(|session| session.set_weight(user, weight));
    }

    /// Queues a datagram for the peer of a session. It may be lost; nobody reports that.
    pub fn send_datagram(&mut self, now: Instant, session: SessionKey, datagram: UserDatagram) {
        let weight = datagram.user.and_then(|user| self.weights.get(&user).copied());
        self.with(session, |s| s.send_datagram(now, weight, datagram));
    }

    /// A binding is over: its datagrams that wait are dropped.
    pub fn forget_binding(&mut self, session: SessionKey, binding: BindingId) {
        self.with(session, |s| s.forget_binding(binding));
    }

    /// Queues a message that belongs to no flow for the peer of a session. Its loss is not
    /// reported. A payload longer than [`crate::wire::MESSAGE_MAX`] is dropped and counted.
    pub fn send_message(
        &mut self,
        now: Instant,
        session: SessionKey,
        channel: Channel,
        delivery: Delivery,
        payload: Vec<u8>,
    ) {
        self.with(session, |s| s.messages.queue(now, channel, delivery, payload));
    }

    /// Sets the expected rates of a carrier of a session over the next seconds. They hold for paths
    /// that come up later, too, until the last step is over; an empty list withdraws them.
    pub fn set_outlook(
        &mut self,
        now: Instant,
        session: SessionKey,
        carrier: &str,
        outlook: LinkOutlook,
    ) {
        self.with(session, |s| s.paths.forecasts.set_outlook(now, carrier, outlook));
    }

    /// Sets or withdraws the forecast of a carrier of a session. It holds for paths that come up
    /// later, too, until it expires. Both sides use the carrier names of the gateway.
    pub fn set_forecast(
        &mut self,
        now: Instant,
        session: SessionKey,
        carrier: &str,
        forecast: Option<LinkForecast>,
    ) {
        self.with(session, |s| s.paths.forecasts.set_forecast(now, carrier, forecast));
    }

    /// Makes room for a flow that has just been opened, because the caller has reached a bound of
    /// all sessions: the session with the most flows sheds one of its heaviest user. Returns false
    /// if that is the flow's own user, or if nobody has more.
    pub fn shed_for(&mut self, now: Instant, flow: FlowKey) -> bool {
        let open = |key: &SessionKey| self.sessions.get(key).map(|one| one.session.open_flows());
        let Some(own) = open(&flow.session) else { return false };
        let loads = self.sessions.keys().filter_map(|key| Some((open(key)?, *key)));
        let (load, heaviest) = loads.max().unwrap_or((own, flow.session));
        if load > own {
            return self.with(heaviest, |s| s.shed(now, 1)).unwrap_or(false);
        }
        let shed = self.with(flow.session, |s| {
            let user = s.user_of(flow.flow)?;
            Some(s.shed(now, s.user(user).flows + 1))
        });
        shed.flatten().unwrap_or(false)
    }

    /// The session that a gateway's new flows belong to.
    pub fn current(&self) -> Option<SessionKey> {
        self.current
    }

    /// The user of an open flow.
    pub fn user_of(&self, flow: FlowKey) -> Option<UserId> {
        self.sessions.get(&flow.session)?.session.user_of(flow.flow)
    }

    /// A snapshot for operators.
    pub fn status(&self) -> Status {
        let all = self.sessions.values();
        let all = all.map(|one| SessionStatus { peer: one.peer.clone(), ..one.session.status() });
        Status { sessions: all.collect() }
    }

    /// A snapshot of one session.
    pub fn status_of(&self, session: SessionKey) -> Option<SessionStatus> {
        let one = self.sessions.get(&session)?;
        Some(SessionStatus { peer: one.peer.clone(), ..one.session.status() })
    }

    /// The session with this peer; on a gateway only after [`Endpoint::prefer`].
    pub fn session_with(&self, peer: &Identity) -> Option<SessionKey> {
        self.by_peer.get(peer).copied()
    }

    /// The other tunnels of a tunnel's carrier in its session, the newest first.
    pub fn siblings(&self, key: TunnelKey) -> Vec<TunnelKey> {
        let entry = self.session_of(key).and_then(|session| self.sessions.get(&session));
        entry.map(|entry| entry.session.siblings(key)).unwrap_or_default()
    }

    /// The session of a tunnel.
    pub fn session_of(&self, key: TunnelKey) -> Option<SessionKey> {
        match self.tunnels.get(&key)?.phase {
            Phase::Bound(session) => Some(session),
            Phase::Greeting | Phase::Refused => None,
        }
    }

    /// Runs an operation on a session, then collects its events.
    fn with<T>(&mut self, key: SessionKey, act: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let entry = self.sessions.get_mut(&key)?;
        let result = act(&mut entry.session);
        self.after(key);
        Some(result)
    }

    /// Changes all sessions.
    fn with_all(&mut self, mut act: impl FnMut(&mut Session)) {
        let keys: Vec<SessionKey> = self.sessions.keys().copied().collect();
        for key in keys {
            self.with(key, &mut act);
        }
    }

    /// Collects a session's events, and notes that it may have data to send and another deadline.
    fn after(&mut self, key: SessionKey) {
        let Some(entry) = self.sessions.get_mut(&key) else { return };
        self.events.append(&mut entry.session.events);
        self.dirty.insert(key);
    }

    /// The deadline of a session.
    fn deadline(&self, key: SessionKey) -> Option<Instant> {
        let entry = self.sessions.get(&key)?;
        let linger = entry.session.lingers_since().map(|since| since + self.settings.linger);
        entry.session.next_timeout().into_iter().chain(linger).min()
    }

    fn note_deadline(&mut self, key: SessionKey) {
        let next = self.deadline(key);
        self.deadlines.set(key, next);
    }

    /// Notes the time by which the tunnel must have greeted, or be answered.
    fn watch(&mut self, key: TunnelKey) {
        let greeting = self.tunnels.get(&key).filter(|tunnel| tunnel.is_greeting());
        self.greetings.set(key, greeting.map(|tunnel| tunnel.since + GREETING_TIMEOUT));
    }

    /// Refuses a tunnel: a cloud sends a REJECT with the reason, and the caller closes the tunnel.
    fn refuse(&mut self, now: Instant, key: TunnelKey, code: Option<RejectCode>, reason: &str) {
        let session = self.session_of(key);
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return };
        if tunnel.phase == Phase::Refused {
            return;
        }
        tunnel.phase = Phase::Refused;
        if let (Some(code), NodeRole::Cloud) = (code, self.role) {
            encode(&Frame::Reject { code, reason: reason.to_owned() }, &mut tunnel.outbox);
            self.outboxes.insert(key);
        }
        self.greetings.set(key, None);
        let (reason, superseded) = (reason.to_owned(), false);
        self.events.push_back(Event::CloseTunnel { tunnel: key, reason, superseded });
        if let Some(session) = session
            && let Some(entry) = self.sessions.get_mut(&session)
        {
            // The session sends no more frames over it.
            entry.session.lose_path(now, key);
            self.after(session);
        }
    }
}
