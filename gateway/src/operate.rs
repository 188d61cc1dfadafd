//! What operators ask of the running daemon: its state, changes, and new configurations.
//!
//! A change is taken whole or not at all: what can fail is tried first. No flow ends by it; when no
//! carrier is left, flows wait as long as the session does.

use std::time::Instant;

use polyrail_config::{Carrier, GatewayConfig, OtherTraffic};
use polyrail_control::admin::{
    AdminError, Command, ErrorCode, Event, PathChange, PathState, RestartWish, Snapshot,
};
use polyrail_control::linkdb::Tuning;
use polyrail_identity::TlsIdentity;
use polyrail_relay::Relay;
use polyrail_relay::admin::Survey;
use polyrail_relay::congestion::{kernel_has, quic_has};
use polyrail_session::Settings;

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
                Command::Reload { config, identity, reply } => {
                    if reply.is_wanted(now) {
                        reply.send(self.reload(now, relay, *config, identity));
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

    /// Applies a new configuration, whole or not at all; returns warnings.
    fn reload(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        new: GatewayConfig,
        identity: Option<TlsIdentity>,
    ) -> Result<Vec<String>, AdminError> {
        let old = self.state.config.clone();
        // First what can fail.
        check_direct(&old, &new)?;
        if let Some(identity) = identity {
            let state = &mut self.state;
            let outcome = state.carriers.set_identity(now, relay, &state.identity, &identity);
            outcome.map_err(|error| {
                AdminError::new(ErrorCode::InvalidConfig, error.to_string()).about_key("tls")
            })?;
            state.identity = identity;
        }
        if (&old.session, &old.scheduler) != (&new.session, &new.scheduler) {
            let chain = match old.scheduler == new.scheduler {
                // An operator may have chosen another chain since.
                true => self.state.settings.chain.clone(),
                false => new.scheduler.chain.clone(),
            };
            let (linger, flows_max) = (new.session.linger, new.session.flows_max);
            let settings = Settings { linger, flows_max, chain, ..self.state.settings.clone() };
            relay.endpoint().set_settings(now, settings.clone());
            self.state.settings = settings;
        }
        if old.socks5 != new.socks5 {
            self.clients.set_policy(reply_policy(&new));
        }
        if let Some(dns) = new.dns.as_ref().filter(|_| old.dns != new.dns) {
            self.resolver = Some(dns.resolver);
            if let Some(names) = &mut self.names {
                names.set_resolver(now, relay, dns.resolver);
            }
        }
        let linkdb = new.linkdb.as_ref().filter(|_| old.linkdb != new.linkdb);
        if let Some((foresight, linkdb)) = self.foresight.as_ref().zip(linkdb) {
            foresight.retune(Tuning::new(linkdb, true));
        }
        self.state.carriers.reload(now, relay, &new);
        let warnings = congestion_warnings(&old, &new);
        self.state.config = new;
        Ok(warnings)
    }
}

/// Warns of changed carriers whose congestion control the kernel or QUIC does not have. Their
/// tunnels use another one.
fn congestion_warnings(old: &GatewayConfig, new: &GatewayConfig) -> Vec<String> {
    let wish = |config: &GatewayConfig, carrier: &Carrier| {
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

/// Refuses another interface of the direct carrier: the interception rules, made at the start,
/// name it.
fn check_direct(old: &GatewayConfig, new: &GatewayConfig) -> Result<(), AdminError> {
    let other = new.intercept.as_ref().map(|intercept| &intercept.other);
    let Some(OtherTraffic::Direct(direct)) = other else { return Ok(()) };
    let interface = |config: &GatewayConfig| {
        let carrier = config.carriers.iter().find(|carrier| carrier.name == *direct);
        carrier.and_then(|carrier| carrier.interface.clone())
    };
    if interface(old) == interface(new) {
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
