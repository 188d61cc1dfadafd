//! A cloud's worker around its relay: listeners, dials, signals. [`run`](crate::run) starts them.
//!
//! The session reports a flow as `Opened`, the dialer resolves, checks the access list and
//! connects, and the connection becomes the flow's leg. Until then the session buffers the
//! gateway's data, within its limits.
//!
//! ```text
//!   Serving ──SIGTERM/SIGINT──> Draining ──no flows, or DRAIN_MAX──> Closing ──> over
//!                                   └──────a second signal──────────────┘
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use mio::event::Event as Readiness;
use mio::{Registry, Token};
use polyrail_admin::AdminEvent;
use polyrail_admin::metrics::REPORT;
use polyrail_config::{CloudConfig, CloudTables};
use polyrail_daemon::{Daemon, Refusals, Refused, Survey};
use polyrail_model::{Bitrate, Destination, Families, Identity, TunnelMode, UserId};
use polyrail_relay::{LogLimiter, MovingTunnel, Relay, RelayEvent, Shell};
use polyrail_session::{Event, FlowKey, PathReport, ResetReason, SessionKey, TunnelKey};
use polyrail_tunnel::CloseReason;

use crate::access::AccessList;
use crate::congestion::Congestion;
use crate::datagrams::{BindingKey, Datagrams, Lookup};
use crate::descriptors::Descriptors;
use crate::dial::{
    DIAL_DESCRIPTORS, DIALS_MAX, DialError, DialSettings, Dialer, Failures, LookupEvent,
    PARALLEL_MAX,
};
use crate::lines::Lines;
use crate::listeners::{Listeners, Seat};
use crate::paths::{Paths, full_name};
use crate::post::{Letter, Post};
use crate::reports::Reports;
use crate::resolve::Resolver;
use crate::speedtest::Speedtests;

pub(crate) fn access_list(config: &CloudConfig) -> AccessList {
    let ports: Vec<u16> = config.access.deny_ports.iter().map(|port| port.get()).collect();
    AccessList::new(&config.access.allow, &config.access.deny, &ports)
}

pub(crate) fn dial_settings(config: &CloudConfig, families: Families) -> DialSettings {
    let dial = &config.dial;
    let (user_max, gateway_max) = (dial.user_max, dial.gateway_max);
    DialSettings { timeout: dial.timeout, families, user_max, gateway_max }
}

/// What the dialer works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DialKey {
    /// A connection.
    Flow(FlowKey),
    /// The lookup of a name to which a binding sends.
    Binding(BindingKey),
}

/// The cloud around the relay.
pub(crate) struct Cloud {
    pub(crate) daemon: Daemon<CloudTables>,
    pub(crate) listeners: Listeners,
    pub(crate) dialer: Dialer<DialKey>,
    pub(crate) datagrams: Datagrams,
    pub(crate) congestion: Congestion,
    pub(crate) paths: Paths,
    /// Tunnels closed because of a bad certificate since the start.
    pub(crate) refused: u64,
    /// The gateway of each session.
    gateways: BTreeMap<SessionKey, Identity>,
    pub(crate) reports: Reports,
    speedtests: Speedtests,
    pub(crate) lines: Lines,
    pub(crate) refused_connections: LogLimiter,
    pub(crate) failed_dials: Failures,
    /// Refusals because of users' quotas or of bounds of all users.
    pub(crate) refusals: Refusals,
    pub(crate) full: LogLimiter,
    refused_lines: Lines,
    /// Bounds the number of sockets; beyond it, dials wait.
    descriptors: Descriptors,
    /// The other workers.
    pub(crate) post: Post,
}

