//! The fit of a cell that several writers know.
//!
//! A forecast rests on more than one writer: it stands only if the cell's history without any
//! single other writer, and by pooled values without it, forecasts as well. So one writer that
//! invents failures creates no forecast on another node.

use polyrail_model::Position;

use super::cell::CellForecast;
use super::pools::Pools;
use super::settings::{Rule, SUPPORT};
use crate::entry::WriterNumber;
use crate::history::{CellHistory, CellKey};

/// The forecasts of a cell for one node.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    /// From all writers.
    pub all: Vec<CellForecast>,
    /// From all but one of the other writers each; empty if `all` never forecasts.
    without: Vec<Vec<CellForecast>>,
}

impl Fit {
    /// Fits a cell for the node `own`.
    pub fn new(
        key: &CellKey,
        history: &CellHistory,
        own: WriterNumber,
        pools: &Pools,
        rule: Rule,
    ) -> Self {
        let fit = |history: &CellHistory, without: Option<WriterNumber>| {
            let (weighed, pool) = (history.weighed(own), pools.of(own, without));
            CellForecast::fit(key, &weighed, own, pool, rule)
        };
        let all = fit(history, None);
        let mut without = Vec::new();
        if all.iter().any(|one| one.failed_trips >= SUPPORT) {
            let others = history.writers().into_iter().filter(|writer| *writer != own);
            let rest = |writer: WriterNumber| history.retained(|one| one.writer != writer);
            without.extend(others.map(|writer| fit(&rest(writer), Some(writer))));
        }
        Self { all, without }
    }

    /// The forecast in force for a train so far along at this speed, and its place.
    ///
    /// One writer that reports early failures would move the place so far back that the forecast
    /// expires before the failure. So the place is no farther before that of the fit without any
    /// single writer than the latter's tolerance.
    pub fn place(&self, here: Position, speed: f64) -> Option<(&CellForecast, Position)> {
        let cell = CellForecast::in_force(&self.all, here)?;
        let others = self.without.iter().map(|without| CellForecast::in_force(without, here));
        let others: Vec<&CellForecast> = others.collect::<Option<_>>()?;
        // One writer that spreads its handovers makes no train too slow.
        let least = others.iter().map(|one| one.deviation).fold(cell.deviation, f64::min);
        let mut along = cell.along_way(cell.place_within(speed, least)?);
        for one in others {
            let place = one.along_way(one.place_within(speed, least)?);
            along = along.max(place - one.tolerance(speed));
        }
        // Rounding a rounded place does not change it.
        Some((cell, cell.at(along)))
    }
}
