//! The choices of a forecast.

/// How the place of a failure is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rule {
    /// The quantile of the handover's place that few failures of the node's history precede.
    #[default]
    Quantile,
    /// So many deviations beyond the mean of the cell's handovers: for comparison.
    Fixed(f64),
    /// The mean place of the cell's failures (POLYCORN 3).
    Mean,
    /// One deviation before the mean of the cell's handovers, whatever others do: what the simplest
    /// rule gets.
    Naive,
}

/// A cell that failed on fewer trips never forecasts.
pub const SUPPORT: u32 = 2;
