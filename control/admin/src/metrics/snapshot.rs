//! What the data plane contributes to the metrics.

use std::time::Duration;

use super::GatewayReport;
use crate::{PathState, RefusedCounts, Snapshot};

/// The counters of the data plane at one moment. Its size depends on the paths and sessions, not on
/// the flows or users.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsSnapshot {
    /// The status, with all sessions. The scrape moves it to its own status.
    pub status: Snapshot,
    /// The paths.
    pub paths: Vec<PathState>,
    /// How long the turns of the event loop took.
    pub turns: TurnHistogram,
    /// Refusals of all users since the start.
    pub refused: RefusedCounts,
    /// Suppressed log lines since the start.
    pub lines_suppressed: u64,
    /// Passengers' datagrams dropped at this node's sockets since the start, by reason.
    pub udp_dropped: Vec<Count>,
    /// Passengers' datagrams dropped by the tunnels since the start, by reason.
    pub tunnel_dropped: Vec<Count>,
    /// The counters that only a cloud has.
    pub cloud: Option<CloudCounts>,
    /// The cloud takes this gateway's reports.
    pub wants_report: bool,
}

/// A counter with the value of its label.
pub type Count = (&'static str, u64);

/// The turns of the event loop by duration, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnHistogram {
    /// Each upper bound with the number of turns within it and above the bound before.
    pub buckets: Vec<(Duration, u64)>,
    /// The number of longer turns.
    pub longer: u64,
    /// The duration of all turns together.
    pub sum: Duration,
}

/// The counters of a cloud.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CloudCounts {
    /// Dials under way.
    pub dials: u64,
    /// Dials that wait for a free place.
    pub dials_waiting: u64,
    /// Failed dials since the start, by reason.
    pub dials_failed: Vec<Count>,
    /// The latest reports of the gateways with a session.
    pub reports: Vec<ReceivedReport>,
    /// Reports that were invalid or came too fast, since the start.
    pub reports_ignored: u64,
    /// Tunnels and datagrams that workers handed to others since the start, by kind and outcome.
    pub handed_over: Vec<Count>,
    /// Workers.
    pub workers: u64,
}

/// The latest report of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedReport {
    /// The gateway, as its certificate names it.
    pub gateway: String,
    /// Its age.
    pub age: Duration,
    /// Its contents.
    pub report: GatewayReport,
}
