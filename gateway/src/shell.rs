//! The gateway daemon around the relay: listeners, SOCKS5, DNS, carriers, signals.
//!
//! A connection is accepted transparently (its local address is its destination) or by SOCKS5 (its
//! request names the destination). It becomes a flow at once, even without a session, and its
//! socket the flow's leg. This costs no round trip; a later failure resets the connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use mio::event::Event as Readiness;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll, Registry, Token};
use polyrail_admin::{AdminEvent, AdminOptions, StartOptions};
use polyrail_config::{GatewayConfig, GatewayTables, SocksReply, UdpTraffic};
use polyrail_daemon::start::{
    linkdb_probe, linkdb_settings, prepare_process, random, relay_settings, session_settings,
    signals, start_linkdb,
};
use polyrail_daemon::{Certificates, Daemon, Operate, Refusals, Refused, Supervisor};
use polyrail_identity::TlsIdentity;
use polyrail_model::{
    BindingId, Destination, FlowId, FlowKind, FlowName, Identity, InstanceId, NodeRole,
};
use polyrail_relay::{
    AcceptGate, ICMP_ERROR, LogLimiter, PENDING_RESETS_MAX, Relay, RelayEvent, Shell, Shutdown,
};
use polyrail_session::wire::Offer;
use polyrail_session::{Endpoint, Event, FlowKey, OpenError, ResetReason};
use polyrail_telemetry::Telemetry;

use crate::clouds::Clouds;
use crate::datagrams::Datagrams;
use crate::diversion::Diversion;
use crate::dns::is_dns;
use crate::intercept;
use crate::name_service::NameService;
use crate::socks_clients::{CLIENTS_MAX, SocksClients};
use crate::socks5::ReplyCode;
use crate::speedtest::Speedtests;
use crate::transparent::TransparentUdp;
use crate::users::Users;
use crate::{socks_clients, telemetry, transparent};

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// An error that the operator must correct before the daemon can start: certificates, addresses,
/// privileges, the admin socket. A missing carrier is not an error.
pub fn run(config: GatewayConfig, start: StartOptions) -> anyhow::Result<()> {
    let mut poll = Poll::new().context("no epoll")?;
    let signals = signals(poll.registry(), SIGNALS)?;
    let now = Instant::now();
    let descriptors = prepare_process();
    let identity = TlsIdentity::load(&config.common.tls.paths())?;
    let (name, cloud) = (identity.name().clone(), config.cloud.name.clone());
    let standby = config.cloud.standby.len();
    let mut settings = session_settings(&config.common);
    let sockets_max = polyrail_relay::flows_within(descriptors);
    let flows_within = flows_within(sockets_max, config.socks5.is_some());
    if flows_within < settings.flows_max {
        tracing::warn!(
            flows_max = flows_within,
            descriptors,
            "session.flows_max is lowered to what the limit of open files (LimitNOFILE) permits"
        );
        settings.flows_max = flows_within;
    }
    let mut endpoint = Endpoint::gateway(now, settings.clone(), InstanceId(random()?));
    endpoint.prefer(now, &cloud);
    let relay_settings = relay_settings(&config.common);
    let mut relay = Relay::new(poll.registry().try_clone()?, endpoint, relay_settings);
    let clouds = Clouds::new(now, &config, &identity, u64::from_ne_bytes(random()?))?;
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    let linkdb = config.common.linkdb.as_ref().map(|linkdb| {
        let settings = linkdb_settings(linkdb, true);
        start_linkdb(linkdb, settings, NodeRole::Gateway, name.as_str(), &waker)
    });
    let linkdb = linkdb.transpose()?;
    let telemetry = linkdb.as_ref().map(|linkdb| {
        Telemetry::start(telemetry::settings(&config), linkdb.observer())
            .context("cannot start the telemetry thread")
    });
    let telemetry = telemetry.transpose()?;
    let probe = linkdb.as_ref().zip(telemetry.as_ref()).map(|(linkdb, telemetry)| {
        let states = telemetry.states();
        linkdb_probe(linkdb, move || telemetry::states(&states))
    });
    let options = AdminOptions {
        usage: Some(config.usage.path.clone()),
        config: config.clone(),
        start,
        waker,
        watch_links: true,
        linkdb: probe,
    };
    let control = polyrail_admin::start(options).context("cannot start the control thread")?;
    let daemon = Daemon {
        config,
        settings,
        flows_within,
        identity,
        control,
        linkdb,
        shutdown: Shutdown::default(),
        certificates: Certificates::default(),
        supervisor: Supervisor::from_environment(),
        signals,
    };
    let registry = poll.registry();
    let mut gateway = Gateway::new(now, daemon, clouds, telemetry, registry, sockets_max)?;
    tracing::info!(%name, %cloud, standby, descriptors, "polyrail-gateway started");
    gateway.daemon.supervisor.ready(Instant::now());
    polyrail_relay::run(&mut poll, &mut relay, &mut gateway).context("the event loop failed")?;
    tracing::info!("polyrail-gateway stopped");
    Ok(())
}

