//! The state that both daemons keep around the relay.

use std::time::Instant;

use polyrail_admin::{AdminEvent, AdminHandle};
use polyrail_config::{ChainSpec, Common, Config, Tables};
use polyrail_identity::{Clock, SystemClock, TlsIdentity};
use polyrail_relay::{Foresight, Relay, Shutdown};
use polyrail_session::{SessionKey, Settings};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook_mio::v1_0::Signals;

use crate::certificates::Rules;
use crate::{Certificates, Supervisor};

/// The common state of a daemon.
pub struct Daemon<C: Tables> {
    /// The running configuration.
    pub config: Config<C>,
    /// The current session settings; an operator may have changed the scheduler.
    pub settings: Settings,
    /// The flows that the limit of open files permits; `session.flows_max` counts at most as this.
    pub flows_within: usize,
    /// This node's certificate, key and authority.
    pub identity: TlsIdentity,
    /// The control thread.
    pub control: AdminHandle<C>,
    /// LinkDB, if it is enabled.
    pub linkdb: Option<Foresight>,
    /// Whether the daemon shuts down, and how far it is.
    pub shutdown: Shutdown,
    /// The certificates of the peers.
    pub certificates: Certificates,
    /// The service manager.
    pub supervisor: Supervisor,
    /// The signals that the daemon handles, registered with its poll.
    pub signals: Signals,
}

impl<C: Tables> Daemon<C> {
    /// Handles pending signals: SIGTERM and SIGINT shut down, SIGHUP reloads. `reason` is sent to
    /// the peers. Returns whether there was one to shut down.
    ///
    /// # Panics
    /// On SIGUSR1, so that an operator can try what a defect would cause.
    pub fn on_signals(&mut self, now: Instant, relay: &mut Relay, reason: &str) -> bool {
        let mut shuts_down = false;
        for signal in self.signals.pending() {
            match signal {
                SIGTERM | SIGINT => {
                    self.supervisor.stopping();
                    self.shutdown.begin(now, relay, reason);
                    shuts_down = true;
                }
                SIGHUP => self.control.request_reload(),
                SIGUSR1 => panic!("requested by SIGUSR1"),
                _ => {}
            }
        }
        shuts_down
    }

    /// Runs due work of the shutdown, the watchdog and the check of the peers' certificates; called
    /// once a turn.
    pub fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        self.shutdown.on_turn(now, relay);
        self.supervisor.on_turn(now);
        if self.certificates.is_due(now) {
            self.check_certificates(now, relay);
        }
    }

    /// Ends tunnels and sessions whose peers' certificates are revoked or have expired.
    pub fn check_certificates(&mut self, now: Instant, relay: &mut Relay) {
        let Self { config, identity, certificates, .. } = self;
        let grace = config.common.tls.expiry_grace;
        let rules = Rules { identity, grace, since_epoch: SystemClock.since_epoch() };
        certificates.enforce(now, relay, &rules);
    }

    /// When [`Daemon::on_turn`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        let timers = [
            self.shutdown.next_timeout(),
            self.supervisor.next_timeout(),
            self.certificates.next_timeout(),
        ];
        timers.into_iter().flatten().min()
    }

    /// Publishes an event on the admin socket.
    pub fn publish(&self, event: AdminEvent) {
        self.control.publish(event);
    }

    /// Publishes that a session came up.
    pub fn session_up(&self, session: SessionKey, peer: impl ToString) {
        let (session, peer) = (session_name(session), peer.to_string());
        self.publish(AdminEvent::SessionUp { session, peer });
    }

    /// Publishes that a session ended.
    pub fn session_ended(&self, session: SessionKey, peer: Option<String>, reason: String) {
        self.publish(AdminEvent::SessionEnded { session: session_name(session), peer, reason });
    }

    /// Changes this node's scheduler until it is changed again or the daemon ends.
    pub fn set_scheduler(&mut self, now: Instant, relay: &mut Relay, chain: ChainSpec) {
        let scheduler = chain.names().to_vec();
        tracing::info!(?scheduler, "scheduler changed by an operator");
        self.settings.chain = chain.clone();
        relay.endpoint().set_chain(now, chain);
        self.publish(AdminEvent::SchedulerChanged { scheduler });
    }

    /// Applies the session's part of a new configuration.
    pub fn reload_session(&mut self, now: Instant, relay: &mut Relay, config: &Common) {
        let (old, new) = (&self.config.common, &config.session);
        let is_same_chain = old.scheduler == config.scheduler;
        if old.session == *new && is_same_chain && old.udp == config.udp {
            return;
        }
        self.settings.datagram_chain = config.udp.chain();
        self.settings.linger = new.linger;
        self.settings.flows_max = new.flows_max.min(self.flows_within);
        self.settings.user_flows_max = new.user_flows_max;
        relay.set_idle(now, new.flow_idle);
        // Otherwise a scheduler that an operator chose stays.
        if !is_same_chain {
            self.settings.chain = config.scheduler.chain.clone();
        }
        relay.endpoint().set_settings(now, self.settings.clone());
    }
}

/// The name of a session in logs and events.
pub fn session_name(session: SessionKey) -> String {
    session.0.to_string()
}
