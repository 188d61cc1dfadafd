//! Passengers' datagrams: from the transparent sockets to the session, and back from the address
//! to which the passenger sent.
//!
//! Each endpoint of a passenger (address and port) has one binding, whatever it sends to, so that
//! the cloud can map it to one socket (RFC 4787 REQ-1). A binding ends when it is idle, and with
//! the session.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::Registry;
use polyrail_model::{BindingId, Destination, SessionKey, UserId};
use polyrail_relay::{BindingUse, Relay};
use polyrail_session::UserDatagram;
use polyrail_session::limits::BINDINGS_MAX;
use polyrail_session::wire::DATAGRAM_MAX;
use socket2::{SockAddr, Socket};

use crate::too_big::TooBig;
use crate::transparent::{TransparentUdp, UdpSockets, answering_socket};

/// The datagrams of all passengers.
pub(crate) struct Datagrams {
    sockets: UdpSockets,
    /// The session to which the bindings belong.
    session: Option<SessionKey>,
    bindings: Bindings,
    replies: Replies,
    too_big: TooBig,
    sweep_at: Instant,
    buffer: Box<[u8]>,
}

/// The bindings by number and by endpoint.
struct Bindings {
    by_id: BTreeMap<BindingId, Binding>,
    by_endpoint: HashMap<SocketAddr, BindingId>,
    /// The number of each user's bindings.
    of_user: HashMap<UserId, usize>,
    user_max: usize,
    next: u64,
}

struct Binding {
    endpoint: SocketAddr,
    user: UserId,
    used: BindingUse,
}

impl Datagrams {
    /// Registers the sockets under `base` and the following tokens.
    pub(crate) fn new(
        now: Instant,
        registry: &Registry,
        base: usize,
        sockets: Vec<TransparentUdp>,
        user_max: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            sockets: UdpSockets::new(registry, base, sockets)?,
            session: None,
            bindings: Bindings::new(user_max),
            replies: Replies::default(),
            too_big: TooBig::new(now),
            sweep_at: now + SWEEP_EVERY,
            buffer: vec![0; LENGTH_MAX].into_boxed_slice(),
        })
    }

    /// The socket with this index is readable.
    pub(crate) fn on_ready(&mut self, index: usize) {
        self.sockets.on_ready(index);
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
        let Self { sockets, bindings, too_big, buffer, .. } = self;
        sockets.receive(now, buffer, DATAGRAMS_PER_TURN, |datagram, payload| {
            let (endpoint, to) = (datagram.client, datagram.server);
            let Some(session) = session else { return };
            let user = user_of(endpoint.ip());
            let Some(binding) = bindings.of(now, endpoint, user) else { return };
            if datagram.length > DATAGRAM_MAX {
                too_big.answer(now, endpoint, to, datagram.length);
            }
            let (user, remote) = (Some(user), Destination::Address(canonical(to)));
            let (payload, expedited) = (payload.to_vec(), datagram.expedited);
            let datagram = UserDatagram { binding, user, remote, payload, expedited };
            relay.endpoint().send_datagram(now, session, datagram);
        });
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            for id in self.bindings.take_over(now) {
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
        self.sockets.next_timeout(now).into_iter().chain(sweep).min()
    }

    /// Hands a datagram of the cloud to its passenger.
    pub(crate) fn deliver(&mut self, now: Instant, session: SessionKey, datagram: &UserDatagram) {
        if Some(session) != self.session {
            return;
        }
        let Some(binding) = self.bindings.by_id.get_mut(&datagram.binding) else { return };
        let Destination::Address(remote) = &datagram.remote else { return };
        binding.used.on_received();
        let endpoint = binding.endpoint;
        if let Err(error) = self.replies.send(now, *remote, endpoint, &datagram.payload) {
            tracing::debug!(%endpoint, %remote, %error, "datagram not delivered");
        }
    }
}

impl Bindings {
    fn new(user_max: usize) -> Self {
        let (by_id, by_endpoint, of_user) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self { by_id, by_endpoint, of_user, user_max, next: 1 }
    }

    /// The binding of an endpoint that has sent; `None` if its user has too many.
    fn of(&mut self, now: Instant, endpoint: SocketAddr, user: UserId) -> Option<BindingId> {
        if let Some(&id) = self.by_endpoint.get(&endpoint) {
            self.by_id.get_mut(&id)?.used.on_sent(now);
            return Some(id);
        }
        let of_user = self.of_user.entry(user).or_default();
        if *of_user >= self.user_max || self.by_id.len() >= BINDINGS_MAX {
            return None;
        }
        *of_user += 1;
        let id = BindingId(self.next);
        self.next += 1;
        let mut used = BindingUse::new(now);
        used.on_sent(now);
        self.by_id.insert(id, Binding { endpoint, user, used });
        self.by_endpoint.insert(endpoint, id);
        Some(id)
    }

    /// Takes out the bindings that are over.
    fn take_over(&mut self, now: Instant) -> Vec<BindingId> {
        let over = self.by_id.iter().filter(|(_, binding)| binding.used.is_over(now));
        let over: Vec<BindingId> = over.map(|(&id, _)| id).collect();
        for binding in over.iter().filter_map(|id| self.by_id.remove(id)) {
            self.by_endpoint.remove(&binding.endpoint);
            if let Some(count) = self.of_user.get_mut(&binding.user) {
                *count -= 1;
            }
        }
        self.of_user.retain(|_, count| *count > 0);
        over
    }

    fn clear(&mut self) {
        self.by_id.clear();
        self.by_endpoint.clear();
        self.of_user.clear();
    }
}

/// Sockets bound to the addresses to which passengers have sent, to answer from there.
///
/// The kernel delivers passengers' datagrams to the listening socket all the same: TPROXY looks for
/// connected sockets first, and these are not connected.
#[derive(Default)]
struct Replies {
    sockets: HashMap<SocketAddr, (Socket, Instant)>,
}

impl Replies {
    /// Sends without blocking: if the kernel's buffer is full, the datagram is dropped.
    fn send(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
    ) -> io::Result<()> {
        if !self.sockets.contains_key(&from) {
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
/// Longer datagrams are truncated by the kernel, and dropped by the session: they are too long.
const LENGTH_MAX: usize = DATAGRAM_MAX + 1;
/// Descriptors for answers.
const REPLIES_MAX: usize = 256;
const REPLY_IDLE: Duration = Duration::from_secs(30);
