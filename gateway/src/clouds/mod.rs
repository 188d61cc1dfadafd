//! The clouds of this gateway in order of preference, each with carriers of its own.
//!
//! New flows go to the current cloud. Flows stay with the cloud that has opened them: they linger
//! while it is unreachable. `choice.rs` decides; the driver here connects the carriers and tells
//! the session.

mod choice;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_admin::{
    AdminError, AdminEvent, CloudPhase, CloudState, DataUsage, LinkChange, Metered, PathChange,
    PathState,
};
use polyrail_config::GatewayConfig;
use polyrail_identity::{IdentityError, TlsIdentity};
use polyrail_model::{Bitrate, Identity};
use polyrail_relay::Relay;
use polyrail_session::wire::Offer;
use polyrail_session::{PathReport, SessionKey, SessionStatus, TunnelKey};
use polyrail_tunnel::CloseReason;

use self::choice::{Choice, View};
use crate::carriers::{Carriers, Clients, Effort};

/// All clouds.
#[derive(Debug)]
pub(crate) struct Clouds {
    clouds: Vec<Cloud>,
    choice: Choice,
    /// The next look at the clouds.
    look_at: Instant,
    /// The sessions that are up.
    sessions: BTreeMap<SessionKey, Up>,
    events: Vec<AdminEvent>,
}

#[derive(Debug)]
struct Cloud {
    name: Identity,
    carriers: Carriers,
}

/// A session that is up.
#[derive(Clone, Debug)]
struct Up {
    cloud: Identity,
    offer: Offer,
}

impl Clouds {
    /// The clouds of the configuration. The carriers to the first one start to connect at the first
    /// turn.
    ///
    /// # Errors
    /// TLS rejects the identity.
    pub(crate) fn new(
        now: Instant,
        config: &GatewayConfig,
        identity: &TlsIdentity,
        seed: u64,
    ) -> Result<Self, IdentityError> {
        let cloud = |(place, name): (usize, &Identity)| {
            let clients = Clients::new(identity, name)?;
            let seed = seed.wrapping_add((place as u64) << 32);
            let carriers = Carriers::new(config, (name, place), clients, seed);
            Ok::<_, IdentityError>(Cloud { name: name.clone(), carriers })
        };
        let clouds: Vec<_> = config.clouds().enumerate().map(cloud).collect::<Result<_, _>>()?;
        let choice = Choice::new(now, clouds.len());
        let (sessions, events) = (BTreeMap::new(), Vec::new());
        let mut all = Self { clouds, choice, look_at: now, sessions, events };
        all.set_efforts(now);
        Ok(all)
    }

    /// Handles everything that is due. Returns true if new flows go to another cloud from now on.
    pub(crate) fn on_turn(&mut self, now: Instant, relay: &mut Relay) -> bool {
        let changed = now >= self.look_at && self.look(now, relay);
        for cloud in &mut self.clouds {
            cloud.carriers.on_turn(now, relay);
            self.events.append(&mut cloud.carriers.take_events());
        }
        changed
    }

    /// Something has happened to a path or a session.
    pub(crate) fn look_soon(&mut self, now: Instant) {
        self.look_at = self.look_at.min(now);
    }

    fn look(&mut self, now: Instant, relay: &mut Relay) -> bool {
        let sessions = relay.endpoint_ref().status().sessions;
        let of = |cloud: &Cloud| {
            sessions.iter().find(|session| session.peer.as_ref() == Some(&cloud.name))
        };
        let seen = |cloud: &Cloud| of(cloud).map(|session| view(relay, session));
        let views: Vec<View> =
            self.clouds.iter().map(|cloud| seen(cloud).unwrap_or_default()).collect();
        self.hurry(now, &views);
        let moved = self.choice.look(now, &views);
        if let Some(moved) = moved {
            let [from, to] = [moved.from, moved.to].map(|place| self.clouds[place].name.clone());
            let reason = moved.reason.describe();
            tracing::info!(%from, %to, reason, "cloud changed");
            relay.endpoint().prefer(now, &to);
            let (from, to, reason) = (from.to_string(), to.to_string(), reason.to_owned());
            self.events.push(AdminEvent::CloudChanged { from, to, reason });
        }
        self.set_efforts(now);
        for (place, cloud) in self.clouds.iter().enumerate() {
            let unused = self.choice.effort(place) == Effort::Off;
            let over = |session: &&SessionStatus| session.flows == 0 && session.paths.is_empty();
            if let Some(session) = of(cloud).filter(over).filter(|_| unused) {
                relay.endpoint().leave(now, session.session);
            }
        }
        // With a single cloud there is nothing to choose.
        let calm = self.choice.is_calm() || self.clouds.len() == 1;
        let pause = if calm { LOOK_CALM } else { LOOK_EVERY };
        self.look_at = now + pause;
        moved.is_some()
    }

