//! The cloud's side: one UDP socket and all connections on it.
//!
//! Datagrams find their connection by connection id. A datagram that names none begins a
//! connection when it is a client's first (an Initial of at least 1,200 bytes, RFC 9000 14.1), is
//! answered with a stateless reset when it names one of ours that is gone, and is dropped
//! otherwise, without anything being allocated. What is refused costs no memory; what is accepted
//! is bounded by [`ServerOptions::half_open_max`] until its handshake is over (see
//! [`half_open`](super::half_open)).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token, event};
use polyrail_identity::{Clock, IdentityError, PeerVerifier, TlsIdentity};
use quiche::{Config, ConnectionId, Header, RetryConnectionIds};

use super::cid::{Cid, Form, Mint, outline, random};
use super::connection::{Engine, Start};
use super::half_open::HalfOpens;
use super::retry::Retry;
use super::socket::{Arrival, Departure, Udp};
use super::spent::Spent;
use super::tunnel::{Desk, Hub, Port, QuicTunnel, lock};
use super::{ServerOptions, context};
use crate::Tunnel;

/// Takes gateways in over QUIC.
pub struct Listener {
    hub: Arc<Hub>,
    options: ServerOptions,
    judge: Arc<PeerVerifier>,
    config: Config,
    mint: Arc<Mint>,
    ticket_key: [u8; 48],
    retry: Retry,
    half_open: HalfOpens,
    /// By connection id, the number of the connection.
    routes: HashMap<Cid, u64>,
    connections: HashMap<u64, Connection>,
    next: u64,
    /// New connections that were not accepted yet.
    fresh: VecDeque<u64>,
    spent: Arc<Mutex<Spent>>,
    readable: bool,
    counters: ListenerCounters,
}

struct Connection {
    engine: Arc<Mutex<Engine>>,
    ids: Vec<Cid>,
}

/// What a listener counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounters {
    /// Datagrams that came.
    pub datagrams: u64,
    /// Datagrams that belonged to nothing and were dropped.
    pub dropped: u64,
    /// Clients that were told to prove their address.
    pub retries: u64,
    /// Connections that were not begun: too many half-open, or nonsense.
    pub refused: u64,
    /// Connections that were begun.
    pub begun: u64,
    /// Stateless resets that were sent.
    pub resets: u64,
}

/// What a call of [`Listener::receive`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Whether to call it again without waiting for an event.
    pub more: bool,
}

impl Listener {
    /// Binds a socket; an IPv6 wildcard address takes IPv4 as well.
    ///
    /// # Errors
    /// The address is taken, not on this host, or its port needs privileges; or TLS cannot use the
    /// identity or knows no such congestion control (`InvalidInput`).
    pub fn bind(
        address: SocketAddr,
        identity: TlsIdentity,
        options: ServerOptions,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let judge = Arc::new(PeerVerifier::of_gateways(identity.clone(), clock));
        let ticket_key = random();
        let config = context::of_server(&identity, &judge, &options, &ticket_key)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mint = Arc::new(Mint::new(identity.key_der(), options.server_id));
        let udp = Udp::bind(address)?;
        Ok(Self {
            hub: Arc::new(Hub { udp, desk: Mutex::new(Desk::default()) }),
            options,
            judge,
            config,
            mint,
            ticket_key,
            retry: Retry::new(Instant::now()),
            half_open: HalfOpens::default(),
            routes: HashMap::new(),
            connections: HashMap::new(),
            next: 0,
            fresh: VecDeque::new(),
            spent: Arc::default(),
            readable: false,
            counters: ListenerCounters::default(),
        })
    }

    /// Uses another identity from now on, also for judging in handshakes under way. Sessions made
    /// before may still be resumed, if their certificates pass by the new identity. Tunnels that
    /// exist stay: ask [`TlsIdentity::is_revoked`] about their peers.
    ///
    /// # Errors
    /// TLS cannot use it; the old one stays.
    pub fn set_identity(&mut self, identity: TlsIdentity) -> Result<(), IdentityError> {
        self.config = context::of_server(&identity, &self.judge, &self.options, &self.ticket_key)?;
        self.mint = Arc::new(Mint::new(identity.key_der(), self.options.server_id));
        self.judge.set_identity(identity);
        Ok(())
    }

