//! A track with its cells: what is the same for every trip.

use super::dice::{Dice, normal_quantile};
use super::profile::{CarrierProfile, Speed};

/// A track and its cells, in the direction of travel.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The seed that it was made of.
    pub seed: u64,
    /// How fast trains go on it.
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
    /// How good it is: the logarithm of what it does to the rate.
    pub quality: f64,
    /// The handover out of it.
    pub border: Border,
}

/// The handover from one cell to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Border {
    /// How much its position varies between trips: one deviation, in metres.
    pub spread: f64,
    /// The probability that it fails on a trip.
    pub fails: f64,
}

impl Border {
    /// Whether it fails on a trip on which it comes so late and the signal is so weak, both in
    /// deviations: late and weak ones fail (POLYCORN Table 1).
    pub(super) fn fails_at(&self, late: f64, weak: f64) -> bool {
        let score = (late + WEAK * weak) / (1.0 + WEAK * WEAK).sqrt();
        self.fails > 0.0 && score > normal_quantile(1.0 - self.fails)
    }
}

impl Route {
    /// A track of this length for these carriers.
    pub fn new(seed: u64, speed: Speed, metres: f64, carriers: &[CarrierProfile]) -> Self {
        let cells = carriers.iter().zip(1..).map(|(carrier, number)| {
            let mut dice = Dice::new(seed, number);
            cells(&mut dice, speed, metres, carrier)
        });
        Self { seed, speed, metres, cells: cells.collect(), carriers: carriers.to_vec() }
    }
}

fn cells(dice: &mut Dice, speed: Speed, metres: f64, carrier: &CarrierProfile) -> Vec<Cell> {
    let mean = speed.cell_metres();
    let median = mean * (-LENGTH_SIGMA * LENGTH_SIGMA / 2.0).exp();
    let mut from = -dice.between(0.0, mean);
    let mut cells = Vec::new();
    while from < metres {
        let length = dice.lognormal(median, LENGTH_SIGMA).clamp(mean / 4.0, mean * 3.0);
        let to = from + length;
        let border =
            Border { spread: dice.between(25.0, 60.0), fails: failure_rate(dice, carrier) };
        let quality = QUALITY_SIGMA * dice.normal();
        cells.push(Cell { id: cells.len() as u32, from, to, quality, border });
        from = to;
    }
    cells
}

/// Of the cells that ever fail, more than 30 % do in 20 to 80 % of trips (POLYCORN 2.3); the others
/// rarely. The mean is what the share of all handovers asks for.
fn failure_rate(dice: &mut Dice, carrier: &CarrierProfile) -> f64 {
    if !dice.happens(carrier.failing_cells) {
        return 0.0;
    }
    let mean = carrier.failures / carrier.failing_cells;
    let often = (mean - RARELY) / (OFTEN_MEAN - RARELY);
    if dice.happens(often.max(0.0)) {
        dice.between(OFTEN[0], OFTEN[1])
    } else {
        dice.between(0.0, 2.0 * RARELY)
    }
}

/// The weak signal beside the late position.
const WEAK: f64 = 0.6;
const LENGTH_SIGMA: f64 = 0.35;
const QUALITY_SIGMA: f64 = 0.55;
const OFTEN: [f64; 2] = [0.2, 0.45];
const OFTEN_MEAN: f64 = (OFTEN[0] + OFTEN[1]) / 2.0;
const RARELY: f64 = 0.03;
