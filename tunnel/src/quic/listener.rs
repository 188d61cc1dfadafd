//! The cloud's side: one UDP socket and all connections on it.
//!
//! The connection id of a datagram names its connection. A datagram without a connection begins
//! one if it is a client's first (an Initial of at least 1,200 bytes, RFC 9000 14.1), is answered
//! with a stateless reset if the id is one of ours, and is dropped otherwise, without an
//! allocation. Rejected clients cost no memory; [`ServerOptions::half_open_max`] bounds the
//! handshakes in progress (see [`half_open`](super::half_open)).
//!
//! Several event loops may have a listener each on one address: see [`group`](super::group).

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use mio::Token;
use polyrail_identity::{Clock, IdentityError, PeerVerifier, TlsIdentity};
use polyrail_model::Bucket;
use quiche::{Config, ConnectionId, Header, RetryConnectionIds};

use super::admission::Admission;
use super::away::Away;
use super::cid::{Cid, Form, Mint, outline, random, worker_of};
use super::connection::Engine;
use super::group::{Group, Packed, Stray};
use super::half_open::HalfOpens;
use super::ids::Ids;
use super::mail::{Mail, Mailbox, News, Note};
use super::socket::{Arrival, Departure, Udp};
use super::tunnel::{Port, QuicTunnel};
use super::{ServerOptions, context};
use crate::Tunnel;

/// Accepts gateways over QUIC.
pub struct Listener {
    udp: Rc<Udp>,
    /// The listening address as configured.
    address: SocketAddr,
    options: ServerOptions,
    judge: Arc<PeerVerifier>,
    config: Config,
    mint: Arc<Mint>,
    group: Group,
    half_open: HalfOpens,
    /// How many first packets may be invalid before all clients prove their addresses: each takes
    /// the time of a connection.
    invalid: Bucket,
    /// By connection id, the number of the connection.
    routes: HashMap<Cid, u64>,
    connections: HashMap<u64, Connection>,
    next: u64,
    /// New connections that were not accepted yet.
    fresh: VecDeque<QuicTunnel>,
    /// Connections that moved to other workers, and datagrams for other workers.
    away: Away,
    retired: Away,
    strays: Vec<Stray>,
    /// Reports of the tunnels.
    notes: (Sender<Note>, Receiver<Note>),
    /// Connections whose tunnels must be woken, and connections blocked on the full socket.
    woken: Vec<u64>,
    blocked: Vec<u64>,
    readable: bool,
    counters: ListenerCounters,
}

/// The listener's side of a tunnel.
struct Connection {
    mail: Sender<Mail>,
    ids: Vec<Cid>,
    token: Option<Token>,
    /// Whether it is in the list of tunnels to wake.
    woken: bool,
}

/// The way of a datagram to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    Socket,
    /// The worker at whose socket it arrived.
    Worker,
    /// The worker that packed its tunnel.
    Mover,
}

/// What a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Connection(u64),
    Worker {
        worker: u8,
        is_last: bool,
    },
    /// A connection that has other ids now.
    Retired,
    /// No connection.
    Stranger,
}

