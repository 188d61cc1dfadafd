//! The carriers: a tunnel over each, brought up again whenever it is lost, and raced when it
//! stalls.
//!
//! ```text
//!            connect           handshake            WELCOME
//!   Waiting ---------> Dialing ---------> Greeting ---------> Path
//!      ^                  |                  |                 |
//!      +-- backoff -------+------------------+---- lost -------+
//! ```
//!
//! **The race.** After a blackout the kernel sits in exponential backoff: what it holds would move
//! again only after tens of seconds. So when a path has had data out for [`STALL_AFTER`] with none
//! of it acknowledged, a fresh connection over the same carrier is begun every [`RACE_EVERY`], at
//! most [`RACERS_MAX`] at a time, while the old one lives. The first that becomes a path takes the
//! place of the old one: the session moves over and asks for the old one to be closed.
//!
//! This is not yet the path restart of the design in its final form (there: on a new cell, or
//! without progress for max(3 srtt + 4 rttvar, 300 ms); an attempt every 100 ms, at most 3 alive,
//! fewer on metered carriers). That comes with QUIC and early data, where a lost attempt costs one
//! datagram. Over TLS an attempt is a TCP connect, whose lost SYN the kernel itself sends again
//! after 1 s, and then a full handshake without early data: some kilobytes, a signature on both
//! sides, and two round trips before it can prove itself. Ten a second would fill a slow carrier
//! just when it comes back, and begin at every hiccup of a cell that recovers within a second. So
//! the patience is at least 1 s, the attempts are 1 s apart as the SYNs are, and 2 are alive: one
//! that may be in its handshake, one that may find the carrier back.
//!
//! Each carrier goes through the cloud's addresses in turn, one further at each failure.

mod policy;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_control::GatewayConfig;
use polyrail_control::config::CarrierRole;
use polyrail_relay::{Label, Relay};
use polyrail_session::TunnelKey;
use polyrail_tunnel::{Backoff, CarrierSpec, CloseReason, SocketOptions, tls};

/// How long data may be out without an acknowledgement before a fresh connection is raced; longer
/// on slow links: 3 srtt + 4 rttvar, at most [`STALL_AFTER_MAX`].
pub const STALL_AFTER: Duration = Duration::from_secs(1);

/// The longest such time.
pub const STALL_AFTER_MAX: Duration = Duration::from_secs(4);

/// The time between two attempts of a race.
pub const RACE_EVERY: Duration = Duration::from_secs(1);

/// Attempts of a race that are alive at a time.
pub const RACERS_MAX: usize = 2;

/// All carriers of this gateway that may be used.
pub(crate) struct Carriers {
    client: tls::Client,
    carriers: Vec<Carrier>,
}

struct Carrier {
    spec: CarrierSpec,
    label: Label,
    addresses: Vec<SocketAddr>,
    /// The address of the next attempt.
    next_address: usize,
    backoff: Backoff,
    /// When a carrier without tunnels is tried again.
    retry_at: Option<Instant>,
    /// When the next attempt of a race may begin.
    race_at: Instant,
    /// The log has heard of the race.
    racing: bool,
    alive: Vec<Alive>,
    /// The failure that the log heard last, and when.
    told: Option<(String, Instant)>,
}

struct Alive {
    key: TunnelKey,
    stage: Stage,
    peer: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Dialing,
    Greeting,
    Path,
    /// The session does not want it any more.
    Dismissed,
}

impl Carriers {
    /// The usable carriers of the configuration; each begins to connect at the first turn.
    pub(crate) fn new(
        now: Instant,
        config: &GatewayConfig,
        client: tls::Client,
        seed: u64,
    ) -> Self {
        let usable = config.carriers.iter().filter(|carrier| carrier.usable());
        let carriers = usable.zip(seed..).map(|(carrier, seed)| {
            let name = carrier.name.to_string();
            let options = SocketOptions {
                congestion: Some(carrier.congestion.to_string()),
                connect_timeout: CONNECT_MAX,
                handshake_timeout: HANDSHAKE_MAX,
                ..SocketOptions::default()
            };
            let interface = carrier.interface.as_ref().map(ToString::to_string);
            let source = carrier.source;
            let spec = CarrierSpec {
                name: name.clone(),
                interface,
                source,
                options,
                ..CarrierSpec::default()
            };
            let fits = |address: &&SocketAddr| {
                source.is_none_or(|source| source.is_ipv4() == address.is_ipv4())
            };
            Carrier {
                spec,
                label: Label { carrier: name, backup: carrier.role == CarrierRole::Backup },
                addresses: config.addresses(carrier).iter().filter(fits).copied().collect(),
                next_address: 0,
                backoff: Backoff::with_max(RETRY_MAX, seed),
                retry_at: Some(now),
                race_at: now,
                racing: false,
                alive: Vec::new(),
                told: None,
            }
        });
        Self { client, carriers: carriers.collect() }
    }

