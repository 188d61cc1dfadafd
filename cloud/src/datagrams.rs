//! Passengers' datagrams beyond the cloud: one socket for each binding and address family, used
//! for all destinations, so that the mapping is endpoint-independent (RFC 4787 REQ-1).
//!
//! A datagram for a passenger is accepted by default only from addresses to which the passenger
//! has sent (address-dependent filtering, RFC 4787 REQ-8); [`Filtering`] has the other choices.
//! Nothing is sent that no passenger has sent.
//!
//! If the network refuses a datagram (ICMP), the gateway receives a message for the passenger.
//!
//! The caller looks up names, one of a binding at a time; meanwhile the binding's datagrams to
//! names wait. A binding keeps the address of a name, so that a connection stays with one server.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use polyrail_config::Filtering;
use polyrail_daemon::{UdpDrop, UdpDrops};
use polyrail_model::{BindingId, Delivery, Destination, HostName, SessionKey, UserId};
use polyrail_relay::{
    BindingUse, ICMP_ERROR, IcmpError, Marked, Read, ReadTurns, Relay, UserLimit, icmp_limit,
};
use polyrail_relay::{receive_icmp_error, receive_marked, watch_icmp_errors, watch_marks};
use polyrail_session::UserDatagram;
use polyrail_session::limits::BINDINGS_MAX;
use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};

use crate::access::AccessList;

/// The sockets of all bindings.
pub(crate) struct Datagrams {
    registry: Registry,
    base: usize,
    access: AccessList,
    filtering: Filtering,
    bindings: Slab<Outside>,
    by_key: HashMap<BindingKey, usize>,
    /// The datagrams that wait for a lookup, at most [`WAITING_MAX`] of a binding.
    waiting: HashMap<BindingKey, Vec<(Instant, UserDatagram)>>,
    of_session: HashMap<SessionKey, Share>,
    /// Refused or displaced; the session does not know yet.
    unserved: HashSet<BindingKey>,
    user_max: usize,
    /// Bindings of all gateways: each has up to two descriptors.
    all_max: usize,
    readable: ReadTurns,
    /// Sockets with ICMP errors.
    failed: ReadTurns,
    errors: HashMap<SessionKey, UserLimit>,
    drops: UdpDrops,
    sweep_at: Instant,
    buffer: Box<[u8]>,
    control: Vec<u8>,
}

/// The lookup of a name that a datagram has as its destination.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) key: BindingKey,
    pub(crate) user: UserId,
    pub(crate) destination: Destination,
}

/// A binding of a session.
pub(crate) type BindingKey = (SessionKey, BindingId);

/// The bindings of a session.
#[derive(Default)]
struct Share {
    all: usize,
    of_user: HashMap<UserId, usize>,
}

/// One binding.
struct Outside {
    key: BindingKey,
    user: UserId,
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    /// To which its passenger has sent, as [`contact`] sees it.
    contacted: HashSet<SocketAddr>,
    names: HashMap<HostName, IpAddr>,
    used: BindingUse,
}

impl Datagrams {
    /// Registers sockets under `base` and the following tokens.
    pub(crate) fn new(
        now: Instant,
        registry: Registry,
        base: usize,
        (access, filtering): (AccessList, Filtering),
        (user_max, all_max): (usize, usize),
    ) -> Self {
        Self {
            registry,
            base,
            access,
            filtering,
            bindings: Slab::new(),
            by_key: HashMap::new(),
            waiting: HashMap::new(),
            of_session: HashMap::new(),
            unserved: HashSet::new(),
            user_max,
            all_max: all_max.min(BINDINGS_MAX),
            readable: ReadTurns::default(),
            failed: ReadTurns::default(),
            errors: HashMap::new(),
            drops: UdpDrops::default(),
            sweep_at: now + SWEEP_EVERY,
            buffer: vec![0; LENGTH_MAX].into_boxed_slice(),
            control: nix::cmsg_space!(libc::c_int),
        }
    }

    /// Uses another access list and filtering.
    pub(crate) fn set_rules(&mut self, access: AccessList, filtering: Filtering) {
        (self.access, self.filtering) = (access, filtering);
    }