impl Cloud {
    pub(crate) fn new(
        now: Instant,
        daemon: Daemon<CloudTables>,
        descriptors: Descriptors,
        waker: Arc<mio::Waker>,
        registry: &Registry,
        (seat, post): (&Seat, Post),
    ) -> anyhow::Result<Self> {
        let config = &daemon.config;
        let (congestion, warnings) = Congestion::choose(config);
        for warning in warnings.into_iter().filter(|_| seat.workers.own == 0) {
            tracing::warn!("{warning}");
        }
        let listeners = Listeners::open(config, &daemon.identity, &congestion, registry, seat)?;
        let resolver = Resolver::start(waker).context("cannot start the resolver's thread")?;
        let dialing = dial_settings(config, daemon.settings.families);
        let access = access_list(config);
        let bounds = (daemon.settings.user_flows_max, descriptors.for_datagrams());
        let registered = registry.try_clone()?;
        let rules = (access.clone(), daemon.config.common.udp.filtering());
        let datagrams = Datagrams::new(now, registered, DATAGRAMS, rules, bounds);
        let dialer = Dialer::new(dialing, access, resolver, registry.try_clone()?, DIALS);
        Ok(Self {
            daemon,
            listeners,
            dialer,
            datagrams,
            congestion,
            paths: Paths::default(),
            refused: 0,
            gateways: BTreeMap::new(),
            reports: Reports::default(),
            speedtests: Speedtests::default(),
            lines: Lines::default(),
            refused_connections: LogLimiter::default(),
            failed_dials: Failures::default(),
            refusals: Refusals::default(),
            refused_lines: Lines::default(),
            full: LogLimiter::default(),
            descriptors,
            post,
        })
    }

    fn take_dials(&mut self, now: Instant, relay: &mut Relay) {
        while let Some(dial) = self.dialer.poll_event() {
            let DialKey::Flow(flow) = dial.key else { continue };
            match dial.result {
                Ok((stream, address)) => {
                    tracing::debug!(?flow, %address, "dialed");
                    relay.endpoint().dialed(now, flow);
                    relay.attach(now, flow, stream);
                }
                Err(error) => {
                    let of = (flow, dial.dialing.1);
                    self.fail_dial(now, relay, of, &dial.destination, &error);
                }
            }
        }
        while let Some(LookupEvent { key, destination, result }) = self.dialer.poll_lookup() {
            let DialKey::Binding(key) = key else { continue };
            if let Err(error) = &result {
                tracing::debug!(?key, %destination, %error, "datagrams dropped");
            }
            let found = result.ok().map(|address| address.ip());
            let next = self.datagrams.found(now, key, &destination, found);
            self.look_up(now, relay, next);
        }
    }

    /// Looks up the name to which a datagram goes.
    fn look_up(&mut self, now: Instant, relay: &Relay, lookup: Option<Lookup>) {
        let Some(Lookup { key, user, destination }) = lookup else { return };
        self.limit_dials(now, relay);
        self.dialer.look_up(now, DialKey::Binding(key), (key.0, user), destination);
    }

    fn fail_dial(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        (flow, user): (FlowKey, UserId),
        destination: &Destination,
        error: &DialError,
    ) {
        let gateway = self.gateways.get(&flow.session);
        let (reason, who) = (error.reset_reason(), (flow.session, user));
        let refused = match reason {
            ResetReason::Quota => Some(Refused::Quota),
            ResetReason::Overload => Some(Refused::Overload),
            _ => None,
        };
        match refused {
            Some(refused) => {
                let lines = &mut self.refused_lines;
                let permit = || lines.permit(now, gateway).is_some();
                let (reason, name) = (error.to_string(), gateway.map(Identity::as_str));
                self.refusals.add(now, who, refused, &reason, (name, None), permit);
            }
            None => {
                self.failed_dials.log(now, gateway, (flow, user), destination, error);
            }
        }
        relay.endpoint().reset(now, flow, error.reset_reason());
    }