    /// The carriers' names, in the order of the configuration.
    pub(crate) fn names(&self) -> Vec<String> {
        self.carriers.iter().map(|carrier| carrier.spec.name.clone()).collect()
    }

    /// Begins the connections that are due.
    pub(crate) fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        for carrier in &mut self.carriers {
            if carrier.retry_at.is_some_and(|at| at <= now) {
                carrier.retry_at = None;
                carrier.connect(now, relay, &mut self.client);
            }
            if carrier.race_due(relay).is_some_and(|at| at <= now) {
                if !std::mem::replace(&mut carrier.racing, true) {
                    let name = &carrier.spec.name;
                    tracing::info!(carrier = name, "carrier stalls: racing a fresh connection");
                }
                carrier.race_at = now + RACE_EVERY;
                carrier.connect(now, relay, &mut self.client);
            }
            carrier.drop_needless(now, relay);
        }
    }

    /// When [`Carriers::on_turn`] is due.
    pub(crate) fn next_timeout(&self, relay: &Relay) -> Option<Instant> {
        let due =
            |carrier: &Carrier| carrier.retry_at.into_iter().chain(carrier.race_due(relay)).min();
        self.carriers.iter().filter_map(due).min()
    }

    /// A tunnel's handshake is over.
    pub(crate) fn on_up(&mut self, tunnel: TunnelKey) {
        self.set_stage(tunnel, Stage::Greeting);
    }

    /// A tunnel has become a path. Returns whether its carrier had none before.
    pub(crate) fn on_path(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey) -> bool {
        let Some(carrier) = self.of(tunnel) else { return false };
        let name = &carrier.spec.name;
        let again = carrier.alive.iter().any(|alive| alive.stage == Stage::Path);
        let view = relay.tunnel(tunnel);
        let srtt = view.and_then(|view| view.sample).map(|sample| sample.srtt);
        let cloud = view.and_then(|view| view.address).map(tracing::field::display);
        if again {
            tracing::info!(carrier = name, cloud, ?srtt, "carrier restarted");
        } else {
            tracing::info!(carrier = name, cloud, ?srtt, "carrier up");
        }
        carrier.told = None;
        carrier.racing = false;
        carrier.backoff.reset();
        carrier.race_at = now + RACE_EVERY;
        self.set_stage(tunnel, Stage::Path);
        !again
    }

    /// The session does not want a tunnel any more.
    pub(crate) fn on_refused(&mut self, now: Instant, tunnel: TunnelKey, reason: &str) {
        let Some(carrier) = self.of(tunnel) else { return };
        let others = |alive: &Alive| alive.key != tunnel && alive.stage == Stage::Path;
        if carrier.alive.iter().any(others) {
            tracing::debug!(carrier = carrier.spec.name, reason, "closing a tunnel");
        } else {
            carrier.tell(now, reason);
        }
        self.set_stage(tunnel, Stage::Dismissed);
    }

    /// A tunnel is over.
    pub(crate) fn on_closed(&mut self, now: Instant, tunnel: TunnelKey, reason: &CloseReason) {
        let Some(carrier) = self.of(tunnel) else { return };
        let Some(index) = carrier.alive.iter().position(|alive| alive.key == tunnel) else {
            return;
        };
        let alive = carrier.alive.remove(index);
        let name = &carrier.spec.name;
        match alive.stage {
            Stage::Path if carrier.alive.iter().all(|other| other.stage != Stage::Path) => {
                tracing::info!(carrier = name, cloud = %alive.peer, %reason, "carrier down");
            }
            Stage::Path | Stage::Dismissed => {
                tracing::debug!(carrier = name, cloud = %alive.peer, %reason, "tunnel closed");
            }
            Stage::Dialing | Stage::Greeting => carrier.fail(now, &reason.to_string()),
        }
        carrier.retry_if_alone(now);
    }

    fn of(&mut self, tunnel: TunnelKey) -> Option<&mut Carrier> {
        self.carriers.iter_mut().find(|c| c.alive.iter().any(|alive| alive.key == tunnel))
    }

    fn set_stage(&mut self, tunnel: TunnelKey, stage: Stage) {
        let alive = self.carriers.iter_mut().flat_map(|carrier| &mut carrier.alive);
        if let Some(alive) = alive.into_iter().find(|alive| alive.key == tunnel) {
            alive.stage = stage;
        }
    }
}

