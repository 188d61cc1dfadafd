//! SOCKS5 clients from their connection until their flow has a leg, or until they want a relay for
//! datagrams.
//!
//! ```text
//!   Negotiating ──request──> (flow opened) ──reply sent, first data taken──> the relay's leg
//!        │  └──────────────> AssociationRequest, for the caller
//!        │                        │
//!        └───────── failure ──────┴──> Parting: reply sent, waits for the client to close
//! ```
//!
//! At most [`CLIENTS_MAX`] at once and [`CLIENTS_USER_MAX`] of a user, each for at most
//! [`NEGOTIATION_MAX`] before its request and at most [`DIAL_MAX`] between its request and its leg.
//!
//! Invariants: bytes after a client's request reach the flow before the leg reads more; a flow gets
//! its leg only after all events of that turn were handled ([`SocksClients::on_turn`]), because the
//! leg of a flow that was reset meanwhile would never close.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use mio::event::Event as Readiness;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use polyrail_config::SocksReply;
use polyrail_model::{Destination, UserId};
use polyrail_relay::Relay;
use polyrail_session::{Event, FlowKey, OpenError, ResetReason};
use slab::Slab;
use socket2::{Domain, Socket, Type};

use crate::socks5::{Negotiation, ReplyCode, SocksEvent};

/// The maximum number of clients that negotiate or wait for a dial. At the bound the heaviest user
/// loses its oldest one to a user that has at least two fewer; other further ones are reset.
pub const CLIENTS_MAX: usize = 4096;

/// The maximum number of such clients of one user; further ones are reset.
pub const CLIENTS_USER_MAX: usize = 256;

/// Timeout of a client's request.
pub const NEGOTIATION_MAX: Duration = Duration::from_secs(15);

/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

/// How long a client waits for the dial and for its flow to accept its first data. Longer than the
/// defaults of `session.linger` (120 s) and `dial.timeout` (10 s) together, so that it applies only
/// if an answer was lost.
pub const DIAL_MAX: Duration = Duration::from_secs(130);

