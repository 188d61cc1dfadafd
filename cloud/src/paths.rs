//! The carriers of all gateways as operators see them, and their events.
//!
//! A carrier is listed from its first path until its session's end, or until it is evicted: a
//! session has at most [`SESSION_PATHS_MAX`] carriers, and the one that has been down longest is
//! evicted first. The states of a session are updated when one of its paths changes; those of all
//! sessions on request, and every [`LOOK_EVERY`] while the loop turns, so that an idle daemon
//! sleeps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use polyrail_admin::{AdminEvent, PathCounters, PathPhase, PathState, Timestamp};
use polyrail_config::{CarrierRole, Mode};
use polyrail_daemon::Survey;
use polyrail_model::{Bitrate, Identity, PathRank, PathWish, TunnelMode};
use polyrail_relay::Relay;
use polyrail_session::limits::SESSION_PATHS_MAX;
use polyrail_session::{PathStatus, SessionKey};

/// The carriers of all gateways.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    carriers: BTreeMap<Key, ListedCarrier>,
    looked_at: Option<Instant>,
}

/// The session, and the gateway's name of the carrier.
type Key = (SessionKey, String);

#[derive(Debug)]
struct ListedCarrier {
    phase: PathPhase,
    since: Timestamp,
    changed_at: Instant,
    mode: Option<TunnelMode>,
    /// The newest path.
    newest: u64,
    wish: PathWish,
    mode_changes: u64,
    restarts: u64,
    stalls: u64,
}

/// The state of a carrier, from all its paths.
#[derive(Clone, Copy)]
struct Sight<'a> {
    phase: PathPhase,
    /// The path in use.
    path: &'a PathStatus,
    count: usize,
}