impl Carrier {
    fn connect(&mut self, now: Instant, relay: &mut Relay, client: &mut tls::Client) {
        let Some(&peer) = self.addresses.get(self.next_address % self.addresses.len().max(1))
        else {
            return;
        };
        let racing = !self.alive.is_empty();
        let mut spec = self.spec.clone();
        if racing {
            spec.options.connect_timeout = RACER_CONNECT_MAX;
        }
        let tunnel = match client.connect(now, &spec, peer) {
            Ok(tunnel) => tunnel,
            Err(CloseReason::CongestionControl { wanted, available }) => {
                tracing::warn!(
                    carrier = self.spec.name,
                    "congestion control {wanted:?} cannot be used here, the kernel's default is \
                     taken; available are: {available}"
                );
                self.spec.options.congestion = None;
                self.retry_if_alone(now);
                return;
            }
            Err(reason) => {
                self.fail(now, &reason.to_string());
                return self.retry_if_alone(now);
            }
        };
        match relay.add_tunnel(tunnel, self.label.clone()) {
            Ok(key) => self.alive.push(Alive { key, stage: Stage::Dialing, peer }),
            Err(error) => {
                self.fail(now, &error.to_string());
                self.retry_if_alone(now);
            }
        }
    }

    /// When the next attempt of a race is due; `None` while the carrier makes progress.
    fn race_due(&self, relay: &Relay) -> Option<Instant> {
        // The newest path counts: the older ones are about to be closed.
        let path = self.alive.iter().rfind(|alive| alive.stage == Stage::Path)?;
        let view = relay.tunnel(path.key)?;
        let since = view.waiting_since?;
        if self.racers() >= RACERS_MAX {
            return None;
        }
        let patience = view.sample.map(|sample| sample.srtt * 3 + sample.rtt_var * 4);
        let patience = patience.unwrap_or_default().clamp(STALL_AFTER, STALL_AFTER_MAX);
        Some((since + patience).max(self.race_at))
    }

    fn racers(&self) -> usize {
        let unready = |alive: &&Alive| matches!(alive.stage, Stage::Dialing | Stage::Greeting);
        self.alive.iter().filter(unready).count()
    }

    /// Closes attempts of a race that has been decided: the old path moves again, or another
    /// attempt has become a path.
    fn drop_needless(&mut self, now: Instant, relay: &mut Relay) {
        let Some(path) = self.alive.iter().rfind(|alive| alive.stage == Stage::Path) else {
            return;
        };
        let waiting = relay.tunnel(path.key).and_then(|view| view.waiting_since);
        if waiting.is_some_and(|since| now.saturating_duration_since(since) >= STALL_AFTER / 2) {
            return;
        }
        self.racing = false;
        for alive in self.alive.iter_mut().filter(|alive| alive.stage == Stage::Dialing) {
            alive.stage = Stage::Dismissed;
            relay.close_tunnel(now, alive.key);
        }
    }

    /// An attempt failed: the next one goes to the next address.
    fn fail(&mut self, now: Instant, reason: &str) {
        self.next_address = (self.next_address + 1) % self.addresses.len().max(1);
        if !self.alive.iter().any(|alive| alive.stage == Stage::Path) {
            self.tell(now, reason);
        }
    }

    /// Tells the log of a failure, but not of the same one again and again.
    fn tell(&mut self, now: Instant, reason: &str) {
        let same = self.told.as_ref().is_some_and(|(told, at)| {
            told == reason && now.saturating_duration_since(*at) < TELL_AGAIN
        });
        if !same {
            tracing::warn!(carrier = self.spec.name, reason, "carrier not up");
            self.told = Some((reason.to_owned(), now));
        }
    }

    fn retry_if_alone(&mut self, now: Instant) {
        if self.alive.iter().all(|alive| alive.stage == Stage::Dismissed) {
            self.retry_at = Some(now + self.backoff.next_wait());
        }
    }
}

/// How long an attempt may take to connect; longer round trips than a quarter are not sensible.
const CONNECT_MAX: Duration = Duration::from_secs(4);
/// The same in a race, where the next attempt is near.
const RACER_CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long an attempt may take for the TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// The longest wait between attempts.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// When the log hears of a failure that lasts again.
const TELL_AGAIN: Duration = Duration::from_secs(60);
