//! The listening sockets for gateways: TCP and UDP for each address, on the same port number.
//!
//! Unauthenticated clients use bounded memory, counted separately for TCP and UDP: at most
//! [`tls::HANDSHAKES_MAX`] handshakes over TCP, and the limits of `[tunnel]` for each UDP socket.
//! At the limit, a new connection over TCP replaces the oldest handshake if that is older than
//! [`PATIENCE`]; until then it waits in the kernel. QUIC requires many concurrent clients to prove
//! their address first (Retry), and drops handshakes beyond its limit.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use mio::event::Event as Readiness;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use polyrail_admin::TunnelCounts;
use polyrail_config::CloudConfig;
use polyrail_identity::{SystemClock, TlsIdentity};
use polyrail_model::TunnelMode;
use polyrail_relay::{AcceptGate, Label, LogLimiter, Relay, Workers};
use polyrail_session::TunnelKey;
use polyrail_tunnel::quic::{Group, ServerOptions, Stray};
use polyrail_tunnel::tls::Sessions;
use polyrail_tunnel::{Parcel, SocketOptions, Tunnel, quic, tls};

use crate::congestion::Congestion;

/// The place of a worker's listeners among those of all workers, and their shared keys.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) workers: Workers,
    /// For each address.
    groups: Vec<Group>,
    sessions: Sessions,
}

impl Seat {
    /// The seats of so many workers, for so many addresses.
    pub(crate) fn of_all(count: usize, addresses: usize) -> Vec<Self> {
        let workers = u8::try_from(count).unwrap_or(u8::MAX);
        let groups: Vec<Vec<Group>> =
            (0..addresses).map(|_| Group::of(workers).collect()).collect();
        let sessions = Sessions::default();
        let seat = |own: usize| Self {
            workers: Workers { own, count },
            groups: groups.iter().map(|group| group[own].clone()).collect(),
            sessions: sessions.clone(),
        };
        (0..usize::from(workers)).map(seat).collect()
    }

    /// This worker's part of a limit of the process.
    pub(crate) fn part(&self, limit: usize) -> usize {
        (limit / self.workers.count).max(1)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<tls::Listener> {
        match self.workers {
            Workers { count: 1, .. } => tls::Listener::bind(address),
            Workers { own, .. } => tls::Listener::bind_shared(address, own == 0),
        }
    }
}

/// All listening sockets.
pub(crate) struct Listeners {
    tcp: Vec<(tls::Listener, AcceptGate)>,
    server: tls::Server,
    /// The congestion control of new connections.
    congestion: Option<String>,
    udp: Vec<Udp>,
    /// The maximum number of handshakes over TCP.
    handshakes_max: usize,
    woken: Vec<Token>,
    unregistered: Unregistered,
}

/// The log of connections that epoll refused.
#[derive(Default)]
struct Unregistered(LogLimiter);

impl Unregistered {
    fn warn(&mut self, now: Instant, error: &io::Error) {
        if let Some(suppressed) = self.0.permit(now) {
            tracing::warn!(%error, suppressed, "cannot register a connection with epoll");
        }
    }
}

struct Udp {
    listener: quic::Listener,
    /// The socket has more datagrams than one batch received.
    more: bool,
}

impl Listeners {
    /// Opens the sockets of the configured mode.
    pub(crate) fn open(
        config: &CloudConfig,
        identity: &TlsIdentity,
        congestion: &Congestion,
        registry: &Registry,
        seat: &Seat,
    ) -> anyhow::Result<Self> {
        let clock = Arc::new(SystemClock);
        let usual = congestion.usual.clone();
        let options = SocketOptions { congestion: usual.clone(), ..SocketOptions::default() };
        let (sessions, own) = (seat.sessions.clone(), identity.clone());
        let server = tls::Server::with_sessions(own, options, clock.clone(), sessions)?;
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        for (index, address) in config.listen.iter().enumerate() {
            if config.common.mode.allows_tls() {
                let listener = seat
                    .listen(*address)
                    .with_context(|| format!("cannot listen on TCP {address} (listen)"))?;
                let source = &mut SourceFd(&listener.as_raw_fd());
                registry.register(source, Token(TCP + index), Interest::READABLE)?;
                tcp.push((listener, AcceptGate::default()));
            }
            if config.common.mode.allows_quic() {
                let options = quic_options(config, congestion, seat);
                let (own, group) = (identity.clone(), seat.groups[index].clone());
                let listener =
                    quic::Listener::bind_in(group, *address, own, options, clock.clone())
                        .with_context(|| format!("cannot listen on UDP {address} (listen)"))?;
                let both = Interest::READABLE | Interest::WRITABLE;
                let source = &mut SourceFd(&listener.as_raw_fd());
                registry.register(source, Token(UDP + index), both)?;
                udp.push(Udp { listener, more: false });
            }
        }
        let (woken, unregistered) = (Vec::new(), Unregistered::default());
        let handshakes_max = seat.part(tls::HANDSHAKES_MAX);
        Ok(Self { tcp, server, congestion: usual, udp, handshakes_max, woken, unregistered })
    }

