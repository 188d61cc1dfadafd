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
use polyrail_config::log::LogHandle;
use polyrail_config::{CloudConfig, Overrides};
use polyrail_control::admin::{self, AdminHandle, AdminOptions, AdminServer, Loaded};
use polyrail_control::linkdb;
use polyrail_model::{Destination, Families, Identity, TunnelMode};
use polyrail_relay::admin::session_name;
use polyrail_relay::linkdb::{Options, Role, Worker};
use polyrail_relay::{
    Ending, Foresight, Notices, Relay, RelayEvent, RelaySettings, Shell, StatusFile,
};
use polyrail_session::{Endpoint, Event, FlowKey, PathReport, SessionKey, Settings, TunnelKey};
use polyrail_tunnel::{CloseReason, IdentityPaths, SystemClock, TlsIdentity};
use ring::rand::{SecureRandom, SystemRandom};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook_mio::v1_0::Signals;

use crate::access::AccessList;
use crate::congestion::Congestion;
use crate::descriptors::Descriptors;
use crate::dial::{DialError, DialSettings, Dialer, Failures};
use crate::listeners::Listeners;
use crate::operate::Desk;
use crate::paths::{Paths, full_name};
use crate::reach;
use crate::resolve::Resolver;

/// What the daemon is started with beside its configuration.
#[derive(Debug, Default)]
pub struct Start {
    /// The configuration's file, which a reload reads again.
    pub file: PathBuf,
    /// What the command line says over it.
    pub overrides: Overrides,
    /// The log, whose level and format a reload may change.
    pub log: Option<LogHandle>,
    /// Where the status is written every second.
    pub status_file: Option<PathBuf>,
}

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// Something that the operator must mend before the daemon can start: certificates, addresses,
/// threads. Nothing that happens afterwards ends it.
pub fn run(config: CloudConfig, start: Start) -> anyhow::Result<()> {
    // First: a SIGHUP that comes early would end the process.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let now = Instant::now();
    let descriptors = polyrail_relay::raise_descriptor_limit();
    for finding in polyrail_config::kernel::findings() {
        tracing::warn!("{finding}");
    }
    let mut poll = Poll::new().context("no epoll")?;
    let identity = load_identity(&config)?;
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
    let endpoint = Endpoint::cloud(now, settings.clone(), seed);
    let mut relay = Relay::new(poll.registry().try_clone()?, endpoint, RelaySettings::default());
    let name = identity.name().clone();
    let (listen, mode) = (config.listen.clone(), config.mode);
    let status = start.status_file.clone().map(|path| StatusFile::new(now, "cloud", path));
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    let foresight = start_linkdb(&config, &waker)?;
    let desk = Desk::new(start_control(&config, start, waker.clone(), foresight.as_ref())?);
    let registry = poll.registry();
    let mut cloud = Cloud::new(config, settings, identity, desk, waker, signals, registry)?;
    cloud.foresight = foresight;
    cloud.descriptors = Descriptors::within(descriptors);
    cloud.status = status;
    tracing::info!(
        %name,
        ?listen,
        %mode,
        ipv4 = families.v4,
        ipv6 = families.v6,
        descriptors,
        "polyrail-cloud is ready"
    );
    polyrail_relay::run(&mut poll, &mut relay, &mut cloud).context("the event loop failed")?;
    tracing::info!("polyrail-cloud ends");
    Ok(())
}

/// Starts the control thread, which also serves SIGHUP; so it is there without a socket, too.
fn start_control(
    config: &CloudConfig,
    start: Start,
    waker: Arc<mio::Waker>,
    foresight: Option<&Foresight>,
) -> anyhow::Result<AdminHandle<CloudConfig>> {
    let Start { file, overrides, log, status_file: _ } = start;
    let options = AdminOptions {
        config: config.clone(),
        file,
        overrides,
        log,
        waker,
        watch_links: false,
        linkdb: foresight.map(Foresight::feeder),
        load: |config| load_identity(config).map(Loaded::new).map_err(|error| format!("{error:#}")),
    };
    AdminServer::start(options).context("cannot start the control thread (admin.socket)")
}

