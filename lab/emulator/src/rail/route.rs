//! A track with its cells, the same for every trip.

use super::profile::{CarrierProfile, Speed};
use super::random::normal_quantile;
use crate::dice::Dice;

/// A track and its cells, in the direction of travel.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Its seed.
    pub seed: u64,
    /// The speed of its trains.
    pub speed: Speed,
    /// Its length.
    pub metres: f64,
    /// The cells of each carrier, in the order of the carriers.
    pub cells: Vec<Vec<Cell>>,
    /// The carriers.
    pub carriers: Vec<CarrierProfile>,
}

/// One cell of one carrier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Its number at this carrier.
    pub id: u32,
    /// Where it begins, in metres along the track.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// Its quality: the deviation of its rate, standard normal.
    pub quality: f64,
    /// The handover out of it.
    pub border: Border,
}

/// The handover from one cell to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Border {
    /// The standard deviation of its position between trips, in metres.
    pub spread: f64,
    /// The probability that it fails on a trip.
    pub fails: f64,
    /// The mean of the signal there, in dBm.
    pub rsrp: f64,
}

impl Border {
    /// Whether it fails on a trip, by its lateness and the weakness of the signal, both in standard
    /// deviations: late and weak handovers fail (POLYCORN Table 1).
    pub fn fails_at(&self, late: f64, weak: f64) -> bool {
        let score = (late + WEAK * weak) / (1.0 + WEAK * WEAK).sqrt();
        self.fails > 0.0 && score > normal_quantile(1.0 - self.fails)
    }
}

impl Route {
    /// A track of this length for these carriers.
    pub fn new(seed: u64, speed: Speed, metres: f64, carriers: &[CarrierProfile]) -> Self {
        let cells = carriers.iter().zip(1..).map(|(carrier, number)| {
            let mut dice = Dice::labelled(seed, number);
            cells(&mut dice, speed, metres, carrier)
        });
        Self { seed, speed, metres, cells: cells.collect(), carriers: carriers.to_vec() }
    }

    /// The names of its carriers.
    pub fn names(&self) -> Vec<&'static str> {
        self.carriers.iter().map(|carrier| carrier.name).collect()
    }

    /// The same track with every handover's failure rate multiplied by `factor`, up to 0.95.
    #[must_use]
    pub fn with_failures(mut self, factor: f64) -> Self {
        for cell in self.cells.iter_mut().flatten() {
            cell.border.fails = (cell.border.fails * factor).min(FAILS_MAX);
        }
        self
    }
}

fn cells(dice: &mut Dice, speed: Speed, metres: f64, carrier: &CarrierProfile) -> Vec<Cell> {
    let mean = speed.cell_metres();
    let median = mean * (-LENGTH_SIGMA * LENGTH_SIGMA / 2.0).exp();
    let mut from = -dice.uniform(0.0, mean);
    let mut cells = Vec::new();
    while from < metres {
        let length = dice.lognormal(median, LENGTH_SIGMA).clamp(mean / 4.0, mean * 3.0);
        let to = from + length;
        let border = Border {
            spread: dice.uniform(SPREAD[0], SPREAD[1]),
            fails: failure_rate(dice, carrier) * speed.failure_share(),
            rsrp: RSRP + RSRP_SIGMA * dice.normal(),
        };
        let quality = dice.normal();
        cells.push(Cell { id: cells.len() as u32, from, to, quality, border });
        from = to;
    }
    cells
}

/// Some cells fail often, and others rarely: few trips see most of the latter fail.
fn failure_rate(dice: &mut Dice, carrier: &CarrierProfile) -> f64 {
    let kind = dice.unit();
    if kind < carrier.often {
        dice.uniform(OFTEN[0], OFTEN[1])
    } else if kind < carrier.often + carrier.rarely {
        dice.uniform(RARELY[0], RARELY[1])
    } else {
        0.0
    }
}

/// The weight of a weak signal, relative to that of a late position.
const WEAK: f64 = 1.0;
const LENGTH_SIGMA: f64 = 0.35;
/// The range of the standard deviations of handovers' places, in metres.
const SPREAD: [f64; 2] = [40.0, 100.0];
/// The signal at the borders, in dBm, and its deviation between them.
const RSRP: f64 = -95.0;
const RSRP_SIGMA: f64 = 3.0;
const OFTEN: [f64; 2] = [0.22, 0.34];
/// No handover fails more often.
const FAILS_MAX: f64 = 0.95;
const RARELY: [f64; 2] = [0.015, 0.035];
