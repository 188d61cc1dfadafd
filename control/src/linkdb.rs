//! LinkDB in the admin interface and the configuration's terms.

use polyrail_config::LinkDbConfig;
use polyrail_predictor::worker::{Feeder, Settings, WorkerState};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::telemetry::{Dropped, SourceState};

/// `GET /v1/linkdb`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkDbState {
    /// The worker.
    #[serde(flatten)]
    pub worker: WorkerState,
    /// The sources of telemetry (gateway).
    pub sources: Vec<SourceState>,
    /// Observations that overflowed their queue (gateway).
    #[serde(default)]
    pub observations_dropped: Dropped,
}

/// The worker's settings for a configuration.
pub fn settings(config: &LinkDbConfig, share: bool) -> Settings {
    let LinkDbConfig { path: _, events_max, retention_days, forecast, guard } = *config;
    let retention = DAY * retention_days.get();
    Settings { events_max, retention, forecast, guard, share }
}

/// Asks a worker for its state; none if it does not answer within a second.
pub(crate) async fn state(worker: &Feeder) -> Option<WorkerState> {
    let (sender, receiver) = oneshot::channel();
    let asked = worker.ask(move |state| drop(sender.send(state)));
    let answer = tokio::time::timeout(ANSWER_WAIT, receiver);
    if asked { answer.await.ok()?.ok() } else { None }
}

const DAY: Duration = Duration::from_secs(86_400);
const ANSWER_WAIT: Duration = Duration::from_secs(1);
