//! The gateway daemon around the relay: listeners, SOCKS5, DNS, carriers, signals.
//!
//! A connection's way: accepted transparently (its local address is where it wants to go) or by
//! SOCKS5 (its request says so), it becomes a flow at once, session or not, and its socket the
//! flow's leg. No round trip is spent; what fails later resets the connection.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use mio::event::Event as Readiness;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll, Registry, Token};
use polyrail_config::log::LogHandle;
use polyrail_config::{GatewayConfig, Overrides, SocksReply};
use polyrail_control::admin::{AdminHandle, AdminOptions, AdminServer, Event as Told, Loaded};
use polyrail_control::linkdb;
use polyrail_model::{Destination, InstanceId};
use polyrail_relay::admin::session_name;
use polyrail_relay::linkdb::{Options, Role, Worker};
use polyrail_relay::{
    AcceptGate, Ending, Foresight, Notices, Relay, RelayEvent, RelaySettings, Shell, StatusFile,
};
use polyrail_session::{Endpoint, Event, FlowKey, ResetReason, Settings};
use polyrail_tunnel::{IdentityPaths, SystemClock, TlsIdentity};
use ring::rand::{SecureRandom, SystemRandom};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook_mio::v1_0::Signals;

use crate::carriers::{Carriers, Clients};
use crate::diversion::Diversion;
use crate::dns::{DnsSocket, is_dns};
use crate::name_service::NameService;
use crate::socks_clients::SocksClients;
use crate::socks5::ReplyPolicy;
use crate::transparent::{Accepted, TransparentListener};
use crate::users::Users;

/// What the daemon is started with, beside its configuration.
#[derive(Debug)]
pub struct Start {
    /// The file that the configuration came from, read again by each reload.
    pub file: PathBuf,
    /// What the command line said over it.
    pub overrides: Overrides,
    /// The log, whose level, format and file a reload may change.
    pub log: Option<LogHandle>,
    /// Where the status is written every second, if anywhere.
    pub status_file: Option<PathBuf>,
}

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// Something that the operator must mend before the daemon can start: certificates, addresses,
/// privileges, the admin socket. A carrier that is missing is no such thing.
pub fn run(config: GatewayConfig, start: Start) -> anyhow::Result<()> {
    // First: a SIGHUP that comes early would end the process.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let now = Instant::now();
    let descriptors = polyrail_relay::raise_descriptor_limit();
    for finding in polyrail_config::kernel::findings() {
        tracing::warn!("{finding}");
    }
    let mut poll = Poll::new().context("no epoll")?;
    let identity = load_identity(&config)?;
    let (name, cloud) = (identity.name().clone(), config.cloud.name.clone());
    let clients = Clients::new(&identity, &cloud)?;
    let settings = Settings {
        linger: config.session.linger,
        memory: config.session.memory,
        flows_max: config.session.flows_max,
        chain: config.scheduler.chain.clone(),
        ..Settings::default()
    };
    let endpoint = Endpoint::gateway(now, settings.clone(), InstanceId(random()?));
    let mut relay = Relay::new(poll.registry().try_clone()?, endpoint, RelaySettings::default());
    let carriers = Carriers::new(&config, clients, u64::from_ne_bytes(random()?));
    let status = start.status_file.clone();
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    let foresight = start_linkdb(&config, &waker)?;
    let mut control = start_control(&config, start, waker, foresight.as_ref())?;
    if let (Some(foresight), Some(observations)) = (&foresight, control.take_observations()) {
        crate::observations::forward(observations, foresight.feeder())
            .context("cannot start the telemetry's thread")?;
    }
    let state = State { config, settings, identity, carriers, control, signals };
    let mut gateway = Gateway::new(now, state, poll.registry())?;
    gateway.foresight = foresight;
    gateway.sockets_max = polyrail_relay::flows_within(descriptors);
    gateway.status = status.map(|path| StatusFile::new(now, "gateway", path));
    tracing::info!(%name, %cloud, descriptors, "polyrail-gateway is ready");
    polyrail_relay::run(&mut poll, &mut relay, &mut gateway).context("the event loop failed")?;
    tracing::info!("polyrail-gateway ends");
    Ok(())
}