    fn on_session_event(&mut self, now: Instant, relay: &mut Relay, event: Event) {
        if let Event::Message { session, channel: REPORT, payload, .. } = &event {
            if self.daemon.settings.reports {
                self.reports.take(now, *session, payload);
            }
            return;
        }
        let linkdb = self.daemon.linkdb.as_mut();
        if linkdb.is_some_and(|linkdb| linkdb.on_session_event(now, relay, &event)) {
            return;
        }
        match event {
            Event::Opened { flow, user, destination } => {
                self.on_opened(now, relay, (flow, user), &destination);
            }
            // Closed before its dial finished.
            Event::Reset { flow, .. } | Event::Closed { flow } => {
                self.dialer.cancel(now, DialKey::Flow(flow));
                self.speedtests.on_gone(flow);
            }
            Event::Readable { flow } | Event::Writable { flow } => {
                self.speedtests.serve(now, relay.endpoint(), flow);
            }
            Event::Datagram { session, datagram } => {
                let lookup = self.datagrams.send(now, session, datagram);
                self.look_up(now, relay, lookup);
            }
            Event::SessionUp { session, peer, .. } => self.on_session_up(now, session, peer),
            Event::SessionEnded { session, reason, .. } => {
                self.on_session_ended(now, session, reason);
                self.look_at_session(now, relay, session, "");
            }
            Event::PathUp { tunnel, session, path } => {
                let gateway = self.gateways.get(&session);
                if let Some(suppressed) = self.lines.permit(now, gateway) {
                    let view = relay.tunnel(tunnel);
                    let mode = view.map(|view| view.mode.as_str());
                    let address = view.and_then(|view| view.address).map(tracing::field::display);
                    let gateway = gateway.map(Identity::as_str);
                    tracing::info!(gateway, address, mode, %path, suppressed, "path up");
                }
                self.congestion.on_path_up(relay, tunnel);
                self.look_at_session(now, relay, session, "");
            }
            Event::PathReport { tunnel, report } => self.on_report(now, relay, tunnel, report),
            Event::PeerGoing { session, reason } => {
                let gateway = self.gateways.get(&session);
                if let Some(suppressed) = self.lines.permit(now, gateway) {
                    let gateway = gateway.map(Identity::as_str);
                    tracing::info!(gateway, reason, suppressed, "the gateway is going away");
                }
            }
            Event::Alarm { session, text } => {
                let gateway = session.and_then(|session| self.gateways.get(&session));
                if let Some(suppressed) = self.lines.permit(now, gateway) {
                    let gateway = gateway.map(Identity::as_str);
                    tracing::warn!(gateway, suppressed, "{text}");
                    self.daemon.publish(AdminEvent::Alarm { message: text, path: None });
                }
            }
            _ => {}
        }
    }

    fn on_opened(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        (flow, user): (FlowKey, UserId),
        destination: &Destination,
    ) {
        tracing::debug!(?flow, %destination, "opened");
        if polyrail_daemon::speedtest::is_destination(destination) {
            let Some(gateway) = self.gateways.get(&flow.session) else { return };
            return self.speedtests.open(now, relay.endpoint(), (flow, user), gateway);
        }
        if !self.limit_dials(now, relay) && !relay.endpoint().shed_for(now, flow) {
            let error = DialError::Overload("too many open files (LimitNOFILE)".into());
            return self.fail_dial(now, relay, (flow, user), destination, &error);
        }
        self.dialer.dial(now, DialKey::Flow(flow), (flow.session, user), destination);
    }

    fn on_session_ended(&mut self, now: Instant, session: SessionKey, reason: String) {
        let gateway = self.gateways.remove(&session);
        self.refusals.forget(session);
        self.datagrams.forget(session);
        self.reports.forget(session);
        self.speedtests.forget(session);
        if let Some(suppressed) = self.lines.permit(now, gateway.as_ref()) {
            let name = gateway.as_ref().map(Identity::as_str).unwrap_or_default();
            tracing::info!(gateway = name, %reason, suppressed, "session ended");
        }
        let peer = gateway.map(|gateway| gateway.to_string());
        self.daemon.session_ended(session, peer, reason);
    }

    /// Lets dials wait for free descriptors. Returns false if none can begin even after all dials
    /// have ended.
    fn limit_dials(&mut self, now: Instant, relay: &Relay) -> bool {
        // QUIC tunnels share the listener's descriptor.
        let tunnels = relay.tunnels_of(TunnelMode::Tls);
        let datagrams = self.datagrams.descriptors();
        let sockets = relay.leg_count() + relay.pending_reset_count() + datagrams;
        let max = self.descriptors.for_dials(tunnels, sockets);
        self.dialer.set_descriptors_max(now, max);
        let full = self.dialer.descriptors() + DIAL_DESCRIPTORS > max;
        if full && let Some(left_out) = self.full.permit(now) {
            tracing::warn!(left_out, "dials wait: too many open files (LimitNOFILE)");
        }
        max >= DIAL_DESCRIPTORS
    }

    /// The name of a session's gateway.
    pub(crate) fn gateway_of(&self, session: SessionKey) -> Option<&str> {
        self.gateways.get(&session).map(Identity::as_str)
    }