    /// Uses other congestion controls for connections that begin from now on: for all, and for
    /// single carriers. `identity` is the one in use.
    ///
    /// # Errors
    /// One of them is not known; the old ones stay.
    pub fn set_congestion(
        &mut self,
        identity: &TlsIdentity,
        usual: &str,
        by_carrier: &BTreeMap<String, String>,
    ) -> Result<(), IdentityError> {
        let (congestion, carrier_congestion) = (usual.to_owned(), by_carrier.clone());
        let options = ServerOptions { congestion, carrier_congestion, ..self.options.clone() };
        self.config = context::of_server(identity, &self.judge, &options, &self.ticket_key)?;
        self.options = options;
        Ok(())
    }

    /// Where it listens, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// None: the address was read when it was bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.hub.udp.local_addr())
    }

    /// Takes a readiness event.
    pub fn on_ready(&mut self, _now: Instant, readable: bool, writable: bool) {
        self.readable |= readable;
        if writable {
            let mut desk = lock(&self.hub.desk);
            let Desk { woken, blocked, .. } = &mut *desk;
            woken.append(blocked);
        }
    }

    /// Reads one batch and feeds the connections.
    pub fn receive(&mut self, now: Instant) -> Received {
        self.collect();
        if !self.readable {
            return Received { more: false };
        }
        let hub = self.hub.clone();
        let mut touched: Vec<u64> = Vec::new();
        let received = hub.udp.receive(&mut |arrival, datagrams| {
            self.on_arrival(now, arrival, datagrams, &mut touched);
        });
        touched.sort_unstable();
        touched.dedup();
        for number in touched {
            self.after_absorb(now, number);
        }
        if let Err(error) = received {
            if error.kind() == io::ErrorKind::WouldBlock {
                self.readable = false;
            } else {
                tracing::trace!(%error, "receiving");
            }
        }
        Received { more: self.readable }
    }

    /// A connection whose handshake is under way, if one is new.
    pub fn accept(&mut self) -> Option<Box<dyn Tunnel>> {
        loop {
            let id = self.fresh.pop_front()?;
            if let Some(connection) = self.connections.get(&id) {
                let port = Port::Shared { hub: self.hub.clone(), id };
                return Some(Box::new(QuicTunnel::new(connection.engine.clone(), port)));
            }
        }
    }

    /// Moves the tokens of tunnels that have something to do to `woken`: call
    /// [`Tunnel::on_ready`] of each, then drain it.
    pub fn take_woken(&mut self, woken: &mut Vec<Token>) {
        woken.append(&mut lock(&self.hub.desk).woken);
    }

    /// Handshakes under way.
    pub fn half_open(&self) -> usize {
        self.half_open.count()
    }

    /// What happened so far.
    pub fn counters(&self) -> ListenerCounters {
        self.counters
    }

    /// Feeds datagrams that arrived together, from one address.
    fn on_arrival(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        datagrams: &mut [u8],
        touched: &mut Vec<u64>,
    ) {
        let mut rest = datagrams;
        while !rest.is_empty() {
            let number = self.route_of(rest);
            // As many as go to the same connection go there together.
            let mut length = arrival.stride.min(rest.len());
            while number.is_some()
                && length < rest.len()
                && self.route_of(&rest[length..]) == number
            {
                length = (length + arrival.stride).min(rest.len());
            }
            let (together, behind) = rest.split_at_mut(length);
            self.counters.datagrams += together.len().div_ceil(arrival.stride) as u64;
            match number.and_then(|number| self.connections.get(&number).zip(Some(number))) {
                Some((connection, number)) => {
                    lock(&connection.engine).absorb(arrival, together);
                    if touched.last() != Some(&number) {
                        touched.push(number);
                    }
                }
                None => touched.extend(self.on_stranger(now, arrival, together)),
            }
            rest = behind;
        }
    }

    fn route_of(&self, datagram: &[u8]) -> Option<u64> {
        self.routes.get(&Cid::new(outline(datagram)?.destination)?).copied()
    }

    /// A datagram that belongs to no connection; answers with the one that it begins.
    fn on_stranger(&mut self, now: Instant, arrival: &Arrival, datagram: &mut [u8]) -> Option<u64> {
        let Some(outline) = outline(datagram) else {
            self.counters.dropped += 1;
            return None;
        };
        let long_enough = datagram.len() >= quiche::MIN_CLIENT_INITIAL_LEN;
        match outline.form {
            Form::Initial if long_enough && outline.destination.len() >= INITIAL_CID_MIN => {
                return self.on_initial(now, arrival, datagram);
            }
            Form::Foreign if long_enough => self.negotiate(arrival, datagram),
            Form::Short if self.mint.made(outline.destination) => {
                let token = self.mint.reset_token(outline.destination);
                self.reset(arrival, datagram.len(), token);
            }
            _ => {}
        }
        self.counters.dropped += 1;
        None
    }

    /// A client's first datagram: begins a connection, or has it prove its address first.
    fn on_initial(&mut self, now: Instant, arrival: &Arrival, datagram: &mut [u8]) -> Option<u64> {
        let header = Header::from_slice(datagram, super::cid::CID_LENGTH).ok()?;
        let token = header.token.as_deref().unwrap_or_default();
        let proven = self.retry.check(now, arrival.from, &header.dcid, token);
        let half_open = self.half_open();
        let limit = self.options.retry_above.min(self.options.half_open_max);
        if proven.is_none() && half_open >= limit {
            self.demand_proof(now, arrival, &header);
            return None;
        }
        if proven.is_some() && !self.make_way(now, arrival.from.ip()) {
            self.counters.refused += 1;
            return None;
        }
        let proven = proven.map(<[u8]>::to_vec);
        let number = self.begin(now, arrival, &header, proven.as_deref(), datagram);
        match number {
            Some(_) => self.counters.begun += 1,
            None => self.counters.refused += 1,
        }
        number
    }

    /// Whether a client that has proved its address may begin; at the bound the oldest handshake
    /// gives way to it.
    fn make_way(&mut self, now: Instant, address: IpAddr) -> bool {
        let half_open_max = self.options.half_open_max;
        if self.half_open.proven_by(address) >= half_open_max.div_ceil(SHARE) {
            return false;
        }
        if self.half_open() >= half_open_max
            && let Some(oldest) = self.half_open.oldest(now)
            && let Some(connection) = self.connections.get(&oldest)
        {
            let mut engine = lock(&connection.engine);
            engine.give_way(now);
            wake(&self.hub, &mut engine);
        }
        self.half_open() < half_open_max
    }

    fn begin(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        header: &Header<'_>,
        proven: Option<&[u8]>,
        datagram: &mut [u8],
    ) -> Option<u64> {
        let id = self.mint.cid();
        self.config.set_stateless_reset_token(Some(self.mint.reset_token(&id)));
        self.config.set_max_send_udp_payload_size(context::payload_max(arrival.from));
        let scid = ConnectionId::from_ref(&id);
        let address = proven.map(|_| arrival.from.ip());
        let (local, peer) = (arrival.to, arrival.from);
        let connection = match proven {
            Some(original) => {
                let original = ConnectionId::from_ref(original);
                let ids = RetryConnectionIds {
                    original_destination_cid: &original,
                    retry_source_cid: &header.dcid,
                };
                quiche::accept_with_retry(&scid, ids, local, peer, &mut self.config)
            }
            None => quiche::accept(&scid, None, local, peer, &mut self.config),
        };
        let start = Start {
            connection: connection.ok()?,
            judge: self.judge.clone(),
            peer,
            options: self.options.socket.clone(),
            tickets: None,
            mint: Some(self.mint.clone()),
            half_open: Some(self.half_open.begin(now, self.next, address)),
            spent: Some(self.spent.clone()),
        };
        let mut engine = Engine::new(now, start);
        engine.absorb(arrival, datagram);
        engine.after_absorb(now);
        if !engine.was_answered() || engine.is_copy {
            // Nothing in it could be read: no client of ours made it. Or one did, before.
            return None;
        }
        let original = Cid::new(&header.dcid)?;
        let ids: Vec<Cid> = Cid::new(&id).into_iter().chain([original]).collect();
        let number = self.next;
        self.next += 1;
        for &id in &ids {
            self.routes.insert(id, number);
        }
        let engine = Arc::new(Mutex::new(engine));
        self.connections.insert(number, Connection { engine, ids });
        self.fresh.push_back(number);
        Some(number)
    }

    /// Draws a connection's conclusions from what was absorbed, and wakes its tunnel.
    fn after_absorb(&mut self, now: Instant, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let mut engine = lock(&connection.engine);
        engine.after_absorb(now);
        for id in engine.new_ids.drain(..) {
            self.routes.insert(id, number);
            connection.ids.push(id);
        }
        for id in engine.old_ids.drain(..) {
            self.routes.remove(&id);
            connection.ids.retain(|&known| known != id);
        }
        wake(&self.hub, &mut engine);
    }

    /// Forgets connections whose tunnels were dropped.
    fn collect(&mut self) {
        let gone = std::mem::take(&mut lock(&self.hub.desk).gone);
        for number in gone {
            let Some(connection) = self.connections.remove(&number) else { continue };
            for id in &connection.ids {
                self.routes.remove(id);
            }
        }
    }

    fn demand_proof(&mut self, now: Instant, arrival: &Arrival, header: &Header<'_>) {
        let given = self.mint.cid();
        let token = self.retry.token(now, arrival.from, &header.dcid, &given);
        let given = ConnectionId::from_ref(&given);
        let mut answer = [0; ANSWER_MAX];
        let made =
            quiche::retry(&header.scid, &header.dcid, &given, &token, header.version, &mut answer);
        if let Ok(length) = made {
            self.counters.retries += 1;
            self.answer(arrival, &answer[..length]);
        }
    }

    fn negotiate(&mut self, arrival: &Arrival, datagram: &mut [u8]) {
        let Ok(header) = Header::from_slice(datagram, super::cid::CID_LENGTH) else { return };
        let mut answer = [0; ANSWER_MAX];
        if let Ok(length) = quiche::negotiate_version(&header.scid, &header.dcid, &mut answer) {
            self.answer(arrival, &answer[..length]);
        }
    }

    /// Tells a peer that its connection is gone (RFC 9000 10.3), by a datagram shorter than its own
    /// so that two who forgot each other do not go on for ever.
    fn reset(&mut self, arrival: &Arrival, provoked_by: usize, token: u128) {
        let length = (provoked_by - 1).min(RESET_LENGTH);
        if length < RESET_LENGTH_MIN {
            return;
        }
        let mut answer: [u8; RESET_LENGTH] = random();
        answer[0] = answer[0] & 0x3f | 0x40;
        answer[length - 16..length].copy_from_slice(&token.to_be_bytes());
        self.counters.resets += 1;
        self.answer(arrival, &answer[..length]);
    }

    /// Sends a datagram back; it may get lost like any other.
    fn answer(&self, arrival: &Arrival, bytes: &[u8]) {
        let (from, to) = (arrival.to, arrival.from);
        let _ = self.hub.udp.send(&Departure { from, to, segment: bytes.len(), bytes });
    }
}