/// Starts the control thread, which also serves SIGHUP and watches the carriers' interfaces; so it
/// is there without a socket, too.
fn start_control(
    config: &GatewayConfig,
    start: Start,
    waker: Arc<mio::Waker>,
    foresight: Option<&Foresight>,
) -> anyhow::Result<AdminHandle<GatewayConfig>> {
    let Start { file, overrides, log, status_file: _ } = start;
    let options = AdminOptions {
        config: config.clone(),
        file,
        overrides,
        log,
        waker,
        watch_links: true,
        linkdb: foresight.map(Foresight::feeder),
        load: |config| load_identity(config).map(Loaded::new).map_err(|error| format!("{error:#}")),
    };
    AdminServer::start(options).context("cannot start the control thread (admin.socket)")
}

/// Starts the thread of the LinkDB, if one is configured.
fn start_linkdb(
    config: &GatewayConfig,
    waker: &Arc<mio::Waker>,
) -> anyhow::Result<Option<Foresight>> {
    let Some(config) = &config.linkdb else { return Ok(None) };
    let options = Options {
        role: Role::Gateway,
        path: Some(config.path.clone()),
        settings: linkdb::settings(config, true),
        seed: u64::from_ne_bytes(random()?),
        notify: polyrail_relay::notify(waker.clone()),
    };
    let worker = Worker::start(options).context("cannot start LinkDB's thread")?;
    Ok(Some(Foresight::new(worker)))
}

/// Reads the certificate files: at the start, and for a reload on a thread of the control thread's.
fn load_identity(config: &GatewayConfig) -> anyhow::Result<TlsIdentity> {
    let paths = IdentityPaths {
        certificate: config.tls.certificate.clone(),
        key: config.tls.key.clone(),
        authority: config.tls.authority.clone(),
        revocations: config.tls.revocations.clone(),
    };
    let identity = TlsIdentity::load(&paths)?;
    for warning in identity.warnings(&SystemClock) {
        tracing::warn!("{warning}");
    }
    Ok(identity)
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow::anyhow!("no system randomness"))?;
    Ok(bytes)
}

/// What a reload changes and the control thread asks for.
pub(crate) struct State {
    /// The configuration, as it was taken last.
    pub(crate) config: GatewayConfig,
    /// The session's, as they are now.
    pub(crate) settings: Settings,
    pub(crate) identity: TlsIdentity,
    pub(crate) carriers: Carriers,
    pub(crate) control: AdminHandle<GatewayConfig>,
    signals: Signals,
}

/// The daemon's state beside the relay.
pub(crate) struct Gateway {
    pub(crate) state: State,
    transparent: Vec<(TransparentListener, AcceptGate)>,
    socks: Vec<(TcpListener, AcceptGate)>,
    pub(crate) clients: SocksClients,
    pub(crate) names: Option<NameService>,
    /// Where DNS over TCP goes instead.
    pub(crate) resolver: Option<SocketAddr>,
    users: Users,
    diversion: Option<Diversion>,
    ending: Ending,
    status: Option<StatusFile>,
    /// The LinkDB, where there is one.
    pub(crate) foresight: Option<Foresight>,
    refused_flows: Notices,
    /// Users' sockets at once; further ones wait in the kernel's queue.
    sockets_max: usize,
    full: Notices,
}

impl Gateway {
    fn new(now: Instant, mut state: State, registry: &Registry) -> anyhow::Result<Self> {
        registry.register(&mut state.signals, SIGNALS, Interest::READABLE)?;
        let config = &state.config;
        let transparent = listen_transparently(config, registry)?;
        let socks = listen_for_socks(config, registry)?;
        let names = name_service(config, registry)?;
        let policy = reply_policy(config);
        let inside = config.intercept.iter().flat_map(|intercept| &intercept.interfaces);
        let users = Users::new(config.users.key, inside.map(ToString::to_string).collect())
            .context("cannot ask the kernel for users' link addresses (users.key)")?;
        // Last: from here on passengers' traffic comes.
        let diversion = match &config.intercept {
            Some(_) => Some(Diversion::start(now, config)?),
            None => None,
        };
        Ok(Self {
            transparent,
            socks,
            clients: SocksClients::new(registry.try_clone()?, SOCKS_CLIENTS, policy),
            names,
            resolver: config.dns.as_ref().map(|dns| dns.resolver),
            users,
            state,
            diversion,
            ending: Ending::default(),
            status: None,
            foresight: None,
            refused_flows: Notices::default(),
            sockets_max: usize::MAX,
            full: Notices::default(),
        })
    }