/// The gateway around the relay.
pub(crate) struct Gateway {
    pub(crate) daemon: Daemon<GatewayTables>,
    pub(crate) clouds: Clouds,
    /// Telemetry sources, if LinkDB is enabled.
    pub(crate) telemetry: Option<Telemetry>,
    transparent: Vec<(TcpListener, AcceptGate)>,
    socks: Vec<(TcpListener, AcceptGate)>,
    pub(crate) clients: SocksClients,
    pub(crate) names: Option<NameService>,
    pub(crate) datagrams: Option<Datagrams>,
    pub(crate) users: Users,
    pub(crate) diversion: Option<Diversion>,
    /// When to look again at the carriers that `direct:` traffic may use.
    pub(crate) direct_at: Instant,
    pub(crate) speedtests: Speedtests,
    /// Refusals of users of the current session.
    pub(crate) refusals: Refusals,
    refused_lines: LogLimiter,
    /// The maximum number of users' sockets; further connections wait in the kernel's queue.
    sockets_max: usize,
    pub(crate) full: LogLimiter,
}

impl Gateway {
    fn new(
        now: Instant,
        daemon: Daemon<GatewayTables>,
        clouds: Clouds,
        telemetry: Option<Telemetry>,
        registry: &Registry,
        sockets_max: usize,
    ) -> anyhow::Result<Self> {
        let config = &intercepted(&daemon.config)?;
        let transparent = gated(registry, TRANSPARENT, listen_transparently(config)?)?;
        let socks = gated(registry, SOCKS, listen_for_socks(config)?)?;
        let names = name_service(now, config, registry)?;
        let bounds = (daemon.settings.user_flows_max, associations_within(sockets_max));
        let datagrams = passengers_datagrams(now, config, registry, bounds)?;
        let policy = reply_policy(config);
        let inside = config.intercept.iter().flat_map(|intercept| &intercept.interfaces);
        daemon.control.meter(clouds.metered());
        let mut users = Users::new(config.users.key, inside.map(ToString::to_string).collect())
            .context("cannot ask the kernel for users' link addresses (users.key)")?;
        users.set_groups(&config.groups);
        // Last, because passengers' traffic arrives from now on.
        let diversion = match &config.intercept {
            Some(_) => Some(Diversion::start(config)?),
            None => None,
        };
        Ok(Self {
            clouds,
            telemetry,
            transparent,
            socks,
            clients: SocksClients::new(registry.try_clone()?, SOCKS_CLIENTS, policy),
            names,
            datagrams,
            users,
            daemon,
            diversion,
            direct_at: now,
            speedtests: Speedtests::default(),
            refusals: Refusals::default(),
            refused_lines: LogLimiter::default(),
            sockets_max,
            full: LogLimiter::default(),
        })
    }