/// Listens for clients, also on an address that this host does not have yet: an interface towards
/// users may come up after the daemon. Connections then succeed from that moment on
/// (`IP_FREEBIND`, ip(7)).
///
/// # Errors
/// The port is taken or needs privileges.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {}
        bound => return bound,
    }
    tracing::warn!(%address, "this host does not have the SOCKS5 server's address yet, waiting");
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv4() {
        socket.set_freebind_v4(true)?;
    } else {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// The clients.
pub(crate) struct SocksClients {
    registry: Registry,
    base: usize,
    policy: SocksReply,
    clients: Slab<SocksClient>,
    /// The number of clients of each user that has any.
    users: HashMap<UserId, usize>,
    /// Clients refused since the last [`SocksClients::take_refused`].
    refused: Vec<(SocketAddr, OpenError)>,
    /// The requests since the last [`SocksClients::take_associations`].
    associations: Vec<AssociationRequest>,
    by_flow: HashMap<FlowKey, usize>,
    /// Flows whose clients continue in the next turn; each once, so at most [`CLIENTS_MAX`].
    moved: Vec<FlowKey>,
    moved_at: Option<Instant>,
    scan_at: Option<Instant>,
    /// No flows open now.
    held: bool,
    /// The clients that continue when that is over.
    waiting: BTreeSet<usize>,
}

struct SocksClient {
    stream: TcpStream,
    user: UserId,
    peer: SocketAddr,
    negotiation: Negotiation,
    flow: Option<FlowKey>,
    /// It wants a relay for datagrams from this port.
    associates: Option<u16>,
    /// Bytes after the request that the flow has not accepted; at most [`READ_BYTES`].
    first: Vec<u8>,
    /// When the current state times out.
    deadline: Instant,
    /// The cloud reached the server.
    reached: bool,
    /// Its flow is in [`SocksClients::moved`].
    moved: bool,
    parting: bool,
}

/// A client that waits for a relay for its datagrams.
pub(crate) struct AssociationRequest {
    pub(crate) peer: SocketAddr,
    pub(crate) user: UserId,
    /// The port from which it will send; 0 if it did not say.
    pub(crate) port: u16,
    stream: TcpStream,
    negotiation: Negotiation,
}

impl SocksClients {
    pub(crate) fn new(registry: Registry, base: usize, policy: SocksReply) -> Self {
        Self {
            registry,
            base,
            policy,
            clients: Slab::new(),
            users: HashMap::new(),
            refused: Vec::new(),
            associations: Vec::new(),
            by_flow: HashMap::new(),
            moved: Vec::new(),
            moved_at: None,
            scan_at: None,
            held: false,
            waiting: BTreeSet::new(),
        }
    }

    /// Uses another policy for new clients.
    pub(crate) fn set_policy(&mut self, policy: SocksReply) {
        self.policy = policy;
    }

    /// While it is not known which cloud new flows go to, requests are not read.
    pub(crate) fn set_held(&mut self, now: Instant, relay: &mut Relay, held: bool) {
        self.held = held;
        if !held {
            for index in std::mem::take(&mut self.waiting) {
                self.go_on(now, relay, index);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// The address of the client of a flow.
    pub(crate) fn peer_of(&self, flow: FlowKey) -> Option<SocketAddr> {
        self.by_flow.get(&flow).map(|&index| self.clients[index].peer)
    }

    /// The clients that were refused since the last call, and why.
    pub(crate) fn take_refused(&mut self) -> Vec<(SocketAddr, OpenError)> {
        std::mem::take(&mut self.refused)
    }

    /// The clients that want a relay for datagrams, since the last call.
    pub(crate) fn take_associations(&mut self) -> Vec<AssociationRequest> {
        std::mem::take(&mut self.associations)
    }

    /// Adds a client, unless its user has too many.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        mut stream: TcpStream,
        peer: SocketAddr,
        user: UserId,
    ) {
        if let Err(error) = self.make_room(now, relay, user) {
            self.refused.push((peer, error));
            return polyrail_relay::reset_socket(stream);
        }
        let entry = self.clients.vacant_entry();
        let (index, token) = (entry.key(), Token(self.base + entry.key()));
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.registry.register(&mut stream, token, both) {
            tracing::warn!(%error, "cannot register a SOCKS5 client with epoll");
            return;
        }
        entry.insert(SocksClient {
            stream,
            user,
            peer,
            negotiation: Negotiation::new(self.policy),
            flow: None,
            associates: None,
            first: Vec::new(),
            deadline: now + NEGOTIATION_MAX,
            reached: false,
            moved: false,
            parting: false,
        });
        *self.users.entry(user).or_default() += 1;
        self.scan_at.get_or_insert(now + SCAN_EVERY);
        self.go_on(now, relay, index);
    }

    /// Whether a client of this user may be added; removes one of the heaviest user if necessary.
    fn make_room(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        user: UserId,
    ) -> Result<(), OpenError> {
        let own = self.users.get(&user).copied().unwrap_or(0);
        if own >= CLIENTS_USER_MAX {
            return Err(OpenError::TooManyOfUser);
        }
        if self.clients.len() < CLIENTS_MAX {
            return Ok(());
        }
        let heaviest = self.users.iter().max_by_key(|(_, count)| **count);
        let heaviest = heaviest.filter(|(_, count)| **count >= own + 2).map(|(user, _)| *user);
        let mut of_heaviest = self.clients.iter().filter(|(_, one)| Some(one.user) == heaviest);
        // A deadline orders them well enough, and few clients wait for a dial.
        let Some(oldest) = of_heaviest.by_ref().min_by_key(|(_, one)| one.deadline) else {
            return Err(OpenError::TooManyFlows);
        };
        if let Some(client) = self.remove(oldest.0) {
            self.refused.push((client.peer, OpenError::TooManyFlows));
            if let Some(flow) = client.flow {
                relay.endpoint().reset(now, flow, ResetReason::PeerReset);
            }
            polyrail_relay::reset_socket(client.stream);
        }
        Ok(())
    }

    /// Handles an event of a client's socket.
    pub(crate) fn on_event(&mut self, now: Instant, relay: &mut Relay, event: &Readiness) {
        let Some(index) = event.token().0.checked_sub(self.base) else { return };
        let gone = event.is_error() || event.is_write_closed();
        let Some(client) = self.clients.get(index) else { return };
        if gone && client.flow.is_some() {
            let flow = client.flow;
            self.remove(index);
            if let Some(flow) = flow {
                relay.endpoint().reset(now, flow, ResetReason::PeerReset);
            }
            return;
        }
        self.go_on(now, relay, index);
    }

    /// Handles an event of a flow without a leg; returns false if it is another flow.
    pub(crate) fn on_flow(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        flow: FlowKey,
        event: &Event,
    ) -> bool {
        let Some(&index) = self.by_flow.get(&flow) else { return false };
        let client = &mut self.clients[index];
        match event {
            // Data of the server proves that it was reached.
            Event::Dialed { .. } | Event::Readable { .. } => client.reached = true,
            Event::Writable { .. } => client.write_first(now, relay),
            _ => return true,
        }
        if !std::mem::replace(&mut client.moved, true) {
            self.moved.push(flow);
            self.moved_at.get_or_insert(now);
        }
        true
    }

    /// Handles the end of a flow without a leg; returns false if it is another flow.
    pub(crate) fn on_gone(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        flow: FlowKey,
        reason: ResetReason,
    ) -> bool {
        let Some(index) = self.by_flow.remove(&flow) else { return false };
        let client = &mut self.clients[index];
        client.lose_flow(now, reason);
        self.go_on(now, relay, index);
        true
    }

    /// When [`SocksClients::on_turn`] is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.moved_at.into_iter().chain(self.scan_at).min()
    }

    /// Continues with the clients whose flows had events, and removes clients that timed out. Call
    /// it after all events of the relay were handled.
    pub(crate) fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        self.moved_at = None;
        for flow in std::mem::take(&mut self.moved) {
            if let Some(&index) = self.by_flow.get(&flow) {
                let client = &mut self.clients[index];
                client.moved = false;
                if client.reached {
                    client.negotiation.dialed(Ok(()));
                }
                self.go_on(now, relay, index);
            }
        }
        if self.scan_at.is_some_and(|at| at <= now) {
            self.scan(now, relay);
        }
    }

    fn scan(&mut self, now: Instant, relay: &mut Relay) {
        let late = self.clients.iter().filter(|(_, client)| client.deadline <= now);
        let late: Vec<usize> = late.map(|(index, _)| index).collect();
        for index in late {
            match self.clients[index].flow {
                Some(flow) => {
                    relay.endpoint().reset(now, flow, ResetReason::TimedOut);
                    self.on_gone(now, relay, flow, ResetReason::TimedOut);
                }
                None => drop(self.remove(index)),
            }
        }
        self.scan_at = (!self.clients.is_empty()).then(|| now + SCAN_EVERY);
    }

    /// Reads, negotiates and answers as far as possible without blocking.
    fn go_on(&mut self, now: Instant, relay: &mut Relay, index: usize) {
        let Some(client) = self.clients.get_mut(index) else { return };
        if self.held && client.flow.is_none() && !client.negotiation.is_failed() {
            self.waiting.insert(index);
            return;
        }
        let read = client.read(now, relay, &mut self.refused);
        if let Some(port) = client.associates {
            let client = self.remove(index).map(|client| client.into_request(port));
            return self.associations.extend(client);
        }
        if let Some(flow) = client.flow {
            self.by_flow.insert(flow, index);
        }
        client.write_first(now, relay);
        let sent = client.send();
        let over = read.is_err() || sent.is_err();
        let replied = client.negotiation.is_done() && client.negotiation.output().is_empty();
        let done = replied && client.first.is_empty();
        match (over, done, client.flow) {
            (true, _, flow) => {
                self.remove(index);
                if let Some(flow) = flow {
                    relay.endpoint().reset(now, flow, ResetReason::PeerReset);
                }
            }
            (false, true, Some(flow)) => {
                if let Some(client) = self.remove(index) {
                    relay.attach(now, flow, client.stream);
                }
            }
            // The flow was reset after the success reply, so reset the client, too.
            (false, true, None) => {
                if let Some(client) = self.remove(index) {
                    polyrail_relay::reset_socket(client.stream);
                }
            }
            (false, false, _) => self.part(now, index),
        }
    }

    /// Waits for the client to close after a failure's reply: closing at once with unread bytes
    /// would send RST, which may discard the reply.
    fn part(&mut self, now: Instant, index: usize) {
        let Some(client) = self.clients.get_mut(index) else { return };
        let ready = client.negotiation.is_failed() && client.negotiation.output().is_empty();
        if ready && !std::mem::replace(&mut client.parting, true) {
            let _ = client.stream.shutdown(Shutdown::Write);
            client.deadline = now + PARTING_MAX;
        }
    }

    fn remove(&mut self, index: usize) -> Option<SocksClient> {
        let mut client = self.clients.try_remove(index)?;
        if let Some(count) = self.users.get_mut(&client.user) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&client.user);
            }
        }
        if let Some(flow) = client.flow {
            self.by_flow.remove(&flow);
        }
        // It fails only for an unregistered socket.
        let _ = self.registry.deregister(&mut client.stream);
        Some(client)
    }
}