    fn on_session_up(&mut self, now: Instant, session: SessionKey, peer: Identity) {
        if let Some(suppressed) = self.lines.permit(now, Some(&peer)) {
            tracing::info!(gateway = %peer, suppressed, "session up");
        }
        self.daemon.session_up(session, &peer);
        self.gateways.insert(session, peer);
    }

    /// Logs a gateway's report about its direction of a path; the gateway acts on it itself. It
    /// changes no state here.
    fn on_report(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey, report: PathReport) {
        match report {
            PathReport::Stalled => {
                tracing::debug!(?tunnel, "path stalled, reported by the gateway");
            }
            PathReport::Policed { rate } => {
                self.tell_policed(now, relay, tunnel, &format!("the gateway sends at most {rate}"));
            }
        }
    }

    /// Reports a policed downlink to the gateway, because only the gateway can demote QUIC to TLS.
    fn on_policed(&mut self, now: Instant, relay: &mut Relay, tunnel: TunnelKey, rate: Bitrate) {
        self.tell_policed(now, relay, tunnel, &format!("the cloud sends at most {rate}"));
        relay.endpoint().report_path(now, tunnel, PathReport::Policed { rate });
    }

    fn tell_policed(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey, what: &str) {
        let Some(session) = relay.endpoint_ref().session_of(tunnel) else { return };
        let gateway = self.gateways.get(&session);
        let Some(suppressed) = self.lines.permit(now, gateway) else { return };
        let survey = Survey::of_session(now, relay, session);
        let path = survey.path(tunnel).map(|(_, path)| full_name(gateway, &path.carrier));
        let message = format!("UDP looks policed: {what}");
        tracing::info!(path, suppressed, "{message}");
        self.daemon.publish(AdminEvent::Alarm { message, path });
    }

    /// Updates the states of all paths and publishes changes.
    pub(crate) fn look_at_paths(&mut self, now: Instant, relay: &Relay) {
        let Self { paths, daemon, .. } = self;
        paths.look(now, relay, |event| daemon.publish(event));
    }

    /// Updates the states of the paths of one session and publishes changes. `reason` is why a path
    /// closed.
    fn look_at_session(&mut self, now: Instant, relay: &Relay, key: SessionKey, reason: &str) {
        let Self { paths, daemon, .. } = self;
        paths.look_at(now, relay, key, reason, |event| daemon.publish(event));
    }

    /// Whether it accepts tunnels. A worker that has shut down does so for the others.
    fn takes_tunnels(&self) -> bool {
        let shutdown = &self.daemon.shutdown;
        shutdown.takes_tunnels() || (shutdown.is_over() && !self.post.is_over())
    }

    /// Takes some of the letters; the others wait for the next turn.
    fn take_letters(&mut self, now: Instant, relay: &mut Relay) {
        for _ in 0..LETTERS_MAX {
            let Some(letter) = self.post.take() else { return };
            self.on_letter(now, relay, letter);
        }
        self.post.wake_own();
    }

    fn on_letter(&mut self, now: Instant, relay: &mut Relay, letter: Letter) {
        match letter {
            Letter::Tunnel(tunnel) => {
                let MovingTunnel { parcel, event, begun, .. } = *tunnel;
                // It is dropped, and thereby closed.
                if !self.daemon.shutdown.takes_tunnels() {
                    return;
                }
                let Some(tunnel) = self.listeners.unpack(now, parcel) else { return };
                if let Err(error) = relay.take_in(now, tunnel, event, begun) {
                    tracing::warn!(%error, "cannot register a connection with epoll");
                }
            }
            Letter::Datagrams(stray) => self.listeners.take_in(now, stray),
            Letter::ShutDown => self.daemon.shutdown.begin(now, relay, SHUTDOWN),
            Letter::Ping(_) => {}
        }
    }