    fn accept(&mut self, now: Instant, relay: &mut Relay, held: bool) {
        for index in 0..self.transparent.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                let full = held || self.is_full(now, relay);
                let (listener, gate) = &mut self.transparent[index];
                if full {
                    gate.pause_if_open(now);
                    break;
                }
                let own = listener.local_addr().ok();
                let Some((stream, peer)) = gate.take(now, || listener.accept().map(Some)) else {
                    break;
                };
                self.take_intercepted(now, relay, stream, peer, own);
            }
        }
        for index in 0..self.socks.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                let full = held || self.is_full(now, relay);
                let (listener, gate) = &mut self.socks[index];
                if full {
                    gate.pause_if_open(now);
                    break;
                }
                let Some((stream, peer)) = gate.take(now, || listener.accept().map(Some)) else {
                    break;
                };
                let user = self.users.user_of_connection(now, peer.ip());
                self.clients.add(now, relay, stream, peer, user);
            }
        }
    }

    /// Whether users' sockets have reached their limit; the other descriptors are reserved for
    /// carriers.
    fn is_full(&mut self, now: Instant, relay: &Relay) -> bool {
        let associations = self.datagrams.as_ref().map_or(0, Datagrams::descriptors);
        let sockets = relay.leg_count() + self.clients.len() + associations;
        let full = sockets >= self.sockets_max;
        if full && self.full.permit(now).is_some() {
            tracing::warn!(
                sockets = self.sockets_max,
                "not accepting connections: raise the limit of open files (LimitNOFILE) if this \
                 persists"
            );
        }
        full
    }

    fn take_intercepted(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        stream: TcpStream,
        peer: SocketAddr,
        own: Option<SocketAddr>,
    ) {
        // The passenger's destination.
        let Ok(original) = stream.local_addr() else { return };
        let wanted = SocketAddr::new(original.ip().to_canonical(), original.port());
        if Some(wanted) == own {
            // A connection to the listener itself has no destination.
            return polyrail_relay::reset_socket(stream);
        }
        let dns = self.daemon.config.dns.as_ref().filter(|_| is_dns(&wanted));
        let to = dns.map_or(wanted, |dns| dns.resolver);
        let user = self.users.user_of_connection(now, peer.ip());
        match relay.endpoint().open(now, user, Destination::Address(to)) {
            Ok(flow) => relay.attach(now, flow, stream),
            Err(error) => {
                self.refuse(now, relay, peer, refused_open(error), &error.to_string());
                polyrail_relay::reset_socket(stream);
            }
        }
    }

    /// Counts and logs the refusal of a user's flow.
    fn refuse(
        &mut self,
        now: Instant,
        relay: &Relay,
        peer: SocketAddr,
        refused: Refused,
        reason: &str,
    ) {
        let Some(session) = relay.endpoint_ref().current() else { return };
        let address = peer.ip().to_canonical();
        let who = (session, self.users.user(now, address));
        let permit = || self.refused_lines.permit(now).is_some();
        self.refusals.add(now, who, refused, reason, (None, Some(address)), permit);
    }

    /// The passenger's address of a flow or binding.
    pub(crate) fn passenger_of(&self, relay: &Relay, name: FlowName) -> Option<SocketAddr> {
        let FlowName { session, kind, number } = name;
        let address = match kind {
            FlowKind::Tcp => {
                let flow = FlowKey { session, flow: FlowId(number) };
                let leg = relay.leg_addresses(flow).map(|(_, remote)| remote);
                leg.or_else(|| self.clients.peer_of(flow))
            }
            FlowKind::Udp => self.datagrams.as_ref()?.passenger_of(session, BindingId(number)),
        };
        address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    fn on_session_event(&mut self, now: Instant, relay: &mut Relay, event: Event) {
        if let Event::Message { session, channel: ICMP_ERROR, payload, .. } = &event {
            if let Some(datagrams) = &mut self.datagrams {
                datagrams.refused(now, *session, payload);
            }
            return;
        }
        let linkdb = self.daemon.linkdb.as_mut();
        if linkdb.is_some_and(|linkdb| linkdb.on_session_event(now, relay, &event)) {
            return;
        }
        match event {
            Event::SessionUp { session, peer, offer } => {
                let Offer { families, datagrams, .. } = offer;
                let (ipv4, ipv6) = (families.v4, families.v6);
                tracing::info!(cloud = %peer, ipv4, ipv6, datagrams, "session up");
                self.clouds.on_session_up(session, &peer, offer);
                self.daemon.session_up(session, peer);
                if relay.endpoint_ref().current() == Some(session) {
                    self.use_offer(offer);
                }
            }
            Event::SessionEnded { session, reason, flows } => {
                self.clouds.look_soon(now);
                let cloud = self.clouds.on_session_ended(session);
                let name = cloud.as_ref().map(Identity::as_str);
                if flows == 0 {
                    tracing::info!(cloud = name, %reason, "session ended");
                } else {
                    tracing::warn!(cloud = name, %reason, flows, "session ended; flows were reset");
                }
                self.refusals.forget(session);
                self.daemon.session_ended(session, cloud.map(|cloud| cloud.to_string()), reason);
            }
            Event::PathUp { tunnel, path, .. } => {
                let was_down = self.clouds.on_path(now, tunnel, path.0);
                if let Some(diversion) = self.diversion.as_ref().filter(|_| was_down) {
                    diversion.routes_changed();
                }
            }
            Event::Dialed { flow } | Event::Readable { flow } | Event::Writable { flow } => {
                self.on_flow(now, relay, flow, &event);
            }
            Event::Datagram { session, datagram } => {
                if let Some(datagrams) = &mut self.datagrams {
                    datagrams.deliver(now, session, &datagram);
                }
            }
            Event::PathStalled { tunnel, .. } => self.clouds.on_stall(now, relay, tunnel),
            Event::PathRecovered { tunnel } => self.clouds.on_recovered(now, tunnel),
            Event::Reset { flow, reason } => self.on_flow_closed(now, relay, flow, reason),
            Event::Closed { flow } => {
                self.on_flow_closed(now, relay, flow, ResetReason::PeerReset);
            }
            Event::PeerGoing { session, reason } => {
                let cloud = self.clouds.offer(session).map(|(cloud, _)| cloud.as_str());
                tracing::info!(cloud, reason, "the cloud is going away");
                self.clouds.look_soon(now);
            }
            Event::PathReport { tunnel, report } => {
                self.clouds.on_report(now, relay, tunnel, report);
            }
            Event::Alarm { text, .. } => {
                tracing::warn!("{text}");
                self.daemon.publish(AdminEvent::Alarm { message: text, path: None });
            }
            _ => {}
        }
    }

    /// Runs the carriers and chooses the cloud. What belongs to no flow follows to another cloud.
    pub(crate) fn run_clouds(&mut self, now: Instant, relay: &mut Relay) {
        if !self.clouds.on_turn(now, relay) {
            return;
        }
        if let Some(names) = &mut self.names {
            names.reopen(now, relay);
        }
        let Some(session) = relay.endpoint_ref().current() else { return };
        let Some((_, offer)) = self.clouds.offer(session) else { return };
        if let Some(linkdb) = &self.daemon.linkdb {
            linkdb.follow(session);
        }
        self.use_offer(offer);
    }

    /// The current cloud reaches and carries this.
    fn use_offer(&mut self, offer: Offer) {
        if let Some(passengers) = &mut self.datagrams {
            passengers.set_carried(offer.datagrams);
            if !offer.datagrams {
                tracing::warn!(
                    "the cloud is of an earlier version and carries no UDP: it is rejected"
                );
            }
        }
        if let Some(diversion) = &self.diversion {
            diversion.set_offer(offer);
        }
    }

    /// Reports the carriers that `direct:` traffic may use now.
    fn direct_traffic(&mut self, now: Instant) {
        let is_due = |diversion: &&mut Diversion| diversion.has_direct() && self.direct_at <= now;
        let Some(diversion) = self.diversion.as_mut().filter(is_due) else { return };
        self.direct_at = now + DIRECT_EVERY;
        let carriers = intercept::direct_carriers(&self.daemon.config);
        let enabled = carriers.filter_map(|(name, interface)| {
            Some((!self.clouds.serves(now, name.as_str())?, interface))
        });
        let mut order: Vec<(bool, String)> = enabled.collect();
        order.sort_by_key(|(is_down, _)| *is_down);
        diversion.set_direct(order.into_iter().map(|(_, interface)| interface).collect());
    }

    fn on_linkdb(&mut self, now: Instant, relay: &mut Relay) {
        let Some(linkdb) = &mut self.daemon.linkdb else { return };
        for carrier in linkdb.on_wake(now, relay) {
            self.clouds.on_found_cell(now, &carrier);
        }
    }

    fn on_flow(&mut self, now: Instant, relay: &mut Relay, flow: FlowKey, event: &Event) {
        if self.speedtests.on_flow(now, relay.endpoint(), flow) {
            return;
        }
        if !self.names.as_mut().is_some_and(|names| names.on_flow(now, relay, flow)) {
            self.clients.on_flow(now, relay, flow, event);
        }
    }

    fn on_flow_closed(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        flow: FlowKey,
        reason: ResetReason,
    ) {
        if self.speedtests.on_gone(flow, reason) {
            return;
        }
        let ours = self.names.as_mut().is_some_and(|names| names.on_gone(now, relay, flow));
        if !ours {
            let refused = matches!(reason, ResetReason::Quota | ResetReason::Overload);
            if let Some(peer) = self.clients.peer_of(flow).filter(|_| refused) {
                self.refuse(now, relay, peer, refused_reset(reason), &reason.to_string());
            }
            self.clients.on_gone(now, relay, flow, reason);
        }
    }
}

