//! The control thread's requests, answered by the data plane.

use std::time::{Duration, Instant};

use polyrail_admin::metrics::{MetricsSnapshot, REPORT_MAX, TurnHistogram};
use polyrail_admin::{
    AdminCommand, AdminError, DataUsage, DrainState, FlowState, LinkChange, PathChange, PathState,
    Snapshot, SpeedtestOrder, SpeedtestState, UserState,
};
use polyrail_config::{Config, Tables};
use polyrail_identity::TlsIdentity;
use polyrail_model::{SessionKey, UserId};
use polyrail_relay::{Relay, TURN_BOUNDS};

use crate::{Daemon, Refusals, Survey, lists};

/// Operators' requests that each daemon handles itself.
pub trait Operate {
    /// The keys of its configuration alone.
    type Tables: Tables;

    /// The common state.
    fn daemon(&mut self) -> &mut Daemon<Self::Tables>;

    /// Adds the counters of this daemon alone to its status.
    fn complete(&self, _snapshot: &mut Snapshot) {}

    /// Adds the counters that each daemon keeps itself to the metrics.
    fn measure(&self, now: Instant, metrics: &mut MetricsSnapshot);

    /// Sends a report to the cloud (gateway).
    fn send_report(&mut self, _now: Instant, _relay: &mut Relay, _payload: Vec<u8>) {}

    /// The states of all paths.
    fn paths(&mut self, now: Instant, relay: &mut Relay) -> Vec<PathState>;

    /// The refusals of users.
    fn refusals(&self) -> &Refusals;

    /// Adds to a user's state what this daemon alone knows.
    fn complete_user(&self, session: SessionKey, user: UserId, state: &mut UserState);

    /// Adds to a flow's state what this daemon alone knows.
    fn complete_flow(&self, relay: &Relay, state: &mut FlowState);

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

    /// Starts a speed test, or without an order reports the latest one.
    ///
    /// # Errors
    /// Only a gateway tests, one test at a time.
    fn speedtest(
        &mut self,
        _now: Instant,
        _relay: &mut Relay,
        _order: Option<&SpeedtestOrder>,
    ) -> Result<SpeedtestState, AdminError> {
        Err(AdminError::refused("only a gateway tests its carriers: ask the gateway"))
    }

    /// Takes the data that carriers with a cap have used.
    fn on_usage(&mut self, _now: Instant, _usage: Vec<DataUsage>) {}

    /// Handles the state of a network interface.
    fn on_link(&mut self, _now: Instant, _change: LinkChange) {}
}

/// Answers all pending requests.
pub fn serve<O: Operate>(operated: &mut O, now: Instant, relay: &mut Relay) {
    while let Some(command) = operated.daemon().control.try_recv() {
        match command {
            AdminCommand::Status(reply) => reply.send(status(operated, now, relay)),
            AdminCommand::Paths(reply) => reply.send(operated.paths(now, relay)),
            AdminCommand::Flows { query, reply } => {
                let complete = |flow: &mut FlowState| operated.complete_flow(relay, flow);
                reply.send(lists::flows(now, relay, &query, complete));
            }
            AdminCommand::Users { query, reply } => {
                let complete = |session, user, state: &mut UserState| {
                    operated.complete_user(session, user, state);
                };
                reply.send(lists::users(now, relay, operated.refusals(), &query, complete));
            }
            AdminCommand::Metrics(reply) => {
                if reply.is_wanted(now) {
                    reply.send(metrics(operated, now, relay));
                }
            }
            AdminCommand::Report(payload) => operated.send_report(now, relay, payload),
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
            AdminCommand::Speedtest { order, reply } => {
                if reply.is_wanted(now) {
                    reply.send(operated.speedtest(now, relay, order.as_ref()));
                }
            }
            AdminCommand::Reload { config, identity, reply } => {
                if reply.is_wanted(now) {
                    reply.send(operated.reload(now, relay, *config, identity));
                }
            }
            AdminCommand::Links(change) => operated.on_link(now, change),
            AdminCommand::Usage(usage) => operated.on_usage(now, usage),
        }
    }
}

fn status<O: Operate>(operated: &mut O, now: Instant, relay: &Relay) -> Snapshot {
    let settings = &operated.daemon().settings;
    let survey = Survey::new(now, relay);
    let mut snapshot = survey.snapshot(settings.chain.names(), settings.memory);
    operated.complete(&mut snapshot);
    snapshot
}

/// The metrics. The cost depends on the paths and sessions, not on flows or users.
fn metrics<O: Operate>(operated: &mut O, now: Instant, relay: &mut Relay) -> MetricsSnapshot {
    let (status, paths) = (status(operated, now, relay), operated.paths(now, relay));
    let times = relay.turn_times();
    let [bounded @ .., longer] = times.counts;
    let buckets = TURN_BOUNDS.into_iter().zip(bounded).collect();
    let turns = TurnHistogram { buckets, longer, sum: times.sum };
    let mut metrics = MetricsSnapshot { status, paths, turns, ..MetricsSnapshot::default() };
    metrics.tunnel_dropped = relay.datagram_drops().by_reason().to_vec();
    operated.measure(now, &mut metrics);
    metrics
}

/// The session carries a report as one message.
const _: () = assert!(REPORT_MAX == polyrail_session::wire::MESSAGE_MAX);

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
