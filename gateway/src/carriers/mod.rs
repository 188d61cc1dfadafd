//! The carriers: each has a policy that decides when it connects, in which mode, and when it
//! restarts. The driver here opens the connections and reports their events to the policy.
//!
//! `docs/carriers.md` explains the rules and their constants for operators. The session's
//! scheduler chooses the path of each segment; the control thread watches the interfaces.

mod carrier;
mod links;
mod policy;
mod state;
mod tell;
mod wishes;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use polyrail_admin::{
    AdminError, AdminEvent, DataUsage, LinkChange, Metered, PathChange, PathPhase, PathState,
    RestartWish,
};
use polyrail_config::{CarrierConfig, CarrierRole, GatewayConfig};
use polyrail_daemon::Survey;
use polyrail_identity::{IdentityError, SystemClock, TlsIdentity};
use polyrail_model::{Bitrate, Identity};
use polyrail_relay::Relay;
use polyrail_session::{PathReport, TunnelKey};
use polyrail_tunnel::{CloseReason, quic, tls};

use self::carrier::Carrier;
use self::links::Links;
use self::policy::{AttemptId, Cause};

/// All carriers of this gateway, on the way to one cloud.
#[derive(Debug)]
pub struct Carriers {
    /// The name of the cloud, and its place in the configuration.
    cloud: (Identity, usize),
    effort: Effort,
    clients: Clients,
    carriers: Vec<Carrier>,
    links: Links,
    /// Events for operators.
    events: Vec<AdminEvent>,
    seed: u64,
}

/// How much a gateway tries to reach a cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// There are no connections.
    Off,
    /// A connection is attempted now and then, to notice that the cloud is back; not over metered
    /// and backup carriers while there are others.
    Probe,
    /// Every carrier is connected.
    Full,
}

/// Opens connections in both modes.
#[derive(Debug)]
pub(crate) struct Clients {
    tls: tls::Client,
    quic: quic::Client,
}

impl Clients {
    /// Clients of one cloud.
    ///
    /// # Errors
    /// TLS rejects the identity.
    pub(crate) fn new(identity: &TlsIdentity, cloud: &Identity) -> Result<Self, IdentityError> {
        let clock = std::sync::Arc::new(SystemClock);
        Ok(Self {
            tls: tls::Client::new(identity.clone(), cloud.clone(), clock.clone())?,
            quic: quic::Client::new(identity.clone(), cloud.clone(), clock)?,
        })
    }

    /// Uses another identity in both clients or in none.
    fn set_identity(&mut self, old: &TlsIdentity, new: &TlsIdentity) -> Result<(), IdentityError> {
        self.tls.set_identity(new.clone())?;
        let outcome = self.quic.set_identity(new.clone());
        if outcome.is_err() {
            // TLS accepted it before.
            self.tls.set_identity(old.clone())?;
        }
        outcome
    }
}

impl Carriers {
    /// The carriers of the configuration to the cloud `name` at this place; usable carriers start
    /// to connect at the first turn.
    pub(crate) fn new(
        config: &GatewayConfig,
        (name, place): (&Identity, usize),
        clients: Clients,
        seed: u64,
    ) -> Self {
        let seeds = (0..).map(|place: u64| seed.wrapping_add(place << 8));
        let carriers = config.carriers.iter().zip(seeds);
        let carriers = carriers.map(|(one, seed)| Carrier::new(config, place, one, seed)).collect();
        Self {
            cloud: (name.clone(), place),
            effort: Effort::Full,
            clients,
            carriers,
            links: Links::default(),
            events: Vec::new(),
            seed,
        }
    }

    /// Sets how much the carriers try to reach the cloud.
    pub(crate) fn set_effort(&mut self, now: Instant, effort: Effort) {
        if self.effort != effort {
            self.effort = effort;
            self.share_effort(now);
        }
    }