impl Paths {
    /// Whether an update is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let due = |at: Instant| now.saturating_duration_since(at) >= LOOK_EVERY;
        !self.carriers.is_empty() && self.looked_at.is_none_or(due)
    }

    /// Updates the states of all paths and publishes changes.
    pub(crate) fn look(&mut self, now: Instant, relay: &Relay, publish: impl FnMut(AdminEvent)) {
        self.looked_at = Some(now);
        let survey = Survey::new(now, relay);
        let open: BTreeSet<SessionKey> = survey.sessions().iter().map(|one| one.session).collect();
        self.carriers.retain(|(session, _), _| open.contains(session));
        self.update(now, relay, &survey, "", publish);
    }

    /// Updates the states of the paths of one session, which may have ended, and publishes changes.
    /// `reason` is why a path closed, if one did.
    pub(crate) fn look_at(
        &mut self,
        now: Instant,
        relay: &Relay,
        session: SessionKey,
        reason: &str,
        publish: impl FnMut(AdminEvent),
    ) {
        let survey = Survey::of_session(now, relay, session);
        if survey.sessions().is_empty() {
            let carriers: Vec<Key> = self.of_session(session).map(|(key, _)| key.clone()).collect();
            for key in &carriers {
                self.carriers.remove(key);
            }
        }
        self.update(now, relay, &survey, reason, publish);
    }

    /// Updates the states of the surveyed sessions.
    fn update(
        &mut self,
        now: Instant,
        relay: &Relay,
        survey: &Survey<'_>,
        reason: &str,
        mut publish: impl FnMut(AdminEvent),
    ) {
        let mut seen: BTreeMap<Key, Sight<'_>> = BTreeMap::new();
        let mut names = BTreeMap::new();
        for session in survey.sessions() {
            names.insert(session.session, session.peer.as_ref());
            for path in &session.paths {
                see(&mut seen, (session.session, path.carrier.clone()), path);
            }
        }
        for (&session, &peer) in &names {
            let listed = self.carriers.range_mut((session, String::new())..);
            for (key, carrier) in listed.take_while(|((of, _), _)| *of == session) {
                if !seen.contains_key(key) && carrier.phase != PathPhase::Down {
                    carrier.turn_to(PathPhase::Down, now);
                    let path = full_name(peer, &key.1);
                    publish(AdminEvent::PathDown { path, reason: reason.to_owned() });
                }
            }
        }
        for (key, sight) in &seen {
            let path = full_name(names.get(&key.0).copied().flatten(), &key.1);
            self.make_room(key, &seen);
            let carrier =
                self.carriers.entry(key.clone()).or_insert_with(|| ListedCarrier::new(now));
            carrier.follow(now, relay, path, *sight, &mut publish);
        }
    }

    /// Evicts the carrier of a session that has been down longest, if the session has the maximum
    /// number of carriers. One is down, because a session has at most as many paths.
    fn make_room(&mut self, key: &Key, seen: &BTreeMap<Key, Sight<'_>>) {
        let full = self.of_session(key.0).count() >= SESSION_PATHS_MAX;
        if !full || self.carriers.contains_key(key) {
            return;
        }
        let gone = self.of_session(key.0).filter(|(name, _)| !seen.contains_key(name));
        if let Some((longest, _)) = gone.min_by_key(|(_, carrier)| carrier.changed_at) {
            let longest = longest.clone();
            self.carriers.remove(&longest);
        }
    }

    fn of_session(&self, session: SessionKey) -> impl Iterator<Item = (&Key, &ListedCarrier)> {
        let from = self.carriers.range((session, String::new())..);
        from.take_while(move |((of, _), _)| *of == session)
    }

    /// All carriers, ordered by name. `mode` is the mode that this cloud serves.
    pub(crate) fn states(&self, now: Instant, relay: &Relay, mode: Mode) -> Vec<PathState> {
        let survey = Survey::new(now, relay);
        let carried = relay.traffic();
        let mut list = Vec::new();
        for session in survey.sessions() {
            for ((_, name), carrier) in self.of_session(session.session) {
                let paths = session.paths.iter().filter(|path| path.carrier == *name);
                let connections = survey.connections(paths.map(|path| path.tunnel));
                let first = connections.first();
                let sums = carried.get(&(session.peer.clone(), name.clone()));
                let sums = sums.copied().unwrap_or_default();
                let counters = PathCounters {
                    mode_changes: carrier.mode_changes,
                    restarts: carrier.restarts,
                    attempts: sums.paths,
                    quic_attempts: sums.quic_paths,
                    tls_attempts: sums.paths - sums.quic_paths,
                    stalls: carrier.stalls,
                    sent_bytes: sums.sent_bytes,
                    received_bytes: sums.received_bytes,
                    sent_packets: sums.sent_packets,
                    lost_packets: sums.lost_packets,
                    ..PathCounters::default()
                };
                list.push(PathState {
                    name: full_name(session.peer.as_ref(), name),
                    carrier: name.clone(),
                    peer: session.peer.as_ref().map(ToString::to_string),
                    enabled: true,
                    role: match carrier.wish.rank {
                        PathRank::Primary => CarrierRole::Primary,
                        PathRank::Secondary => CarrierRole::Secondary,
                        PathRank::Backup => CarrierRole::Backup,
                    },
                    rate_limit_bits_per_s: carrier.wish.rate_limit.map(Bitrate::as_bps),
                    cap: None,
                    interface: None,
                    configured_mode: mode,
                    mode: first.map(|connection| connection.mode),
                    state: carrier.phase,
                    since: carrier.since,
                    decision: None,
                    demotion: None,
                    counters,
                    local_address: first.and_then(|connection| connection.local_address),
                    peer_address: first.and_then(|connection| connection.peer_address),
                    link: first.and_then(|connection| connection.link),
                    connections,
                });
            }
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }
}

impl ListedCarrier {
    fn new(now: Instant) -> Self {
        Self {
            phase: PathPhase::Down,
            since: Timestamp::now(),
            changed_at: now,
            mode: None,
            newest: 0,
            wish: PathWish::default(),
            mode_changes: 0,
            restarts: 0,
            stalls: 0,
        }
    }

    fn turn_to(&mut self, phase: PathPhase, now: Instant) -> Duration {
        self.phase = phase;
        self.since = Timestamp::now();
        now.saturating_duration_since(std::mem::replace(&mut self.changed_at, now))
    }

