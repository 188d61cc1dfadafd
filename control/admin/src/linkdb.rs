//! `GET /v1/linkdb`: LinkDB's state and the telemetry sources that feed it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Timestamp;

/// Returns LinkDB's state as the JSON object of `GET /v1/linkdb`; `None` if its thread does not
/// answer in time. It runs on a thread that may block.
pub type LinkDbProbe = Arc<dyn Fn() -> Option<Value> + Send + Sync>;

/// A telemetry source: an entry of `sources`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceState {
    /// `gpsd`, `modem_manager` or `replay`.
    pub source: String,
    /// Its address, bus or path.
    pub target: String,
    /// `connecting`, `connected`, `waiting` (for the next attempt) or `ended`.
    pub state: String,
    /// When it entered this state.
    pub since: Timestamp,
    /// When the last line or message arrived.
    pub heard_at: Option<Timestamp>,
    /// Lines or messages received since the start.
    pub lines: u64,
    /// Observations since the start.
    pub observations: u64,
    /// Invalid lines or messages and refused requests since the start.
    pub errors: u64,
    /// A message for the operator.
    pub message: Option<String>,
}