impl event::Source for Listener {
    fn register(&mut self, registry: &Registry, token: Token, wanted: Interest) -> io::Result<()> {
        SourceFd(&self.hub.udp.raw_fd()).register(registry, token, wanted | Interest::WRITABLE)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        wanted: Interest,
    ) -> io::Result<()> {
        SourceFd(&self.hub.udp.raw_fd()).reregister(registry, token, wanted | Interest::WRITABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        SourceFd(&self.hub.udp.raw_fd()).deregister(registry)
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.hub.udp.local_addr())
            .field("connections", &self.connections.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Has a connection's tunnel looked at.
fn wake(hub: &Hub, engine: &mut Engine) {
    if let Some(token) = engine.token
        && !engine.woken
    {
        engine.woken = true;
        lock(&hub.desk).woken.push(token);
    }
}

/// One address may prove itself to a part of the handshakes under way: many carriers behind one
/// translator, no more.
const SHARE: usize = 4;
/// The shortest id that a client may choose for the server (RFC 9000 7.2).
const INITIAL_CID_MIN: usize = 8;
/// Room for a Retry or a version negotiation.
const ANSWER_MAX: usize = 256;
/// A stateless reset that looks like a short packet.
const RESET_LENGTH: usize = 43;
/// Shorter ones can be told from packets (RFC 9000 10.3).
const RESET_LENGTH_MIN: usize = 22;
