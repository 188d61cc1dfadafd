//! Passengers' datagrams: from the transparent sockets and the relays of SOCKS5 clients to the
//! session, and back: from the address to which the passenger sent, or through the relay.
//!
//! Each endpoint of a passenger (address and port), and each relay, has one binding, whatever it
//! sends to, so that the cloud can map it to one socket (RFC 4787 REQ-1). A binding ends when it is
//! idle, with the session, and with the association of its relay.

mod associations;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use associations::Associations;
use mio::Registry;
use mio::event::Event as Readiness;
use polyrail_daemon::{UdpDrop, UdpDrops};
use polyrail_model::{BindingId, Destination, SessionKey, UserId};
use polyrail_relay::{BindingUse, IcmpError, Relay, UserLimit};
use polyrail_session::UserDatagram;
use polyrail_session::limits::BINDINGS_MAX;
use polyrail_session::wire::DATAGRAM_MAX;
use socket2::{SockAddr, Socket};

use crate::icmp::IcmpErrors;
use crate::socks_clients::AssociationRequest;
use crate::socks5::{ReplyCode, udp_header};
use crate::transparent::{TransparentUdp, UdpSockets, answering_socket};

/// The datagrams of all passengers.
pub(crate) struct Datagrams {
    sockets: UdpSockets,
    associations: Associations,
    /// The most associations of all users: each has two descriptors.
    associations_max: usize,
    /// The cloud carries datagrams; also before the first session.
    carried: bool,
    /// The session to which the bindings belong.
    session: Option<SessionKey>,
    bindings: Bindings,
    replies: Replies,
    icmp: IcmpErrors,
    drops: UdpDrops,
    sweep_at: Instant,
    buffer: Box<[u8]>,
}

/// The bindings by number and by endpoint.
struct Bindings {
    by_id: BTreeMap<BindingId, Binding>,
    by_sender: HashMap<Sender, BindingId>,
    /// The number of each user's bindings.
    of_user: HashMap<UserId, usize>,
    user_max: usize,
    next: u64,
    /// Ended to make room; the session does not know yet.
    displaced: Vec<BindingId>,
}

struct Binding {
    sender: Sender,
    user: UserId,
    used: BindingUse,
}

/// The sender of a binding's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sender {
    /// The passenger at this address.
    Intercepted(SocketAddr),
    /// The SOCKS5 client of this association.
    Associated(usize),
}

impl Datagrams {
    /// Registers the transparent sockets under the first base and the following tokens, and those
    /// of associations under the second one. The bounds are those of bindings and associations of a
    /// user, and of all associations.
    pub(crate) fn new(
        now: Instant,
        registry: &Registry,
        (base, associations_base): (usize, usize),
        sockets: Vec<TransparentUdp>,
        (user_max, associations_max): (usize, usize),
    ) -> io::Result<Self> {
        Ok(Self {
            sockets: UdpSockets::new(registry, base, sockets)?,
            associations: Associations::new(registry.try_clone()?, associations_base),
            associations_max,
            carried: true,
            session: None,
            bindings: Bindings::new(user_max),
            replies: Replies::new(now),
            icmp: IcmpErrors::new(now),
            drops: UdpDrops::default(),
            sweep_at: now + SWEEP_EVERY,
            buffer: vec![0; LENGTH_MAX].into_boxed_slice(),
        })
    }

    /// The socket with this index is readable.
    pub(crate) fn on_ready(&mut self, index: usize) {
        self.sockets.on_ready(index);
    }

    /// The cloud of the session carries datagrams, or does not.
    pub(crate) fn set_carried(&mut self, carried: bool) {
        self.carried = carried;
    }

    /// The passenger's address of a binding.
    pub(crate) fn passenger_of(&self, session: SessionKey, id: BindingId) -> Option<SocketAddr> {
        let binding = self.bindings.by_id.get(&id).filter(|_| self.session == Some(session))?;
        match binding.sender {
            Sender::Intercepted(address) => Some(address),
            Sender::Associated(index) => self.associations.client_of(index),
        }
    }

    /// The datagrams dropped since the start.
    pub(crate) fn drops(&self) -> UdpDrops {
        let mut drops = self.drops;
        drops.add(UdpDrop::Invalid, self.associations.invalid());
        drops
    }

    /// Descriptors of associations.
    pub(crate) fn descriptors(&self) -> usize {
        2 * self.associations.len()
    }

    /// Opens a relay for a SOCKS5 client's datagrams, or refuses. At the bound of all users the one
    /// with the most loses its oldest association to a user that has at least two fewer.
    pub(crate) fn associate(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        request: AssociationRequest,
    ) {
        if !self.carried || self.associations_max == 0 {
            return request.refuse(ReplyCode::CommandNotSupported);
        }
        let own = self.associations.of_user(request.user);
        let mut has_room = own < self.bindings.user_max && self.bindings.has_room(request.user);
        if has_room && self.associations.len() >= self.associations_max {
            match self.associations.spare(own) {
                Some(index) => self.end(relay, index),
                None => has_room = false,
            }
        }
        if !has_room {
            tracing::debug!(peer = %request.peer, "too many relays of SOCKS5 clients");
            return request.refuse(ReplyCode::GeneralFailure);
        }
        self.associations.add(now, request);
    }