    fn on_tunnel_closed(&mut self, now: Instant, relay: &Relay, event: &RelayEvent) {
        let RelayEvent::TunnelClosed { reason, peer, address, .. } = event else { return };
        if let CloseReason::PeerCertificate(_) = reason {
            self.refused += 1;
        }
        let address = address.map(tracing::field::display);
        let Some(peer) = peer else {
            if let Some(suppressed) = self.refused_connections.permit(now) {
                tracing::warn!(address, %reason, suppressed, "connection refused");
                let from = address.map(|address| format!(" from {address:?}"));
                let from = from.unwrap_or_default();
                let message =
                    format!("connection{from} refused: {reason} (and {suppressed} before)");
                self.daemon.publish(AdminEvent::Alarm { message, path: None });
            }
            return;
        };
        if let Some(suppressed) = self.lines.permit(now, Some(peer)) {
            if let CloseReason::Local | CloseReason::PeerClosed = reason {
                tracing::info!(gateway = %peer, address, %reason, suppressed, "tunnel closed");
            } else {
                tracing::warn!(gateway = %peer, address, %reason, suppressed, "tunnel lost");
            }
        }
        if let Some(session) = relay.endpoint_ref().session_with(peer) {
            self.look_at_session(now, relay, session, &reason.to_string());
        }
    }
}

impl Shell for Cloud {
    fn on_event(&mut self, now: Instant, relay: &mut Relay, event: &Readiness) {
        match event.token() {
            SIGNALS => {
                if self.daemon.on_signals(now, relay, SHUTDOWN) {
                    self.post.shut_down();
                }
            }
            WAKER => {
                self.take_letters(now, relay);
                self.dialer.on_wake(now);
                polyrail_daemon::serve(self, now, relay);
                if let Some(linkdb) = &mut self.daemon.linkdb {
                    // A cloud has no modems.
                    let _ = linkdb.on_wake(now, relay);
                }
            }
            token if token.0 >= DATAGRAMS => {
                self.datagrams.on_ready(token, event.is_error());
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
                tracing::debug!(gateway, "early data accepted");
            }
            // The session has shed it; the gateway reports its user.
            RelayEvent::FlowRefused { .. } => {}
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
                // Each path restart closes a tunnel this way.
                if superseded {
                    tracing::debug!(gateway, address, %reason, "closing a tunnel");
                } else if let Some(suppressed) = self.lines.permit(now, peer.as_ref()) {
                    tracing::warn!(gateway, address, %reason, suppressed, "closing a tunnel");
                }
            }
            RelayEvent::TunnelMoves(tunnel) => self.post.send_tunnel(tunnel),
            closed @ RelayEvent::TunnelClosed { .. } => self.on_tunnel_closed(now, relay, &closed),
        }
    }

    fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        self.datagrams.on_turn(now, relay);
        self.speedtests.on_turn(now, relay.endpoint());
        let takes_tunnels = self.takes_tunnels();
        self.listeners.on_turn(now, relay, &self.congestion, takes_tunnels);
        for stray in self.listeners.take_strays() {
            self.post.send_datagrams(stray);
        }
        if self.dialer.next_timeout().is_some_and(|at| at <= now) {
            self.dialer.on_timeout(now);
        }
        self.take_dials(now, relay);
        if !self.dialer.is_empty() {
            self.limit_dials(now, relay);
            self.take_dials(now, relay);
        }
        if let Some(linkdb) = &mut self.daemon.linkdb {
            linkdb.on_turn(now, relay, false);
        }
        if self.daemon.supervisor.next_timeout().is_some_and(|at| at <= now) {
            self.daemon.supervisor.withhold(!self.post.check());
        }
        self.daemon.on_turn(now, relay);
        if self.daemon.shutdown.is_over() {
            self.post.end();
            relay.refuse_own();
        }
        if self.paths.is_due(now) {
            self.look_at_paths(now, relay);
        }
    }

    fn next_timeout(&self, now: Instant, _relay: &Relay) -> Option<Instant> {
        let accepts = self.listeners.next_timeout(now, self.takes_tunnels());
        let others = [
            self.dialer.next_timeout(),
            self.datagrams.next_timeout(now),
            self.speedtests.next_timeout(),
            self.daemon.next_timeout(),
            accepts,
        ];
        others.into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        self.post.is_over()
    }
}

/// Why peers lose their sessions when a signal ends the cloud.
/// Letters of other workers that one turn takes.
const LETTERS_MAX: usize = 1_024;
const SHUTDOWN: &str = "the cloud is shutting down";
pub(crate) const SIGNALS: Token = Token(0);
/// Shared by the resolver, the control thread, LinkDB and the other workers.
pub(crate) const WAKER: Token = Token(1);
/// Each binding has two.
const DATAGRAMS: usize = 1 << 24;
const DIALS: Range<usize> = 1024..1024 + PARALLEL_MAX * DIALS_MAX;
