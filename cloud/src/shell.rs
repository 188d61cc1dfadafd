//! The cloud daemon around the relay: listeners, dials, signals.
//!
//! A flow's way: the session says `Opened`, the dialer checks the access list, resolves and
//! connects, and the connection becomes the flow's leg. What the gateway sends before that waits in
//! the session, within the session's bounds.
//!
//! ```text
//!   Serving ──SIGTERM/SIGINT──> Draining ──no flows, or DRAIN_MAX──> Closing ──> over
//!                                   └──────a second signal──────────────┘
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use mio::event::Event as Readiness;
use mio::{Interest, Poll, Registry, Token};
use polyrail_control::CloudConfig;
use polyrail_model::{Destination, Identity, TunnelMode};
use polyrail_relay::{
    AcceptGate, Ending, Label, Notices, Relay, RelayEvent, RelaySettings, Shell, StatusFile,
};
use polyrail_session::{Endpoint, Event, FlowKey, SessionKey, Settings};
use polyrail_tunnel::{CloseReason, IdentityPaths, SocketOptions, SystemClock, TlsIdentity, tls};
use ring::rand::{SecureRandom, SystemRandom};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook_mio::v1_0::Signals;

use crate::access::AccessList;
use crate::congestion::Congestion;
use crate::descriptors::Descriptors;
use crate::dial::{DialError, DialSettings, Dialer, Failures};
use crate::reach;
use crate::resolve::Resolver;

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// Something that the operator must mend before the daemon can start: certificates, addresses,
/// threads. Nothing that happens afterwards ends it.
pub fn run(config: &CloudConfig, status_file: Option<PathBuf>) -> anyhow::Result<()> {
    let now = Instant::now();
    let descriptors = polyrail_relay::raise_descriptor_limit();
    for finding in polyrail_control::kernel::findings() {
        tracing::warn!("{finding}");
    }
    let mut poll = Poll::new().context("no epoll")?;
    let identity = load_identity(config)?;
    let families = reach::families(config.dial.families());
    let settings = Settings {
        linger: config.session.linger,
        memory: config.session.memory,
        flows_max: config.session.flows_max,
        families,
        chain: config.scheduler.chain.clone(),
        ..Settings::default()
    };
    let mut seed = [0; 32];
    SystemRandom::new().fill(&mut seed).map_err(|_| anyhow::anyhow!("no system randomness"))?;
    let endpoint = Endpoint::cloud(now, settings, seed);
    let mut relay = Relay::new(poll.registry().try_clone()?, endpoint, RelaySettings::default());
    let name = identity.name().clone();
    let mut cloud = Cloud::new(config, identity, families, poll.registry())?;
    cloud.descriptors = Descriptors::within(descriptors);
    cloud.status = status_file.map(|path| StatusFile::new(now, "cloud", path));
    tracing::info!(
        %name,
        listen = ?config.listen,
        ipv4 = families.v4,
        ipv6 = families.v6,
        descriptors,
        "polyrail-cloud is ready"
    );
    polyrail_relay::run(&mut poll, &mut relay, &mut cloud).context("the event loop failed")?;
    tracing::info!("polyrail-cloud ends");
    Ok(())
}

