//! What one cell's history says of the handover out of it.
//!
//! The rule `Mean` is the paper's: the mean place of the failures (POLYCORN 3). The rule `Value`
//! spreads the pooled lateness of failures around the cell's own mean, moves it towards the cell's
//! own failures by how many there are, and takes the place whose expected value is best: what is
//! correct counts 1, what is late costs, and so do successes that come after it. A cell where even
//! the best place is worth nothing does not forecast. What is correct is a time, so for a slow
//! train it is a short way: there only cells that are always left at the same place forecast.
//!
//! A cell that is left at several places, clearly apart, has a forecast for each, and one of them
//! is in force wherever the train is ([`CellForecast::in_force`]).

use std::sync::Arc;

use polyrail_model::{Direction, Position};

use super::lateness::Lateness;
use super::pool::{Places, Pool};
use super::settings::{ForecastSettings, Rule};
use crate::entry::WriterNumber;
use crate::history::{CellHistory, CellKey};

/// What one cell's history says of one place where it is left.
#[derive(Clone, Debug)]
pub struct CellForecast {
    direction: Direction,
    passages: u32,
    failures: u32,
    /// On how many trips they were; below [`SUPPORT`] nothing is forecast.
    pub failed_trips: u32,
    rate: f64,
    /// The middle of all handovers along the direction of travel, in metres.
    centre: f64,
    /// The deviation of the next handover from it.
    deviation: f64,
    /// By how many deviations this cell's failures are later than others'.
    shift: f64,
    /// The mean of its failures.
    mean_failure: f64,
    /// One deviation before the mean of its handovers, both its own.
    naive: f64,
    /// Beyond, nothing of it counts.
    until: f64,
    separable: bool,
    settings: ForecastSettings,
    lateness: Arc<Lateness>,
}

impl CellForecast {
    /// Reads a history: one for each place where the cell is left, the first first along the way;
    /// at least one. If there are several places, those that only one writer other than `own` knows
    /// do not count. `separable`: its failures can be told from its successes; otherwise it never
    /// forecasts.
    pub fn fit(
        key: &CellKey,
        history: &CellHistory,
        own: WriterNumber,
        pool: &Pool,
        separable: bool,
        settings: &ForecastSettings,
    ) -> Vec<Self> {
        let mut places = Places::of(history, key.direction);
        let counts = |one: &Places| one.sole_writer.is_none_or(|writer| writer == own);
        if places.len() > 1 && places.iter().any(counts) {
            places.retain(counts);
        }
        let fitted = places.iter().map(|places| {
            let failed_trips = failed_trips(key, history, places);
            Self { failed_trips, ..Self::new(key, places, pool, separable, settings) }
        });
        let mut fitted: Vec<Self> = fitted.collect();
        for (one, pair) in fitted.iter_mut().zip(places.windows(2)) {
            // Both have handovers, or they would not be apart.
            if let (Some((last, _)), Some((first, _))) = (pair[0].kept.last(), pair[1].kept.first())
            {
                one.until = one.until.min((last + first) / 2.0);
            }
        }
        fitted
    }

    fn new(
        key: &CellKey,
        places: &Places,
        pool: &Pool,
        separable: bool,
        settings: &ForecastSettings,
    ) -> Self {
        let (passages, failures) = (places.passages(), places.failures());
        let handovers = (places.kept.len() as f64).max(1.0);
        let spread = places.deviation(pool.spread);
        let rate = pool.rates(&key.carrier).expected(passages, failures);
        let centre = places.centre(spread, pool.gap, rate);
        let deviation = spread * (1.0 + 1.0 / handovers).sqrt();
        let failed: Vec<f64> =
            places.kept.iter().filter(|(_, fails)| *fails).map(|(metres, _)| *metres).collect();
        let count = failed.len() as f64;
        let mean_failure = match failed.len() {
            0 => centre,
            _ => failed.iter().sum::<f64>() / count,
        };
        let own = (mean_failure - centre) / deviation - pool.lateness.means()[1];
        let last = places.kept.iter().map(|(metres, _)| *metres).fold(centre, f64::max);
        Self {
            direction: key.direction,
            passages,
            failures,
            failed_trips: 0,
            rate,
            centre,
            deviation,
            shift: own * count / (count + OWN_WEIGHT),
            mean_failure,
            naive: places.before_mean(),
            until: last + LET_GO * deviation,
            separable,
            settings: *settings,
            lateness: Arc::clone(&pool.lateness),
        }
    }

    /// How many handovers it rests on.
    pub fn passages(&self) -> u32 {
        self.passages
    }

    /// How many of them failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How many of 1,000 handovers are expected to fail, shrunk towards the carrier's other cells.
    pub fn permille(&self) -> u16 {
        (self.rate * 1_000.0).round() as u16
    }

    /// By how many deviations a place is beyond the mean of the cell's handovers.
    pub fn lateness(&self, position: Position) -> f64 {
        (self.direction.sign() * position.metres() - self.centre) / self.deviation
    }

