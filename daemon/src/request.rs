//! The control thread's requests, answered by the data plane.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use polyrail_admin::{
    AdminCommand, AdminError, DrainState, LinkChange, PathChange, PathState, Snapshot,
    USERS_LISTED_MAX, UserState,
};
use polyrail_config::{Config, Tables};
use polyrail_identity::TlsIdentity;
use polyrail_relay::Relay;

use crate::{Daemon, Survey};

/// Operators' requests that each daemon handles itself.
pub trait Operate {
    /// The keys of its configuration alone.
    type Tables: Tables;

    /// The common state.
    fn daemon(&mut self) -> &mut Daemon<Self::Tables>;

    /// Adds the counters of this daemon alone to its status.
    fn complete(&self, _snapshot: &mut Snapshot) {}

    /// The states of all paths.
    fn paths(&mut self, now: Instant, relay: &mut Relay) -> Vec<PathState>;

    /// The states of all users with flows or refusals.
    fn users(&mut self, relay: &mut Relay) -> Vec<UserState>;

    /// Changes one path, wholly or not at all.
    ///
    /// # Errors
    /// There is no such path, or the change is refused.
    fn set_path(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        name: &str,
        change: &PathChange,
    ) -> Result<(), AdminError>;

    /// Applies a new configuration, wholly or not at all. Returns warnings.
    ///
    /// # Errors
    /// The configuration is refused; nothing changed.
    fn reload(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        config: Config<Self::Tables>,
        identity: Option<TlsIdentity>,
    ) -> Result<Vec<String>, AdminError>;

    /// Lets all flows end within `limit`, then ends the daemon.
    ///
    /// # Errors
    /// Only a cloud drains, and only while it does not shut down.
    fn drain(
        &mut self,
        _now: Instant,
        _relay: &mut Relay,
        _limit: Duration,
    ) -> Result<DrainState, AdminError> {
        let reason = "only a cloud drains: its gateways move to another one";
        Err(AdminError::refused(reason))
    }

    /// Handles the state of a network interface.
    fn on_link(&mut self, _now: Instant, _change: LinkChange) {}
}

/// Answers all pending requests.
pub fn serve<O: Operate>(operated: &mut O, now: Instant, relay: &mut Relay) {
    while let Some(command) = operated.daemon().control.try_recv() {
        match command {
            AdminCommand::Status(reply) => {
                let settings = &operated.daemon().settings;
                let survey = Survey::new(now, relay);
                let mut snapshot = survey.snapshot(settings.chain.names(), settings.memory);
                operated.complete(&mut snapshot);
                reply.send(snapshot);
            }
            AdminCommand::Paths(reply) => reply.send(operated.paths(now, relay)),
            AdminCommand::Users(reply) => reply.send(heaviest(operated.users(relay))),
            AdminCommand::SetPath { name, change, reply } => {
                if reply.is_wanted(now) {
                    let changed = operated.set_path(now, relay, &name, &change);
                    reply.send(changed.and_then(|()| find(operated, now, relay, &name)));
                }
            }
            AdminCommand::SetScheduler { chain, reply } => {
                if reply.is_wanted(now) {
                    operated.daemon().set_scheduler(now, relay, chain);
                    reply.send(());
                }
            }
            AdminCommand::Drain { limit, reply } => {
                if reply.is_wanted(now) {
                    reply.send(operated.drain(now, relay, limit));
                }
            }
            AdminCommand::Reload { config, identity, reply } => {
                if reply.is_wanted(now) {
                    reply.send(operated.reload(now, relay, *config, identity));
                }
            }
            AdminCommand::Links(change) => operated.on_link(now, change),
        }
    }
}

/// The users with the most flows, as many as are reported.
fn heaviest(mut users: Vec<UserState>) -> Vec<UserState> {
    users.sort_by_key(|user| Reverse((user.flows, user.refused_at)));
    users.truncate(USERS_LISTED_MAX);
    users
}

fn find<O: Operate>(
    operated: &mut O,
    now: Instant,
    relay: &mut Relay,
    name: &str,
) -> Result<PathState, AdminError> {
    let paths = operated.paths(now, relay);
    let path = paths.into_iter().find(|path| path.name == name);
    path.ok_or_else(|| AdminError::unknown_path(name))
}
