//! The carriers of all gateways as operators see them, and what happens to them.
//!
//! A carrier is listed from its first path until its session's end. It is looked at when a path
//! comes or goes, when somebody asks, and while the loop turns, every [`LOOK_EVERY`]: an idle
//! daemon sleeps.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_control::admin::{Event, PathCounters, PathPhase, PathState, Timestamp};
use polyrail_control::config::{CarrierRole, Mode};
use polyrail_model::{Identity, TunnelMode};
use polyrail_relay::Relay;
use polyrail_relay::admin::Survey;
use polyrail_session::{PathStatus, SessionKey};

/// What is remembered of all carriers.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    carriers: BTreeMap<(SessionKey, String), Carrier>,
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Carrier {
    phase: PathPhase,
    since: Timestamp,
    changed_at: Instant,
    mode: Option<TunnelMode>,
    /// The newest path.
    newest: u64,
    backup: bool,
    mode_changes: u64,
    restarts: u64,
    stalls: u64,
}

/// What a carrier's paths are together.
#[derive(Clone, Copy)]
struct Sight<'a> {
    phase: PathPhase,
    /// The path in use.
    path: &'a PathStatus,
    count: usize,
}

impl Paths {
    /// Whether a look is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let due = |at: Instant| now.saturating_duration_since(at) >= LOOK_EVERY;
        !self.carriers.is_empty() && self.looked_at.is_none_or(due)
    }

    /// Looks at all paths and tells what has changed. `reason` is why one went, if one went.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        relay: &Relay,
        reason: &str,
        mut publish: impl FnMut(Event),
    ) {
        self.looked_at = Some(now);
        let survey = Survey::new(now, relay);
        let mut seen: BTreeMap<(SessionKey, String), Sight<'_>> = BTreeMap::new();
        let mut names = BTreeMap::new();
        for session in survey.sessions() {
            names.insert(session.session, session.peer.as_ref());
            for path in &session.paths {
                see(&mut seen, (session.session, path.carrier.clone()), path);
            }
        }
        self.carriers.retain(|(session, _), _| names.contains_key(session));
        for ((session, name), carrier) in &mut self.carriers {
            if !seen.contains_key(&(*session, name.clone())) && carrier.phase != PathPhase::Down {
                carrier.turn_to(PathPhase::Down, now);
                let path = full_name(names.get(session).copied().flatten(), name);
                publish(Event::PathDown { path, reason: reason.to_owned() });
            }
        }
        for (key, sight) in seen {
            let path = full_name(names.get(&key.0).copied().flatten(), &key.1);
            let carrier = self.carriers.entry(key).or_insert_with(|| Carrier::new(now));
            carrier.follow(now, relay, path, sight, &mut publish);
        }
    }

    /// All carriers, ordered by name. `mode` is what this cloud serves.
    pub(crate) fn states(&self, now: Instant, relay: &Relay, mode: Mode) -> Vec<PathState> {
        let survey = Survey::new(now, relay);
        let carried = relay.carried();
        let mut list = Vec::new();
        for session in survey.sessions() {
            for ((of, name), carrier) in &self.carriers {
                if *of != session.session {
                    continue;
                }
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
                    ..PathCounters::default()
                };
                list.push(PathState {
                    name: full_name(session.peer.as_ref(), name),
                    carrier: name.clone(),
                    peer: session.peer.as_ref().map(ToString::to_string),
                    enabled: true,
                    role: if carrier.backup { CarrierRole::Backup } else { CarrierRole::Primary },
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

impl Carrier {
    fn new(now: Instant) -> Self {
        Self {
            phase: PathPhase::Down,
            since: Timestamp::now(),
            changed_at: now,
            mode: None,
            newest: 0,
            backup: false,
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
        publish: &mut impl FnMut(Event),
    ) {
        let mode = sight.path.mode;
        self.backup = sight.path.backup;
        let fresh = sight.path.path.0 > self.newest;
        self.newest = self.newest.max(sight.path.path.0);
        self.restarts += u64::from(fresh && sight.count > 1);
        if let Some(from) = self.mode
            && from != mode
        {
            self.mode_changes += 1;
            let reason = "the gateway chose it".to_owned();
            publish(Event::ModeChanged { path: path.clone(), from: Some(from), to: mode, reason });
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
                publish(Event::PathUp {
                    path,
                    mode,
                    local_address: view.and_then(|view| view.local),
                    peer_address: view.and_then(|view| view.address),
                });
            }
            (_, PathPhase::Stalled) => {
                self.stalls += 1;
                publish(Event::PathStalled { path, reason: "no progress".to_owned() });
            }
            _ => publish(Event::PathRecovered { path, stalled_s: lasted.as_secs_f64() }),
        }
    }
}

/// Adds a path to what is seen of its carrier.
fn see<'a>(
    seen: &mut BTreeMap<(SessionKey, String), Sight<'a>>,
    key: (SessionKey, String),
    path: &'a PathStatus,
) {
    let phase = if path.stalled { PathPhase::Stalled } else { PathPhase::Up };
    let sight = seen.entry(key).or_insert(Sight { phase, path, count: 0 });
    sight.count += 1;
    // The newest of those that no newer one has taken over from.
    let rank = |path: &PathStatus| (path.superseded, Reverse(path.path));
    if rank(path) < rank(sight.path) {
        (sight.phase, sight.path) = (phase, path);
    }
}

/// What a carrier is called in the admin interface of a cloud.
pub(crate) fn full_name(gateway: Option<&Identity>, carrier: &str) -> String {
    format!("{}:{carrier}", gateway.map(Identity::as_str).unwrap_or_default())
}

/// How often paths are looked at while the loop turns.
const LOOK_EVERY: Duration = Duration::from_millis(500);
