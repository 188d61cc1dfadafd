//! One carrier: its policy, and the tunnels that the policy asked for.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_admin::{AdminEvent, PathChange};
use polyrail_config::{CarrierConfig, GatewayConfig, Mode};
use polyrail_model::{LinkSample, PathWish, TunnelMode};
use polyrail_relay::{Label, Relay};
use polyrail_session::TunnelKey;
use polyrail_tunnel::tls::SEGMENT_SHORT;
use polyrail_tunnel::{CarrierSpec, CloseReason, SocketOptions, Tunnel};

use super::links::Links;
use super::policy::{
    Action, AttemptId, Ending, EndingKind, Link, Pace, Policy, Reading, Rtt, Start,
};
use super::wishes::Wishes;
use super::{Clients, Effort};

#[derive(Debug)]
pub(super) struct Carrier {
    pub(super) config: CarrierConfig,
    pub(super) policy: Policy,
    pub(super) wishes: Wishes,
    /// Its name for operators: with the name of the cloud, unless that is the first one.
    title: String,
    /// The cloud's place in the configuration.
    cloud: usize,
    effort: Effort,
    /// How the session uses its paths.
    wish: PathWish,
    /// The configured mode.
    mode: Mode,
    spec: CarrierSpec,
    alive: Vec<(AttemptId, TunnelKey)>,
    /// The configured congestion control is not available over QUIC, or in the kernel.
    without_congestion: [bool; 2],
    /// Until when new TLS connections use short segments, because long ones seem to be dropped.
    short_until: Option<Instant>,
    /// The last logged failure, and when it was logged.
    pub(super) told: Option<(String, Instant)>,
    /// Its interface or address was reported before.
    located: bool,
    /// When it stalled, if it is stalled.
    pub(super) stalled_at: Option<Instant>,
}

impl Carrier {
    pub(super) fn new(
        config: &GatewayConfig,
        cloud: usize,
        carrier: &CarrierConfig,
        seed: u64,
    ) -> Self {
        let mode = config.carrier_mode(carrier);
        let addresses = addresses(config, cloud, carrier);
        let wishes = Wishes::default();
        let (restart, frugal) = (config.restart.clone(), wishes.is_frugal(carrier));
        let pace = Pace { restart, frugal, probing: false };
        let policy = Policy::new(pace, carrier.usable(), mode, addresses, seed);
        let name = &carrier.name;
        let title = match config.clouds().nth(cloud).filter(|_| cloud > 0) {
            Some(cloud) => format!("{cloud}:{name}"),
            None => name.to_string(),
        };
        Self {
            title,
            cloud,
            effort: Effort::Full,
            spec: spec(carrier),
            config: carrier.clone(),
            policy,
            wish: wishes.path_wish(carrier),
            wishes,
            mode,
            alive: Vec::new(),
            without_congestion: [false; 2],
            short_until: None,
            told: None,
            located: false,
            stalled_at: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.title
    }

    /// Whether the operator wants it used.
    pub(super) fn is_enabled(&self) -> bool {
        self.wishes.is_enabled(&self.config)
    }

    pub(super) fn effort(&self) -> Effort {
        self.effort
    }

    /// Whether it may be used, and its traffic costs nothing.
    pub(super) fn is_free(&self) -> bool {
        let (wishes, config) = (&self.wishes, &self.config);
        wishes.is_usable(config) && !wishes.is_frugal(config) && self.policy.has_link()
    }

    /// Sets how much it tries to reach its cloud.
    pub(super) fn set_effort(&mut self, now: Instant, effort: Effort) {
        let before = std::mem::replace(&mut self.effort, effort);
        if before == effort {
            return;
        }
        self.policy.set_probing(effort == Effort::Probe);
        self.enable(now);
        if (before, effort) == (Effort::Probe, Effort::Full) {
            self.policy.hurry(now);
        }
    }

    /// Has connections only if the operator wants it used, and its cloud is needed.
    fn enable(&mut self, now: Instant) {
        let usable = self.wishes.is_usable(&self.config) && self.effort != Effort::Off;
        self.policy.set_enabled(now, usable);
    }

    /// The policy's id of a tunnel of this carrier.
    pub(super) fn attempt(&self, tunnel: TunnelKey) -> Option<AttemptId> {
        self.alive.iter().find(|(_, key)| *key == tunnel).map(|(id, _)| *id)
    }

    /// The tunnel with this id of the policy.
    pub(super) fn tunnel(&self, id: AttemptId) -> Option<TunnelKey> {
        self.alive.iter().find(|(known, _)| *known == id).map(|(_, key)| *key)
    }

    /// Its tunnels that are not being closed.
    pub(super) fn tunnels(&self) -> impl Iterator<Item = TunnelKey> + '_ {
        let open = self.alive.iter().filter(|(id, _)| self.policy.is_open(*id));
        open.map(|(_, key)| *key)
    }