    /// If a cloud answers while the current one does not, that one gets a fair chance: carriers
    /// that were dark may be back.
    fn hurry(&mut self, now: Instant, views: &[View]) {
        let (current, before) = (self.choice.current(), &self.choice);
        let answers = |(place, view): (usize, &View)| {
            view.reachable && !before.view(place).reachable && place != current
        };
        if !views[current].reachable && views.iter().enumerate().any(answers) {
            self.clouds[current].carriers.hurry(now);
        }
    }

    fn set_efforts(&mut self, now: Instant) {
        for (place, cloud) in self.clouds.iter_mut().enumerate() {
            cloud.carriers.set_effort(now, self.choice.effort(place));
        }
    }

    /// When [`Clouds::on_turn`] is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let carriers = self.clouds.iter().filter_map(|cloud| cloud.carriers.next_timeout(now));
        carriers.chain([self.look_at]).min()
    }

    /// Whether new connections wait until it is known which cloud they go to.
    pub(crate) fn holds_new(&self, now: Instant) -> bool {
        self.choice.holds_new(now)
    }

    /// The events for operators since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<AdminEvent> {
        std::mem::take(&mut self.events)
    }

    /// A session is up.
    pub(crate) fn on_session_up(&mut self, session: SessionKey, cloud: &Identity, offer: Offer) {
        self.sessions.insert(session, Up { cloud: cloud.clone(), offer });
    }

    /// A session has ended. Returns its cloud if it was up.
    pub(crate) fn on_session_ended(&mut self, session: SessionKey) -> Option<Identity> {
        self.sessions.remove(&session).map(|up| up.cloud)
    }

    /// The cloud of a session that is up, and its offer: families and datagrams.
    pub(crate) fn offer(&self, session: SessionKey) -> Option<(&Identity, Offer)> {
        self.sessions.get(&session).map(|up| (&up.cloud, up.offer))
    }

    /// Whether the current cloud takes reports.
    pub(crate) fn takes_reports(&self) -> bool {
        let current = &self.clouds[self.choice.current()].name;
        self.sessions.values().any(|up| up.cloud == *current && up.offer.reports)
    }

    /// The clouds as operators see them.
    pub(crate) fn states(&self) -> Vec<CloudState> {
        let state = |(place, cloud): (usize, &Cloud)| {
            let view = self.choice.view(place);
            let state = match view {
                View { going: true, .. } => CloudPhase::GoingAway,
                View { reachable: true, .. } => CloudPhase::Up,
                _ if self.choice.effort(place) == Effort::Off => CloudPhase::Standby,
                _ => CloudPhase::Down,
            };
            CloudState {
                name: cloud.name.to_string(),
                priority: place as u64 + 1,
                current: place == self.choice.current(),
                state,
                flows: view.flows as u64,
            }
        };
        self.clouds.iter().enumerate().map(state).collect()
    }

    /// All carriers to all clouds as operators see them.
    pub(crate) fn paths(&self, now: Instant, relay: &Relay) -> Vec<PathState> {
        self.clouds.iter().flat_map(|cloud| cloud.carriers.states(now, relay)).collect()
    }

    /// Whether a carrier serves some cloud, or did a moment ago ([`Carriers::serves`]).
    pub(crate) fn serves(&self, now: Instant, name: &str) -> Option<bool> {
        self.clouds.iter().filter_map(|cloud| cloud.carriers.serves(now, name)).max()
    }

    /// The carriers whose bytes, to all clouds together, count for a cap.
    pub(crate) fn metered(&self) -> Vec<Metered> {
        self.clouds.first().map(|cloud| cloud.carriers.metered()).unwrap_or_default()
    }

    /// Takes the data that carriers with a cap have used.
    pub(crate) fn on_usage(&mut self, now: Instant, usage: &[DataUsage]) {
        self.each(|carriers| carriers.on_usage(now, usage));
    }

    /// Applies an operator's change of one carrier, for all clouds.
    ///
    /// # Errors
    /// There is no such carrier, or its configuration forbids it.
    pub(crate) fn set_path(
        &mut self,
        now: Instant,
        name: &str,
        change: &PathChange,
    ) -> Result<(), AdminError> {
        if let Some((_, carrier)) = name.split_once(':') {
            let message = format!("a change holds for all clouds: change {carrier:?}");
            return Err(AdminError::refused(message));
        }
        let mut all = self.clouds.iter_mut();
        all.try_for_each(|cloud| cloud.carriers.set_path(now, name, change))
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
        let mut all = self.clouds.iter_mut();
        let outcome = all.try_for_each(|cloud| cloud.carriers.set_identity(old, new));
        if outcome.is_err() {
            for cloud in &mut self.clouds {
                // It was accepted before.
                cloud.carriers.set_identity(old, old)?;
            }
        }
        outcome
    }

    /// Applies a new configuration of the carriers; it cannot fail.
    pub(crate) fn reload(&mut self, now: Instant, relay: &mut Relay, config: &GatewayConfig) {
        self.each(|carriers| carriers.reload(now, relay, config));
    }

    /// Handles a change of an interface.
    pub(crate) fn on_link(&mut self, now: Instant, change: &LinkChange) {
        self.each(|carriers| carriers.on_link(now, change.clone()));
    }

    /// The modem of a carrier found a cell after it had none.
    pub(crate) fn on_found_cell(&mut self, now: Instant, name: &str) {
        self.each(|carriers| carriers.on_found_cell(now, name));
    }

    /// The session sends early data over a tunnel.
    pub(crate) fn on_early(&mut self, tunnel: TunnelKey) {
        self.each(|carriers| carriers.on_early(tunnel));
    }

    /// A tunnel's handshake finished.
    pub(crate) fn on_up(&mut self, now: Instant, tunnel: TunnelKey) {
        self.each(|carriers| carriers.on_up(now, tunnel));
    }

    /// A tunnel became a path. Returns true if its carrier had no path before.
    pub(crate) fn on_path(&mut self, now: Instant, tunnel: TunnelKey, number: u64) -> bool {
        self.look_soon(now);
        let mut was_down = false;
        self.each(|carriers| was_down |= carriers.on_path(now, tunnel, number));
        was_down
    }

    /// The session closes a tunnel.
    pub(crate) fn on_refused(&mut self, now: Instant, tunnel: TunnelKey, reason: &str) {
        self.each(|carriers| carriers.on_refused(now, tunnel, reason));
    }

    /// A tunnel was closed.
    pub(crate) fn on_closed(&mut self, now: Instant, tunnel: TunnelKey, reason: &CloseReason) {
        self.look_soon(now);
        self.each(|carriers| carriers.on_closed(now, tunnel, reason));
    }

    /// Our direction of a tunnel looks policed.
    pub(crate) fn on_policed(&mut self, now: Instant, tunnel: TunnelKey, rate: Bitrate) {
        self.each(|carriers| carriers.on_policed(now, tunnel, rate));
    }

    /// Handles a cloud's report about a path.
    pub(crate) fn on_report(
        &mut self,
        now: Instant,
        relay: &Relay,
        tunnel: TunnelKey,
        report: PathReport,
    ) {
        self.each(|carriers| carriers.on_report(now, relay, tunnel, report));
    }

    /// The session reports that a path stalled.
    pub(crate) fn on_stall(&mut self, now: Instant, relay: &Relay, tunnel: TunnelKey) {
        self.look_soon(now);
        self.each(|carriers| carriers.on_stall(now, relay, tunnel));
    }

    /// The session reports that a stalled path recovered.
    pub(crate) fn on_recovered(&mut self, now: Instant, tunnel: TunnelKey) {
        self.look_soon(now);
        self.each(|carriers| carriers.on_recovered(tunnel));
    }

    /// Carriers ignore the tunnels of others.
    fn each(&mut self, act: impl FnMut(&mut Carriers)) {
        self.clouds.iter_mut().map(|cloud| &mut cloud.carriers).for_each(act);
    }
}

fn view(relay: &Relay, session: &SessionStatus) -> View {
    let carries =
        |path: &&polyrail_session::PathStatus| !path.stalled && !path.superseded && !path.unproven;
    let usable = || session.paths.iter().filter(carries);
    let is_up = relay.session_since(session.session).is_some();
    View {
        reachable: is_up && usable().next().is_some(),
        going: session.peer_going,
        flows: session.flows,
        srtt: usable().map(|path| path.srtt).min().unwrap_or_default(),
    }
}

/// How often the clouds are looked at while something is pending. Stalls, ends and new paths cause
/// a look of their own.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_CALM: Duration = Duration::from_secs(1);