    /// A passenger has sent a datagram. If it waits for the lookup of its name, the caller begins
    /// that and calls [`Datagrams::found`].
    #[must_use]
    pub(crate) fn send(
        &mut self,
        now: Instant,
        session: SessionKey,
        datagram: UserDatagram,
    ) -> Option<Lookup> {
        let key = (session, datagram.binding);
        let (name, port) = match &datagram.remote {
            Destination::Address(to) => {
                self.send_to(now, key, *to, &datagram);
                return None;
            }
            Destination::Name(name, port) => (name, *port),
        };
        let binding = self.by_key.get(&key).and_then(|&index| self.bindings.get(index));
        if let Some(&ip) = binding.and_then(|binding| binding.names.get(name)) {
            self.send_to(now, key, SocketAddr::new(ip, port), &datagram);
            return None;
        }
        let Some(user) = datagram.user.or(binding.map(|binding| binding.user)) else {
            self.drops.count(UdpDrop::Invalid);
            return None;
        };
        let lookup = Lookup { key, user, destination: datagram.remote.clone() };
        let is_first = !self.waiting.contains_key(&key);
        let waiting = self.waiting.entry(key).or_default();
        if waiting.len() < WAITING_MAX {
            waiting.push((now, datagram));
        } else {
            self.drops.count(UdpDrop::Lookup);
        }
        is_first.then_some(lookup)
    }

    /// The lookup of a name has ended: sends the datagrams that waited for it. Returns the next
    /// lookup of the binding.
    #[must_use]
    pub(crate) fn found(
        &mut self,
        now: Instant,
        key: BindingKey,
        destination: &Destination,
        found: Option<IpAddr>,
    ) -> Option<Lookup> {
        let mut waiting = self.waiting.remove(&key)?;
        let user = waiting.first().and_then(|(_, datagram)| datagram.user);
        let all = waiting.len();
        waiting.retain(|(at, _)| now.saturating_duration_since(*at) < STALE);
        let Destination::Name(name, _) = destination else { return None };
        match found {
            Some(ip) => {
                let Some(index) = self.binding(now, key, user) else {
                    // One is counted with the reason.
                    self.drops.add(UdpDrop::Lookup, all.saturating_sub(1) as u64);
                    return None;
                };
                let names = &mut self.bindings.get_mut(index)?.names;
                if names.len() >= NAMES_MAX {
                    names.clear();
                }
                names.insert(name.clone(), ip);
            }
            None => waiting.retain(|(_, datagram)| datagram.remote != *destination),
        }
        self.drops.add(UdpDrop::Lookup, (all - waiting.len()) as u64);
        let mut next = None;
        for (_, datagram) in waiting {
            next = next.or(self.send(now, key.0, datagram));
        }
        next
    }

    fn send_to(&mut self, now: Instant, key: BindingKey, to: SocketAddr, datagram: &UserDatagram) {
        if self.access.check(to).is_err() {
            return self.drops.count(UdpDrop::Forbidden);
        }
        let Some(index) = self.binding(now, key, datagram.user) else { return };
        let tokens = self.base + 2 * index;
        let Some(binding) = self.bindings.get_mut(index) else { return };
        let contact = contact(self.filtering, to);
        if !binding.contacted.contains(&contact) {
            match is_own(to) {
                Ok(true) if self.access.check_own(to).is_err() => {
                    return self.drops.count(UdpDrop::Forbidden);
                }
                Ok(_) => {}
                // No port or descriptor is left to ask with.
                Err(_) => return self.drops.count(UdpDrop::Unsent),
            }
            if binding.contacted.len() >= CONTACTED_MAX {
                binding.contacted.clear();
            }
            binding.contacted.insert(contact);
        }
        binding.used.on_sent(now);
        let (place, any, token) = match to {
            SocketAddr::V4(_) => (&mut binding.v4, IpAddr::from(Ipv4Addr::UNSPECIFIED), tokens),
            SocketAddr::V6(_) => (&mut binding.v6, IpAddr::from(Ipv6Addr::UNSPECIFIED), tokens + 1),
        };
        let sent = match place {
            Some(socket) => send_on(socket, &datagram.payload, to),
            None => open(&self.registry, any, token)
                .and_then(|socket| send_on(place.insert(socket), &datagram.payload, to)),
        };
        if let Err(error) = sent {
            self.drops.count(UdpDrop::Unsent);
            tracing::debug!(%to, %error, "datagram not sent");
        }
    }