    /// Unpacks a tunnel that has moved from another worker; `None` if its listener is missing.
    pub(crate) fn unpack(&mut self, now: Instant, parcel: Parcel) -> Option<Box<dyn Tunnel>> {
        match parcel {
            Parcel::Whole(tunnel) => Some(tunnel),
            Parcel::Quic { listener, contents } => {
                self.listener_at(listener)?.unpack(now, contents)
            }
        }
    }

    /// Takes datagrams that another worker has handed over.
    pub(crate) fn take_in(&mut self, now: Instant, stray: Stray) {
        if let Some(listener) = self.listener_at(stray.listener) {
            listener.take_in(now, stray);
        }
    }

    /// Datagrams for other workers.
    pub(crate) fn take_strays(&mut self) -> impl Iterator<Item = Stray> {
        self.udp.iter_mut().flat_map(|udp| udp.listener.take_strays())
    }

    fn listener_at(&mut self, address: SocketAddr) -> Option<&mut quic::Listener> {
        let mut listeners = self.udp.iter_mut().map(|udp| &mut udp.listener);
        listeners.find(|listener| listener.local_addr() == address)
    }

    /// Handles an event of the poll; returns false if the token is not a listener's.
    pub(crate) fn on_event(&mut self, now: Instant, event: &Readiness) -> bool {
        let token = event.token().0;
        if let Some((_, gate)) = token.checked_sub(TCP).and_then(|index| self.tcp.get_mut(index)) {
            gate.on_ready();
        } else if let Some(udp) = token.checked_sub(UDP).and_then(|index| self.udp.get_mut(index)) {
            udp.listener.on_ready(now, event.is_readable(), event.is_writable());
            udp.more |= event.is_readable();
        } else {
            return false;
        }
        true
    }

    /// Accepts queued connections, within a turn's limits. Without `takes_new`, new gateways are
    /// rejected.
    pub(crate) fn on_turn(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        congestion: &Congestion,
        takes_new: bool,
    ) {
        if takes_new {
            self.accept(now, relay, congestion);
        }
        for udp in &mut self.udp {
            // Even without a datagram, because the listener drops ended connections.
            udp.more = udp.listener.receive(now);
            while let Some(tunnel) = udp.listener.accept() {
                if takes_new && let Err(error) = relay.add_tunnel(tunnel, Label::default()) {
                    self.unregistered.warn(now, &error);
                }
            }
            udp.listener.take_woken(&mut self.woken);
        }
        for token in self.woken.drain(..) {
            relay.wake(now, token);
        }
    }

    /// When [`Listeners::on_turn`] is wanted without an event.
    pub(crate) fn next_timeout(&self, now: Instant, takes_new: bool) -> Option<Instant> {
        let gates = self.tcp.iter().filter(|_| takes_new);
        let gates = gates.filter_map(|(_, gate)| gate.next_timeout(now));
        let more = self.udp.iter().filter(|udp| udp.more).map(|_| now);
        gates.chain(more).min()
    }

    /// Uses another certificate for new connections.
    ///
    /// # Errors
    /// One of the listeners cannot use it.
    pub(crate) fn set_identity(&mut self, identity: &TlsIdentity) -> anyhow::Result<()> {
        self.server.set_identity(identity.clone())?;
        for udp in &mut self.udp {
            udp.listener.set_identity(identity.clone())?;
        }
        Ok(())
    }