    /// Begins all searches afresh.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.carriers.iter_mut().for_each(|carrier| carrier.policy.hurry(now));
    }

    fn share_effort(&mut self, now: Instant) {
        let free = self.carriers.iter().any(Carrier::is_free);
        for carrier in &mut self.carriers {
            let spared = self.effort == Effort::Probe && free && !carrier.is_free();
            let effort = if spared { Effort::Off } else { self.effort };
            carrier.set_effort(now, effort);
        }
    }

    /// Handles everything that is due.
    pub(crate) fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        for carrier in &mut self.carriers {
            carrier.on_turn(now, relay, &mut self.clients, &mut self.events);
        }
    }

    /// When [`Carriers::on_turn`] is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        self.carriers.iter().filter_map(|carrier| carrier.policy.next_timeout(now)).min()
    }

    /// The events for operators since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<AdminEvent> {
        std::mem::take(&mut self.events)
    }

    /// The session sends early data over a tunnel.
    pub(crate) fn on_early(&mut self, tunnel: TunnelKey) {
        if let Some((carrier, id)) = self.of(tunnel) {
            carrier.policy.on_early(id);
        }
    }

    /// A tunnel's handshake finished.
    pub(crate) fn on_up(&mut self, now: Instant, tunnel: TunnelKey) {
        if let Some((carrier, id)) = self.of(tunnel) {
            carrier.policy.on_up(now, id);
        }
    }

    /// A tunnel became a path. Returns true if its carrier had no path before.
    pub(crate) fn on_path(&mut self, now: Instant, tunnel: TunnelKey, number: u64) -> bool {
        let Some((carrier, id)) = self.of(tunnel) else { return false };
        let was_down = carrier.policy.in_use().is_none();
        carrier.policy.on_path(now, id, number);
        was_down
    }

    /// The session closes a tunnel.
    pub(crate) fn on_refused(&mut self, now: Instant, tunnel: TunnelKey, reason: &str) {
        if let Some((carrier, id)) = self.of(tunnel) {
            tracing::debug!(carrier = carrier.name(), reason, "closing a tunnel");
            carrier.policy.on_refused(now, id, reason);
        }
    }

    /// A tunnel was closed.
    pub(crate) fn on_closed(&mut self, now: Instant, tunnel: TunnelKey, reason: &CloseReason) {
        if let Some((carrier, id)) = self.of(tunnel) {
            carrier.on_closed(now, id, reason);
        }
    }

    /// Our direction of a tunnel looks policed; the cloud reports its own ([`Self::on_report`]).
    pub(crate) fn on_policed(&mut self, now: Instant, tunnel: TunnelKey, rate: Bitrate) {
        if let Some((carrier, id)) = self.of(tunnel) {
            carrier.policy.on_policed(now, id, rate);
        }
    }

    /// Handles the cloud's report about a path.
    pub(crate) fn on_report(
        &mut self,
        now: Instant,
        relay: &Relay,
        tunnel: TunnelKey,
        report: PathReport,
    ) {
        let Some((carrier, id)) = self.of(tunnel) else { return };
        tracing::debug!(carrier = carrier.name(), ?report, "the cloud reports on a path");
        match report {
            PathReport::Stalled => {
                carrier.on_stall(now, relay, tunnel);
                carrier.policy.on_peer_stall(now, id);
            }
            PathReport::Policed { rate } => carrier.policy.on_policed(now, id, rate),
        }
    }

    /// The session reports that a path stalled.
    pub(crate) fn on_stall(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey) {
        if let Some((carrier, id)) = self.of(tunnel) {
            carrier.policy.set_stalled(id, true);
            carrier.on_stall(now, relay, tunnel);
        }
    }

    /// The session reports that a stalled path recovered.
    pub(crate) fn on_recovered(&mut self, tunnel: TunnelKey) {
        if let Some((carrier, id)) = self.of(tunnel) {
            carrier.policy.set_stalled(id, false);
        }
    }

    /// The modem of a carrier found a cell after it had none.
    pub(crate) fn on_found_cell(&mut self, now: Instant, name: &str) {
        if let Some(carrier) = self.named(name) {
            carrier.policy.on_found_cell(now);
        }
    }

    /// Handles a change of an interface.
    pub(crate) fn on_link(&mut self, now: Instant, change: LinkChange) {
        self.links.take(change);
        for carrier in &mut self.carriers {
            carrier.look_at(now, &self.links);
        }
        self.share_effort(now);
    }

    fn named(&mut self, name: &str) -> Option<&mut Carrier> {
        self.carriers.iter_mut().find(|carrier| carrier.config.name.as_str() == name)
    }

    /// All carriers as operators see them.
    pub(crate) fn states(&self, now: Instant, relay: &Relay) -> Vec<PathState> {
        let survey = Survey::new(now, relay);
        let carried = relay.traffic();
        let state = |carrier: &Carrier| carrier.state(now, &survey, &carried, &self.cloud.0);
        self.carriers.iter().map(state).collect()
    }

    /// Whether a carrier is up, or has been down for less than [`DOWN_GRACE`]; `None` if it is
    /// disabled, unknown, or not needed.
    pub(crate) fn serves(&self, now: Instant, name: &str) -> Option<bool> {
        let carrier = self.carriers.iter().find(|one| one.config.name.as_str() == name)?;
        let (phase, since) = carrier.policy.phase().unwrap_or((PathPhase::Down, now));
        match phase {
            PathPhase::Up | PathPhase::Stalled => Some(true),
            PathPhase::Down => Some(now.saturating_duration_since(since) < DOWN_GRACE),
            PathPhase::NoInterface => Some(false),
            PathPhase::Disabled | PathPhase::Capped | PathPhase::Standby => None,
        }
    }

    /// Applies an operator's change of one carrier, wholly or not at all. It holds until a reload
    /// changes the same key, or the daemon restarts.
    ///
    /// # Errors
    /// There is no such carrier, or its configuration forbids it.
    pub(crate) fn set_path(
        &mut self,
        now: Instant,
        name: &str,
        change: &PathChange,
    ) -> Result<(), AdminError> {
        let place = self.carriers.iter().position(|carrier| carrier.config.name.as_str() == name);
        let Some(place) = place else { return Err(AdminError::unknown_path(name)) };
        self.check(&self.carriers[place], change)?;
        let carrier = &mut self.carriers[place];
        carrier.change(now, change);
        if let Some(wish) = change.restart {
            let cause = match wish {
                RestartWish::Wanted => Cause::Operator,
                RestartWish::Cell => Cause::Cell,
            };
            carrier.policy.renew(now, cause);
        }
        self.share_effort(now);
        Ok(())
    }

    /// Checks an operator's change of a carrier.
    fn check(&self, carrier: &Carrier, change: &PathChange) -> Result<(), AdminError> {
        let role = change.role.unwrap_or(carrier.wishes.role(&carrier.config));
        if change.enabled == Some(true) && role == CarrierRole::Never {
            let key = format!("carrier.{}.role", carrier.config.name);
            return Err(AdminError::refused("its role is \"never\"").about_key(key));
        }
        let enabled = change.enabled.unwrap_or(carrier.is_enabled() || change.role.is_some());
        if change.restart.is_some() && (!enabled || role == CarrierRole::Never) {
            return Err(AdminError::refused("it is disabled, so it has nothing to restart"));
        }
        let interface = carrier.config.interface.as_ref();
        let has_it = |other: &&Carrier| other.config.interface.as_ref() == interface;
        if matches!(change.cap, Some(Some(_)))
            && (interface.is_none() || self.carriers.iter().filter(has_it).count() > 1)
        {
            let reason = "a cap needs an interface that no other carrier has, because it counts \
                          the interface's bytes";
            return Err(AdminError::refused(reason));
        }
        Ok(())
    }

    /// The carriers whose bytes count for a cap.
    pub(crate) fn metered(&self) -> Vec<Metered> {
        let metered = |carrier: &Carrier| {
            let cap = carrier.wishes.cap(&carrier.config)?;
            let interface = carrier.config.interface.as_ref()?.to_string();
            let (carrier, reset_day) = (carrier.config.name.to_string(), cap.reset_day);
            Some(Metered { carrier, interface, reset_day })
        };
        self.carriers.iter().filter_map(metered).collect()
    }

    /// Takes the data that carriers with a cap have used.
    pub(crate) fn on_usage(&mut self, now: Instant, usage: &[DataUsage]) {
        for usage in usage {
            if let Some(carrier) = self.named(&usage.carrier) {
                carrier.wishes.take(usage.clone());
            }
        }
        self.share_effort(now);
    }

    /// Uses another certificate for new connections.
    ///
    /// # Errors
    /// TLS rejects it; the old one stays.
    pub(crate) fn set_identity(
        &mut self,
        old: &TlsIdentity,
        new: &TlsIdentity,
    ) -> Result<(), IdentityError> {
        self.clients.set_identity(old, new)
    }

    /// Applies a new configuration of the carriers; it cannot fail.
    pub(crate) fn reload(&mut self, now: Instant, relay: &mut Relay, config: &GatewayConfig) {
        let is_gone = |carrier: &Carrier| {
            !config.carriers.iter().any(|wanted| wanted.name == carrier.config.name)
        };
        while let Some(index) = self.carriers.iter().position(is_gone) {
            let mut carrier = self.carriers.remove(index);
            carrier.policy.set_enabled(now, false);
            carrier.on_turn(now, relay, &mut self.clients, &mut self.events);
        }
        for wanted in &config.carriers {
            let known = self.carriers.iter_mut().find(|known| known.config.name == wanted.name);
            match known {
                Some(carrier) => carrier.reconfigure(now, config, wanted),
                None => self.add(config, wanted),
            }
        }
        let place = |carrier: &Carrier| {
            config.carriers.iter().position(|wanted| wanted.name == carrier.config.name)
        };
        self.carriers.sort_by_key(place);
        for carrier in &mut self.carriers {
            carrier.look_at(now, &self.links);
        }
        self.share_effort(now);
    }

    fn add(&mut self, config: &GatewayConfig, wanted: &CarrierConfig) {
        self.seed = self.seed.wrapping_add(1 << 16);
        self.carriers.push(Carrier::new(config, self.cloud.1, wanted, self.seed));
    }

    fn of(&mut self, tunnel: TunnelKey) -> Option<(&mut Carrier, AttemptId)> {
        self.carriers.iter_mut().find_map(|carrier| {
            let id = carrier.attempt(tunnel)?;
            Some((carrier, id))
        })
    }
}

/// How long a carrier without a connection still counts as usable for `direct:` traffic, because a
/// change of the carrier ends that traffic's flows.
const DOWN_GRACE: Duration = Duration::from_secs(10);
