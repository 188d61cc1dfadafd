//! A carrier as operators see it in `/v1/paths`.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use polyrail_admin::{Demotion, ModeDecision, PathCounters, PathPhase, PathState, Timestamp};
use polyrail_daemon::Survey;
use polyrail_model::Identity;
use polyrail_relay::Traffic;

use super::Effort;
use super::carrier::Carrier;

impl Carrier {
    pub(super) fn state(
        &self,
        now: Instant,
        survey: &Survey<'_>,
        carried: &BTreeMap<(Option<Identity>, String), Traffic>,
        cloud: &Identity,
    ) -> PathState {
        let name = self.name().to_owned();
        let mut connections = survey.connections(self.tunnels());
        let in_use = self.policy.in_use().and_then(|id| self.tunnel(id));
        let in_use = in_use.map(|key| key.0 as u64);
        connections.sort_by_key(|connection| Some(connection.id) != in_use);
        let first = connections.first().filter(|connection| Some(connection.id) == in_use);
        let (phase, since) = self.policy.phase().unwrap_or((PathPhase::Down, now));
        let unneeded = self.effort() == Effort::Off && self.is_enabled();
        let phase = if unneeded { PathPhase::Standby } else { phase };
        PathState {
            carrier: self.config.name.to_string(),
            peer: Some(cloud.to_string()),
            enabled: self.is_enabled(),
            role: self.config.role,
            interface: self.config.interface.as_ref().map(ToString::to_string),
            configured_mode: self.policy.mode(),
            mode: first.map(|connection| connection.mode),
            state: phase,
            since: moment(now, since),
            decision: self.policy.decision().map(|decision| ModeDecision {
                mode: decision.mode,
                reason: decision.reason.clone(),
                at: moment(now, decision.at),
            }),
            demotion: self.policy.demotion().map(|demotion| Demotion {
                reason: demotion.why.to_string(),
                since: moment(now, demotion.since),
                retry_in_s: demotion.retry_at.saturating_duration_since(now).as_secs_f64(),
            }),
            counters: self.counters(carried, cloud),
            local_address: first.and_then(|connection| connection.local_address),
            peer_address: first.and_then(|connection| connection.peer_address),
            link: first.and_then(|connection| connection.link),
            connections,
            name,
        }
    }

    fn counters(
        &self,
        carried: &BTreeMap<(Option<Identity>, String), Traffic>,
        cloud: &Identity,
    ) -> PathCounters {
        let own = |of: &(Option<Identity>, String)| {
            of.0.as_ref().is_none_or(|peer| peer == cloud) && of.1 == self.config.name.as_str()
        };
        let sums = carried.iter().filter(|(of, _)| own(of));
        let (sent_bytes, received_bytes) = sums.fold((0, 0), |(sent, received), (_, carried)| {
            (sent + carried.sent_bytes, received + carried.received_bytes)
        });
        PathCounters { sent_bytes, received_bytes, ..self.policy.counters() }
    }
}

/// A moment of the monotonic clock as the wall clock shows it now.
fn moment(now: Instant, at: Instant) -> Timestamp {
    let wall = SystemTime::now();
    let ago = now.saturating_duration_since(at);
    Timestamp::from(wall.checked_sub(ago).unwrap_or(wall))
}