impl SocksClient {
    /// Reads until the request is complete; further bytes belong to the flow. After a failure it
    /// discards all input.
    fn read(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        refused: &mut Vec<(SocketAddr, OpenError)>,
    ) -> io::Result<()> {
        let mut buffer = [0; READ_BYTES];
        while self.flow.is_none() && self.associates.is_none() && !self.negotiation.is_done() {
            let read = match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let taken = self.negotiation.receive(&buffer[..read]);
            match self.negotiation.poll() {
                Some(SocksEvent::Connect(destination)) => {
                    let opened = self.open(now, relay, destination, &buffer[taken..read]);
                    refused.extend(opened.err().map(|error| (self.peer, error)));
                }
                Some(SocksEvent::Associate(port)) => self.associates = Some(port),
                Some(SocksEvent::Failed(failure)) => {
                    tracing::debug!(peer = %self.peer, %failure, "SOCKS5 client refused");
                }
                None => {}
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        to: Destination,
        first: &[u8],
    ) -> Result<(), OpenError> {
        match relay.endpoint().open(now, self.user, to) {
            Ok(flow) => {
                self.flow = Some(flow);
                self.deadline = now + DIAL_MAX;
                self.first = first.to_vec();
                Ok(())
            }
            Err(error) => {
                self.negotiation.dialed(Err(ReplyCode::GeneralFailure));
                Err(error)
            }
        }
    }

    /// Writes the bytes after the request, as far as the flow accepts them; the session reports
    /// when it accepts more.
    fn write_first(&mut self, now: Instant, relay: &mut Relay) {
        if let Some(flow) = self.flow.filter(|_| !self.first.is_empty()) {
            let taken = relay.endpoint().write(now, flow, &self.first);
            self.first.drain(..taken);
        }
    }

    /// The flow is gone: unwritten bytes are discarded, and a waiting client gets a reply.
    fn lose_flow(&mut self, now: Instant, reason: ResetReason) {
        self.flow = None;
        self.first = Vec::new();
        self.deadline = now + PARTING_MAX;
        self.negotiation.dialed(Err(reason.into()));
    }

    fn send(&mut self) -> io::Result<()> {
        send(&mut self.stream, &mut self.negotiation)
    }

    fn into_request(self, port: u16) -> AssociationRequest {
        let Self { peer, user, stream, negotiation, .. } = self;
        AssociationRequest { peer, user, port, stream, negotiation }
    }
}

impl AssociationRequest {
    /// The address at which the client has reached the server, with any port.
    pub(crate) fn relay_address(&self) -> io::Result<SocketAddr> {
        let mut address = self.stream.local_addr()?;
        address.set_ip(address.ip().to_canonical());
        address.set_port(0);
        Ok(address)
    }

    /// Replies with the address of the relay, and returns the connection, whose end is that of the
    /// association.
    pub(crate) fn accept(mut self, relay: SocketAddr) -> io::Result<TcpStream> {
        self.negotiation.associated(Ok(relay));
        send(&mut self.stream, &mut self.negotiation)?;
        // The buffer of a new connection is empty.
        let sent = self.negotiation.output().is_empty();
        sent.then_some(self.stream).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Replies that there is no relay, and closes the connection.
    pub(crate) fn refuse(mut self, code: ReplyCode) {
        self.negotiation.associated(Err(code));
        // The client may be gone.
        let _ = send(&mut self.stream, &mut self.negotiation);
    }
}

/// Sends the output as far as possible without blocking.
fn send(stream: &mut TcpStream, negotiation: &mut Negotiation) -> io::Result<()> {
    while !negotiation.output().is_empty() {
        match stream.write(negotiation.output()) {
            Ok(sent) => negotiation.sent(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The size of one read from a client: the request and a browser's first flight.
const READ_BYTES: usize = 4096;
/// Timeout for a refused client to close.
const PARTING_MAX: Duration = Duration::from_secs(2);
/// How often timeouts are checked while there are clients.
const SCAN_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