impl Shell for Gateway {
    fn on_event(&mut self, now: Instant, relay: &mut Relay, event: &Readiness) {
        let token = event.token();
        match token.0 {
            _ if token == SIGNALS => {
                self.daemon.on_signals(now, relay, "the gateway is shutting down");
            }
            _ if token == WAKER => {
                polyrail_daemon::serve(self, now, relay);
                self.on_linkdb(now, relay);
            }
            ASSOCIATIONS.. => {
                if let Some(datagrams) = &mut self.datagrams {
                    datagrams.on_association(relay, event);
                }
            }
            SOCKS_CLIENTS.. => self.clients.on_event(now, relay, event),
            DATAGRAMS.. => {
                if let Some(datagrams) = &mut self.datagrams {
                    datagrams.on_ready(token.0 - DATAGRAMS);
                }
            }
            NAMES.. => {
                if let Some(names) = &mut self.names {
                    names.on_ready(token.0 - NAMES);
                }
            }
            SOCKS.. => {
                if let Some((_, gate)) = self.socks.get_mut(token.0 - SOCKS) {
                    gate.on_ready();
                }
            }
            TRANSPARENT.. => {
                if let Some((_, gate)) = self.transparent.get_mut(token.0 - TRANSPARENT) {
                    gate.on_ready();
                }
            }
            _ => {}
        }
    }

