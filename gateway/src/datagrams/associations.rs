//! The relays of SOCKS5 clients' datagrams (UDP ASSOCIATE, RFC 1928 7): one socket for each
//! association, which ends with its TCP connection.
//!
//! A relay takes datagrams only from the address of that connection, and, after the first one, only
//! from its port. Nothing is read from the connection.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use mio::event::Event as Readiness;
use mio::net::{TcpStream, UdpSocket};
use mio::{Interest, Registry, Token};
use polyrail_model::{Destination, UserId};
use polyrail_relay::{KEEPALIVE, Read, ReadTurns, USER_TIMEOUT};
use slab::Slab;
use socket2::{SockRef, TcpKeepalive};

use crate::socks_clients::AssociationRequest;
use crate::socks5::{ReplyCode, udp_header};

/// All associations. Each has two tokens: that of its connection and that of its relay.
pub(super) struct Associations {
    registry: Registry,
    base: usize,
    all: Slab<Association>,
    /// The associations whose relays have datagrams.
    readable: ReadTurns,
    /// Datagrams dropped since the start: of strangers, or with an invalid header.
    invalid: u64,
}

struct Association {
    since: Instant,
    user: UserId,
    connection: TcpStream,
    relay: UdpSocket,
    /// The address of the connection.
    peer: IpAddr,
    /// The port from which the client said that it would send, or 0.
    port: u16,
    /// From where the first datagram came.
    endpoint: Option<SocketAddr>,
}

impl Associations {
    /// Registers sockets under `base` and the following tokens.
    pub(super) fn new(registry: Registry, base: usize) -> Self {
        Self { registry, base, all: Slab::new(), readable: ReadTurns::default(), invalid: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Datagrams dropped since the start: of strangers, or with an invalid header.
    pub(super) fn invalid(&self) -> u64 {
        self.invalid
    }

    /// The number of a user's associations.
    pub(super) fn of_user(&self, user: UserId) -> usize {
        self.all.iter().filter(|(_, association)| association.user == user).count()
    }

    /// The oldest association of the user with the most, if that has at least two more than this.
    pub(super) fn spare(&self, own: usize) -> Option<usize> {
        let mut counts: HashMap<UserId, usize> = HashMap::new();
        for (_, association) in &self.all {
            *counts.entry(association.user).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let (most, _) = most.filter(|(_, count)| *count >= own + 2)?;
        let of_most = self.all.iter().filter(|(_, association)| association.user == most);
        of_most.min_by_key(|(_, association)| association.since).map(|(index, _)| index)
    }

    /// The address from which the client of an association sends.
    pub(super) fn client_of(&self, index: usize) -> Option<SocketAddr> {
        self.all.get(index)?.endpoint
    }

    /// Opens a relay and replies to the client.
    pub(super) fn add(&mut self, now: Instant, request: AssociationRequest) {
        let peer = request.peer;
        let relay = match request.relay_address().and_then(UdpSocket::bind) {
            Ok(relay) => relay,
            Err(error) => {
                tracing::debug!(%peer, %error, "no relay for a SOCKS5 client's datagrams");
                return request.refuse(ReplyCode::GeneralFailure);
            }
        };
        if let Err(error) = self.insert(now, request, relay) {
            tracing::debug!(%peer, %error, "SOCKS5 client lost");
        }
    }

    fn insert(
        &mut self,
        since: Instant,
        request: AssociationRequest,
        mut relay: UdpSocket,
    ) -> io::Result<()> {
        let entry = self.all.vacant_entry();
        let token = self.base + 2 * entry.key();
        let (peer, port, user) = (request.peer.ip().to_canonical(), request.port, request.user);
        let mut connection = request.accept(relay.local_addr()?)?;
        let socket = SockRef::from(&connection);
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket.set_tcp_keepalive(&keepalive)?;
        self.registry.register(&mut connection, Token(token), Interest::READABLE)?;
        self.registry.register(&mut relay, Token(token + 1), Interest::READABLE)?;
        let endpoint = None;
        entry.insert(Association { since, user, connection, relay, peer, port, endpoint });
        Ok(())
    }

    /// Handles an event of a socket. Returns the association that has ended.
    pub(super) fn on_event(&mut self, event: &Readiness) -> Option<usize> {
        let place = event.token().0.checked_sub(self.base)?;
        let (index, is_connection) = (place / 2, place.is_multiple_of(2));
        if !is_connection {
            self.readable.insert(index);
            return None;
        }
        (event.is_read_closed() || event.is_error()).then_some(index)
    }

    /// Closes both sockets.
    pub(super) fn remove(&mut self, index: usize) {
        let Some(mut ended) = self.all.try_remove(index) else { return };
        // It fails only for unregistered sockets.
        let _ = self.registry.deregister(&mut ended.connection);
        let _ = self.registry.deregister(&mut ended.relay);
        self.readable.remove(index);
    }

    /// Whether [`Associations::receive`] is due.
    pub(super) fn is_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Hands over waiting datagrams, at most `most` of each association and about `of_all` of all.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        (most, of_all): (usize, usize),
        mut each: impl FnMut(usize, UserId, Destination, &[u8]),
    ) {
        let Self { all, readable, invalid, .. } = self;
        readable.serve(of_all, |index| {
            let Some(association) = all.get_mut(index) else { return Read::NONE };
            let user = association.user;
            for count in 0..most {
                let (length, from) = match association.relay.recv_from(buffer) {
                    Ok(received) => received,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Read { count, is_dry: true };
                    }
                    // An ICMP error about an earlier datagram; the next one may be sound.
                    Err(_) => continue,
                };
                if !association.accepts(from) {
                    *invalid += 1;
                    tracing::debug!(%from, "datagram of a stranger dropped");
                    continue;
                }
                match udp_header::parse(&buffer[..length]) {
                    Ok((to, payload)) => each(index, user, to, payload),
                    Err(error) => {
                        *invalid += 1;
                        tracing::debug!(%from, %error, "datagram dropped");
                    }
                }
            }
            Read { count: most, is_dry: false }
        });
    }

    /// Sends a datagram to a client without blocking: if the kernel's buffer is full, it is
    /// dropped.
    pub(super) fn send(&self, index: usize, from: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let unknown = || io::Error::from(io::ErrorKind::NotConnected);
        let association = self.all.get(index).ok_or_else(unknown)?;
        let endpoint = association.endpoint.ok_or_else(unknown)?;
        association.relay.send_to(&udp_header::encode(from, payload), endpoint).map(drop)
    }
}

impl Association {
    /// Whether a datagram from this address is the client's.
    fn accepts(&mut self, from: SocketAddr) -> bool {
        let is_first = self.endpoint.is_none()
            && from.ip().to_canonical() == self.peer
            && [0, from.port()].contains(&self.port);
        if is_first {
            self.endpoint = Some(from);
        }
        self.endpoint == Some(from)
    }
}