    /// Handles an event of an association's socket.
    pub(crate) fn on_association(&mut self, relay: &mut Relay, event: &Readiness) {
        if let Some(ended) = self.associations.on_event(event) {
            self.end(relay, ended);
        }
    }

    /// Ends an association and its binding.
    fn end(&mut self, relay: &mut Relay, index: usize) {
        self.associations.remove(index);
        let binding = self.bindings.end(Sender::Associated(index));
        if let Some((session, id)) = self.session.zip(binding) {
            relay.endpoint().forget_binding(session, id);
        }
    }

    /// Takes passengers' datagrams, and ends idle bindings. `user_of` names the user of an address.
    pub(crate) fn on_turn(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        mut user_of: impl FnMut(IpAddr) -> UserId,
    ) {
        let session = relay.endpoint_ref().current();
        if session != self.session {
            self.bindings.clear();
            self.session = session;
        }
        let Self { sockets, associations, bindings, icmp, drops, buffer, carried, .. } = self;
        let to = session.filter(|_| *carried);
        let mut send = |sender, user, remote, payload: &[u8], expedited| {
            let Some(session) = to else { return drops.count(UdpDrop::NoCloud) };
            let Some(binding) = bindings.of(now, sender, user) else {
                return drops.count(UdpDrop::Quota);
            };
            let (user, payload) = (Some(user), payload.to_vec());
            let datagram = UserDatagram { binding, user, remote, payload, expedited };
            relay.endpoint().send_datagram(now, session, datagram);
        };
        sockets.receive(now, buffer, DATAGRAMS_PER_TURN, |datagram, payload| {
            let (client, remote) = (datagram.client, canonical(datagram.server));
            let user = user_of(client.ip());
            if datagram.length > DATAGRAM_MAX {
                icmp.too_long(now, user, (client, datagram.server), datagram.length);
            }
            let (remote, marked) = (Destination::Address(remote), datagram.expedited);
            send(Sender::Intercepted(client), user, remote, payload, marked);
        });
        let bounds = (DATAGRAMS_PER_TURN, DATAGRAMS_OF_ALL);
        associations.receive(buffer, bounds, |index, user, remote, payload| {
            send(Sender::Associated(index), user, remote, payload, false);
        });
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            let displaced = std::mem::take(&mut self.bindings.displaced);
            for id in self.bindings.take_over(now).into_iter().chain(displaced) {
                if let Some(session) = session {
                    relay.endpoint().forget_binding(session, id);
                }
            }
            self.replies.sweep(now);
        }
    }

    /// When [`Datagrams::on_turn`] is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let sweep = (!self.bindings.by_id.is_empty()).then_some(self.sweep_at);
        let relays = self.associations.is_readable().then_some(now);
        self.sockets.next_timeout(now).into_iter().chain(sweep).chain(relays).min()
    }

    /// The network beyond the cloud has refused a datagram: tells its passenger. SOCKS5 has no such
    /// message.
    pub(crate) fn refused(&mut self, now: Instant, session: SessionKey, payload: &[u8]) {
        let error = match IcmpError::decode(payload) {
            Ok(Some(error)) => error,
            // A later version tells more.
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "discarded an invalid ICMP error"),
        };
        let binding = self.bindings.by_id.get(&error.binding);
        let binding = binding.filter(|_| self.session == Some(session));
        if let Some(&Binding { sender: Sender::Intercepted(client), user, .. }) = binding {
            self.icmp.refused(now, user, (client, error.remote), error.cause);
        }
    }

    /// Hands a datagram of the cloud to its passenger.
    pub(crate) fn deliver(&mut self, now: Instant, session: SessionKey, datagram: &UserDatagram) {
        if Some(session) != self.session {
            return self.drops.count(UdpDrop::Filtered);
        }
        let Some(binding) = self.bindings.by_id.get_mut(&datagram.binding) else {
            return self.drops.count(UdpDrop::Filtered);
        };
        let Destination::Address(remote) = &datagram.remote else {
            return self.drops.count(UdpDrop::Invalid);
        };
        binding.used.on_received();
        let (sender, user, payload) = (binding.sender, binding.user, &datagram.payload);
        let sent = match sender {
            Sender::Intercepted(endpoint) => {
                self.replies.send(now, user, (*remote, endpoint), payload)
            }
            Sender::Associated(index) => self.associations.send(index, *remote, payload),
        };
        if let Err(error) = sent {
            let over = error.kind() == io::ErrorKind::QuotaExceeded;
            self.drops.count(if over { UdpDrop::Quota } else { UdpDrop::Unsent });
            tracing::debug!(?sender, %remote, %error, "datagram not delivered");
        }
    }
}

impl Bindings {
    fn new(user_max: usize) -> Self {
        let (by_id, by_sender, of_user) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self { by_id, by_sender, of_user, user_max, next: 1, displaced: Vec::new() }
    }