    /// Passes the state of the tunnels to the policy, and carries out its actions.
    pub(super) fn on_turn(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        clients: &mut Clients,
        events: &mut Vec<AdminEvent>,
    ) {
        self.follow_wishes(now, relay, events);
        for (id, key) in &self.alive {
            if let Some(reading) = read(relay, *key) {
                self.policy.observe(now, *id, reading);
            }
        }
        self.policy.turn(now);
        while let Some(action) = self.policy.poll() {
            match action {
                Action::Start(start) => self.start(now, relay, clients, start),
                Action::Close { attempt, unheard, reason } => {
                    self.close(now, relay, attempt, unheard, reason);
                }
                Action::Tell(notice) => self.tell(now, relay, notice, events),
            }
        }
    }

    /// A tunnel was closed.
    pub(super) fn on_closed(&mut self, now: Instant, id: AttemptId, reason: &CloseReason) {
        self.alive.retain(|(known, _)| *known != id);
        tracing::debug!(carrier = self.name(), attempt = id.0, %reason, "tunnel closed");
        self.policy.on_closed(now, id, &ending(reason));
    }

    /// One of its paths stalled in either direction: looks for a link that drops long packets.
    pub(super) fn on_stall(&mut self, now: Instant, relay: &Relay, key: TunnelKey) {
        let Some(view) = relay.tunnel(key).filter(|view| view.mode == TunnelMode::Tls) else {
            return;
        };
        if view.sample.is_some_and(drops_long_packets) {
            if self.short_until.is_none_or(|until| until <= now) {
                tracing::info!(
                    carrier = self.name(),
                    "the link may drop long packets: new TLS connections use short segments"
                );
            }
            self.short_until = Some(now + SHORT_TIME);
        }
    }

    /// Applies the operator's wishes, and reports how far its cap is used. The cap is of all clouds
    /// together, so the carrier to the first one reports it.
    fn follow_wishes(&mut self, now: Instant, relay: &mut Relay, events: &mut Vec<AdminEvent>) {
        self.enable(now);
        self.policy.set_frugal(self.wishes.is_frugal(&self.config));
        let wish = self.wishes.path_wish(&self.config);
        if std::mem::replace(&mut self.wish, wish) != wish {
            relay.set_wish(now, &self.spec.name, wish);
        }
        let news = self.wishes.news(&self.config);
        if let Some((before, level)) = news.filter(|_| self.cloud == 0) {
            self.tell_cap(before, level, events);
        }
    }

    /// Takes an operator's change.
    pub(super) fn change(&mut self, now: Instant, change: &PathChange) {
        self.wishes.change(change);
        self.enable(now);
        if let Some(mode) = change.mode {
            self.policy.set_mode(now, mode);
        }
    }

    /// Applies its table of a new configuration. A changed key that needs a fresh connection starts
    /// one; the old connection ends when the fresh one carries data.
    pub(super) fn reconfigure(
        &mut self,
        now: Instant,
        config: &GatewayConfig,
        new: &CarrierConfig,
    ) {
        let old = std::mem::replace(&mut self.config, new.clone());
        if old != *new {
            self.spec = spec(new);
            self.without_congestion = [false; 2];
        }
        self.policy.set_restart(config.restart.clone());
        let mode = config.carrier_mode(new);
        // A changed mode in the configuration overrides the operator's choice.
        if std::mem::replace(&mut self.mode, mode) != mode || old.mode != new.mode {
            self.policy.set_mode(now, mode);
        }
        self.wishes.reload(&old, new);
        self.enable(now);
        self.policy.set_addresses(now, addresses(config, self.cloud, new));
        // The keys that only a fresh connection applies.
        let of_connections =
            |carrier: &CarrierConfig| (carrier.congestion.clone(), carrier.qlog.clone());
        if (&old.interface, old.source) != (&new.interface, new.source) {
            self.located = false;
            self.policy.rebind(now);
        } else if of_connections(&old) != of_connections(new) {
            self.policy.respec(now);
        }
    }

