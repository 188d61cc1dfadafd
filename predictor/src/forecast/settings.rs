//! What a forecast weighs.

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

/// What a forecast weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForecastSettings {
    /// How the place is chosen.
    pub rule: Rule,
    /// Cells whose failures the SVM cannot tell from their successes never forecast.
    ///
    /// Off by default. On 24 generated routes (`make linkdb-eval`) the guard lowers coverage from
    /// 0.754 to 0.750 and gains nothing. With outcomes dealt anew within their cells, so that there
    /// is nothing to tell apart, it refuses nearly half of what was foreseen: coverage falls from
    /// 0.71 to 0.38 and correct ones of all failures from 0.56 to 0.30, while successes rise from
    /// 0.88 to 0.93 correct. By the costs here that loses more than it gains: where a train hands
    /// over is foreseen even if its outcome is not.
    pub guard: bool,
}

/// A cell that failed on fewer trips never forecasts.
pub const SUPPORT: u32 = 2;
