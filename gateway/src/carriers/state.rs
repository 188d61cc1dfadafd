//! A carrier as operators see it in `/v1/paths`.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use polyrail_admin::{Demotion, ModeDecision, PathCounters, PathPhase, PathState, Timestamp};
use polyrail_daemon::Survey;
use polyrail_model::{Bitrate, Identity};
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
        let state = match phase {
            PathPhase::Disabled if self.is_enabled() && self.wishes.is_capped(&self.config) => {
                PathPhase::Capped
            }
            _ if self.is_enabled() && self.effort() == Effort::Off => PathPhase::Standby,
            phase => phase,
        };
        PathState {
            carrier: self.config.name.to_string(),
            peer: Some(cloud.to_string()),
            enabled: self.is_enabled(),
            role: self.wishes.role(&self.config),
            rate_limit_bits_per_s: self.wishes.rate_limit(&self.config).map(Bitrate::as_bps),
            cap: self.wishes.cap_state(&self.config),
            interface: self.config.interface.as_ref().map(ToString::to_string),
            configured_mode: self.policy.mode(),
            mode: first.map(|connection| connection.mode),
            state,
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
        let mut all = Traffic::default();
        let own = |of: &(Option<Identity>, String)| {
            of.0.as_ref().is_none_or(|peer| peer == cloud) && of.1 == self.config.name.as_str()
        };
        let own = carried.iter().filter(|(of, _)| own(of));
        own.for_each(|(_, carried)| all.add(carried));
        let Traffic { sent_bytes, received_bytes, sent_packets, lost_packets, .. } = all;
        let policy = self.policy.counters();
        PathCounters { sent_bytes, received_bytes, sent_packets, lost_packets, ..policy }
    }
}

/// A moment of the monotonic clock as the wall clock shows it now.
fn moment(now: Instant, at: Instant) -> Timestamp {
    let wall = SystemTime::now();
    let ago = now.saturating_duration_since(at);
    Timestamp::from(wall.checked_sub(ago).unwrap_or(wall))
}
