//! The flows of a daemon: the answer of `GET /v1/flows`.

use std::net::SocketAddr;

use polyrail_model::{FlowKind, FlowName, UserId};
use serde::{Deserialize, Serialize};

use super::page_query::{PAGE_MAX, limit, parsed};

/// One flow (TCP) or binding (UDP): an entry of `GET /v1/flows`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowState {
    /// Its name, never used twice.
    pub id: FlowName,
    /// The protocol.
    pub kind: FlowKind,
    /// The gateway (cloud).
    pub gateway: Option<String>,
    /// The user, as in [`UserState::user`](super::UserState::user).
    pub user: String,
    /// Its state.
    pub state: FlowPhase,
    /// The passenger's address (gateway), or this host's address towards the server (cloud).
    pub source: Option<SocketAddr>,
    /// The server, by address or name, with its port; of a binding the latest one.
    pub destination: Option<String>,
    /// Its age, in seconds.
    pub age_s: f64,
    /// Time since a byte moved, in seconds.
    pub idle_s: f64,
    /// Bytes of this side's endpoint that the session has accepted for the peer.
    pub sent_bytes: u64,
    /// Bytes of the peer that this side's endpoint has received.
    pub received_bytes: u64,
    /// The carriers that have carried it, in either direction.
    pub carriers: Vec<String>,
}

/// The state of a flow. Bindings are always open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowPhase {
    /// Its server is not yet connected.
    Opening,
    /// Both directions are open.
    Open,
    /// One direction has ended.
    HalfClosed,
    /// Both directions have ended, or the peer has reset it; last bytes are being delivered.
    Closing,
    /// Reset by this side; the peer has not answered.
    Resetting,
}

/// The flows that a client requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowsQuery {
    /// The maximum number of flows in the answer; 1 to [`PAGE_MAX`], default 100.
    #[serde(deserialize_with = "limit")]
    pub limit: usize,
    /// Flows after this one.
    pub after: Option<FlowName>,
    /// Flows of this user.
    #[serde(deserialize_with = "parsed")]
    pub user: Option<UserId>,
    /// Flows of this gateway (cloud).
    pub gateway: Option<String>,
    /// Flows of this kind.
    pub kind: Option<FlowKind>,
    /// Flows that this carrier has carried.
    pub carrier: Option<String>,
    /// Flows of at least this age, in seconds.
    pub min_age_s: u64,
    /// Flows with at least so many bytes in both directions together.
    pub min_bytes: u64,
}

impl Default for FlowsQuery {
    fn default() -> Self {
        Self {
            limit: PAGE_MAX / 10,
            after: None,
            user: None,
            gateway: None,
            kind: None,
            carrier: None,
            min_age_s: 0,
            min_bytes: 0,
        }
    }
}

/// The answer of `GET /v1/flows`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowPage {
    /// The flows, ordered by session, kind and number.
    pub flows: Vec<FlowState>,
    /// The value of `after` for the next page; `None` on the last one. A page may be shorter than
    /// the limit, because one request examines a bounded number of flows.
    pub next: Option<FlowName>,
}