    fn follow(
        &mut self,
        now: Instant,
        relay: &Relay,
        path: String,
        sight: Sight<'_>,
        publish: &mut impl FnMut(AdminEvent),
    ) {
        let mode = sight.path.mode;
        self.wish = sight.path.wish;
        let fresh = sight.path.path.0 > self.newest;
        self.newest = self.newest.max(sight.path.path.0);
        self.restarts += u64::from(fresh && sight.count > 1);
        if let Some(from) = self.mode
            && from != mode
        {
            self.mode_changes += 1;
            let reason = "the gateway chose it".to_owned();
            let (path, from) = (path.clone(), Some(from));
            publish(AdminEvent::ModeChanged { path, from, to: mode, reason });
        }
        self.mode = Some(mode);
        if sight.phase == self.phase {
            return;
        }
        let before = self.phase;
        let lasted = self.turn_to(sight.phase, now);
        match (before, sight.phase) {
            (PathPhase::Down, _) => {
                let view = relay.tunnel(sight.path.tunnel);
                publish(AdminEvent::PathUp {
                    path,
                    mode,
                    local_address: view.and_then(|view| view.local),
                    peer_address: view.and_then(|view| view.address),
                });
            }
            (_, PathPhase::Stalled) => {
                self.stalls += 1;
                publish(AdminEvent::PathStalled { path, reason: "no progress".to_owned() });
            }
            _ => publish(AdminEvent::PathRecovered { path, stalled_s: lasted.as_secs_f64() }),
        }
    }
}

/// Adds a path to its carrier.
fn see<'a>(seen: &mut BTreeMap<Key, Sight<'a>>, key: Key, path: &'a PathStatus) {
    let phase = if path.stalled { PathPhase::Stalled } else { PathPhase::Up };
    let sight = seen.entry(key).or_insert(Sight { phase, path, count: 0 });
    sight.count += 1;
    // The newest path that is not superseded.
    let rank = |path: &PathStatus| (path.superseded, Reverse(path.path));
    if rank(path) < rank(sight.path) {
        (sight.phase, sight.path) = (phase, path);
    }
}

/// The name of a carrier in the admin interface of a cloud.
pub(crate) fn full_name(gateway: Option<&Identity>, carrier: &str) -> String {
    format!("{}:{carrier}", gateway.map(Identity::as_str).unwrap_or_default())
}

/// How often states are updated while the loop turns.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use polyrail_relay::{Label, RelayEvent};
    use polyrail_session::Event;

    use super::*;
    use crate::fake;
    use crate::side::Side;

    #[test]
    fn invented_carrier_names_evict_only_names_of_the_same_gateway() {
        let begun = Instant::now();
        let (mut gateway, mut cloud) = (Side::gateway(), Side::cloud());
        let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
        let mut paths = Paths::default();
        let named = SESSION_PATHS_MAX + 10;
        // The first stays up.
        for number in 0..named {
            let (near, far) = fake::pair(&train, &ground, [number as u8; 32]).unwrap();
            let label = Label { carrier: format!("made-up-{number}"), ..Label::default() };
            let near = gateway.relay.add_tunnel(Box::new(near), label).unwrap();
            cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
            let (mut up, mut down) = (false, number == 0);
            while !(up && down) {
                assert!(begun.elapsed() < Duration::from_secs(30), "{number}: {up} {down}");
                gateway.turn();
                for event in cloud.turn() {
                    up |= matches!(event, RelayEvent::Session(Event::PathUp { .. }));
                    down |= matches!(event, RelayEvent::TunnelClosed { .. });
                    paths.look(Instant::now(), &cloud.relay, |_| ());
                }
                if up && !down {
                    gateway.relay.close_tunnel(Instant::now(), near);
                }
            }
        }
        assert_eq!(paths.carriers.len(), SESSION_PATHS_MAX);
        let states = paths.states(Instant::now(), &cloud.relay, Mode::Auto);
        let is_there = |number: usize| {
            let name = format!("train:made-up-{number}");
            states.iter().any(|state| state.name == name)
        };
        assert!(is_there(0) && is_there(named - 1), "{states:?}");
        assert!((1..=10).all(|number| !is_there(number)), "{states:?}");
    }
}