    fn on_signals(&mut self, now: Instant, relay: &mut Relay) {
        let pending: Vec<i32> = self.state.signals.pending().collect();
        for signal in pending {
            match signal {
                SIGTERM | SIGINT => self.ending.begin(now, relay, "the gateway is shutting down"),
                SIGHUP => self.state.control.request_reload(),
                SIGUSR1 => self.hurry_status(now),
                _ => {}
            }
        }
    }

    fn hurry_status(&mut self, now: Instant) {
        if let Some(status) = &mut self.status {
            status.hurry(now);
        }
    }

    fn accept(&mut self, now: Instant, relay: &mut Relay) {
        for index in 0..self.transparent.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                let full = self.is_full(now, relay);
                let (listener, gate) = &mut self.transparent[index];
                if full {
                    gate.pause_if_open(now);
                    break;
                }
                let own = listener.local_addr().ok();
                let Some(accepted) = gate.take(now, || listener.accept().map(Some)) else { break };
                self.take_intercepted(now, relay, accepted, own);
            }
        }
        for index in 0..self.socks.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                let full = self.clients.is_full() || self.is_full(now, relay);
                let (listener, gate) = &mut self.socks[index];
                if full {
                    gate.pause_if_open(now);
                    break;
                }
                let Some((stream, peer)) = gate.take(now, || listener.accept().map(Some)) else {
                    break;
                };
                let user = self.users.user(now, peer.ip());
                self.clients.add(now, relay, stream, peer, user);
            }
        }
    }

    /// Whether users' sockets have reached their bound: the rest of the descriptors are the
    /// carriers'.
    fn is_full(&mut self, now: Instant, relay: &Relay) -> bool {
        let full = relay.leg_count() + self.clients.len() >= self.sockets_max;
        if full && self.full.permit(now).is_some() {
            tracing::warn!(
                sockets = self.sockets_max,
                "no new connections are taken for now: raise the limit of open files (LimitNOFILE) \
                 if this goes on"
            );
        }
        full
    }

    fn take_intercepted(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        accepted: Accepted,
        own: Option<SocketAddr>,
    ) {
        let Accepted { stream, original, peer } = accepted;
        let wanted = SocketAddr::new(original.ip().to_canonical(), original.port());
        if Some(wanted) == own {
            // Somebody connected to the listener itself: there is no destination.
            return polyrail_relay::reset_socket(stream);
        }
        let to = self.resolver.filter(|_| is_dns(&wanted)).unwrap_or(wanted);
        let user = self.users.user(now, peer.ip());
        match relay.endpoint().open(now, user, Destination::Address(to)) {
            Ok(flow) => relay.attach(now, flow, stream),
            Err(error) => self.refuse(now, stream, peer, &error.to_string()),
        }
    }

    fn refuse(&mut self, now: Instant, stream: TcpStream, peer: SocketAddr, error: &str) {
        if let Some(left_out) = self.refused_flows.permit(now) {
            tracing::warn!(%peer, error, left_out, "a flow was refused");
        }
        polyrail_relay::reset_socket(stream);
    }

    fn on_session_event(&mut self, now: Instant, relay: &mut Relay, event: Event) {
        if self.foresight.as_mut().is_some_and(|foresight| foresight.on_session_event(now, &event))
        {
            return;
        }
        match event {
            Event::SessionUp { session, peer, families } => {
                let (ipv4, ipv6) = (families.v4, families.v6);
                tracing::info!(cloud = %peer, ipv4, ipv6, "session up");
                let session = session_name(session);
                self.publish(Told::SessionUp { session, peer: peer.to_string() });
                if let Some(diversion) = &self.diversion {
                    diversion.set_families(families);
                }
            }
            Event::SessionEnded { session, reason } => {
                tracing::warn!(%reason, "session ended: its flows were reset");
                let peer = Some(self.state.config.cloud.name.to_string());
                self.publish(Told::SessionEnded { session: session_name(session), peer, reason });
            }
            Event::PathUp { tunnel, path, .. } => {
                let was_down = self.state.carriers.on_path(now, tunnel, path.0);
                if let Some(diversion) = self.diversion.as_ref().filter(|_| was_down) {
                    diversion.carrier_up();
                }
                self.hurry_status(now);
            }
            Event::Dialed { flow } | Event::Readable { flow } | Event::Writable { flow } => {
                self.on_flow(now, relay, flow, &event);
            }
            Event::Reset { flow, reason } => self.on_gone(now, relay, flow, reason),
            Event::Closed { flow } => self.on_gone(now, relay, flow, ResetReason::PeerReset),
            Event::PathReport { tunnel, report } => {
                self.state.carriers.on_report(now, tunnel, report);
            }
            Event::Alarm { text } => {
                tracing::warn!("{text}");
                self.publish(Told::Alarm { message: text, path: None });
            }
            _ => {}
        }
    }

    /// Takes what the LinkDB's thread has to say.
    fn on_foresight(&mut self, now: Instant, relay: &mut Relay) {
        let Some(foresight) = &mut self.foresight else { return };
        for carrier in foresight.on_wake(now, relay) {
            self.state.carriers.on_found_cell(now, &carrier);
        }
    }

    /// Puts an event on the stream of the admin interface.
    pub(crate) fn publish(&self, event: Told) {
        self.state.control.publish(event);
    }

    fn on_flow(&mut self, now: Instant, relay: &mut Relay, flow: FlowKey, event: &Event) {
        if !self.names.as_mut().is_some_and(|names| names.on_flow(now, relay, flow)) {
            self.clients.on_flow(now, relay, flow, event);
        }
    }

    fn on_gone(&mut self, now: Instant, relay: &mut Relay, flow: FlowKey, reason: ResetReason) {
        let ours = self.names.as_mut().is_some_and(|names| names.on_gone(now, flow));
        if !ours {
            self.clients.on_gone(now, relay, flow, reason);
        }
    }
}

