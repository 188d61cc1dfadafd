//! How the LinkDB is, for operators.

use std::path::PathBuf;

use polyrail_predictor::pilot::PilotCounts;
use polyrail_predictor::store::StoreStats;
use serde::{Deserialize, Serialize};

/// `GET /v1/linkdb`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkDbState {
    /// The database.
    pub store: StoreState,
    /// Whether forecasts are made.
    pub forecast: bool,
    /// Whether cells that history cannot tell apart are refused.
    pub guard: bool,
    /// The trips that are under way: of a gateway its own, of a cloud those of its gateways.
    pub trips: Vec<TripState>,
    /// Handovers recorded since the start.
    pub recorded: u64,
    /// Handovers that came from the other side since the start.
    pub received: u64,
    /// Inputs that were dropped because the thread could not keep up.
    pub inputs_dropped: u64,
    /// Outputs that were dropped because the data plane could not keep up.
    pub outputs_dropped: u64,
    /// What was observed and did not become a handover that is recorded (gateway).
    #[serde(default)]
    pub unrecorded: Unrecorded,
    /// Why the thread does nothing after a fault of the program; null while it works.
    #[serde(default)]
    pub failed: Option<String>,
    /// How often there was such a fault since the start.
    #[serde(default)]
    pub failures: u64,
}

/// What was observed and did not become a handover that is recorded, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrecorded {
    /// Handovers without a trip or a position.
    pub unplaced: u64,
    /// Times in which a carrier had no cell, passed nothing, or was told nothing of, for too long.
    pub gaps: u64,
    /// Changes of cell whose outcome is unknown.
    pub untold: u64,
    /// Observations of carriers with a name that is too long, or of too many carriers.
    pub strangers: u64,
    /// Handovers and tracks for which there was no room.
    pub dropped: u64,
}

impl Unrecorded {
    /// With what another pilot counted.
    pub(super) fn and(self, counts: PilotCounts) -> Self {
        let PilotCounts { unplaced, dropped, detector } = counts;
        Self {
            unplaced: self.unplaced + unplaced,
            gaps: self.gaps + detector.gaps,
            untold: self.untold + detector.untold,
            strangers: self.strangers + detector.strangers,
            dropped: self.dropped + dropped + detector.dropped,
        }
    }

    /// All of them together.
    pub fn total(&self) -> u64 {
        self.unplaced + self.gaps + self.untold + self.strangers + self.dropped
    }
}

/// The database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreState {
    /// Its file; null when it lives in memory alone.
    pub path: Option<PathBuf>,
    /// Whether it can be written.
    pub open: bool,
    /// Why not.
    pub error: Option<String>,
    /// What was found damaged at the start and moved aside.
    pub damaged: Option<String>,
    /// Handovers that wait to be written.
    pub waiting: usize,
    /// Handovers that were lost because it could not be written for too long.
    pub lost: u64,
    /// What it holds.
    pub stats: Option<StoreStats>,
}

/// A trip that is under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TripState {
    /// The gateway (cloud).
    pub gateway: Option<String>,
    /// The trip, in hexadecimal digits; null before one has begun.
    pub trip: Option<String>,
    /// The track, in hexadecimal digits.
    pub route: Option<String>,
    /// `up` or `down`.
    pub direction: Option<String>,
    /// Where the train is, in metres along the track; null while that is not known.
    pub metres: Option<f64>,
    /// How fast, in metres a second.
    pub metres_per_second: Option<f64>,
    /// How wrong the position may be, in metres: one deviation.
    pub error_metres: Option<f64>,
    /// What is known of the carriers.
    pub carriers: Vec<CarrierOutlook>,
}

/// What is foreseen of a carrier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CarrierOutlook {
    /// Its name.
    pub carrier: String,
    /// The serving cell.
    pub cell: Option<u64>,
    /// In how many seconds the place of the failure is reached; less than zero: it was passed.
    pub fails_in_s: Option<f64>,
    /// How many of 1,000 of these handovers fail.
    pub permille: Option<u16>,
}