    /// Interfaces may have changed.
    pub(super) fn look_at(&mut self, now: Instant, links: &Links) {
        let interface = self.spec.interface.as_deref();
        let link = links.of(interface, self.spec.source);
        match link {
            Some(Link::Unknown) => {}
            Some(link) => {
                self.located = true;
                self.policy.on_link(now, link);
            }
            // The interfaces are reported one by one: at first its address may be missing.
            None if self.located && interface.is_none() => self.policy.on_link(now, Link::Down),
            None => {}
        }
    }

    fn start(&mut self, now: Instant, relay: &mut Relay, clients: &mut Clients, start: Start) {
        let Start { attempt, mode, address, early, racer, rtt } = start;
        tracing::debug!(
            carrier = self.name(), attempt = attempt.0, %mode, %address, early, racer, "connecting"
        );
        let outcome = self.connect(now, clients, &start, rtt);
        let outcome = outcome.and_then(|tunnel| {
            let label = Label { carrier: self.spec.name.clone(), wish: self.wish };
            relay.add_tunnel(tunnel, label).map_err(|error| CloseReason::Internal {
                action: "register a tunnel's socket with epoll".to_owned(),
                detail: error.to_string(),
            })
        });
        match outcome {
            Ok(key) => self.alive.push((attempt, key)),
            Err(reason) => self.policy.on_closed(now, attempt, &ending(&reason)),
        }
    }

    fn connect(
        &mut self,
        now: Instant,
        clients: &mut Clients,
        start: &Start,
        rtt: Option<Duration>,
    ) -> Result<Box<dyn Tunnel>, CloseReason> {
        let mut spec = CarrierSpec { early: start.early, rtt, ..self.spec.clone() };
        // In a race also every second one: a first flight of long packets may have no answer.
        let is_odd_racer = start.racer && start.attempt.0 % 2 == 1;
        if is_odd_racer || self.short_until.is_some_and(|until| now < until) {
            spec.options.segment_max = Some(SEGMENT_SHORT);
        }
        let place = usize::from(start.mode == TunnelMode::Tls);
        if self.without_congestion[place] {
            spec.options.congestion = None;
        }
        let mut connect = |spec: &CarrierSpec| match start.mode {
            TunnelMode::Quic => clients.quic.connect(now, spec, start.address),
            TunnelMode::Tls => clients.tls.connect(now, spec, start.address),
        };
        match connect(&spec) {
            Err(CloseReason::CongestionControl { wanted, available }) => {
                tracing::warn!(
                    carrier = self.spec.name,
                    mode = %start.mode,
                    "congestion control {wanted:?} is not available, using the default; available: \
                     {available}"
                );
                self.without_congestion[place] = true;
                spec.options.congestion = None;
                connect(&spec)
            }
            outcome => outcome,
        }
    }

    fn close(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        attempt: AttemptId,
        unheard: bool,
        reason: &'static str,
    ) {
        let Some(key) = self.tunnel(attempt) else { return };
        tracing::debug!(carrier = self.name(), attempt = attempt.0, reason, "closing a tunnel");
        if unheard {
            relay.give_up(now, key);
        } else {
            relay.close_tunnel(now, key);
        }
    }
}

fn read(relay: &Relay, key: TunnelKey) -> Option<Reading> {
    let view = relay.tunnel(key)?;
    let rtt = view.sample.map(|sample| Rtt { smoothed: sample.srtt, variance: sample.rtt_var });
    Some(Reading {
        rtt: rtt.filter(|rtt| !rtt.smoothed.is_zero()),
        acked: view.acked.0,
        received: view.received_bytes,
        local: view.local.map(|local| local.ip().to_canonical()),
    })
}