impl Shell for Gateway {
    fn on_event(&mut self, now: Instant, relay: &mut Relay, event: &Readiness) {
        let token = event.token();
        match token.0 {
            _ if token == SIGNALS => self.on_signals(now, relay),
            _ if token == WAKER => {
                self.on_commands(now, relay);
                self.on_foresight(now, relay);
            }
            SOCKS_CLIENTS.. => self.clients.on_event(now, relay, event),
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
            RelayEvent::TunnelUp { tunnel, established } => {
                tracing::debug!(
                    serial = established.serial,
                    resumed = established.resumed,
                    handshake = ?established.handshake,
                    "tunnel up"
                );
                self.state.carriers.on_up(now, tunnel);
            }
            RelayEvent::TunnelPoliced { tunnel, rate } => {
                self.state.carriers.on_policed(now, tunnel, rate);
            }
            RelayEvent::TunnelEarly { tunnel } => self.state.carriers.on_early(tunnel),
            RelayEvent::TunnelRefused { tunnel, reason, .. } => {
                self.state.carriers.on_refused(now, tunnel, &reason);
            }
            RelayEvent::TunnelClosed { tunnel, reason, .. } => {
                self.state.carriers.on_closed(now, tunnel, &reason);
                self.hurry_status(now);
            }
        }
    }

    fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        // First: the relay has reported all, and nothing has been changed since.
        self.clients.on_turn(now, relay);
        if self.ending.takes_new() {
            self.accept(now, relay);
        }
        if let Some(names) = &mut self.names {
            let users = &mut self.users;
            names.on_turn(now, relay, |source: IpAddr| users.user(now, source));
        }
        if self.ending.wants_tunnels() {
            self.state.carriers.on_turn(now, relay);
        }
        for event in self.state.carriers.take_events() {
            self.publish(event);
        }
        if let Some(foresight) = &mut self.foresight {
            foresight.on_turn(now, relay, true);
        }
        self.ending.on_turn(now, relay);
        if let Some(status) = &mut self.status {
            status.on_turn(now, relay, &self.state.carriers.names());
        }
    }

    fn next_timeout(&self, now: Instant, relay: &Relay) -> Option<Instant> {
        let transparent = self.transparent.iter().map(|(_, gate)| gate);
        let gates = transparent.chain(self.socks.iter().map(|(_, gate)| gate));
        let gates = gates
            .filter(|_| self.ending.takes_new())
            .filter_map(|gate| if gate.is_open(now) { Some(now) } else { gate.next_timeout() });
        let carriers =
            self.ending.wants_tunnels().then(|| self.state.carriers.next_timeout(now, relay));
        let others = [
            self.clients.next_timeout(),
            self.names.as_ref().and_then(|names| names.next_timeout(now)),
            carriers.flatten(),
            self.ending.next_timeout(),
            self.status.as_ref().map(StatusFile::next_timeout),
        ];
        gates.chain(others.into_iter().flatten()).min()
    }

    fn is_over(&self) -> bool {
        self.ending.is_over()
    }
}

/// When SOCKS5 requests are answered.
pub(crate) fn reply_policy(config: &GatewayConfig) -> ReplyPolicy {
    match config.socks5.as_ref().map(|socks5| socks5.reply).unwrap_or_default() {
        SocksReply::Immediate => ReplyPolicy::Immediate,
        SocksReply::Dialed => ReplyPolicy::Dialed,
    }
}

fn listen_transparently(
    config: &GatewayConfig,
    registry: &Registry,
) -> anyhow::Result<Vec<(TransparentListener, AcceptGate)>> {
    let Some(intercept) = &config.intercept else { return Ok(Vec::new()) };
    let port = intercept.port.get();
    let listeners = TransparentListener::bind_loopback(port, intercept.ipv4, intercept.ipv6)
        .with_context(|| {
            format!(
                "cannot listen transparently on port {port} (intercept.port): the port must be \
                 free, and the process needs CAP_NET_ADMIN"
            )
        })?;
    let mut gated = Vec::new();
    for (index, mut listener) in listeners.into_iter().enumerate() {
        registry.register(&mut listener, Token(TRANSPARENT + index), Interest::READABLE)?;
        gated.push((listener, AcceptGate::default()));
    }
    Ok(gated)
}

fn listen_for_socks(
    config: &GatewayConfig,
    registry: &Registry,
) -> anyhow::Result<Vec<(TcpListener, AcceptGate)>> {
    let mut gated = Vec::new();
    let addresses = config.socks5.iter().flat_map(|socks5| &socks5.listen);
    for (index, address) in addresses.enumerate() {
        let mut listener = TcpListener::bind(*address)
            .with_context(|| format!("cannot listen on {address} (socks5.listen)"))?;
        registry.register(&mut listener, Token(SOCKS + index), Interest::READABLE)?;
        gated.push((listener, AcceptGate::default()));
    }
    Ok(gated)
}

fn name_service(
    config: &GatewayConfig,
    registry: &Registry,
) -> anyhow::Result<Option<NameService>> {
    let (Some(dns), Some(intercept)) = (&config.dns, &config.intercept) else { return Ok(None) };
    let port = dns.port.get();
    let sockets = DnsSocket::bind_loopback(port, intercept.ipv4, intercept.ipv6)
        .with_context(|| format!("cannot take DNS queries on port {port} (dns.port)"))?;
    let seed = u64::from_ne_bytes(random()?);
    Ok(Some(NameService::new(registry, NAMES, sockets, dns.resolver, seed)?))
}

const SIGNALS: Token = Token(0);
const WAKER: Token = Token(1);
const TRANSPARENT: usize = 16;
const SOCKS: usize = 32;
const NAMES: usize = 64;
const SOCKS_CLIENTS: usize = 1024;
/// Connections that one listener's turn takes.
const ACCEPTS_PER_TURN: usize = 64;