    fn on_relay_event(&mut self, now: Instant, relay: &mut Relay, event: RelayEvent) {
        match event {
            RelayEvent::Session(event) => self.on_session_event(now, relay, event),
            RelayEvent::FlowRefused { peer: Some(peer), reason, .. } => {
                let refused = refused_reset(reason);
                self.refuse(now, relay, peer, refused, &reason.to_string());
            }
            RelayEvent::FlowRefused { .. } => {}
            // A gateway has one worker.
            RelayEvent::TunnelMoves(_) => {}
            RelayEvent::TunnelUp { tunnel, established } => {
                tracing::debug!(
                    serial = established.serial,
                    resumed = established.resumed,
                    handshake = ?established.handshake,
                    "tunnel up"
                );
                self.clouds.on_up(now, tunnel);
            }
            RelayEvent::TunnelPoliced { tunnel, rate } => {
                self.clouds.on_policed(now, tunnel, rate);
            }
            RelayEvent::TunnelEarly { tunnel } => self.clouds.on_early(tunnel),
            RelayEvent::TunnelRefused { tunnel, reason, .. } => {
                self.clouds.on_refused(now, tunnel, &reason);
            }
            RelayEvent::TunnelClosed { tunnel, reason, .. } => {
                self.clouds.on_closed(now, tunnel, &reason);
            }
        }
    }

    fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        // First, because the relay has reported everything and nothing has changed since.
        self.clients.on_turn(now, relay);
        if self.daemon.shutdown.wants_tunnels() {
            self.run_clouds(now, relay);
        }
        // A flow stays with its cloud, so connections wait in the kernel until that is known.
        let held = self.clouds.holds_new(now);
        self.clients.set_held(now, relay, held);
        if self.daemon.shutdown.takes_new() {
            self.accept(now, relay, held);
        }
        for (peer, error) in self.clients.take_refused() {
            self.refuse(now, relay, peer, refused_open(error), &error.to_string());
        }
        for request in self.clients.take_associations() {
            match &mut self.datagrams {
                Some(datagrams) => datagrams.associate(now, relay, request),
                None => request.refuse(ReplyCode::CommandNotSupported),
            }
        }
        if let Some(names) = &mut self.names {
            let users = &mut self.users;
            let refused = names.on_turn(now, relay, |source: IpAddr| users.user(now, source));
            for user in refused {
                let Some(session) = relay.endpoint_ref().current() else { break };
                let (why, from) = ("too many DNS queries", users.address_of(user));
                let who = (session, user);
                let permit = || self.refused_lines.permit(now).is_some();
                self.refusals.add(now, who, Refused::Query, why, (None, from), permit);
            }
        }
        if let Some(datagrams) = &mut self.datagrams {
            let users = &mut self.users;
            datagrams.on_turn(now, relay, |source: IpAddr| users.user(now, source));
        }
        for (user, weight) in self.users.take_weights() {
            relay.endpoint().set_weight(user, weight);
        }
        if self.speedtests.next_timeout().is_some_and(|at| at <= now) {
            let paths = self.paths(now, relay);
            self.speedtests.on_turn(now, relay.endpoint(), &paths);
        }
        self.direct_traffic(now);
        for event in self.clouds.take_events() {
            self.daemon.publish(event);
        }
        if let Some(linkdb) = &mut self.daemon.linkdb {
            linkdb.on_turn(now, relay, true);
        }
        self.daemon.on_turn(now, relay);
    }

    fn next_timeout(&self, now: Instant, _relay: &Relay) -> Option<Instant> {
        let transparent = self.transparent.iter().map(|(_, gate)| gate);
        let gates = transparent.chain(self.socks.iter().map(|(_, gate)| gate));
        let gates = gates
            .filter(|_| self.daemon.shutdown.takes_new())
            .filter_map(|gate| gate.next_timeout(now));
        let carriers = self.daemon.shutdown.wants_tunnels().then(|| self.clouds.next_timeout(now));
        let others = [
            self.clients.next_timeout(),
            self.names.as_ref().and_then(|names| names.next_timeout(now)),
            self.datagrams.as_ref().and_then(|datagrams| datagrams.next_timeout(now)),
            carriers.flatten(),
            self.diversion.as_ref().filter(|it| it.has_direct()).map(|_| self.direct_at),
            self.speedtests.next_timeout(),
            self.daemon.next_timeout(),
        ];
        gates.chain(others.into_iter().flatten()).min()
    }

    fn is_over(&self) -> bool {
        self.daemon.shutdown.is_over()
    }
}

/// The flows that this number of users' sockets permits, next to sockets that wait for their reset
/// and SOCKS5 clients without a flow. So the session sheds flows before a descriptor is missing.
fn flows_within(sockets: usize, socks: bool) -> usize {
    let clients = CLIENTS_MAX.min(sockets / 4) + 2 * associations_within(sockets);
    let resets = PENDING_RESETS_MAX.min(sockets / 8);
    (sockets - resets - if socks { clients } else { 0 }).max(1)
}

/// The associations of SOCKS5 clients for this number of users' sockets: an eighth, two for each.
fn associations_within(sockets: usize) -> usize {
    sockets / 16
}

/// The kind of a flow that was not opened.
pub(crate) fn refused_open(error: OpenError) -> Refused {
    match error {
        OpenError::TooManyOfUser => Refused::Flow,
        _ => Refused::Overload,
    }
}

/// The kind of a flow that was reset.
pub(crate) fn refused_reset(reason: ResetReason) -> Refused {
    if reason == ResetReason::Quota { Refused::Quota } else { Refused::Overload }
}

/// When SOCKS5 requests are answered.
pub(crate) fn reply_policy(config: &GatewayConfig) -> SocksReply {
    config.socks5.as_ref().map(|socks5| socks5.reply).unwrap_or_default()
}