/// Starts the thread of the LinkDB, if one is configured.
fn start_linkdb(
    config: &CloudConfig,
    waker: &Arc<mio::Waker>,
) -> anyhow::Result<Option<Foresight>> {
    let Some(config) = &config.linkdb else { return Ok(None) };
    let options = Options {
        role: Role::Cloud,
        path: Some(config.common.path.clone()),
        settings: linkdb::settings(&config.common, config.share),
        // A cloud numbers no trips.
        seed: 0,
        notify: polyrail_relay::notify(waker.clone()),
    };
    let worker = Worker::start(options).context("cannot start LinkDB's thread")?;
    Ok(Some(Foresight::new(worker)))
}

/// Reads the certificate files: at the start, and for a reload on a thread of the control thread's.
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

pub(crate) fn access_list(config: &CloudConfig) -> AccessList {
    let ports: Vec<u16> = config.access.deny_ports.iter().map(|port| port.get()).collect();
    AccessList::new(&config.access.allow, &config.access.deny, &ports)
}

pub(crate) fn dial_settings(config: &CloudConfig, families: Families) -> DialSettings {
    DialSettings { timeout: config.dial.timeout, families }
}

/// The daemon's state beside the relay.
pub(crate) struct Cloud {
    pub(crate) config: CloudConfig,
    /// The sessions', as they are now.
    pub(crate) settings: Settings,
    pub(crate) identity: TlsIdentity,
    pub(crate) listeners: Listeners,
    pub(crate) dialer: Dialer<FlowKey>,
    pub(crate) congestion: Congestion,
    pub(crate) desk: Desk,
    pub(crate) paths: Paths,
    signals: Signals,
    ending: Ending,
    status: Option<StatusFile>,
    /// The LinkDB, where there is one.
    pub(crate) foresight: Option<Foresight>,
    /// Who is behind a session.
    gateways: BTreeMap<SessionKey, Identity>,
    strangers: Notices,
    failed_dials: Failures,
    /// Flows beyond them are reset.
    descriptors: Descriptors,
}

impl Cloud {
    fn new(
        config: CloudConfig,
        settings: Settings,
        identity: TlsIdentity,
        desk: Desk,
        waker: Arc<mio::Waker>,
        mut signals: Signals,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        registry.register(&mut signals, SIGNALS, Interest::READABLE)?;
        let (congestion, warnings) = Congestion::choose(&config);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let listeners = Listeners::open(&config, &identity, &congestion, registry)?;
        let resolver = Resolver::start(waker).context("cannot start the resolver's threads")?;
        let dialing = dial_settings(&config, settings.families);
        let access = access_list(&config);
        let dialer = Dialer::new(dialing, access, resolver, registry.try_clone()?, DIALS);
        Ok(Self {
            config,
            settings,
            identity,
            listeners,
            dialer,
            congestion,
            desk,
            paths: Paths::default(),
            signals,
            ending: Ending::default(),
            status: None,
            foresight: None,
            gateways: BTreeMap::new(),
            strangers: Notices::default(),
            failed_dials: Failures::default(),
            descriptors: Descriptors::within(u64::MAX),
        })
    }