    /// Uses another congestion control for new connections over QUIC; those over TCP are changed
    /// one by one.
    ///
    /// # Errors
    /// One of the listeners cannot use it.
    pub(crate) fn set_congestion(
        &mut self,
        identity: &TlsIdentity,
        congestion: &Congestion,
    ) -> anyhow::Result<()> {
        for udp in &mut self.udp {
            let (usual, by_carrier) = (&congestion.quic, &congestion.quic_by_carrier);
            udp.listener.set_congestion(identity, usual, by_carrier)?;
        }
        Ok(())
    }

    /// Adds the counters of all UDP sockets.
    pub(crate) fn count(&self, tunnels: &mut TunnelCounts) {
        for counters in self.udp.iter().map(|udp| udp.listener.counters()) {
            tunnels.datagrams_dropped += counters.dropped;
            tunnels.retries_sent += counters.retries;
        }
    }

    fn accept(&mut self, now: Instant, relay: &mut Relay, congestion: &Congestion) {
        let max = self.handshakes_max;
        for (listener, gate) in &mut self.tcp {
            for _ in 0..ACCEPTS_PER_TURN {
                if gate.is_open(now) && !make_room(now, relay, max) {
                    gate.pause_if_open(now);
                    break;
                }
                let Some((socket, peer)) = gate.take(now, || listener.accept()) else { break };
                if !make_room_for(now, relay, peer.ip(), max) {
                    tracing::debug!(%peer, "too many handshakes with this address");
                    continue;
                }
                let mut tunnel = match self.server.accept(now, socket) {
                    Ok(tunnel) => tunnel,
                    Err(reason) => {
                        tracing::debug!(%peer, %reason, "connection closed before it was accepted");
                        continue;
                    }
                };
                // A reload may have changed it.
                let changed =
                    congestion.usual.as_ref().filter(|_| congestion.usual != self.congestion);
                if let Some(name) = changed
                    && let Err(error) = tunnel.set_congestion(name)
                {
                    tracing::debug!(%peer, name, %error, "cannot set congestion control");
                }
                if let Err(error) = relay.add_tunnel(tunnel, Label::default()) {
                    self.unregistered.warn(now, &error);
                }
            }
        }
    }
}

/// Whether one more handshake over TCP may start; closes the oldest one if necessary.
fn make_room(now: Instant, relay: &mut Relay, max: usize) -> bool {
    if relay.handshaking(TunnelMode::Tls) < max {
        return true;
    }
    let Some(oldest) = relay.oldest_handshake(TunnelMode::Tls) else { return true };
    replace(now, relay, oldest)
}

/// Whether one more handshake over TCP with this address may start; closes its oldest one if
/// necessary.
fn make_room_for(now: Instant, relay: &mut Relay, address: IpAddr, max: usize) -> bool {
    let (count, oldest) = relay.handshakes_of(TunnelMode::Tls, address);
    if count < max.div_ceil(ADDRESS_SHARE) {
        return true;
    }
    oldest.is_none_or(|oldest| replace(now, relay, oldest))
}

/// Closes a handshake if it is old enough.
fn replace(now: Instant, relay: &mut Relay, oldest: TunnelKey) -> bool {
    let begun = relay.tunnel(oldest).map(|view| view.begun);
    if begun.is_some_and(|begun| now.saturating_duration_since(begun) < PATIENCE) {
        return false;
    }
    relay.give_up(now, oldest);
    true
}

fn quic_options(config: &CloudConfig, congestion: &Congestion, seat: &Seat) -> ServerOptions {
    ServerOptions {
        congestion: congestion.quic.clone(),
        carrier_congestion: congestion.quic_by_carrier.clone(),
        half_open_max: seat.part(config.tunnel.half_open_max),
        retry_above: config.tunnel.retry_above / seat.workers.count,
        server_id: config.tunnel.server_id,
        ..ServerOptions::default()
    }
}

/// How long a handshake over TCP is protected from newer ones: two round trips on a slow carrier.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// An address, of IPv6 its /64, may have this part of the handshakes over TCP in progress, as over
/// QUIC: enough for many carriers behind one address translator.
const ADDRESS_SHARE: usize = 4;
/// The maximum number of connections accepted from one listener per turn.
const ACCEPTS_PER_TURN: usize = 64;
/// The first tokens, plus the index of the address; there are at most 8 addresses.
const TCP: usize = 16;
const UDP: usize = 32;
