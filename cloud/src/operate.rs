//! The cloud's part of operators' requests: new configurations, and drains.
//!
//! A change is applied wholly or not at all, so steps that can fail come first. It closes no flow
//! except those of gateways whose certificates are revoked. Access lists apply to new flows.

use std::time::{Duration, Instant};

use polyrail_admin::metrics::{CloudCounts, MetricsSnapshot};
use polyrail_admin::{
    AdminError, DrainState, ErrorCode, FlowState, PathChange, PathState, Snapshot, UserState,
};
use polyrail_config::{CloudConfig, CloudTables};
use polyrail_daemon::{Daemon, Operate, Refusals, start};
use polyrail_identity::TlsIdentity;
use polyrail_model::{BindingId, FlowId, FlowKind, FlowName, SessionKey, UserId};
use polyrail_relay::Relay;
use polyrail_session::FlowKey;

use crate::congestion::Congestion;
use crate::shell::{Cloud, access_list, dial_settings};

impl Operate for Cloud {
    type Tables = CloudTables;

    fn daemon(&mut self) -> &mut Daemon<CloudTables> {
        &mut self.daemon
    }

    fn complete(&self, snapshot: &mut Snapshot) {
        snapshot.tunnels.refused = self.refused;
        self.listeners.count(&mut snapshot.tunnels);
        snapshot.drain = self.drain_state(snapshot.sessions.iter().map(|session| session.flows));
    }

    fn drain(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        limit: Duration,
    ) -> Result<DrainState, AdminError> {
        let reason = "the cloud is draining";
        if !self.daemon.shutdown.drain(now, relay, reason, limit) {
            return Err(AdminError::refused("the daemon is shutting down"));
        }
        let sessions = relay.endpoint_ref().status().sessions;
        let flows = sessions.iter().map(|session| session.flows as u64);
        let state = self.drain_state(flows);
        state.ok_or_else(|| AdminError::refused("the daemon is shutting down"))
    }

    fn measure(&self, now: Instant, metrics: &mut MetricsSnapshot) {
        metrics.refused = self.refusals.totals();
        metrics.lines_suppressed = self.lines.suppressed()
            + self.refused_connections.suppressed()
            + self.failed_dials.suppressed()
            + self.refusals.suppressed()
            + self.full.suppressed();
        metrics.udp_dropped = self.datagrams.drops().counts();
        let active = self.dialer.active();
        metrics.cloud = Some(CloudCounts {
            dials: active as u64,
            dials_waiting: self.dialer.len().saturating_sub(active) as u64,
            dials_failed: self.failed_dials.counts(),
            reports: self.reports.received(now, |session| self.gateway_of(session)),
            reports_ignored: self.reports.ignored(),
            handed_over: self.post.counts(),
            workers: 1,
        });
    }

    fn paths(&mut self, now: Instant, relay: &mut Relay) -> Vec<PathState> {
        relay.update_traffic(now);
        self.look_at_paths(now, relay);
        self.paths.states(now, relay, self.daemon.config.common.mode)
    }

    fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    fn complete_user(&self, session: SessionKey, user: UserId, state: &mut UserState) {
        let (active, waiting) = self.dialer.of_user((session, user));
        (state.dials, state.dials_waiting) = (active as u64, waiting as u64);
        state.gateway = self.gateway_of(session).map(str::to_owned);
    }

    fn complete_flow(&self, relay: &Relay, state: &mut FlowState) {
        let FlowName { session, kind, number } = state.id;
        state.gateway = self.gateway_of(session).map(str::to_owned);
        state.source = match kind {
            FlowKind::Tcp => {
                let flow = FlowKey { session, flow: FlowId(number) };
                relay.leg_addresses(flow).map(|(local, _)| local)
            }
            FlowKind::Udp => self.datagrams.local_address((session, BindingId(number))),
        };
    }

    fn set_path(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        name: &str,
        _change: &PathChange,
    ) -> Result<(), AdminError> {
        let path = self.paths(now, relay).into_iter().find(|path| path.name == name);
        let path = path.ok_or_else(|| AdminError::unknown_path(name))?;
        let gateway = path.peer.as_deref().unwrap_or("its gateway");
        Err(AdminError::refused(format!(
            "only the gateway changes a carrier: ask {gateway} (polyrail path set {})",
            path.carrier
        )))
    }

    fn reload(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        config: CloudConfig,
        identity: Option<TlsIdentity>,
    ) -> Result<Vec<String>, AdminError> {
        let old = self.daemon.config.clone();
        let mut warnings = Vec::new();
        let controls =
            |config: &CloudConfig| (config.congestion.clone(), config.carrier_congestion.clone());
        let congestion = (controls(&old) != controls(&config)).then(|| Congestion::choose(&config));
        let result = self.refit(identity.as_ref(), congestion.as_ref().map(|(chosen, _)| chosen));
        if let Err(error) = result {
            // Some listeners may have changed already: restore them.
            let (identity, congestion) = (self.daemon.identity.clone(), self.congestion.clone());
            if let Err(error) = self.refit(Some(&identity), Some(&congestion)) {
                tracing::error!(%error, "cannot restore the previous configuration");
            }
            return Err(unusable(error));
        }
        if let Some((congestion, warned)) = congestion {
            congestion.apply(relay);
            self.congestion = congestion;
            warnings.extend(warned);
        }
        if let Some(identity) = identity {
            self.daemon.identity = identity;
        }
        if (&old.access, &old.dial) != (&config.access, &config.dial) {
            let families = crate::reach::families(config.dial.families());
            if families != self.daemon.settings.families {
                warnings.push(
                    "dial.ipv4, dial.ipv6: gateways learn the address families at the start of \
                     their sessions, and reject the others until this daemon restarts"
                        .to_owned(),
                );
            }
            self.dialer.set_rules(dial_settings(&config, families), access_list(&config));
        }
        self.datagrams.set_rules(access_list(&config), config.common.udp.filtering());
        self.daemon.reload_session(now, relay, &config.common);
        let settings = config.common.linkdb.as_ref();
        let settings = settings.filter(|_| old.common.linkdb != config.common.linkdb);
        if let Some((linkdb, settings)) = self.daemon.linkdb.as_ref().zip(settings) {
            linkdb.reload(start::linkdb_settings(settings, settings.shares()));
        }
        self.daemon.config = config;
        self.daemon.check_certificates(now, relay);
        Ok(warnings)
    }
}

impl Cloud {
    fn drain_state(&self, flows: impl Iterator<Item = u64>) -> Option<DrainState> {
        let until = self.daemon.shutdown.drains_until()?;
        let left = until.saturating_duration_since(Instant::now());
        Some(DrainState { flows: flows.sum(), ends_in_s: left.as_secs_f64() })
    }

    /// Applies a new identity or congestion control to the listeners.
    fn refit(
        &mut self,
        identity: Option<&TlsIdentity>,
        congestion: Option<&Congestion>,
    ) -> anyhow::Result<()> {
        if let Some(congestion) = congestion {
            self.listeners.set_congestion(&self.daemon.identity, congestion)?;
        }
        identity.map_or(Ok(()), |identity| self.listeners.set_identity(identity))
    }
}

fn unusable(error: anyhow::Error) -> AdminError {
    AdminError::new(ErrorCode::InvalidConfig, format!("{error:#}")).about_key("tls")
}