    /// A socket is readable, or has an ICMP error.
    pub(crate) fn on_ready(&mut self, token: Token, has_error: bool) {
        self.readable.insert(token.0 - self.base);
        if has_error {
            self.failed.insert(token.0 - self.base);
        }
    }

    /// Takes datagrams and errors for passengers, and ends idle bindings.
    pub(crate) fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        let mut failed = std::mem::take(&mut self.failed);
        let mut readable = std::mem::take(&mut self.readable);
        failed.serve(DATAGRAMS_OF_ALL, |place| self.report_errors(now, relay, place));
        readable.serve(DATAGRAMS_OF_ALL, |place| self.receive(now, relay, place));
        (self.failed, self.readable) = (failed, readable);
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            let over = self.bindings.iter().filter(|(_, binding)| binding.used.is_over(now));
            let over: Vec<usize> = over.map(|(index, _)| index).collect();
            let over: Vec<BindingKey> = over.into_iter().filter_map(|it| self.end(it)).collect();
            let unserved = std::mem::take(&mut self.unserved).into_iter();
            let unserved = unserved.filter(|key| !self.by_key.contains_key(key));
            for (session, id) in over.into_iter().chain(unserved) {
                relay.endpoint().forget_binding(session, id);
            }
        }
    }

    /// When [`Datagrams::on_turn`] is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let is_idle = self.bindings.is_empty() && self.unserved.is_empty();
        let sweep = (!is_idle).then_some(self.sweep_at);
        if self.readable.is_empty() && self.failed.is_empty() { sweep } else { Some(now) }
    }

    /// The session has ended, and its bindings with it.
    pub(crate) fn forget(&mut self, session: SessionKey) {
        let of_session = self.bindings.iter().filter(|(_, binding)| binding.key.0 == session);
        let of_session: Vec<usize> = of_session.map(|(index, _)| index).collect();
        for index in of_session {
            self.end(index);
        }
        self.errors.remove(&session);
        self.unserved.retain(|key| key.0 != session);
        for (_, waiting) in self.waiting.extract_if(|key, _| key.0 == session) {
            self.drops.add(UdpDrop::Lookup, waiting.len() as u64);
        }
    }

    /// The local address of a binding's socket, without the host's address.
    pub(crate) fn local_address(&self, key: BindingKey) -> Option<SocketAddr> {
        let binding = self.bindings.get(*self.by_key.get(&key)?)?;
        let socket = binding.v4.as_ref().or(binding.v6.as_ref())?;
        socket.local_addr().ok()
    }

    /// The datagrams dropped since the start.
    pub(crate) fn drops(&self) -> UdpDrops {
        self.drops
    }

    /// Descriptors in use.
    pub(crate) fn descriptors(&self) -> usize {
        2 * self.bindings.len()
    }

    /// Sends the ICMP errors of a socket to the gateway, as many as it may receive.
    fn report_errors(&mut self, now: Instant, relay: &mut Relay, place: usize) -> Read {
        let Some(binding) = self.bindings.get(place / 2) else { return Read::NONE };
        let Some(socket) = binding.socket(place) else { return Read::NONE };
        let (session, id) = binding.key;
        for count in 0..DATAGRAMS_PER_TURN {
            let (remote, cause) = match receive_icmp_error(socket) {
                Ok(Some(error)) => error,
                Ok(None) => continue,
                Err(_) => return Read { count, is_dry: true },
            };
            let limit = self.errors.entry(session).or_insert_with(|| icmp_limit(now));
            let is_known = binding.contacted.contains(&contact(self.filtering, remote));
            if is_known && limit.permit(now, binding.user) {
                let error = IcmpError { binding: id, remote, cause };
                let (endpoint, payload) = (relay.endpoint(), error.encode());
                endpoint.send_message(now, session, ICMP_ERROR, Delivery::Prompt, payload);
            }
        }
        Read { count: DATAGRAMS_PER_TURN, is_dry: false }
    }

    fn receive(&mut self, now: Instant, relay: &mut Relay, place: usize) -> Read {
        let Some(binding) = self.bindings.get_mut(place / 2) else { return Read::NONE };
        let socket = if place.is_multiple_of(2) { &binding.v4 } else { &binding.v6 };
        let Some(socket) = socket else { return Read::NONE };
        let (session, id) = binding.key;
        for count in 0..DATAGRAMS_PER_TURN {
            let received = receive_marked(socket, &mut self.buffer, &mut self.control, |_| {});
            let Marked { length, from, expedited } = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Read { count, is_dry: true };
                }
                // An ICMP error about an earlier datagram; the next one may be sound.
                Err(_) => continue,
            };
            let is_known = binding.contacted.contains(&contact(self.filtering, from));
            let is_open = self.filtering == Filtering::None && self.access.check(from).is_ok();
            if !is_known && !is_open {
                self.drops.count(UdpDrop::Filtered);
                continue;
            }
            binding.used.on_received();
            let (user, remote) = (Some(binding.user), Destination::Address(from));
            let payload = self.buffer[..length.min(LENGTH_MAX)].to_vec();
            let datagram = UserDatagram { binding: id, user, remote, payload, expedited };
            relay.endpoint().send_datagram(now, session, datagram);
        }
        Read { count: DATAGRAMS_PER_TURN, is_dry: false }
    }

    /// The place of a binding; `None` if there are too many, or its user is not known yet.
    fn binding(&mut self, now: Instant, key: BindingKey, user: Option<UserId>) -> Option<usize> {
        if let Some(&index) = self.by_key.get(&key) {
            return Some(index);
        }
        let Some(user) = user else {
            self.drops.count(UdpDrop::Invalid);
            return None;
        };
        let of_user = self.of_session.get(&key.0).map_or(0, |share| share.of(user));
        if of_user >= self.user_max || !self.make_room(key.0, of_user) {
            self.drops.count(UdpDrop::Quota);
            self.unserved.insert(key);
            return None;
        }
        let share = self.of_session.entry(key.0).or_default();
        share.all += 1;
        *share.of_user.entry(user).or_default() += 1;
        let used = BindingUse::new(now);
        let (contacted, names) = (HashSet::new(), HashMap::new());
        let binding = Outside { key, user, v4: None, v6: None, contacted, names, used };
        let index = self.bindings.insert(binding);
        self.by_key.insert(key, index);
        Some(index)
    }

    /// Whether there is room for another binding of a session, by a user with `of_user`. At the
    /// bound the session with the most gives one up for a session that has fewer, else the
    /// session's user with the most for a user with fewer: of that user the one that was used
    /// least recently.
    fn make_room(&mut self, session: SessionKey, of_user: usize) -> bool {
        if self.bindings.len() < self.all_max {
            return true;
        }
        let own = self.of_session.get(&session).map_or(0, |share| share.all);
        let most = self.of_session.iter().max_by_key(|(key, share)| (share.all, **key));
        let Some((&most, share)) = most else { return false };
        let (from, least) = if share.all > own + 1 { (most, 0) } else { (session, of_user + 1) };
        let Some(user) = self.of_session.get(&from).and_then(|share| share.heaviest(least)) else {
            return false;
        };
        let of_heaviest =
            |(_, binding): &(usize, &Outside)| (binding.key.0, binding.user) == (from, user);
        let of_heaviest = self.bindings.iter().filter(of_heaviest);
        let oldest = of_heaviest.min_by_key(|(_, binding)| binding.used.used_at());
        let oldest = oldest.map(|(index, _)| index);
        let displaced = oldest.and_then(|index| self.end(index));
        self.unserved.extend(displaced);
        displaced.is_some()
    }

    fn end(&mut self, index: usize) -> Option<BindingKey> {
        let mut binding = self.bindings.try_remove(index)?;
        for mut socket in [binding.v4.take(), binding.v6.take()].into_iter().flatten() {
            // Fails only for an unregistered socket.
            let _ = self.registry.deregister(&mut socket);
        }
        self.by_key.remove(&binding.key);
        if let Some(share) = self.of_session.get_mut(&binding.key.0) {
            share.remove(binding.user);
            if share.all == 0 {
                self.of_session.remove(&binding.key.0);
            }
        }
        Some(binding.key)
    }
}