    /// Whether this user may have another binding.
    fn has_room(&self, user: UserId) -> bool {
        let own = self.of_user.get(&user).copied().unwrap_or(0);
        let most = || self.of_user.values().max().copied().unwrap_or(0);
        own < self.user_max && (self.by_id.len() < BINDINGS_MAX || own + 1 < most())
    }

    /// Ends the binding of the user with the most that was used least recently, if all are taken.
    fn make_room(&mut self) {
        if self.by_id.len() < BINDINGS_MAX {
            return;
        }
        let most = self.of_user.iter().max_by_key(|(user, count)| (**count, **user));
        let Some(most) = most.map(|(user, _)| *user) else { return };
        let of_most = self.by_id.values().filter(|binding| binding.user == most);
        let oldest = of_most.min_by_key(|binding| binding.used.used_at());
        let ended = oldest.map(|binding| binding.sender).and_then(|sender| self.end(sender));
        self.displaced.extend(ended);
    }

    /// The binding of a sender that has sent; `None` if its user has too many.
    fn of(&mut self, now: Instant, sender: Sender, user: UserId) -> Option<BindingId> {
        if let Some(&id) = self.by_sender.get(&sender) {
            self.by_id.get_mut(&id)?.used.on_sent(now);
            return Some(id);
        }
        if !self.has_room(user) {
            return None;
        }
        self.make_room();
        *self.of_user.entry(user).or_default() += 1;
        let id = BindingId(self.next);
        self.next += 1;
        let mut used = BindingUse::new(now);
        used.on_sent(now);
        self.by_id.insert(id, Binding { sender, user, used });
        self.by_sender.insert(sender, id);
        Some(id)
    }

    /// Takes out the bindings that are over.
    fn take_over(&mut self, now: Instant) -> Vec<BindingId> {
        let over = self.by_id.iter().filter(|(_, binding)| binding.used.is_over(now));
        let over: Vec<Sender> = over.map(|(_, binding)| binding.sender).collect();
        over.into_iter().filter_map(|sender| self.end(sender)).collect()
    }

    /// Takes out the binding of a sender.
    fn end(&mut self, sender: Sender) -> Option<BindingId> {
        let id = self.by_sender.remove(&sender)?;
        let user = self.by_id.remove(&id)?.user;
        let of_user = self.of_user.get_mut(&user)?;
        *of_user -= 1;
        if *of_user == 0 {
            self.of_user.remove(&user);
        }
        Some(id)
    }

    fn clear(&mut self) {
        self.by_id.clear();
        self.displaced.clear();
        self.by_sender.clear();
        self.of_user.clear();
    }
}

/// Sockets bound to the addresses to which passengers have sent, to answer from there.
///
/// The kernel delivers passengers' datagrams to the listening socket all the same: TPROXY looks for
/// connected sockets first, and these are not connected.
struct Replies {
    sockets: HashMap<SocketAddr, (Socket, Instant)>,
    /// New sockets: each takes nine system calls.
    limit: UserLimit,
}

impl Replies {
    fn new(now: Instant) -> Self {
        let limit = UserLimit::new(now, NEW_REPLIES_OF_ALL, NEW_REPLIES_OF_USER);
        Self { sockets: HashMap::new(), limit }
    }

    /// Sends without blocking: if the kernel's buffer is full, the datagram is dropped.
    fn send(
        &mut self,
        now: Instant,
        user: UserId,
        (from, to): (SocketAddr, SocketAddr),
        payload: &[u8],
    ) -> io::Result<()> {
        if !self.sockets.contains_key(&from) {
            if !self.limit.permit(now, user) {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            if self.sockets.len() >= REPLIES_MAX {
                self.forget_oldest();
            }
            self.sockets.insert(from, (answering_socket(from)?, now));
        }
        let Some((socket, used_at)) = self.sockets.get_mut(&from) else { return Ok(()) };
        *used_at = now;
        socket.send_to(payload, &SockAddr::from(to)).map(drop)
    }

    fn forget_oldest(&mut self) {
        let oldest = self.sockets.iter().min_by_key(|(_, (_, used_at))| *used_at);
        if let Some((&address, _)) = oldest {
            self.sockets.remove(&address);
        }
    }

    fn sweep(&mut self, now: Instant) {
        let recent = |used_at: Instant| now.saturating_duration_since(used_at) < REPLY_IDLE;
        self.sockets.retain(|_, (_, used_at)| recent(*used_at));
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Datagrams received from one socket in a turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Datagrams received from the sockets of all associations in a turn.
const DATAGRAMS_OF_ALL: usize = 1_024;
/// Longer datagrams are truncated by the kernel, and dropped by the session: they are too long.
const LENGTH_MAX: usize = udp_header::HEADER_MAX + DATAGRAM_MAX + 1;
/// Descriptors for answers.
const REPLIES_MAX: usize = 256;
/// New ones in a second for each user, and for all. Further datagrams from other addresses are
/// dropped.
const NEW_REPLIES_OF_USER: f64 = 4_000.0;
const NEW_REPLIES_OF_ALL: f64 = 16_000.0;
const REPLY_IDLE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
