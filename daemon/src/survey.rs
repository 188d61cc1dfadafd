//! What the admin interface shows of a relay: the same words for both daemons.
//!
//! [`Survey`] looks at all sessions once and answers questions from that. Times are ages: a
//! relay knows no wall clock.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_admin::{
    ConnectionPhase, ConnectionState, LinkState, SessionPhase, SessionState, Snapshot, TunnelCounts,
};
use polyrail_model::{Bytes, TunnelMode};
use polyrail_session::{PathStatus, SessionKey, SessionStatus, Status, TunnelKey};

use crate::Relay;

/// All sessions and tunnels as they are now.
#[derive(Debug)]
pub struct Survey<'a> {
    now: Instant,
    relay: &'a Relay,
    status: Status,
    /// Where each tunnel's path stands in the status.
    paths: BTreeMap<TunnelKey, (usize, usize)>,
}

impl<'a> Survey<'a> {
    /// Looks at everything.
    pub fn new(now: Instant, relay: &'a Relay) -> Self {
        let status = relay.endpoint_ref().status();
        let mut paths = BTreeMap::new();
        for (at, session) in status.sessions.iter().enumerate() {
            for (place, path) in session.paths.iter().enumerate() {
                paths.insert(path.tunnel, (at, place));
            }
        }
        Self { now, relay, status, paths }
    }

    /// The sessions.
    pub fn sessions(&self) -> &[SessionStatus] {
        &self.status.sessions
    }

    /// The path that a tunnel is, and its session.
    pub fn path(&self, tunnel: TunnelKey) -> Option<(&SessionStatus, &PathStatus)> {
        let (at, place) = *self.paths.get(&tunnel)?;
        let session = self.status.sessions.get(at)?;
        Some((session, session.paths.get(place)?))
    }

    /// What the daemon says of itself. `chain` are the schedulerlets; `memory` is the bound of a
    /// session's memory for each direction. What tunnels were refused, and the datagrams, the
    /// daemon adds.
    pub fn snapshot(&self, chain: &[String], memory: Bytes) -> Snapshot {
        let modes = [TunnelMode::Quic, TunnelMode::Tls];
        let half_open: usize = modes.iter().map(|mode| self.relay.handshaking(*mode)).sum();
        let up = self.relay.tunnel_count().saturating_sub(half_open);
        Snapshot {
            scheduler: chain.to_vec(),
            legs: self.relay.leg_count() as u64,
            tunnels: TunnelCounts {
                up: up as u64,
                half_open: half_open as u64,
                ..TunnelCounts::default()
            },
            sessions: self.status.sessions.iter().map(|s| self.session(s, memory)).collect(),
        }
    }

    fn session(&self, session: &SessionStatus, memory: Bytes) -> SessionState {
        let since = self.relay.session_since(session.session);
        let state = match (since, session.paths.is_empty()) {
            (None, _) => SessionPhase::Opening,
            (Some(_), true) => SessionPhase::Lingering,
            (Some(_), false) => SessionPhase::Up,
        };
        SessionState {
            id: session_name(session.session),
            peer: session.peer.as_ref().map(ToString::to_string),
            state,
            age_s: since.map_or(0.0, |since| self.age(since)),
            paths: session.paths.len() as u64,
            flows: session.flows as u64,
            memory_received_bytes: session.memory_received.0,
            memory_sent_bytes: session.memory_sent.0,
            memory_max_bytes: memory.0,
            credit_bytes: session.credit.0,
            reinjected_bytes: session.reinjected.0,
            sent_bytes: session.paths.iter().map(|path| path.sent).sum::<Bytes>().0,
            received_bytes: session.paths.iter().map(|path| path.received).sum::<Bytes>().0,
        }
    }

    /// Those of `tunnels` that are not being closed, the one in use first.
    pub fn connections(
        &self,
        tunnels: impl IntoIterator<Item = TunnelKey>,
    ) -> Vec<ConnectionState> {
        let mut list: Vec<_> =
            tunnels.into_iter().filter_map(|tunnel| self.connection(tunnel)).collect();
        list.sort_by_key(|connection| {
            let usefulness = match connection.state {
                ConnectionPhase::Up => 0,
                ConnectionPhase::Stalled => 1,
                ConnectionPhase::Unproven => 2,
                ConnectionPhase::Early => 3,
                ConnectionPhase::Connecting => 4,
                ConnectionPhase::Superseded => 5,
            };
            (usefulness, std::cmp::Reverse(connection.id))
        });
        list
    }

    fn connection(&self, tunnel: TunnelKey) -> Option<ConnectionState> {
        let view = self.relay.tunnel(tunnel)?;
        let path = self.path(tunnel);
        let state = match path {
            _ if view.early => ConnectionPhase::Early,
            Some((_, path)) => phase(path),
            None if view.up => ConnectionPhase::Unproven,
            None => ConnectionPhase::Connecting,
        };
        Some(ConnectionState {
            id: tunnel.0 as u64,
            path: path.map(|(_, path)| path.path.0),
            mode: view.mode,
            state,
            local_address: view.local,
            peer_address: view.address,
            age_s: self.age(view.begun),
            sent_bytes: path.map_or(0, |(_, path)| path.sent.0),
            received_bytes: path.map_or(0, |(_, path)| path.received.0),
            link: view.sample.map(LinkState::from),
        })
    }

    fn age(&self, since: Instant) -> f64 {
        self.now.saturating_duration_since(since).as_secs_f64()
    }
}

/// What a session is called in logs and events.
pub fn session_name(session: SessionKey) -> String {
    session.0.to_string()
}

fn phase(path: &PathStatus) -> ConnectionPhase {
    match path {
        PathStatus { superseded: true, .. } => ConnectionPhase::Superseded,
        PathStatus { unproven: true, .. } => ConnectionPhase::Unproven,
        PathStatus { stalled: true, .. } => ConnectionPhase::Stalled,
        _ => ConnectionPhase::Up,
    }
}