impl Share {
    fn of(&self, user: UserId) -> usize {
        self.of_user.get(&user).copied().unwrap_or(0)
    }

    /// The user with the most bindings, if these are more than `least`.
    fn heaviest(&self, least: usize) -> Option<UserId> {
        let most = self.of_user.iter().max_by_key(|(user, count)| (**count, **user));
        most.filter(|(_, count)| **count > least).map(|(user, _)| *user)
    }

    fn remove(&mut self, user: UserId) {
        self.all -= 1;
        if let Some(count) = self.of_user.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&user);
            }
        }
    }
}

impl Outside {
    fn socket(&self, place: usize) -> Option<&UdpSocket> {
        if place.is_multiple_of(2) { self.v4.as_ref() } else { self.v6.as_ref() }
    }
}

/// Sends a datagram. In place of the first try the kernel may report an ICMP error about an earlier
/// one, once.
fn send_on(socket: &UdpSocket, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
    match socket.send_to(payload, to) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => socket.send_to(payload, to),
        result => result,
    }
}

/// What a binding remembers of a destination: its address, and its port if that is filtered.
fn contact(filtering: Filtering, to: SocketAddr) -> SocketAddr {
    let port = if filtering == Filtering::Endpoint { to.port() } else { 0 };
    SocketAddr::new(to.ip(), port)
}

