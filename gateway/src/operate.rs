//! The gateway's part of operators' requests: changes of carriers and new configurations.
//!
//! A change is applied wholly or not at all, so steps that can fail come first. It closes no flow;
//! without a carrier, flows wait for `session.linger`.

use std::time::Instant;

use polyrail_admin::{
    AdminError, AdminEvent, ErrorCode, LinkChange, PathChange, PathState, RestartWish, Snapshot,
    UserState,
};
use polyrail_config::{CarrierConfig, GatewayConfig, GatewayTables};
use polyrail_daemon::{Daemon, Operate, start, survey};
use polyrail_identity::TlsIdentity;
use polyrail_relay::Relay;
use polyrail_relay::congestion::{kernel_has, quic_has};

use crate::shell::{Gateway, reply_policy};
use crate::telemetry;

impl Operate for Gateway {
    type Tables = GatewayTables;

    fn daemon(&mut self) -> &mut Daemon<GatewayTables> {
        &mut self.daemon
    }

    fn complete(&self, snapshot: &mut Snapshot) {
        snapshot.clouds = self.clouds.states();
    }

    fn paths(&mut self, now: Instant, relay: &mut Relay) -> Vec<PathState> {
        relay.update_traffic(now);
        self.clouds.paths(now, relay)
    }

    fn users(&mut self, relay: &mut Relay) -> Vec<UserState> {
        let mut users = survey::users(relay, &self.refusals);
        for ((_, user), state) in &mut users {
            state.address = self.users.address_of(*user);
        }
        users.into_values().collect()
    }

    fn set_path(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        name: &str,
        change: &PathChange,
    ) -> Result<(), AdminError> {
        self.clouds.set_path(now, name, change)?;
        let text = describe(change);
        tracing::info!(carrier = name, change = text, "carrier changed by an operator");
        self.daemon.publish(AdminEvent::PathChanged { path: name.to_owned(), change: text });
        // The answer shows the immediate consequences.
        self.run_clouds(now, relay);
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
        check_direct(&old, &config)?;
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
        let warnings = congestion_warnings(&old, &config);
        self.daemon.config = config;
        self.daemon.check_certificates(now, relay);
        Ok(warnings)
    }

    fn on_link(&mut self, now: Instant, change: LinkChange) {
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

/// Refuses another interface of the direct carrier, because the interception rules name it.
fn check_direct(old: &GatewayConfig, new: &GatewayConfig) -> Result<(), AdminError> {
    let direct = new.intercept.as_ref().and_then(|intercept| intercept.direct());
    let Some((by, direct)) = direct else { return Ok(()) };
    let interface = |config: &GatewayConfig| {
        let carrier = config.carriers.iter().find(|carrier| carrier.name == *direct);
        carrier.and_then(|carrier| carrier.interface.clone())
    };
    if interface(old) == interface(new) {
        return Ok(());
    }
    let key = format!("carrier.{direct}.interface");
    let message = format!(
        "nothing was changed: {key} needs a restart of the daemon, because {by} sends traffic \
         through this carrier"
    );
    let mut refusal = AdminError::new(ErrorCode::RestartNeeded, message).about_key(key.clone());
    refusal.0.keys = vec![key];
    Err(refusal)
}

/// A change in words.
fn describe(change: &PathChange) -> String {
    let PathChange { enabled, mode, restart } = change;
    let parts = [
        enabled.map(|enabled| if enabled { "enabled" } else { "disabled" }.to_owned()),
        mode.map(|mode| format!("mode {mode}")),
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
    use polyrail_config::Mode;

    #[test]
    fn change_is_described_in_words() {
        let change = PathChange {
            enabled: Some(false),
            mode: Some(Mode::Tls),
            restart: Some(RestartWish::Wanted),
        };
        assert_eq!(describe(&change), "disabled; mode tls; restarted");
        let change = PathChange { restart: Some(RestartWish::Cell), ..PathChange::default() };
        assert_eq!(describe(&change), "restarted because its modem changed the cell");
    }
}
