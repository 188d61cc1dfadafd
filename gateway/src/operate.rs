//! The gateway's part of operators' requests: changes of carriers and new configurations.
//!
//! A change is applied wholly or not at all, so steps that can fail come first. It closes no flow;
//! without a carrier, flows wait for `session.linger`.

use std::time::Instant;

use polyrail_admin::metrics::{MetricsSnapshot, REPORT};
use polyrail_admin::{
    AdminError, AdminEvent, DataUsage, ErrorCode, FlowState, LinkChange, PathChange, PathState,
    RestartWish, Snapshot, SpeedtestOrder, SpeedtestState, UserState,
};
use polyrail_config::{CarrierConfig, GatewayConfig, GatewayTables};
use polyrail_daemon::{Daemon, Operate, Refusals, start};
use polyrail_identity::TlsIdentity;
use polyrail_model::{Delivery, SessionKey, UserId};
use polyrail_relay::Relay;
use polyrail_relay::congestion::{kernel_has, quic_has};

use crate::intercept::direct_carriers;
use crate::shell::{Gateway, reply_policy};
use crate::speedtest::CurrentCloud;
use crate::telemetry;

impl Operate for Gateway {
    type Tables = GatewayTables;

    fn daemon(&mut self) -> &mut Daemon<GatewayTables> {
        &mut self.daemon
    }

    fn complete(&self, snapshot: &mut Snapshot) {
        snapshot.clouds = self.clouds.states();
    }

    fn measure(&self, _now: Instant, metrics: &mut MetricsSnapshot) {
        metrics.refused = self.refusals.totals();
        let names = self.names.as_ref().map_or(0, |names| names.suppressed());
        metrics.lines_suppressed = self.refusals.suppressed() + self.full.suppressed() + names;
        metrics.udp_dropped =
            self.datagrams.as_ref().map(|datagrams| datagrams.drops().counts()).unwrap_or_default();
        metrics.wants_report = self.clouds.takes_reports();
    }

    fn send_report(&mut self, now: Instant, relay: &mut Relay, payload: Vec<u8>) {
        let session = relay.endpoint_ref().current().filter(|_| self.clouds.takes_reports());
        if let Some(session) = session {
            relay.endpoint().send_message(now, session, REPORT, Delivery::Latest, payload);
        }
    }

    fn paths(&mut self, now: Instant, relay: &mut Relay) -> Vec<PathState> {
        relay.update_traffic(now);
        self.clouds.paths(now, relay)
    }

    fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    fn complete_user(&self, _session: SessionKey, user: UserId, state: &mut UserState) {
        state.address = self.users.address_of(user);
        state.group = self.users.group_of(user).map(str::to_owned);
    }

    fn complete_flow(&self, relay: &Relay, state: &mut FlowState) {
        state.source = self.passenger_of(relay, state.id);
    }

    fn set_path(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        name: &str,
        change: &PathChange,
    ) -> Result<(), AdminError> {
        self.clouds.set_path(now, name, change)?;
        self.direct_at = now;
        let text = describe(change);
        tracing::info!(carrier = name, change = text, "carrier changed by an operator");
        self.daemon.publish(AdminEvent::PathChanged { path: name.to_owned(), change: text });
        // The answer shows the immediate consequences.
        self.run_clouds(now, relay);
        self.daemon.control.meter(self.clouds.metered());
        Ok(())
    }

    fn reload(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        config: GatewayConfig,
        identity: Option<TlsIdentity>,
    ) -> Result<Vec<String>, AdminError> {
        let old = self.daemon.config.clone();
        if let Some(identity) = identity {
            let outcome = self.clouds.set_identity(&self.daemon.identity, &identity);
            outcome.map_err(|error| {
                AdminError::new(ErrorCode::InvalidConfig, error.to_string()).about_key("tls")
            })?;
            self.daemon.identity = identity;
        }
        self.daemon.reload_session(now, relay, &config.common);
        if old.socks5 != config.socks5 {
            self.clients.set_policy(reply_policy(&config));
        }
        let dns = config.dns.as_ref().filter(|_| old.dns != config.dns);
        if let Some((names, dns)) = self.names.as_mut().zip(dns) {
            names.set_resolver(now, relay, dns.resolver);
        }
        let settings = config.common.linkdb.as_ref();
        let settings = settings.filter(|_| old.common.linkdb != config.common.linkdb);
        if let Some((linkdb, settings)) = self.daemon.linkdb.as_ref().zip(settings) {
            linkdb.reload(start::linkdb_settings(settings, true));
        }
        if let Some(telemetry) = &self.telemetry {
            telemetry.set(telemetry::settings(&config));
        }
        self.clouds.reload(now, relay, &config);
        if old.groups != config.groups {
            self.users.set_groups(&config.groups);
        }
        self.daemon.control.meter(self.clouds.metered());
        let warnings = congestion_warnings(&old, &config);
        self.daemon.config = config;
        self.direct_at = now;
        self.daemon.check_certificates(now, relay);
        Ok(warnings)
    }