fn load_identity(config: &CloudConfig) -> anyhow::Result<TlsIdentity> {
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

struct Cloud {
    listeners: Vec<(tls::Listener, AcceptGate)>,
    server: tls::Server,
    dialer: Dialer<FlowKey>,
    signals: Signals,
    ending: Ending,
    status: Option<StatusFile>,
    /// Who is behind a session.
    gateways: BTreeMap<SessionKey, Identity>,
    strangers: Notices,
    failed_dials: Failures,
    /// Flows beyond them are reset.
    descriptors: Descriptors,
    congestion: Congestion,
}

impl Cloud {
    fn new(
        config: &CloudConfig,
        identity: TlsIdentity,
        families: polyrail_model::Families,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let congestion = Congestion::choose(config);
        let usual = congestion.usual().map(str::to_owned);
        let options = SocketOptions { congestion: usual, ..SocketOptions::default() };
        let server = tls::Server::new(identity, options, Arc::new(SystemClock))?;
        let mut listeners = Vec::new();
        for (index, address) in config.listen.iter().enumerate() {
            let mut listener = tls::Listener::bind(*address)
                .with_context(|| format!("cannot listen on {address} (listen)"))?;
            registry.register(&mut listener, Token(LISTENERS + index), Interest::READABLE)?;
            listeners.push((listener, AcceptGate::default()));
        }
        let waker = Arc::new(mio::Waker::new(registry, RESOLVER)?);
        let resolver = Resolver::start(waker).context("cannot start the resolver's threads")?;
        let ports: Vec<u16> = config.access.deny_ports.iter().map(|port| port.get()).collect();
        let access = AccessList::new(&config.access.allow, &config.access.deny, &ports);
        let settings = DialSettings { timeout: config.dial.timeout, families };
        let dialer = Dialer::new(settings, access, resolver, registry.try_clone()?, DIALS);
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
        registry.register(&mut signals, SIGNALS, Interest::READABLE)?;
        Ok(Self {
            listeners,
            server,
            dialer,
            signals,
            ending: Ending::default(),
            status: None,
            gateways: BTreeMap::new(),
            strangers: Notices::default(),
            failed_dials: Failures::default(),
            descriptors: Descriptors::within(u64::MAX),
            congestion,
        })
    }

    fn on_signals(&mut self, now: Instant, relay: &mut Relay) {
        let pending: Vec<i32> = self.signals.pending().collect();
        for signal in pending {
            match signal {
                SIGTERM | SIGINT => self.ending.begin(now, relay, "the cloud is shutting down"),
                SIGHUP => tracing::warn!("reloading is not available in this version: restart"),
                SIGUSR1 => {
                    if let Some(status) = &mut self.status {
                        status.hurry(now);
                    }
                }
                _ => {}
            }
        }
    }

    fn accept(&mut self, now: Instant, relay: &mut Relay) {
        for (listener, gate) in &mut self.listeners {
            for _ in 0..ACCEPTS_PER_TURN {
                if relay.handshaking(TunnelMode::Tls) >= tls::HANDSHAKES_MAX {
                    gate.pause_if_open(now);
                    break;
                }
                let Some((socket, peer)) = gate.take(now, || listener.accept()) else { break };
                let tunnel = match self.server.accept(now, socket) {
                    Ok(tunnel) => tunnel,
                    Err(reason) => {
                        tracing::debug!(%peer, %reason, "a connection was gone at once");
                        continue;
                    }
                };
                if let Err(error) = relay.add_tunnel(tunnel, Label::default()) {
                    tracing::warn!(%peer, %error, "a connection cannot be watched");
                }
            }
        }
    }

    fn take_dials(&mut self, now: Instant, relay: &mut Relay) {
        while let Some(dial) = self.dialer.poll_event() {
            match dial.result {
                Ok((stream, address)) => {
                    tracing::debug!(flow = ?dial.key, %address, "dialed");
                    relay.endpoint().dialed(now, dial.key);
                    relay.attach(now, dial.key, stream);
                }
                Err(error) => self.fail_dial(now, relay, dial.key, &dial.destination, &error),
            }
        }
    }

    fn fail_dial(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        flow: FlowKey,
        destination: &Destination,
        error: &DialError,
    ) {
        let gateway = self.gateways.get(&flow.session).map(Identity::as_str).unwrap_or_default();
        self.failed_dials.log(now, gateway, flow, destination, error);
        relay.endpoint().reset(now, flow, error.reset_reason());
    }

    fn on_session_event(&mut self, now: Instant, relay: &mut Relay, event: Event) {
        match event {
            Event::Opened { flow, destination, .. } => {
                tracing::debug!(?flow, %destination, "opened");
                let (tunnels, legs) = (relay.tunnel_count(), relay.leg_count());
                if !self.descriptors.have_room(tunnels, legs, self.dialer.descriptors()) {
                    let error = DialError::Overload("too many open files (LimitNOFILE)".into());
                    return self.fail_dial(now, relay, flow, &destination, &error);
                }
                self.dialer.dial(now, flow, &destination);
            }
            // Gone before its dial came to an end.
            Event::Reset { flow, .. } | Event::Closed { flow } => self.dialer.cancel(flow),
            Event::SessionUp { session, peer, .. } => {
                tracing::info!(gateway = %peer, "session up");
                self.gateways.insert(session, peer);
            }
            Event::SessionEnded { session, reason } => {
                let gateway = self.gateways.remove(&session);
                let gateway = gateway.as_ref().map(Identity::as_str).unwrap_or_default();
                tracing::info!(gateway, %reason, "session ended");
            }
            Event::PathUp { tunnel, session, path } => {
                let gateway = self.gateways.get(&session).map(Identity::as_str);
                let address = relay.tunnel(tunnel).and_then(|view| view.address);
                let address = address.map(tracing::field::display);
                tracing::info!(gateway, address, %path, "path up");
                self.congestion.on_path_up(relay, tunnel);
            }
            Event::Alarm { text } => tracing::warn!("{text}"),
            _ => {}
        }
    }

    fn on_tunnel_closed(&mut self, now: Instant, event: &RelayEvent) {
        let RelayEvent::TunnelClosed { reason, peer, address, .. } = event else { return };
        let address = address.map(tracing::field::display);
        match (peer, reason) {
            (Some(peer), CloseReason::Local | CloseReason::PeerClosed) => {
                tracing::info!(gateway = %peer, address, %reason, "tunnel closed");
            }
            (Some(peer), _) => tracing::warn!(gateway = %peer, address, %reason, "tunnel lost"),
            (None, _) => {
                if let Some(left_out) = self.strangers.permit(now) {
                    tracing::warn!(address, %reason, left_out, "a connection was refused");
                }
            }
        }
    }
}

impl Shell for Cloud {
    fn on_event(&mut self, now: Instant, relay: &mut Relay, event: &Readiness) {
        match event.token() {
            SIGNALS => self.on_signals(now, relay),
            RESOLVER => self.dialer.on_wake(now),
            token if DIALS.contains(&token.0) => self.dialer.on_ready(now, token),
            Token(token) => {
                let index = token.checked_sub(LISTENERS);
                if let Some((_, gate)) = index.and_then(|index| self.listeners.get_mut(index)) {
                    gate.on_ready();
                }
            }
        }
    }

    fn on_relay_event(&mut self, now: Instant, relay: &mut Relay, event: RelayEvent) {
        match event {
            RelayEvent::Session(event) => {
                self.on_session_event(now, relay, event);
                self.take_dials(now, relay);
            }
            RelayEvent::TunnelUp { established, .. } => {
                tracing::debug!(
                    gateway = %established.peer,
                    serial = established.serial,
                    resumed = established.resumed,
                    handshake = ?established.handshake,
                    "tunnel up"
                );
            }
            RelayEvent::TunnelEarly { .. } | RelayEvent::TunnelPoliced { .. } => {}
            RelayEvent::TunnelRefused { reason, peer, address, .. } => {
                let address = address.map(tracing::field::display);
                let gateway = peer.as_ref().map(Identity::as_str).unwrap_or_default();
                tracing::warn!(gateway, address, %reason, "closing a tunnel");
            }
            closed @ RelayEvent::TunnelClosed { .. } => self.on_tunnel_closed(now, &closed),
        }
    }

    fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        if self.ending.takes_new() {
            self.accept(now, relay);
        }
        if self.dialer.next_timeout().is_some_and(|at| at <= now) {
            self.dialer.on_timeout(now);
        }
        self.take_dials(now, relay);
        self.ending.on_turn(now, relay);
        if let Some(status) = &mut self.status {
            status.on_turn(now, relay, &[]);
        }
    }

    fn next_timeout(&self, now: Instant, _relay: &Relay) -> Option<Instant> {
        let accepts = self.listeners.iter().filter(|_| self.ending.takes_new());
        let accepts = accepts.filter_map(|(_, gate)| match gate.is_open(now) {
            true => Some(now),
            false => gate.next_timeout(),
        });
        let status = self.status.as_ref().map(StatusFile::next_timeout);
        let others = [self.dialer.next_timeout(), self.ending.next_timeout(), status];
        accepts.chain(others.into_iter().flatten()).min()
    }

    fn is_over(&self) -> bool {
        self.ending.is_over()
    }
}

const SIGNALS: Token = Token(0);
const RESOLVER: Token = Token(1);
const LISTENERS: usize = 16;
/// At most two attempts of a dial are alive at a time, as a rule.
const DIALS: Range<usize> = 1024..1024 + 2 * crate::dial::DIALS_MAX;
/// Connections that one listener's turn takes.
const ACCEPTS_PER_TURN: usize = 64;
