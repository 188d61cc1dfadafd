//! The events of `GET /v1/events`: one record per line.

use std::net::{IpAddr, SocketAddr};

use polyrail_model::TunnelMode;
use serde::{Deserialize, Serialize};

use super::error::ErrorBody;
use super::{CapLevel, Timestamp};
use crate::reload::ChangeLine;

/// One line of the stream of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Its number: 1 for the daemon's first event, without gaps.
    pub seq: u64,
    /// When it happened.
    pub at: Timestamp,
    /// The event.
    #[serde(flatten)]
    pub event: AdminEvent,
}

/// An event. `path` is a path's name as in [`PathState::name`](super::PathState::name).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AdminEvent {
    /// The daemon is ready.
    Started,
    /// A path is up for the first time, or again after it was down.
    PathUp {
        /// Which path.
        path: String,
        /// How it travels.
        mode: TunnelMode,
        /// This end.
        local_address: Option<SocketAddr>,
        /// The other end.
        peer_address: Option<SocketAddr>,
    },
    /// A path lost its last connection.
    PathDown {
        /// Which path.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A path stalled.
    PathStalled {
        /// Which path.
        path: String,
        /// The symptom.
        reason: String,
    },
    /// A stalled path recovered.
    PathRecovered {
        /// Which path.
        path: String,
        /// How long it was stalled, in seconds.
        stalled_s: f64,
    },
    /// A path changed its mode.
    ModeChanged {
        /// Which path.
        path: String,
        /// The previous mode; `None` without a connection.
        from: Option<TunnelMode>,
        /// The new mode.
        to: TunnelMode,
        /// The reason.
        reason: String,
    },
    /// A path was restarted on a fresh connection.
    PathRestarted {
        /// Which path.
        path: String,
        /// The mode of the fresh connection.
        mode: TunnelMode,
        /// The cause of the restart.
        reason: String,
        /// Connections that were attempted.
        attempts: u64,
        /// Duration of the restart, in seconds.
        took_s: f64,
    },
    /// QUIC was demoted to TLS on a path.
    PathDemoted {
        /// Which path.
        path: String,
        /// The reason.
        reason: String,
        /// Seconds until QUIC is retried.
        retry_in_s: f64,
    },
    /// A demoted path retries QUIC.
    QuicRetried {
        /// Which path.
        path: String,
    },
    /// An operator changed a path through this interface.
    PathChanged {
        /// Which path.
        path: String,
        /// The change, in words.
        change: String,
    },
    /// An operator changed the scheduler of this node's direction of sending.
    SchedulerChanged {
        /// The schedulerlets, in their order.
        scheduler: Vec<String>,
    },
    /// A session is up.
    SessionUp {
        /// Which session.
        session: String,
        /// The node at the other end.
        peer: String,
    },
    /// New flows go to another cloud (gateway).
    CloudChanged {
        /// The name of the cloud before.
        from: String,
        /// The name of the new one.
        to: String,
        /// The reason.
        reason: String,
    },
    /// An operator drains this cloud.
    Draining {
        /// Open flows.
        flows: u64,
        /// When the daemon ends at the latest, in seconds.
        ends_in_s: f64,
    },
    /// A session has ended.
    SessionEnded {
        /// Which session.
        session: String,
        /// The node at the other end, if it was known.
        peer: Option<String>,
        /// The reason.
        reason: String,
    },
    /// A reload was applied.
    Reloaded {
        /// The changes.
        changes: Vec<ChangeLine>,
    },
    /// A reload was refused, and nothing changed.
    ReloadRefused {
        /// The reason.
        error: ErrorBody,
    },
    /// An interface of a carrier changed.
    LinkChanged(LinkChange),
    /// A carrier's used data has passed a step of its cap, or a period has begun.
    DataCap {
        /// The carrier.
        path: String,
        /// How far the cap is used.
        level: CapLevel,
        /// Bytes of the current period.
        used_bytes: u64,
        /// The cap.
        limit_bytes: u64,
    },
    /// A condition that needs an operator's attention.
    Alarm {
        /// The condition, in words.
        message: String,
        /// The path it is about, if any.
        path: Option<String>,
    },
    /// Events were dropped because the daemon could not keep up.
    EventsLost {
        /// The number of dropped events.
        count: u64,
    },
}

/// The state of an interface after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkChange {
    /// Its name.
    pub interface: String,
    /// Its index; 0 if it is missing. A new index means a new interface of the same name.
    pub index: u32,
    /// Whether it exists.
    pub present: bool,
    /// Whether it is administratively up and has a carrier, if the kernel knows.
    pub up: bool,
    /// Its usable addresses, sorted; without tentative and duplicate addresses.
    pub addresses: Vec<IpAddr>,
}