    fn speedtest(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        order: Option<&SpeedtestOrder>,
    ) -> Result<SpeedtestState, AdminError> {
        let Some(order) = order else { return self.speedtests.state(now) };
        let cloud = relay.endpoint_ref().current().and_then(|session| {
            let (name, offer) = self.clouds.offer(session)?;
            Some(CurrentCloud { session, name: name.to_string(), offer })
        });
        let paths = self.paths(now, relay);
        let carriers = &self.daemon.config.carriers;
        let is_metered = |name: &str| {
            carriers.iter().any(|carrier| carrier.name.as_str() == name && carrier.metered)
        };
        let started = self.speedtests.start(now, order, cloud, &paths, is_metered)?;
        tracing::info!(seconds = order.seconds, carriers = ?order.carriers, "speed test started");
        Ok(started)
    }

    fn on_usage(&mut self, now: Instant, usage: Vec<DataUsage>) {
        self.clouds.on_usage(now, &usage);
    }

    fn on_link(&mut self, now: Instant, change: LinkChange) {
        let mut direct = direct_carriers(&self.daemon.config);
        let is_direct = direct.any(|(_, interface)| interface == change.interface);
        if let Some(diversion) = self.diversion.as_ref().filter(|_| is_direct) {
            diversion.routes_changed();
        }
        self.clouds.on_link(now, &change);
    }
}

/// Warns of changed carriers whose congestion control is not available. Their tunnels use another
/// one.
fn congestion_warnings(old: &GatewayConfig, new: &GatewayConfig) -> Vec<String> {
    let wish = |config: &GatewayConfig, carrier: &CarrierConfig| {
        (carrier.congestion.clone(), config.carrier_mode(carrier), carrier.usable())
    };
    let mut warnings = Vec::new();
    for carrier in new.carriers.iter().filter(|carrier| carrier.usable()) {
        let before = old.carriers.iter().find(|before| before.name == carrier.name);
        if before.is_some_and(|before| wish(old, before) == wish(new, carrier)) {
            continue;
        }
        let (mode, name) = (new.carrier_mode(carrier), carrier.congestion.as_str());
        let key = format!("carrier.{}.congestion", carrier.name);
        if mode.allows_tls() {
            warnings.extend(kernel_has(&key, name, "the kernel's default").err());
        }
        if mode.allows_quic() {
            warnings.extend(quic_has(&key, name, "bbr").err());
        }
    }
    warnings
}

/// A change in words.
fn describe(change: &PathChange) -> String {
    let PathChange { enabled, mode, role, cap, rate_limit, restart } = change;
    let parts = [
        enabled.map(|enabled| if enabled { "enabled" } else { "disabled" }.to_owned()),
        mode.map(|mode| format!("mode {mode}")),
        role.map(|role| format!("role {}", role.as_str())),
        cap.map(|cap| cap.map_or("no cap".to_owned(), |cap| format!("cap {cap}"))),
        rate_limit
            .map(|limit| limit.map_or("no rate limit".to_owned(), |it| format!("rate limit {it}"))),
        restart.map(|wish| match wish {
            RestartWish::Wanted => "restarted".to_owned(),
            RestartWish::Cell => "restarted because its modem changed the cell".to_owned(),
        }),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_config::{Cap, CapAction, CarrierRole, Mode};

    #[test]
    fn change_is_described_in_words() {
        let change = PathChange {
            enabled: Some(false),
            mode: Some(Mode::Tls),
            role: Some(CarrierRole::Backup),
            cap: Some(Some(Cap {
                bytes: "50 GB".parse().unwrap(),
                reset_day: 1,
                at: CapAction::Stop,
            })),
            rate_limit: Some(None),
            restart: Some(RestartWish::Wanted),
        };
        let words = "disabled; mode tls; role backup; cap 50 GB from day 1, then stop; \
                     no rate limit; restarted";
        assert_eq!(describe(&change), words);
        let change = PathChange { restart: Some(RestartWish::Cell), ..PathChange::default() };
        assert_eq!(describe(&change), "restarted because its modem changed the cell");
    }
}
