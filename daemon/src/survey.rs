//! Translates a relay's status into the types of the admin interface.
//!
//! A [`Survey`] is a snapshot of all sessions. Times are ages, because a relay knows no wall clock.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_admin::{
    ConnectionPhase, ConnectionState, LinkState, SessionPhase, SessionState, Snapshot, TunnelCounts,
};
use polyrail_model::{Bytes, TunnelMode};
use polyrail_session::{PathStatus, SessionKey, SessionStatus, Status, TunnelKey};

use polyrail_relay::Relay;

use crate::daemon::session_name;

/// All sessions and tunnels as they are now.
#[derive(Debug)]
pub struct Survey<'a> {
    now: Instant,
    relay: &'a Relay,
    status: Status,
    /// The indices of the session and path of each tunnel.
    paths: BTreeMap<TunnelKey, (usize, usize)>,
}

impl<'a> Survey<'a> {
    /// Reads the status of the relay.
    pub fn new(now: Instant, relay: &'a Relay) -> Self {
        Self::of(now, relay, relay.endpoint_ref().status())
    }

    /// Reads the status of one session. Its cost does not depend on other sessions, so a peer may
    /// cause it.
    pub fn of_session(now: Instant, relay: &'a Relay, session: SessionKey) -> Self {
        let sessions = relay.endpoint_ref().status_of(session).into_iter().collect();
        Self::of(now, relay, Status { sessions })
    }

    fn of(now: Instant, relay: &'a Relay, status: Status) -> Self {
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

    /// The path of a tunnel, and its session.
    pub fn path(&self, tunnel: TunnelKey) -> Option<(&SessionStatus, &PathStatus)> {
        let (at, place) = *self.paths.get(&tunnel)?;
        let session = self.status.sessions.get(at)?;
        Some((session, session.paths.get(place)?))
    }

    /// The status of the data plane. `chain` are the schedulerlets; `memory` is the limit of a
    /// session's memory for each direction. The daemon adds refused tunnels and datagrams.
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
            ..Snapshot::default()
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
            users: session.users as u64,
            flows_opened: session.flows_opened,
            memory_received_bytes: session.memory_received.0,
            memory_sent_bytes: session.memory_sent.0,
            memory_max_bytes: memory.0,
            credit_bytes: session.credit.0,
            reinjected_bytes: session.reinjected.0,
            sent_bytes: session.paths.iter().map(|path| path.sent).sum::<Bytes>().0,
            received_bytes: session.paths.iter().map(|path| path.received).sum::<Bytes>().0,
            bindings: session.datagrams.bindings as u64,
            datagrams_sent: session.datagrams.sent,
            datagram_copies_sent: session.datagrams.copies_sent,
            datagrams_received: session.datagrams.received,
            datagram_copies_received: session.datagrams.copies_received,
            datagrams_dropped: session.datagrams.drops.total(),
            datagrams_too_long: session.datagrams.drops.too_long,
            datagrams_unbound: session.datagrams.drops.bindings,
            datagrams_stale: session.datagrams.drops.stale,
            datagrams_codel: session.datagrams.drops.codel,
            datagrams_ended: session.datagrams.drops.ended,
            messages_dropped: session.messages_dropped,
        }
    }

    /// The open connections of `tunnels`, the one in use first.
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

fn phase(path: &PathStatus) -> ConnectionPhase {
    match path {
        PathStatus { superseded: true, .. } => ConnectionPhase::Superseded,
        PathStatus { unproven: true, .. } => ConnectionPhase::Unproven,
        PathStatus { stalled: true, .. } => ConnectionPhase::Stalled,
        _ => ConnectionPhase::Up,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::Identity;
    use polyrail_relay::Label;

    use super::*;
    use crate::fake;
    use crate::side::Side;

    #[test]
    fn survey_shows_sessions_and_connections() {
        let start = Instant::now();
        let (mut gateway, mut cloud) = (Side::gateway(), Side::cloud());
        let (train, ground) = (Identity::new("train").unwrap(), Identity::new("cloud").unwrap());
        for (carrier, secret) in [("a", 1), ("b", 2)] {
            let (near, far) = fake::pair(&train, &ground, [secret; 32]).unwrap();
            let label = Label { carrier: carrier.to_owned(), ..Label::default() };
            gateway.relay.add_tunnel(Box::new(near), label).unwrap();
            cloud.relay.add_tunnel(Box::new(far), Label::default()).unwrap();
        }
        let is_up = |relay: &Relay| {
            let survey = Survey::new(Instant::now(), relay);
            let connections = survey.connections(relay.tunnel_keys());
            connections.iter().filter(|one| one.state == ConnectionPhase::Up).count() == 2
        };
        while !is_up(&gateway.relay) {
            assert!(start.elapsed() < Duration::from_secs(30), "two paths are up");
            gateway.turn();
            cloud.turn();
        }
        let relay = &gateway.relay;
        let survey = Survey::new(Instant::now() + Duration::from_secs(1), relay);
        let snapshot = survey.snapshot(&["min_rtt".to_owned()], Bytes::from_mib(16));
        assert_eq!(snapshot.scheduler, ["min_rtt"]);
        assert_eq!((snapshot.legs, snapshot.tunnels.up, snapshot.tunnels.half_open), (0, 2, 0));
        let [session] = &snapshot.sessions[..] else { panic!("{snapshot:?}") };
        assert_eq!((session.peer.as_deref(), session.state), (Some("cloud"), SessionPhase::Up));
        assert_eq!((session.paths, session.memory_max_bytes), (2, 16 << 20));
        assert!(session.age_s >= 1.0);
        for connection in survey.connections(relay.tunnel_keys()) {
            let (session, path) = survey.path(TunnelKey(connection.id as usize)).unwrap();
            assert_eq!(connection.path, Some(path.path.0));
            assert_eq!(session.peer.as_ref().map(Identity::as_str), Some("cloud"));
        }
    }
}
