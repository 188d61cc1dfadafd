//! How a worker starts, and what a reload may change.

use std::path::PathBuf;
use std::time::Duration;

use polyrail_model::NodeRole;

/// How a worker starts.
pub struct Options {
    /// The role of its node.
    pub role: NodeRole,
    /// The name in the node's certificate, under which it appends entries.
    pub name: String,
    /// The database's file; without one the database lives in memory.
    pub path: Option<PathBuf>,
    /// What a reload may change.
    pub settings: LinkDbSettings,
    /// Random: the numbers of trips and tracks derive from it.
    pub seed: u64,
    /// Called by the worker when there is output.
    pub notify: Notify,
}

/// Wakes a data plane.
pub type Notify = Box<dyn Fn() + Send>;

/// What a reload may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkDbSettings {
    /// Maximum number of entries in the database.
    pub events_max: u64,
    /// Handovers and rates older than this are evicted.
    pub retention: Duration,
    /// Whether the worker makes forecasts.
    pub forecast: bool,
    /// Whether gateways receive each other's handovers (cloud); applies to new sessions.
    pub share: bool,
}