    /// The place of the failure for a train of this speed (metres a second, along the direction),
    /// where the history supports a forecast.
    pub fn place(&self, speed: f64) -> Option<Position> {
        let sound = self.failed_trips >= SUPPORT && self.separable;
        let place = match self.settings.rule {
            Rule::Mean => sound.then_some(self.mean_failure),
            Rule::Naive => sound.then_some(self.naive),
            Rule::Value => {
                let (metres, value) = self.best(speed, self.settings.alarm_cost);
                (sound && value > 0.0).then_some(metres)
            }
        };
        place.map(|metres| Position::from_metres(self.direction.sign() * metres))
    }

    /// The same, whether it is supported or not: what one would take who had to forecast here.
    pub fn best_place(&self, speed: f64) -> Position {
        let metres = match self.settings.rule {
            Rule::Mean => self.mean_failure,
            Rule::Naive => self.naive,
            Rule::Value => self.best(speed, self.settings.alarm_cost).0,
        };
        Position::from_metres(self.direction.sign() * metres)
    }

    /// Metres of a position along the direction of travel.
    pub(super) fn along_way(&self, position: Position) -> f64 {
        self.direction.sign() * position.metres()
    }

    /// The position of metres along the direction of travel.
    pub(super) fn at(&self, along: f64) -> Position {
        Position::from_metres(self.direction.sign() * along)
    }

    /// How far another place may be off this one, in metres: half of the time that a forecast may
    /// be early, or the deviation of the cell.
    pub(super) fn tolerance(&self, speed: f64) -> f64 {
        (self.settings.early.as_secs_f64() * speed / 2.0).max(self.deviation)
    }

    /// Whether a train so far along, still in this cell, is beyond all that history knows: then its
    /// next handover says nothing about those before. Until there the forecast stays, because the
    /// later a handover the likelier its failure.
    pub fn is_let_go(&self, position: Position) -> bool {
        self.direction.sign() * position.metres() > self.until
    }

    /// Of a cell's forecasts, the one that counts for a train so far along: that of the first place
    /// which is not let go. `None`: all are.
    pub fn in_force(all: &[Self], position: Position) -> Option<&Self> {
        all.iter().find(|one| !one.is_let_go(position))
    }

    /// Those that are in force one after the other for a train that comes from there, or from
    /// before all, and goes on so far.
    pub fn along(all: &[Self], from: Option<Position>, to: Position) -> &[Self] {
        let at = |position| all.iter().position(|one| !one.is_let_go(position));
        let first = from.map_or(0, |from| at(from).unwrap_or(all.len()));
        let end = at(to).map_or(all.len(), |last| last + 1);
        all.get(first..end).unwrap_or_default()
    }

    /// Whether a train that is so far along has passed this place while it was in force.
    pub fn is_passed(&self, place: Position, position: Position) -> bool {
        let sign = self.direction.sign();
        sign * place.metres() <= sign * position.metres() && !self.is_let_go(place)
    }

    /// The place of the best expected value along the direction of travel, and that value.
    ///
    /// The value at `place` is `rate (correct - late_cost late) - alarm_cost (1 - rate) alarm`.
    /// Between two samples of failures it only grows with the place, so the samples are all that
    /// need be looked at, and counts move along with them.
    fn best(&self, speed: f64, alarm_cost: f64) -> (f64, f64) {
        let early = self.settings.early.as_secs_f64() * speed.max(0.0);
        // All in deviations around the centre.
        let window = early / self.deviation;
        let (failures, successes) = (&self.lateness.failures, &self.lateness.successes);
        let (mut inside, mut passed) = (0, 0);
        let mut best = (failures[0] + self.shift, f64::NEG_INFINITY);
        for (late, place) in failures.iter().enumerate() {
            while failures.get(inside).is_some_and(|one| one - place <= window) {
                inside += 1;
            }
            let place = place + self.shift;
            while successes.get(passed).is_some_and(|one| *one < place) {
                passed += 1;
            }
            let share = |count: usize, all: &[f64]| count as f64 / all.len() as f64;
            let correct = share(inside - late, failures);
            let alarm = share(successes.len() - passed, successes);
            let gain = correct - self.settings.late_cost * share(late, failures);
            let value = self.rate * gain - alarm_cost * (1.0 - self.rate) * alarm;
            if value > best.1 {
                best = (place, value);
            }
        }
        (self.centre + best.0 * self.deviation, best.1)
    }
}

/// On how many trips a handover failed of those that count at this place: failures of one trip may
/// have one cause.
fn failed_trips(key: &CellKey, history: &CellHistory, places: &Places) -> u32 {
    let (Some((first, _)), Some((last, _))) = (places.kept.first(), places.kept.last()) else {
        return 0;
    };
    // What is kept is sorted, and nothing between was left out.
    let along = |position: Position| key.direction.sign() * position.metres();
    history.trips_that_failed(|position| (*first..=*last).contains(&along(position)))
}

/// A cell that failed on fewer trips never forecasts.
pub const SUPPORT: u32 = 2;
/// The pool counts as so many failures of the cell.
const OWN_WEIGHT: f64 = 8.0;
/// So many deviations beyond the farthest handover nothing is known.
const LET_GO: f64 = 3.0;