/// The configuration without the interception of a family that this machine lacks.
fn intercepted(config: &GatewayConfig) -> anyhow::Result<GatewayConfig> {
    let mut config = config.clone();
    if let Some(error) = intercept::exclude_missing_ipv6(&mut config)? {
        tracing::warn!(%error, "this machine has no IPv6: intercepting IPv4 only, until a restart");
    }
    Ok(config)
}

fn listen_transparently(config: &GatewayConfig) -> anyhow::Result<Vec<TcpListener>> {
    let Some(intercept) = &config.intercept else { return Ok(Vec::new()) };
    let port = intercept.port.get();
    transparent::listen(port, intercept.ipv4, intercept.ipv6).with_context(|| {
        format!(
            "cannot listen transparently on port {port} (intercept.port): the port must be free, \
             and the process needs CAP_NET_ADMIN"
        )
    })
}

fn listen_for_socks(config: &GatewayConfig) -> anyhow::Result<Vec<TcpListener>> {
    let addresses = config.socks5.iter().flat_map(|socks5| &socks5.listen);
    let listen = |address: &SocketAddr| {
        socks_clients::listen(*address)
            .with_context(|| format!("cannot listen on {address} (socks5.listen)"))
    };
    addresses.map(listen).collect()
}

/// Registers listeners under `base` and the following tokens.
fn gated(
    registry: &Registry,
    base: usize,
    listeners: Vec<TcpListener>,
) -> std::io::Result<Vec<(TcpListener, AcceptGate)>> {
    let register = |(token, mut listener)| {
        registry.register(&mut listener, Token(token), Interest::READABLE)?;
        Ok((listener, AcceptGate::default()))
    };
    (base..).zip(listeners).map(register).collect()
}

fn name_service(
    now: Instant,
    config: &GatewayConfig,
    registry: &Registry,
) -> anyhow::Result<Option<NameService>> {
    let (Some(dns), Some(intercept)) = (&config.dns, &config.intercept) else { return Ok(None) };
    let port = dns.port.get();
    let sockets = TransparentUdp::bind_loopback(port, intercept.ipv4, intercept.ipv6)
        .with_context(|| format!("cannot listen for DNS queries on port {port} (dns.port)"))?;
    let seed = u64::from_ne_bytes(random()?);
    Ok(Some(NameService::new(now, registry, NAMES, sockets, dns.resolver, seed)?))
}

fn passengers_datagrams(
    now: Instant,
    config: &GatewayConfig,
    registry: &Registry,
    bounds: (usize, usize),
) -> anyhow::Result<Option<Datagrams>> {
    let sockets = match &config.intercept {
        Some(intercept) if intercept.carries_udp() => {
            let (port, v4, v6) = (intercept.port.get(), intercept.ipv4, intercept.ipv6);
            TransparentUdp::bind_loopback(port, v4, v6).with_context(|| {
                format!("cannot listen for datagrams on port {port} (intercept.port)")
            })?
        }
        None => Vec::new(),
        Some(_) => return Ok(None),
    };
    let carries = config.intercept.as_ref().is_none_or(|it| it.udp == UdpTraffic::Carry);
    if config.socks5.is_some() && !carries {
        tracing::info!("SOCKS5 carries no UDP, because intercept.udp is not \"carry\"");
    }
    let bases = (DATAGRAMS, ASSOCIATIONS);
    let bounds = (bounds.0, if carries { bounds.1 } else { 0 });
    Ok(Some(Datagrams::new(now, registry, bases, sockets, bounds)?))
}

const SIGNALS: Token = Token(0);
const WAKER: Token = Token(1);
const TRANSPARENT: usize = 16;
const SOCKS: usize = 32;
const NAMES: usize = 64;
const DATAGRAMS: usize = 96;
const SOCKS_CLIENTS: usize = 1024;
const ASSOCIATIONS: usize = 1 << 24;
/// How often the carriers that `direct:` traffic may use are examined.
const DIRECT_EVERY: Duration = Duration::from_secs(1);
/// Connections accepted from one listener per turn.
const ACCEPTS_PER_TURN: usize = 64;
