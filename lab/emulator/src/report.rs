//! The statistics of a running emulator: links and timing errors.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::link::{Counters, Tally};

/// The statistics of one link; one JSON line.
#[derive(Clone, Debug, Serialize)]
pub struct LinkReport {
    /// The link's name.
    pub link: String,
    /// From near to far.
    pub up: DirectionReport,
    /// From far to near.
    pub down: DirectionReport,
}

/// The statistics of one direction.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionReport {
    /// The link's counters.
    #[serde(flatten)]
    pub counters: Counters,
    /// The backlog of the queue.
    pub queued: Tally,
    /// Packets in propagation.
    pub in_flight: Tally,
    /// Packets that the kernel refused at the far end.
    pub refused: u64,
    /// Packets that the link's NAT dropped: after the link upwards, before it downwards.
    pub nat_dropped: u64,
    /// All drops, from a driver that does not know their causes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsorted_drops: Option<u64>,
    /// Whether a blackout is on now.
    pub dark: bool,
    /// Actual departure minus the model's, where the driver can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timing: Option<TimingReport>,
}

/// A distribution of timing errors in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TimingReport {
    /// How many packets departed.
    pub count: u64,
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// The maximum.
    pub max_us: f64,
}

/// Timing errors as they are recorded: at most 10 s each, to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    nanos: Histogram<u64>,
}

impl Timing {
    pub(crate) fn new() -> Self {
        // Three digits of one nanosecond to ten seconds are within what the histogram supports.
        let nanos = Histogram::new_with_bounds(1, 10_000_000_000, 3)
            .unwrap_or_else(|e| unreachable!("constant bounds: {e}"));
        Self { nanos }
    }

    pub(crate) fn record(&mut self, error: Duration) {
        self.nanos.saturating_record(u64::try_from(error.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can be out of range.
        let _ = self.nanos.add(&other.nanos);
    }

    pub(crate) fn report(&self) -> TimingReport {
        let at = |quantile| self.nanos.value_at_quantile(quantile) as f64 / 1e3;
        TimingReport {
            count: self.nanos.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.nanos.max() as f64 / 1e3,
        }
    }
}
