//! The gateway's part of operators' requests: changes of carriers and new configurations.
//!
//! A change is applied wholly or not at all, so whatever can fail comes first. It closes no flow;
//! without a carrier, flows wait as long as the session lingers.

use std::time::Instant;

use polyrail_admin::{
    AdminError, ErrorCode, Event, LinkChange, Loaded, PathChange, PathState, RestartWish, Snapshot,
};
use polyrail_config::{Carrier, GatewayConfig, OtherTraffic};
use polyrail_control::reload::{CarrierKey, Change};
use polyrail_daemon::start;
use polyrail_daemon::{Daemon, Operate};
use polyrail_identity::TlsIdentity;
use polyrail_relay::Relay;
use polyrail_relay::congestion::{kernel_has, quic_has};

use crate::shell::{Gateway, reply_policy};
use crate::telemetry;

impl Operate for Gateway {
    type Config = GatewayConfig;

    fn daemon(&mut self) -> &mut Daemon<GatewayConfig> {
        &mut self.daemon
    }

    fn complete(&self, _snapshot: &mut Snapshot) {}

    fn paths(&mut self, now: Instant, relay: &mut Relay) -> Vec<PathState> {
        relay.update_traffic(now);
        self.carriers.states(now, relay)
    }

    fn set_path(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        name: &str,
        change: &PathChange,
    ) -> Result<(), AdminError> {
        self.carriers.set_path(now, name, change)?;
        let text = describe(change);
        tracing::info!(carrier = name, change = text, "carrier changed by an operator");
        self.daemon.publish(Event::PathChanged { path: name.to_owned(), change: text });
        // The answer shows the immediate consequences.
        self.carriers.on_turn(now, relay);
        Ok(())
    }

    fn reload(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        config: GatewayConfig,
        changes: &[Change],
        loaded: Option<Loaded>,
    ) -> Result<Vec<String>, AdminError> {
        check_direct(&config, changes)?;
        let has = |change: &Change| changes.contains(change);
        if has(&Change::Certificates) {
            let identity: TlsIdentity = Loaded::take(loaded)?;
            let outcome = self.carriers.set_identity(now, relay, &self.daemon.identity, &identity);
            outcome.map_err(|error| {
                AdminError::new(ErrorCode::InvalidConfig, error.to_string()).about_key("tls")
            })?;
            self.daemon.identity = identity;
        }
        self.daemon.reload_session(now, relay, &config, changes);
        if has(&Change::SocksReply) {
            self.clients.set_policy(reply_policy(&config));
        }
        if has(&Change::Resolver)
            && let Some(dns) = &config.dns
        {
            self.resolver = Some(dns.resolver);
            if let Some(names) = &mut self.names {
                names.set_resolver(now, relay, dns.resolver);
            }
        }
        if let (true, Some(linkdb), Some(settings)) =
            (has(&Change::LinkDb), &self.daemon.linkdb, &config.linkdb)
        {
            linkdb.reload(start::linkdb_settings(settings, true));
        }
        if let Some(telemetry) = &self.telemetry {
            telemetry.set(telemetry::settings(&config));
        }
        self.carriers.reload(now, relay, &config, changes);
        let warnings = congestion_warnings(&config, changes);
        self.daemon.config = config;
        Ok(warnings)
    }

    fn on_link(&mut self, now: Instant, change: LinkChange) {
        self.carriers.on_link(now, change);
    }
}

/// Warnings about unavailable congestion controls of changed carriers; their tunnels use the default.
fn congestion_warnings(config: &GatewayConfig, changes: &[Change]) -> Vec<String> {
    let keys = [CarrierKey::Congestion, CarrierKey::Mode, CarrierKey::Enabled, CarrierKey::Role];
    let concerns = |change: &Change, carrier: &Carrier| match change {
        Change::Mode => carrier.mode.is_none(),
        Change::CarrierAdded(name) => *name == carrier.name,
        Change::CarrierChanged(name, changed) => {
            *name == carrier.name && keys.iter().any(|key| changed.contains(key))
        }
        _ => false,
    };
    let mut warnings = Vec::new();
    for carrier in config.carriers.iter().filter(|carrier| carrier.usable()) {
        if !changes.iter().any(|change| concerns(change, carrier)) {
            continue;
        }
        let (mode, name) = (config.carrier_mode(carrier), carrier.congestion.as_str());
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

/// Refuses another interface for the direct carrier, because interception rules name it.
fn check_direct(config: &GatewayConfig, changes: &[Change]) -> Result<(), AdminError> {
    let other = config.intercept.as_ref().map(|intercept| &intercept.other);
    let Some(OtherTraffic::Direct(direct)) = other else { return Ok(()) };
    let moves = changes.iter().any(|change| {
        matches!(change, Change::CarrierChanged(name, keys)
            if name == direct && keys.contains(&CarrierKey::Interface))
    });
    if !moves {
        return Ok(());
    }
    let key = format!("carrier.{direct}.interface");
    let message = format!(
        "nothing was changed: {key} needs a restart of the daemon, because intercept.other sends \
         traffic through this carrier"
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
