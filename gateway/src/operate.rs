//! What operators ask of the running daemon: its state, changes, and new configurations.
//!
//! A change is taken whole or not at all: what can fail is tried first. No flow ends by it; when no
//! carrier is left, flows wait as long as the session does.

use std::time::Instant;

use polyrail_config::{Carrier, GatewayConfig, OtherTraffic};
use polyrail_control::admin::{
    AdminError, Command, ErrorCode, Event, Loaded, PathChange, PathState, RestartWish, Snapshot,
};
use polyrail_control::linkdb;
use polyrail_control::reload::{CarrierKey, Change};
use polyrail_relay::Relay;
use polyrail_relay::admin::Survey;
use polyrail_relay::congestion::{kernel_has, quic_has};
use polyrail_session::Settings;
use polyrail_tunnel::TlsIdentity;

use crate::shell::{Gateway, reply_policy};

impl Gateway {
    /// Does what the control thread asks for.
    pub(crate) fn on_commands(&mut self, now: Instant, relay: &mut Relay) {
        while let Some(command) = self.state.control.try_recv() {
            match command {
                Command::Status(reply) => reply.send(self.snapshot(now, relay)),
                Command::Paths(reply) => {
                    relay.take_stock(now);
                    reply.send(self.state.carriers.states(now, relay));
                }
                Command::SetPath { name, change, reply } => {
                    if reply.is_wanted(now) {
                        reply.send(self.set_path(now, relay, &name, &change));
                    }
                }
                Command::Reload { config, changes, loaded, reply } => {
                    if reply.is_wanted(now) {
                        reply.send(self.take(now, relay, *config, &changes, loaded));
                    }
                }
                Command::Links(change) => {
                    tracing::debug!(?change, "an interface");
                    self.state.carriers.on_link(now, change);
                }
            }
        }
    }

    fn snapshot(&self, now: Instant, relay: &Relay) -> Snapshot {
        let settings = &self.state.settings;
        Survey::new(now, relay).snapshot(settings.chain.names(), settings.memory)
    }

    fn set_path(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        name: &str,
        change: &PathChange,
    ) -> Result<PathState, AdminError> {
        self.state.carriers.set_path(now, name, change)?;
        if let Some(chain) = &change.chain {
            self.state.settings.chain = chain.clone();
            relay.endpoint().set_chain(now, chain.clone());
        }
        let words = describe(change);
        tracing::info!(carrier = name, change = words, "changed by an operator");
        self.publish(Event::PathChanged { path: name.to_owned(), change: words });
        // What follows from it at once is to be seen in the answer.
        self.state.carriers.on_turn(now, relay);
        relay.take_stock(now);
        let states = self.state.carriers.states(now, relay);
        let state = states.into_iter().find(|state| state.name == name);
        state.ok_or_else(|| AdminError::unknown_path(name))
    }

    /// Takes a new configuration; the answer are warnings.
    fn take(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        config: GatewayConfig,
        changes: &[Change],
        loaded: Option<Loaded>,
    ) -> Result<Vec<String>, AdminError> {
        // First what can fail.
        check_direct(&config, changes)?;
        let has = |change: &Change| changes.contains(change);
        if has(&Change::Certificates) {
            let identity: TlsIdentity = Loaded::take(loaded)?;
            let state = &mut self.state;
            let outcome = state.carriers.set_identity(now, relay, &state.identity, &identity);
            outcome.map_err(|error| {
                AdminError::new(ErrorCode::InvalidConfig, error.to_string()).about_key("tls")
            })?;
            state.identity = identity;
        }
        if has(&Change::Linger) || has(&Change::FlowsMax) || has(&Change::Chain) {
            let chain = match has(&Change::Chain) {
                true => config.scheduler.chain.clone(),
                // An operator may have chosen another one meanwhile.
                false => self.state.settings.chain.clone(),
            };
            let (linger, flows_max) = (config.session.linger, config.session.flows_max);
            let settings = Settings { linger, flows_max, chain, ..self.state.settings.clone() };
            relay.endpoint().set_settings(now, settings.clone());
            self.state.settings = settings;
        }
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
        if let (true, Some(foresight), Some(section)) =
            (has(&Change::LinkDb), &self.foresight, &config.linkdb)
        {
            foresight.reload(linkdb::settings(section, true));
        }
        self.state.carriers.reload(now, relay, &config, changes);
        let warnings = congestion_warnings(&config, changes);
        self.state.config = config;
        Ok(warnings)
    }
}

/// Congestion controls that carriers which changed cannot have. Their tunnels do without.
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

/// The interception rules name the interface of the direct carrier, and are made at the start.
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

/// A change in words for people.
fn describe(change: &PathChange) -> String {
    let PathChange { enabled, mode, chain, restart } = change;
    let words = [
        enabled.map(|enabled| if enabled { "enabled" } else { "disabled" }.to_owned()),
        mode.map(|mode| format!("mode {mode}")),
        chain.as_ref().map(|chain| format!("scheduler of all paths: {}", chain.names().join(", "))),
        restart.map(|wish| match wish {
            RestartWish::Wanted => "restarted".to_owned(),
            RestartWish::Cell => "its modem changed the cell".to_owned(),
        }),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_config::Mode;

    #[test]
    fn changes_read_well() {
        let change = PathChange {
            enabled: Some(false),
            mode: Some(Mode::Tls),
            restart: Some(RestartWish::Wanted),
            chain: None,
        };
        assert_eq!(describe(&change), "disabled; mode tls; restarted");
        let change = PathChange { restart: Some(RestartWish::Cell), ..PathChange::default() };
        assert_eq!(describe(&change), "its modem changed the cell");
    }
}
