//! The data of a plot: the cells of each carrier along one direction of one track.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use polyrail_model::{Direction, RouteId};
use polyrail_predictor::history::{CellHistory, CellKey};

/// One direction of one track.
pub(super) struct Picture {
    pub route: RouteId,
    pub direction: Direction,
    /// The number of trips with a handover in the picture.
    pub trips: usize,
    /// The cells of each carrier, by the mean place of their handovers.
    pub carriers: BTreeMap<String, Vec<Cell>>,
    pub from: f64,
    pub to: f64,
}

/// A cell of the picture.
pub(super) struct Cell {
    pub name: String,
    /// The mean place of its handovers.
    pub end: f64,
    /// From there to the mean place of the handovers into it, the lower end first; infinite for
    /// the first cell of the way.
    pub span: (f64, f64),
    /// The metres of each handover, and whether it failed.
    pub passages: Vec<(f64, bool)>,
    pub forecast: Option<Prediction>,
}

/// A predicted failure.
pub(super) struct Prediction {
    pub metres: f64,
    /// Of 1,000 handovers out of the cell, so many fail.
    pub permille: u16,
}

impl Cell {
    /// The number of failures.
    pub(super) fn failures(&self) -> usize {
        self.passages.iter().filter(|(_, failed)| *failed).count()
    }
}

impl Picture {
    /// The cells of one direction of a track; `forecast` returns the predicted failure.
    ///
    /// # Errors
    /// There is nothing to draw.
    pub(super) fn new<'a>(
        cells: impl Iterator<Item = (&'a CellKey, &'a CellHistory)>,
        route: RouteId,
        direction: Direction,
        mut forecast: impl FnMut(&CellKey) -> Option<Prediction>,
    ) -> Result<Self> {
        let mut carriers: BTreeMap<String, Vec<Cell>> = BTreeMap::new();
        let mut trips = BTreeSet::new();
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        for (key, history) in cells {
            let count = history.passages().len();
            if key.route != route || key.direction != direction || count == 0 {
                continue;
            }
            trips.extend(history.passages().map(|passage| (passage.writer, passage.trip)));
            let passages: Vec<(f64, bool)> = history
                .passages()
                .map(|passage| (passage.position.metres(), passage.outcome.is_failure()))
                .collect();
            let end = passages.iter().map(|(metres, _)| metres).sum::<f64>() / count as f64;
            for (metres, _) in &passages {
                (from, to) = (from.min(*metres), to.max(*metres));
            }
            let (name, forecast) = (key.cell.to_string(), forecast(key));
            let cell = Cell { name, end, span: (end, end), passages, forecast };
            carriers.entry(key.carrier.clone()).or_default().push(cell);
        }
        ensure!(!carriers.is_empty(), "no handovers are known on this route and direction");
        for cells in carriers.values_mut() {
            cells.sort_by(|a, b| a.end.total_cmp(&b.end));
            let ends: Vec<f64> = cells.iter().map(|cell| cell.end).collect();
            for (at, cell) in cells.iter_mut().enumerate() {
                let before = at.checked_sub(1).and_then(|before| ends.get(before));
                cell.span = match direction {
                    Direction::Up => (*before.unwrap_or(&f64::NEG_INFINITY), cell.end),
                    Direction::Down => (cell.end, *ends.get(at + 1).unwrap_or(&f64::INFINITY)),
                };
            }
        }
        let (from, to) = ((from / 1_000.0).floor() * 1_000.0, (to / 1_000.0).ceil() * 1_000.0);
        let to = to.max(from + 1_000.0);
        Ok(Self { route, direction, trips: trips.len(), carriers, from, to })
    }
}
