//! The status of a daemon: the answer of `GET /v1/status`.
//!
//! The data plane provides a [`Snapshot`]; the control thread adds the process and the
//! configuration.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Timestamp;
use polyrail_identity::NodeRole;

/// The version of the admin interface.
pub const API_VERSION: &str = "v1";

/// The answer of `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`API_VERSION`].
    pub api: String,
    /// Which daemon this is.
    pub role: NodeRole,
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// How long it has been running, in seconds of a clock that is never set.
    pub uptime_s: f64,
    /// The configuration it runs with.
    pub config: ConfigState,
    /// Resource usage of the process.
    pub process: ProcessState,
    /// The status of the data plane.
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// The configuration a daemon runs with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigState {
    /// Its file.
    pub file: PathBuf,
    /// When it was last applied: at the start, or by a reload.
    pub loaded_at: Timestamp,
    /// Applied reloads since the start.
    pub reloads: u64,
    /// Refused reloads since the start.
    pub reloads_refused: u64,
}

/// Resource usage of a daemon's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// Processor time in user and kernel mode, in seconds.
    pub cpu_s: f64,
    /// Open descriptors; `None` if unknown.
    pub descriptors_open: Option<u64>,
    /// The limit of open descriptors; `None` when there is none.
    pub descriptors_max: Option<u64>,
    /// Resident memory in bytes; `None` if unknown.
    pub memory_resident_bytes: Option<u64>,
}

/// The status of the data plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The schedulerlets of this node's direction of sending, in their order.
    pub scheduler: Vec<String>,
    /// Sockets of users (gateway) or of destinations (cloud).
    pub legs: u64,
    /// The tunnels of all carriers.
    pub tunnels: TunnelCounts,
    /// The sessions; a gateway has at most one with each of its clouds.
    pub sessions: Vec<SessionState>,
    /// The clouds in order of priority (gateway; else none).
    #[serde(default)]
    pub clouds: Vec<CloudState>,
    /// The drain, if there is one (cloud).
    #[serde(default)]
    pub drain: Option<DrainState>,
}

/// A cloud of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudState {
    /// The name in its certificate.
    pub name: String,
    /// Its place in the configuration, from 1; less is preferred.
    pub priority: u64,
    /// Whether new flows go to it.
    pub current: bool,
    /// Its state.
    pub state: CloudPhase,
    /// Open flows.
    pub flows: u64,
}

/// The state of a cloud of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloudPhase {
    /// Its session has a path that makes progress.
    Up,
    /// It is wanted, and there is no such path.
    Down,
    /// It opens no more flows.
    GoingAway,
    /// It is not connected, because a preferred one serves.
    Standby,
}

/// The drain of a cloud: also the answer of `POST /v1/drain`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainState {
    /// Open flows; the daemon ends with the last one.
    pub flows: u64,
    /// When it ends at the latest, in seconds from now.
    pub ends_in_s: f64,
}

/// The body of `POST /v1/drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// When the remaining flows are reset, in seconds: 1 to [`DRAIN_S_MAX`], default
    /// [`DRAIN_S`].
    #[serde(default = "drain_s")]
    pub limit_s: u64,
}

/// The default of [`Drain::limit_s`]: 5 min.
pub const DRAIN_S: u64 = 300;
/// The maximum of [`Drain::limit_s`]: a day.
pub const DRAIN_S_MAX: u64 = 86_400;

fn drain_s() -> u64 {
    DRAIN_S
}

/// Tunnels by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelCounts {
    /// Up now.
    pub up: u64,
    /// With a handshake under way.
    pub half_open: u64,
    /// Closed for a bad certificate since the start.
    pub refused: u64,
    /// Datagrams of the listening UDP sockets that were dropped since the start (cloud).
    pub datagrams_dropped: u64,
    /// Retry packets sent since the start (cloud).
    pub retries_sent: u64,
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionPhase {
    /// The gateway waits for the cloud's first answer.
    #[default]
    Opening,
    /// It has a path.
    Up,
    /// It has no path and waits for one.
    Lingering,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionState {
    /// Its name in logs and events.
    pub id: String,
    /// The node at the other end, once known.
    pub peer: Option<String>,
    /// Where it stands.
    pub state: SessionPhase,
    /// How long it has been there, in seconds.
    pub age_s: f64,
    /// Its paths.
    pub paths: u64,
    /// Open flows.
    pub flows: u64,
    /// Users with open flows.
    #[serde(default)]
    pub users: u64,
    /// Flows that users opened since it began.
    #[serde(default)]
    pub flows_opened: u64,
    /// Held for readers and out of order, in bytes.
    pub memory_received_bytes: u64,
    /// Held for writers until acknowledged, in bytes.
    pub memory_sent_bytes: u64,
    /// The bound of each of the two, in bytes.
    pub memory_max_bytes: u64,
    /// What may be sent before the peer grants more, in bytes.
    pub credit_bytes: u64,
    /// Sent more than once since it began, in bytes.
    pub reinjected_bytes: u64,
    /// Users' bytes sent over its paths, copies included.
    pub sent_bytes: u64,
    /// Users' bytes received over its paths, copies included.
    pub received_bytes: u64,
    /// Passengers' endpoints that have sent datagrams.
    pub bindings: u64,
    /// Datagrams sent since it began, without copies.
    pub datagrams_sent: u64,
    /// Copies of datagrams sent.
    pub datagram_copies_sent: u64,
    /// Datagrams received, without copies.
    pub datagrams_received: u64,
    /// Copies of datagrams received.
    #[serde(default)]
    pub datagram_copies_received: u64,
    /// Datagrams that the session dropped.
    pub datagrams_dropped: u64,
    /// Of these, datagrams that were too long.
    #[serde(default)]
    pub datagrams_too_long: u64,
    /// Of these, datagrams of a further binding, when there were too many.
    #[serde(default)]
    pub datagrams_unbound: u64,
    /// Of these, datagrams that waited for 400 ms.
    #[serde(default)]
    pub datagrams_stale: u64,
    /// Of these, datagrams dropped by CoDel.
    #[serde(default)]
    pub datagrams_codel: u64,
    /// Of these, datagrams that waited when their binding ended.
    #[serde(default)]
    pub datagrams_ended: u64,
    /// Messages to the peer that were dropped because too many waited.
    #[serde(default)]
    pub messages_dropped: u64,
}