/// Whether a stalled TLS path looks as if the link dropped long packets only. Full segments of ours
/// are in flight, or TCP has no timeout: then the cloud's kernel acknowledges our short segments,
/// and the session's answer may wait behind the cloud's own full segments. The beginning of a
/// blackout looks the same; short segments do little harm.
fn drops_long_packets(sample: &LinkSample) -> bool {
    sample.timeouts == 0 || sample.in_flight.0 > u64::from(SEGMENT_SHORT)
}

fn ending(reason: &CloseReason) -> Ending {
    let kind = match reason {
        CloseReason::ConnectTimedOut { .. }
        | CloseReason::HandshakeTimedOut { .. }
        | CloseReason::TimedOut
        | CloseReason::Local => EndingKind::Silent,
        CloseReason::Refused { .. } => EndingKind::Refused,
        CloseReason::Unreachable { .. } => EndingKind::Local,
        other if other.is_local_fault() => EndingKind::Local,
        _ => EndingKind::Rejected,
    };
    Ending { kind, reason: reason.to_string() }
}

/// The socket options of its connections.
fn spec(carrier: &CarrierConfig) -> CarrierSpec {
    CarrierSpec {
        name: carrier.name.to_string(),
        interface: carrier.interface.as_ref().map(ToString::to_string),
        source: carrier.source,
        options: SocketOptions {
            congestion: Some(carrier.congestion.to_string()),
            connect_timeout: ANSWER_MAX,
            handshake_timeout: ANSWER_MAX,
            ..SocketOptions::default()
        },
        qlog: carrier.qlog.clone(),
        ..CarrierSpec::default()
    }
}

/// The addresses of a cloud of the families that the carrier can use.
fn addresses(config: &GatewayConfig, cloud: usize, carrier: &CarrierConfig) -> Vec<SocketAddr> {
    let fits = |address: &&SocketAddr| {
        carrier.source.is_none_or(|source| source.is_ipv4() == address.is_ipv4())
    };
    config.addresses(cloud, carrier).iter().filter(fits).copied().collect()
}

/// How long new connections use short segments (PMTU_RAISE_TIMER, RFC 8899 5.1.1).
const SHORT_TIME: Duration = Duration::from_secs(600);
/// Timeout of a connect and of a handshake: longer than the policy waits before it replaces an
/// attempt.
const ANSWER_MAX: Duration = Duration::from_secs(6);

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;

    use super::*;

    #[test]
    fn stall_without_timeouts_or_with_full_segments_in_flight_is_suspicious() {
        let at = Instant::now();
        let sample = |timeouts, in_flight| LinkSample {
            at,
            srtt: Duration::from_millis(40),
            rtt_min: Duration::from_millis(40),
            rtt_var: Duration::ZERO,
            window: Bytes(14_480),
            in_flight: Bytes(in_flight),
            unsent: Bytes::ZERO,
            delivery_rate: None,
            application_limited: false,
            sent_packets: 1,
            lost_packets: 0,
            spurious_packets: 0,
            timeouts,
            acked: Bytes::ZERO,
        };
        for (timeouts, in_flight, suspicious, why) in [
            (0, 0, true, "the cloud's kernel has acknowledged everything"),
            (0, 60, true, "a short segment was sent a moment ago"),
            (2, 60, false, "short segments do not pass either"),
            (2, 1_448, true, "a full segment is in flight"),
        ] {
            assert_eq!(drops_long_packets(&sample(timeouts, in_flight)), suspicious, "{why}");
        }
    }

    #[test]
    fn only_a_refusal_counts_as_refused() {
        let peer: SocketAddr = ([192, 0, 2, 1], 1).into();
        let after = Duration::from_secs(1);
        let detail = String::new();
        for (reason, kind) in [
            (CloseReason::Refused { peer }, EndingKind::Refused),
            (CloseReason::ConnectTimedOut { peer, after }, EndingKind::Silent),
            (CloseReason::Unreachable { peer, detail: detail.clone() }, EndingKind::Local),
            (CloseReason::Unusable(detail.clone()), EndingKind::Local),
            (CloseReason::Internal { action: detail.clone(), detail }, EndingKind::Local),
            (CloseReason::NotTls, EndingKind::Rejected),
            (CloseReason::PeerRefused(String::new()), EndingKind::Rejected),
        ] {
            assert_eq!(ending(&reason).kind, kind, "{reason}");
        }
    }
}
