//! What operators ask of the running daemon: its state, changes, and new configurations.
//!
//! A change is taken whole or not at all: what can fail is tried first. No flow ends by it, with
//! one exception: tunnels whose gateway's certificate is revoked now are closed. Access lists count
//! for flows that are opened afterwards.

use std::time::Instant;

use polyrail_config::CloudConfig;
use polyrail_control::admin::{
    AdminError, AdminHandle, Command, ErrorCode, Event, Loaded, PathChange, PathState, Snapshot,
};
use polyrail_control::linkdb;
use polyrail_control::reload::Change;
use polyrail_relay::Relay;
use polyrail_relay::admin::Survey;
use polyrail_session::Settings;
use polyrail_tunnel::TlsIdentity;

use crate::congestion::Congestion;
use crate::shell::{Cloud, access_list, dial_settings};

/// The control thread's end, and what it is told about that nobody else keeps.
pub(crate) struct Desk {
    handle: AdminHandle<CloudConfig>,
    /// Tunnels refused for their certificate.
    pub(crate) refused: u64,
}

impl Desk {
    pub(crate) fn new(handle: AdminHandle<CloudConfig>) -> Self {
        Self { handle, refused: 0 }
    }

    pub(crate) fn publish(&self, event: Event) {
        self.handle.publish(event);
    }

    pub(crate) fn request_reload(&self) {
        self.handle.request_reload();
    }
}

impl Cloud {
    /// Does what the control thread asks for.
    pub(crate) fn on_commands(&mut self, now: Instant, relay: &mut Relay) {
        while let Some(command) = self.desk.handle.try_recv() {
            match command {
                Command::Status(reply) => reply.send(self.snapshot(now, relay)),
                Command::Paths(reply) => {
                    relay.take_stock(now);
                    self.look_at_paths(now, relay, "");
                    reply.send(self.paths.states(now, relay, self.config.mode));
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
                // A cloud has no carriers of its own.
                Command::Links(_) => {}
            }
        }
    }

    fn snapshot(&self, now: Instant, relay: &Relay) -> Snapshot {
        let mut snapshot =
            Survey::new(now, relay).snapshot(self.settings.chain.names(), self.settings.memory);
        let udp = self.listeners.udp_counters();
        snapshot.tunnels.refused = self.desk.refused;
        snapshot.tunnels.datagrams_dropped = udp.dropped;
        snapshot.tunnels.retries_sent = udp.retries;
        snapshot
    }

    fn set_path(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        name: &str,
        change: &PathChange,
    ) -> Result<PathState, AdminError> {
        self.look_at_paths(now, relay, "");
        let find = |cloud: &Self, relay: &Relay| {
            let states = cloud.paths.states(now, relay, cloud.config.mode);
            states.into_iter().find(|state| state.name == name)
        };
        let Some(state) = find(self, relay) else { return Err(AdminError::unknown_path(name)) };
        let PathChange { enabled, mode, chain, restart } = change;
        let not_here = |what: &str| {
            let gateway = state.peer.as_deref().unwrap_or("its gateway");
            AdminError::refused(format!(
                "{what} is the gateway's to choose: ask {gateway} (polyrail path set {})",
                state.carrier
            ))
        };
        if mode.is_some() {
            return Err(not_here("the mode of a carrier"));
        }
        if enabled.is_some() {
            return Err(not_here("whether a carrier is used"));
        }
        if restart.is_some() {
            return Err(not_here("when a carrier gets a fresh connection"));
        }
        if let Some(chain) = chain {
            tracing::info!(chain = ?chain.names(), "the scheduler was changed by an operator");
            self.settings.chain = chain.clone();
            relay.endpoint().set_chain(now, chain.clone());
            let change = format!("scheduler of all paths: {}", chain.names().join(", "));
            self.desk.publish(Event::PathChanged { path: name.to_owned(), change });
        }
        find(self, relay).ok_or_else(|| AdminError::unknown_path(name))
    }

    /// Takes a new configuration; the answer are warnings.
    fn take(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        config: CloudConfig,
        changes: &[Change],
        loaded: Option<Loaded>,
    ) -> Result<Vec<String>, AdminError> {
        let has = |change: &Change| changes.contains(change);
        let mut warnings = Vec::new();
        // First what can fail.
        let identity: Option<TlsIdentity> =
            has(&Change::Certificates).then(|| Loaded::take(loaded)).transpose()?;
        let congestion = has(&Change::Congestion).then(|| Congestion::choose(&config));
        let result = self.refit(identity.as_ref(), congestion.as_ref().map(|(chosen, _)| chosen));
        if let Err(error) = result {
            // Some listeners may have taken it already.
            let (identity, congestion) = (self.identity.clone(), self.congestion.clone());
            if let Err(error) = self.refit(Some(&identity), Some(&congestion)) {
                tracing::error!(%error, "the configuration before it is no longer accepted");
            }
            return Err(unusable(error));
        }
        if let Some((congestion, warned)) = congestion {
            congestion.apply(relay);
            self.congestion = congestion;
            warnings.extend(warned);
        }
        if let Some(identity) = identity {
            self.identity = identity;
            close_revoked(now, relay, &self.identity);
        }
        if has(&Change::Access) || has(&Change::Dial) {
            let families = crate::reach::families(config.dial.families());
            if families != self.settings.families {
                warnings.push(
                    "dial.ipv4, dial.ipv6: gateways were told which address families are reached \
                     when their sessions began, and refuse the others to passengers until this \
                     daemon is restarted"
                        .to_owned(),
                );
            }
            self.dialer.set_rules(dial_settings(&config, families), access_list(&config));
        }
        if has(&Change::Linger) || has(&Change::FlowsMax) || has(&Change::Chain) {
            let chain = match has(&Change::Chain) {
                true => config.scheduler.chain.clone(),
                // An operator may have chosen another one meanwhile.
                false => self.settings.chain.clone(),
            };
            let (linger, flows_max) = (config.session.linger, config.session.flows_max);
            self.settings = Settings { linger, flows_max, chain, ..self.settings.clone() };
            relay.endpoint().set_settings(now, self.settings.clone());
        }
        if let (true, Some(foresight), Some(section)) =
            (has(&Change::LinkDb), &self.foresight, &config.linkdb)
        {
            foresight.reload(linkdb::settings(&section.common, section.share));
        }
        self.config = config;
        Ok(warnings)
    }

    /// Gives the listeners what is new.
    fn refit(
        &mut self,
        identity: Option<&TlsIdentity>,
        congestion: Option<&Congestion>,
    ) -> anyhow::Result<()> {
        if let Some(congestion) = congestion {
            self.listeners.set_congestion(&self.identity, congestion)?;
        }
        identity.map_or(Ok(()), |identity| self.listeners.set_identity(identity))
    }
}

/// Closes the tunnels of gateways whose certificates are revoked, early ones as well. Handshakes
/// that go on are checked against the new list when they end.
fn close_revoked(now: Instant, relay: &mut Relay, identity: &TlsIdentity) {
    for tunnel in relay.tunnel_keys() {
        let Some(view) = relay.tunnel(tunnel) else { continue };
        let revoked = view.serial.is_some_and(|serial| identity.is_revoked(serial));
        if revoked {
            tracing::warn!(
                gateway = view.peer.map(ToString::to_string),
                serial = view.serial,
                "closing a tunnel: the gateway's certificate is revoked"
            );
            relay.close_tunnel(now, tunnel);
        }
    }
}

fn unusable(error: anyhow::Error) -> AdminError {
    AdminError::new(ErrorCode::InvalidConfig, format!("{error:#}")).about_key("tls")
}
