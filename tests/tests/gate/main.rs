//! The gate of the scheduler and of forecasts: ratios on fixed trips, which must not change.
//!
//! Virtual time is exact: the same code gives the same figures on every machine. After a change
//! that is meant to move them, take the new table from the failing test. The trips are those of
//! routes for tuning. The held-back routes are not used here.

mod downloads;
mod forecasts;

/// The largest relative change of a figure. A larger gain must be committed, too, so that it is
/// kept.
const TOLERANCE: f64 = 0.03;
