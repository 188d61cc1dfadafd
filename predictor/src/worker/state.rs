//! The worker's state, for operators (`GET /v1/linkdb`).

use std::path::PathBuf;

use polyrail_model::{Direction, ForecastCounts};
use serde::{Deserialize, Serialize};

use crate::detect::Unrecorded;
use crate::position::TrainPosition;
use crate::shared::SharedState;
use crate::store::StoreStats;
use crate::views::ViewSizes;

/// The worker's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerState {
    /// The database.
    pub store: StoreState,
    /// Whether the worker makes forecasts.
    pub forecast: bool,
    /// The trips under way: of a gateway its own, of a cloud those of its gateways.
    pub trips: Vec<TripState>,
    /// Forecasts since the start and what became of them (gateway).
    #[serde(default)]
    pub forecasts: ForecastCounts,
    /// Handovers recorded since the start.
    pub recorded: u64,
    /// Handovers received from the other side since the start.
    pub received: u64,
    /// Inputs that were dropped: the worker could not keep up, a message was invalid or not
    /// allowed, or a peer sent too many.
    pub inputs_dropped: u64,
    /// Outputs that were dropped because the data plane could not keep up.
    pub outputs_dropped: u64,
    /// Observations that did not become a recorded handover (gateway).
    #[serde(default)]
    pub unrecorded: Unrecorded,
    /// The database that the cloud shares with others; null without one (cloud).
    #[serde(default)]
    pub shared: Option<SharedState>,
    /// The panic that stopped the worker; null while it works.
    #[serde(default)]
    pub failed: Option<String>,
    /// Number of panics since the start.
    #[serde(default)]
    pub failures: u64,
}

/// The database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreState {
    /// Its file; null if it lives in memory.
    pub path: Option<PathBuf>,
    /// Whether it is open.
    pub open: bool,
    /// The error that closed it.
    pub error: Option<String>,
    /// The damaged file that was set aside at the start.
    pub damaged: Option<String>,
    /// Entries that wait to be written.
    pub waiting: usize,
    /// Entries that were dropped because the database could not be written for too long.
    pub lost: u64,
    /// Its contents.
    pub stats: Option<StoreStats>,
    /// The sizes of its views.
    #[serde(default)]
    pub views: ViewSizes,
}

/// A trip under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TripState {
    /// The gateway (cloud).
    pub gateway: Option<String>,
    /// The trip, in hexadecimal digits; null before it begins.
    pub trip: Option<String>,
    /// The track, in hexadecimal digits.
    pub route: Option<String>,
    /// `up` or `down`.
    pub direction: Option<String>,
    /// Position along the track, in metres; null if unknown.
    pub metres: Option<f64>,
    /// Speed, in metres a second.
    pub metres_per_second: Option<f64>,
    /// Standard deviation of the position, in metres.
    pub error_metres: Option<f64>,
    /// The carriers.
    pub carriers: Vec<CarrierState>,
}

impl TripState {
    /// The trip of a train at a position.
    pub(super) fn at(train: &TrainPosition) -> Self {
        let direction = if train.direction == Direction::Up { "up" } else { "down" };
        Self {
            route: Some(train.route.to_string()),
            direction: Some(direction.to_owned()),
            metres: Some(train.metres),
            metres_per_second: Some(train.speed),
            error_metres: Some(train.error),
            ..Self::default()
        }
    }
}

/// The forecast of a carrier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CarrierState {
    /// Its name.
    pub carrier: String,
    /// The serving cell.
    pub cell: Option<u64>,
    /// Seconds until the train reaches the predicted failure point; negative after it.
    pub fails_in_s: Option<f64>,
    /// Probability of the failure, in parts per thousand.
    pub permille: Option<u16>,
}