    fn on_signals(&mut self, now: Instant, relay: &mut Relay) {
        let pending: Vec<i32> = self.signals.pending().collect();
        for signal in pending {
            match signal {
                SIGTERM | SIGINT => self.ending.begin(now, relay, "the cloud is shutting down"),
                SIGHUP => self.desk.request_reload(),
                SIGUSR1 => {
                    if let Some(status) = &mut self.status {
                        status.hurry(now);
                    }
                }
                _ => {}
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
        if self.foresight.as_mut().is_some_and(|foresight| foresight.on_session_event(now, &event))
        {
            return;
        }
        match event {
            Event::Opened { flow, destination, .. } => {
                tracing::debug!(?flow, %destination, "opened");
                // Tunnels over QUIC have no descriptor of their own.
                let tunnels = relay.tunnels_of(TunnelMode::Tls);
                let sockets = relay.leg_count() + relay.farewell_count();
                if !self.descriptors.have_room(tunnels, sockets, self.dialer.descriptors()) {
                    let error = DialError::Overload("too many open files (LimitNOFILE)".into());
                    return self.fail_dial(now, relay, flow, &destination, &error);
                }
                self.dialer.dial(now, flow, &destination);
            }
            // Gone before its dial came to an end.
            Event::Reset { flow, .. } | Event::Closed { flow } => self.dialer.cancel(flow),
            Event::SessionUp { session, peer, .. } => self.on_session_up(session, peer),
            Event::SessionEnded { session, reason } => {
                let gateway = self.gateways.remove(&session);
                let name = gateway.as_ref().map(Identity::as_str).unwrap_or_default();
                tracing::info!(gateway = name, %reason, "session ended");
                self.desk.publish(admin::Event::SessionEnded {
                    session: session_name(session),
                    peer: gateway.map(|gateway| gateway.to_string()),
                    reason,
                });
                self.look_at_paths(now, relay, "the session ended");
            }
            Event::PathUp { tunnel, session, path } => {
                let gateway = self.gateways.get(&session).map(Identity::as_str);
                let view = relay.tunnel(tunnel);
                let mode = view.map(|view| view.mode.as_str());
                let address = view.and_then(|view| view.address).map(tracing::field::display);
                tracing::info!(gateway, address, mode, %path, "path up");
                self.congestion.on_path_up(relay, tunnel);
                self.look_at_paths(now, relay, "");
            }
            Event::PathReport { tunnel, report } => self.on_report(now, relay, tunnel, report),
            Event::Alarm { text } => {
                tracing::warn!("{text}");
                self.desk.publish(admin::Event::Alarm { message: text, path: None });
            }
            _ => {}
        }
    }

    fn on_session_up(&mut self, session: SessionKey, peer: Identity) {
        tracing::info!(gateway = %peer, "session up");
        self.desk.publish(admin::Event::SessionUp {
            session: session_name(session),
            peer: peer.to_string(),
        });
        self.gateways.insert(session, peer);
    }

    /// A gateway has noticed something about what it sends over a path; it acts on it itself.
    fn on_report(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        tunnel: TunnelKey,
        report: PathReport,
    ) {
        match report {
            PathReport::Stalled => {
                tracing::debug!(?tunnel, "the gateway says that a path makes no progress");
            }
            PathReport::Policed { rate } => {
                self.tell_policed(relay, tunnel, &format!("the gateway sends at most {rate}"));
            }
        }
        self.look_at_paths(now, relay, "");
    }

    /// What we send looks policed: the gateway alone can put TLS in QUIC's place.
    fn on_policed(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        tunnel: TunnelKey,
        rate: polyrail_model::Bitrate,
    ) {
        self.tell_policed(relay, tunnel, &format!("the cloud sends at most {rate}"));
        relay.endpoint().report_path(now, tunnel, PathReport::Policed { rate });
    }

    fn tell_policed(&self, relay: &Relay, tunnel: TunnelKey, what: &str) {
        let survey = polyrail_relay::admin::Survey::new(Instant::now(), relay);
        let path = survey
            .path(tunnel)
            .map(|(session, path)| full_name(session.peer.as_ref(), &path.carrier));
        let message = format!("UDP looks policed: {what}");
        tracing::info!(path, "{message}");
        self.desk.publish(admin::Event::Alarm { message, path });
    }

    /// Notes what has become of paths; `reason` is why one went.
    pub(crate) fn look_at_paths(&mut self, now: Instant, relay: &Relay, reason: &str) {
        let Self { paths, desk, .. } = self;
        paths.look(now, relay, reason, |event| desk.publish(event));
    }

    fn on_tunnel_closed(&mut self, now: Instant, relay: &Relay, event: &RelayEvent) {
        let RelayEvent::TunnelClosed { reason, peer, address, .. } = event else { return };
        if let CloseReason::PeerCertificate(_) = reason {
            self.desk.refused += 1;
        }
        let address = address.map(tracing::field::display);
        match (peer, reason) {
            (Some(peer), CloseReason::Local | CloseReason::PeerClosed) => {
                tracing::info!(gateway = %peer, address, %reason, "tunnel closed");
            }
            (Some(peer), _) => tracing::warn!(gateway = %peer, address, %reason, "tunnel lost"),
            (None, _) => {
                if let Some(left_out) = self.strangers.permit(now) {
                    tracing::warn!(address, %reason, left_out, "a connection was refused");
                    let from = address.map(|address| format!(" from {address:?}"));
                    let from = from.unwrap_or_default();
                    let message = format!(
                        "a connection{from} was refused: {reason} (and {left_out} before it)"
                    );
                    self.desk.publish(admin::Event::Alarm { message, path: None });
                }
                return;
            }
        }
        self.look_at_paths(now, relay, &reason.to_string());
    }
}

impl Shell for Cloud {
    fn on_event(&mut self, now: Instant, relay: &mut Relay, event: &Readiness) {
        match event.token() {
            SIGNALS => self.on_signals(now, relay),
            WAKER => {
                self.dialer.on_wake(now);
                self.on_commands(now, relay);
                if let Some(foresight) = &mut self.foresight {
                    // A cloud has no modems.
                    let _ = foresight.on_wake(now, relay);
                }
            }
            token if DIALS.contains(&token.0) => self.dialer.on_ready(now, token),
            _ => {
                self.listeners.on_event(now, event);
            }
        }
    }

    fn on_relay_event(&mut self, now: Instant, relay: &mut Relay, event: RelayEvent) {
        match event {
            RelayEvent::Session(event) => {
                self.on_session_event(now, relay, event);
                self.take_dials(now, relay);
            }
            RelayEvent::TunnelEarly { tunnel } => {
                let gateway = relay.tunnel(tunnel).and_then(|view| view.peer).map(Identity::as_str);
                tracing::debug!(gateway, "a tunnel passes early data");
            }
            RelayEvent::TunnelPoliced { tunnel, rate } => self.on_policed(now, relay, tunnel, rate),
            RelayEvent::TunnelUp { established, .. } => {
                tracing::debug!(
                    gateway = %established.peer,
                    serial = established.serial,
                    resumed = established.resumed,
                    handshake = ?established.handshake,
                    "tunnel up"
                );
            }
            RelayEvent::TunnelRefused { reason, peer, address, superseded, .. } => {
                let address = address.map(tracing::field::display);
                let gateway = peer.as_ref().map(Identity::as_str).unwrap_or_default();
                // Each restart of a path ends one in this way.
                if superseded {
                    tracing::debug!(gateway, address, %reason, "closing a tunnel");
                } else {
                    tracing::warn!(gateway, address, %reason, "closing a tunnel");
                }
            }
            closed @ RelayEvent::TunnelClosed { .. } => self.on_tunnel_closed(now, relay, &closed),
        }
    }

    fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        self.listeners.on_turn(now, relay, &self.congestion, self.ending.takes_new());
        if self.dialer.next_timeout().is_some_and(|at| at <= now) {
            self.dialer.on_timeout(now);
        }
        self.take_dials(now, relay);
        if let Some(foresight) = &mut self.foresight {
            foresight.on_turn(now, relay, false);
        }
        self.ending.on_turn(now, relay);
        if self.paths.is_due(now) {
            self.look_at_paths(now, relay, "");
        }
        if let Some(status) = &mut self.status {
            status.on_turn(now, relay, &[]);
        }
    }

    fn next_timeout(&self, now: Instant, _relay: &Relay) -> Option<Instant> {
        let status = self.status.as_ref().map(StatusFile::next_timeout);
        let accepts = self.listeners.next_timeout(now, self.ending.takes_new());
        let others = [self.dialer.next_timeout(), self.ending.next_timeout(), status, accepts];
        others.into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        self.ending.is_over()
    }
}

const SIGNALS: Token = Token(0);
/// The resolver's and the control thread's.
const WAKER: Token = Token(1);
/// At most two attempts of a dial are alive at a time, as a rule.
const DIALS: Range<usize> = 1024..1024 + 2 * crate::dial::DIALS_MAX;
