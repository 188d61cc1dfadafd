//! Where handovers are going to fail: from what cells remember to a forecast.
//!
//! POLYCORN 3 and 4.3: failures recur at the same cells, late handovers fail more often, and the
//! place of a failure is foreseen from history by position alone. [`Pool`] holds what all cells
//! have in common, [`CellForecast`] what one cell's history says, and a [`Forecaster`] turns both
//! and a train's position into a [`polyrail_model::LinkForecast`], whose probability follows the
//! lateness and the signal where a carrier's history supports it (`classifier`). [`evaluate`] tells
//! how good all that is.
//!
//! Nothing here knows a clock, a file or a carrier's modem. A cell that failed on fewer than
//! [`SUPPORT`] trips never forecasts. Where several writers know a cell, no single other writer
//! makes a forecast, and none weighs more than the median of the others.

mod cell;
mod classifier;
pub mod evaluate;
mod fit;
mod forecaster;
mod pool;
mod pools;
mod rates;
mod settings;

pub use crate::position::TrainPosition;
pub use cell::CellForecast;
pub use forecaster::{FITS_MAX, Forecaster};
pub use pool::Pool;
pub use rates::FailureRates;
pub use settings::{Rule, SUPPORT};