/// Counters of a listener since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounters {
    /// Received datagrams.
    pub datagrams: u64,
    /// Dropped datagrams without a connection.
    pub dropped: u64,
    /// Clients that had to prove their address.
    pub retries: u64,
    /// Rejected connections: too many half-open, or invalid.
    pub refused: u64,
    /// Accepted connections.
    pub begun: u64,
    /// Stateless resets sent.
    pub resets: u64,
    /// Received datagrams that were handed over to other workers.
    pub handed_over: u64,
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
        Self::bind_in(Group::default(), address, identity, options, clock)
    }

    /// Binds one of the sockets of a group, in the order of their workers.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_in(
        group: Group,
        address: SocketAddr,
        identity: TlsIdentity,
        options: ServerOptions,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let judge = Arc::new(PeerVerifier::of_gateways(identity.clone(), clock));
        let config = context::of_server(&identity, &judge, &options, &group.ticket_key)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let worker = (group.worker, group.workers);
        let mint = Arc::new(Mint::new(identity.key_der(), options.server_id, address, worker));
        let udp = match group.workers {
            1 => Udp::bind(address)?,
            workers => {
                let steered = group.steered.then_some(workers);
                Udp::bind_shared(address, group.worker == 0, steered)?
            }
        };
        Ok(Self {
            udp: Rc::new(udp),
            address,
            options,
            judge,
            config,
            mint,
            group,
            half_open: HalfOpens::default(),
            invalid: Bucket::new(Instant::now(), INVALID_MAX, INVALID_MAX),
            routes: HashMap::new(),
            connections: HashMap::new(),
            next: 0,
            fresh: VecDeque::new(),
            away: Away::default(),
            retired: Away::default(),
            strays: Vec::new(),
            notes: mpsc::channel(),
            woken: Vec::new(),
            blocked: Vec::new(),
            readable: false,
            counters: ListenerCounters::default(),
        })
    }

    /// Uses another identity from now on, also for handshakes in progress. Older sessions can still
    /// be resumed if the new identity accepts their certificates. Existing tunnels stay: ask
    /// [`TlsIdentity::is_revoked`] about their peers.
    ///
    /// # Errors
    /// TLS cannot use it; the old one stays.
    pub fn set_identity(&mut self, identity: TlsIdentity) -> Result<(), IdentityError> {
        let ticket_key = &self.group.ticket_key;
        self.config = context::of_server(&identity, &self.judge, &self.options, ticket_key)?;
        let (server_id, group) = (self.options.server_id, &self.group);
        let worker = (group.worker, group.workers);
        let mint = Mint::new(identity.key_der(), server_id, self.address, worker);
        self.mint = Arc::new(mint);
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
        self.config = context::of_server(identity, &self.judge, &options, &self.group.ticket_key)?;
        self.options = options;
        Ok(())
    }

    /// Where it listens, with the port that the kernel chose for port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.udp.local_addr()
    }

    /// Takes a readiness event.
    pub fn on_ready(&mut self, _now: Instant, readable: bool, writable: bool) {
        self.readable |= readable;
        if writable {
            self.collect();
            for number in std::mem::take(&mut self.blocked) {
                self.wake(number);
            }
        }
    }

    /// Reads one batch and feeds the connections. Returns whether to call it again without waiting
    /// for an event.
    pub fn receive(&mut self, now: Instant) -> bool {
        self.collect();
        if !self.readable {
            return false;
        }
        let udp = self.udp.clone();
        let received = udp.receive(&mut |arrival, datagrams| {
            self.on_arrival(now, arrival, datagrams, Via::Socket);
        });
        if let Err(error) = received {
            if error.kind() == io::ErrorKind::WouldBlock {
                self.readable = false;
            } else {
                tracing::trace!(%error, "cannot receive datagrams");
            }
        }
        self.readable
    }

    /// A new connection, whose handshake is in progress.
    pub fn accept(&mut self) -> Option<Box<dyn Tunnel>> {
        self.fresh.pop_front().map(|tunnel| Box::new(tunnel) as Box<dyn Tunnel>)
    }

    /// Datagrams for other workers.
    pub fn take_strays(&mut self) -> Vec<Stray> {
        std::mem::take(&mut self.strays)
    }

    /// Takes datagrams that another worker has handed over.
    pub fn take_in(&mut self, now: Instant, mut stray: Stray) {
        self.collect();
        let via = if stray.is_last { Via::Mover } else { Via::Worker };
        self.on_arrival(now, &stray.arrival, &mut stray.bytes, via);
    }

    /// Takes a tunnel that another worker of the group has packed, by the contents of its
    /// [`Parcel::Quic`](crate::Parcel); `None` if they are from elsewhere.
    pub fn unpack(
        &mut self,
        now: Instant,
        contents: Box<dyn Any + Send>,
    ) -> Option<Box<dyn Tunnel>> {
        let Packed { mut engine, original, ids, unread } = *contents.downcast().ok()?;
        engine.ids.mint = Some(self.mint.clone());
        engine.ids.foreign = engine.connection.source_ids().count();
        engine.egress.unblock();
        let number = self.next;
        let mailbox = self.enlist(original, ids);
        for (arrival, bytes) in unread {
            self.post(number, Mail::Datagrams(arrival, bytes));
        }
        if engine.life.is_handshaking() {
            self.half_open.begin(now, number, None);
        }
        Some(Box::new(QuicTunnel::new(engine, Port::Shared(self.udp.clone(), mailbox))))
    }

    /// Appends the tokens of the tunnels to wake to `woken`: call
    /// [`Tunnel::on_ready`] of each, then drain it.
    pub fn take_woken(&mut self, woken: &mut Vec<Token>) {
        self.collect();
        for number in self.woken.drain(..) {
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.woken = false;
                woken.extend(connection.token);
            }
        }
    }

    /// Handshakes in progress, by the reports read in the last [`receive`](Self::receive).
    pub fn half_open(&self) -> usize {
        self.half_open.count()
    }

    /// The counters.
    pub fn counters(&self) -> ListenerCounters {
        self.counters
    }

    /// Feeds datagrams that arrived together, from one address.
    fn on_arrival(&mut self, now: Instant, arrival: &Arrival, datagrams: &mut [u8], via: Via) {
        let mut rest = datagrams;
        while !rest.is_empty() {
            let route = self.route_of(rest, via);
            // Datagrams of the same connection travel together.
            let mut length = arrival.stride.min(rest.len());
            while route != Route::Stranger
                && length < rest.len()
                && self.route_of(&rest[length..], via) == route
            {
                length = (length + arrival.stride).min(rest.len());
            }
            let (together, behind) = rest.split_at_mut(length);
            let count = together.len().div_ceil(arrival.stride) as u64;
            self.counters.datagrams += if via == Via::Socket { count } else { 0 };
            match route {
                Route::Connection(number) => {
                    self.post(number, Mail::Datagrams(*arrival, together.to_vec()));
                }
                Route::Worker { worker, is_last } => {
                    self.counters.handed_over += count;
                    let (listener, bytes) = (self.udp.local_addr(), together.to_vec());
                    let stray = Stray { worker, listener, arrival: *arrival, bytes, is_last };
                    self.strays.push(stray);
                }
                Route::Retired => self.counters.dropped += count,
                Route::Stranger => self.on_stranger(now, arrival, together),
            }
            rest = behind;
        }
    }

    fn route_of(&self, datagram: &[u8], via: Via) -> Route {
        let Some(outline) = outline(datagram) else { return Route::Stranger };
        let Some(id) = Cid::new(outline.destination) else { return Route::Stranger };
        if let Some(&number) = self.routes.get(&id) {
            return Route::Connection(number);
        }
        match self.away.find(&id) {
            Some(worker) if via != Via::Mover => return Route::Worker { worker, is_last: true },
            _ => {}
        }
        if self.retired.find(&id).is_some() {
            return Route::Retired;
        }
        let own = self.group.worker;
        let worker = worker_of(outline.destination, self.group.workers).unwrap_or(own);
        if via == Via::Socket && worker != own {
            return Route::Worker { worker, is_last: false };
        }
        Route::Stranger
    }

    /// A datagram that belongs to no connection.
    fn on_stranger(&mut self, now: Instant, arrival: &Arrival, datagram: &mut [u8]) {
        let Some(outline) = outline(datagram) else {
            self.counters.dropped += 1;
            return;
        };
        let long_enough = datagram.len() >= quiche::MIN_CLIENT_INITIAL_LEN;
        match outline.form {
            Form::Initial if long_enough && outline.destination.len() >= INITIAL_CID_MIN => {
                self.on_initial(now, arrival, datagram);
                return;
            }
            Form::Foreign if long_enough => self.negotiate(arrival, datagram),
            Form::Short if self.mint.made(outline.destination) => {
                let token = self.mint.reset_token(outline.destination);
                self.reset(arrival, datagram.len(), token);
            }
            _ => {}
        }
        self.counters.dropped += 1;
    }

    /// A client's first datagram: begins a connection or demands a proof of its address.
    fn on_initial(&mut self, now: Instant, arrival: &Arrival, datagram: &mut [u8]) {
        let Ok(header) = Header::from_slice(datagram, super::cid::CID_LENGTH) else { return };
        let token = header.token.as_deref().unwrap_or_default();
        let proven = self.group.retry.check(now, arrival.from, &header.dcid, token);
        let half_open = self.half_open();
        let limit = self.options.retry_above.min(self.options.half_open_max);
        let floods =
            self.options.retry_above < self.options.half_open_max && self.invalid.level(now) < 1.0;
        if proven.is_none() && (half_open >= limit || floods) {
            return self.demand_proof(now, arrival, &header);
        }
        if proven.is_some() && !self.make_way(now, arrival.from.ip()) {
            self.counters.refused += 1;
            return;
        }
        let proven = proven.map(<[u8]>::to_vec);
        match self.begin(now, arrival, &header, proven.as_deref(), datagram) {
            Some(()) => self.counters.begun += 1,
            None => {
                self.counters.refused += 1;
                self.invalid.take(now, 1);
            }
        }
    }

    /// Whether a client with a proved address may connect; at the bound it replaces the oldest
    /// handshake, at the bound of its address the oldest of that.
    fn make_way(&mut self, now: Instant, address: IpAddr) -> bool {
        let half_open_max = self.options.half_open_max;
        let oldest = if self.half_open.proven_by(address) >= half_open_max.div_ceil(SHARE) {
            let oldest = self.half_open.oldest_of(now, address);
            if oldest.is_none() {
                return false;
            }
            oldest
        } else if self.half_open() >= half_open_max {
            self.half_open.oldest(now)
        } else {
            None
        };
        if let Some(oldest) = oldest {
            self.half_open.end(oldest);
            self.post(oldest, Mail::GiveWay);
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
    ) -> Option<()> {
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
        let admission = Admission::new(self.judge.clone(), None, Some(self.group.spent.clone()));
        let (mint, waits) = (Some(self.mint.clone()), self.group.workers > 1);
        let ids = Ids { mint, waits, ..Ids::default() };
        let options = self.options.socket.clone();
        let mut engine = Engine::new(now, connection.ok()?, admission, ids, peer, options);
        engine.absorb(arrival, datagram);
        engine.after_absorb(now);
        if !engine.was_answered() || engine.admission.is_replay {
            // No valid packet in it, or a replay.
            return None;
        }
        let original = Cid::new(&header.dcid)?;
        self.half_open.begin(now, self.next, address);
        let mailbox = self.enlist(original, Cid::new(&id).into_iter().collect());
        self.fresh.push_back(QuicTunnel::new(engine, Port::Shared(self.udp.clone(), mailbox)));
        Some(())
    }

    /// Routes these ids, and the one that the client chose first, to a new connection.
    fn enlist(&mut self, original: Cid, mut ids: Vec<Cid>) -> Mailbox {
        ids.push(original);
        let number = self.next;
        self.next += 1;
        for &id in &ids {
            self.routes.insert(id, number);
        }
        let (sender, mail) = mpsc::channel();
        let connection = Connection { mail: sender, ids, token: None, woken: false };
        self.connections.insert(number, connection);
        let (listener, notes) = (self.udp.local_addr(), self.notes.0.clone());
        Mailbox { number, listener, original, mail, notes }
    }

    /// Sends a message to a tunnel and wakes it.
    fn post(&mut self, number: u64, mail: Mail) {
        if let Some(connection) = self.connections.get(&number)
            && connection.mail.send(mail).is_ok()
        {
            self.wake(number);
        }
    }

    fn wake(&mut self, number: u64) {
        if let Some(connection) = self.connections.get_mut(&number)
            && connection.token.is_some()
            && !connection.woken
        {
            connection.woken = true;
            self.woken.push(number);
        }
    }

    /// Acts on the tunnels' reports.
    fn collect(&mut self) {
        while let Ok(Note { number, news }) = self.notes.1.try_recv() {
            self.on_news(number, news);
        }
    }

    fn on_news(&mut self, number: u64, news: News) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        match news {
            News::Registered(token) => {
                connection.token = token;
                self.wake(number);
            }
            News::NewIds(ids) => {
                self.routes.extend(ids.iter().map(|&id| (id, number)));
                connection.ids.extend(ids);
            }
            News::OldIds(ids) => {
                connection.ids.retain(|known| !ids.contains(known));
                let now = Instant::now();
                for &id in &ids {
                    self.routes.remove(&id);
                    self.retired.note(now, id, self.group.worker);
                }
            }
            News::Blocked if self.blocked.contains(&number) => {}
            News::Blocked => self.blocked.push(number),
            News::HandshakeOver => self.half_open.end(number),
            News::Moved(worker) => {
                let now = Instant::now();
                for &id in &connection.ids {
                    self.away.note(now, id, worker);
                }
                self.on_news(number, News::Gone);
            }
            News::Gone => {
                for id in &connection.ids {
                    self.routes.remove(id);
                }
                self.connections.remove(&number);
                self.half_open.end(number);
            }
        }
    }

    fn demand_proof(&mut self, now: Instant, arrival: &Arrival, header: &Header<'_>) {
        let given = self.mint.cid();
        let token = self.group.retry.token(now, arrival.from, &header.dcid, &given);
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

    /// Sends a stateless reset (RFC 9000 10.3), shorter than the datagram that caused it, so that
    /// two peers cannot answer each other forever.
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

    /// Sends a datagram back, best effort.
    fn answer(&self, arrival: &Arrival, bytes: &[u8]) {
        let (from, to) = (arrival.to, arrival.from);
        let _ = self.udp.send(&Departure { from, to, segment: bytes.len(), bytes });
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.udp.raw_fd()
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.udp.local_addr())
            .field("connections", &self.connections.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// A second, and at once, unless Retry is disabled.
const INVALID_MAX: f64 = 100.0;
/// The share of the handshakes in progress that one address may have by proof, as its divisor:
/// enough for many carriers behind one address translator.
const SHARE: usize = 4;
/// The shortest id that a client may choose for the server (RFC 9000 7.2).
const INITIAL_CID_MIN: usize = 8;
/// Room for a Retry or a version negotiation.
const ANSWER_MAX: usize = 256;
/// A stateless reset that looks like a short packet.
const RESET_LENGTH: usize = 43;
/// Shorter ones can be distinguished from packets (RFC 9000 10.3).
const RESET_LENGTH_MIN: usize = 22;