/// Whether the kernel would send from the destination itself: it is this host.
fn is_own(to: SocketAddr) -> io::Result<bool> {
    let any = match to {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    let from = socket.connect(to).and_then(|()| socket.local_addr());
    Ok(from.is_ok_and(|from| from.ip().to_canonical() == to.ip().to_canonical()))
}

fn open(registry: &Registry, any: IpAddr, token: usize) -> io::Result<UdpSocket> {
    let address = SocketAddr::new(any, 0);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if any.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    watch_marks(&socket, any.is_ipv4())?;
    watch_icmp_errors(&socket, any.is_ipv4())?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(&address.into())?;
    let mut socket = UdpSocket::from_std(socket.into());
    registry.register(&mut socket, Token(token), Interest::READABLE)?;
    Ok(socket)
}

const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Datagrams received from one socket in a turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Of all sockets: a few milliseconds.
const DATAGRAMS_OF_ALL: usize = 1_024;
/// Longer datagrams are truncated by the kernel, and dropped by the session: they are too long.
const LENGTH_MAX: usize = polyrail_session::wire::DATAGRAM_MAX + 1;
/// The receive buffer of a binding, at most `net.core.rmem_max`. The kernel takes twice this size,
/// and counts a long datagram as 2,304 bytes: 36 ms at 150 Mbit/s. Its usual buffer is full after
/// 92, and a download in slow start then lost up to 119 in a row.
const RECEIVE_BUFFER: usize = 512 * 1_024;
/// Contacts that a binding remembers.
const CONTACTED_MAX: usize = 1_024;
/// Names that a binding remembers.
const NAMES_MAX: usize = 16;
/// A datagram that has waited longer for a lookup is of no use, as in the session's queues.
const STALE: Duration = Duration::from_millis(400);
/// Datagrams of a binding that wait for lookups; further ones are dropped.
const WAITING_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use mio::Poll;

    use super::*;

    #[test]
    fn burst_of_long_datagrams_waits_for_a_busy_cloud() {
        let poll = Poll::new().unwrap();
        let socket = open(poll.registry(), Ipv4Addr::LOCALHOST.into(), 0).unwrap();
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..300 {
            server.send_to(&[0; 1_350], socket.local_addr().unwrap()).unwrap();
        }
        let waiting = std::iter::from_fn(|| socket.recv(&mut [0; 2_048]).ok()).count();
        // At least twice the usual 92, wherever the kernel's limit is not lowered.
        assert!(waiting > 150, "{waiting}");
    }
}
