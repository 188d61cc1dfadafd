//! What one cell's history says of the handover out of it.
//!
//! The next handover is expected around the mean of those known, as far off as the cell's and all
//! cells' handovers were (a pooled variance; few handovers widen it). The forecast is at a quantile
//! of that: the one before which failures hardly ever came in the past, measured with forecasts
//! that did not know them ([`Pool::quantile`]).
//!
//! A cell that is left at several places, clearly apart, has a forecast for each, and one of them
//! is in force wherever the train is ([`CellForecast::in_force`]).

use polyrail_model::{Direction, Position, Rsrp};

use super::classifier::Classifier;
use super::pool::{NORMAL, Places, Pool};
use super::settings::{Rule, SUPPORT};
use crate::entry::WriterNumber;
use crate::history::{CellHistory, CellKey};

/// What one cell's history says of one place where it is left.
#[derive(Clone, Debug)]
pub struct CellForecast {
    direction: Direction,
    /// How many handovers it rests on.
    pub passages: u32,
    /// How many of them failed.
    pub failures: u32,
    /// On how many trips they were; below [`SUPPORT`] nothing is forecast.
    pub failed_trips: u32,
    rate: f64,
    /// The mean of all handovers along the direction of travel, in metres.
    mean: f64,
    /// The deviation of the next handover from it.
    pub(super) deviation: f64,
    /// Where the train is when the forecast failure begins, in metres along the direction.
    place: f64,
    /// Beyond, nothing of it counts.
    until: f64,
    /// `None`: the probability is the rate.
    usual: Option<Usual>,
}

/// What the classifier compares with: the node's own handovers. What others report decides nothing
/// there, because their antennas differ and their records are claims.
#[derive(Clone, Copy, Debug)]
struct Usual {
    classifier: Classifier,
    /// Their mean, and the deviation of the next one from it, in metres.
    mean: f64,
    deviation: f64,
    /// Their mean signal in dBm, if enough of them had one.
    signal: Option<f64>,
}

impl CellForecast {
    /// Reads a history: one for each place where the cell is left, the first first along the way;
    /// at least one. If there are several places, those that only one writer other than `own` knows
    /// do not count.
    pub fn fit(
        key: &CellKey,
        history: &CellHistory,
        own: WriterNumber,
        pool: &Pool,
        rule: Rule,
    ) -> Vec<Self> {
        let mut places = Places::of(history.passages(), key.direction);
        let counts = |one: &Places| one.sole_writer.is_none_or(|writer| writer == own);
        if places.len() > 1 && places.iter().any(counts) {
            places.retain(counts);
        }
        let fitted = places.iter().map(|places| Self::new(key, places, own, pool, rule));
        let mut fitted: Vec<Self> = fitted.collect();
        for (one, pair) in fitted.iter_mut().zip(places.windows(2)) {
            // Both have handovers, or they would not be apart.
            if let (Some(last), Some(first)) = (pair[0].kept.last(), pair[1].kept.first()) {
                one.until = one.until.min((last.metres + first.metres) / 2.0);
            }
        }
        fitted
    }

    fn new(key: &CellKey, places: &Places, own: WriterNumber, pool: &Pool, rule: Rule) -> Self {
        let (passages, failures) = (places.passages(), places.failures());
        let (mean, deviation) = (places.mean, places.deviation_of_next(pool.spread));
        let place = match rule {
            Rule::Quantile => mean + pool.quantile * deviation,
            Rule::Fixed(quantile) => mean + quantile * deviation,
            Rule::Mean => places.mean_failure(),
            Rule::Naive => places.before_mean(),
        };
        let last = places.kept.last().map_or(mean, |one| one.metres);
        Self {
            direction: key.direction,
            passages,
            failures,
            failed_trips: places.failed_trips(),
            rate: pool.rates(&key.carrier).expected(passages, failures),
            mean,
            deviation,
            place,
            until: last + LET_GO * deviation,
            usual: pool.classifier(&key.carrier).and_then(|classifier| {
                let own = places.of_writer(own);
                let deviation = own.deviation_of_next(pool.spread);
                let usual =
                    Usual { classifier, mean: own.mean, deviation, signal: own.signal(None) };
                (own.passages() >= OWN_MIN).then_some(usual)
            }),
        }
    }

    /// How many of 1,000 handovers are expected to fail, shrunk towards the carrier's other cells.
    pub fn permille(&self) -> u16 {
        (self.rate * 1_000.0).round() as u16
    }

    /// The same for a handover that begins at this place, where the modem reports this signal.
    pub fn permille_at(&self, position: Position, signal: Option<Rsrp>) -> u16 {
        let Some(usual) = &self.usual else { return self.permille() };
        let signal = usual.signal.zip(signal).map(|(mean, signal)| signal.dbm() - mean);
        let lateness = (self.along_way(position) - usual.mean) / usual.deviation;
        let rate = usual.classifier.probability(self.rate, lateness, signal);
        (rate * 1_000.0).round() as u16
    }

    /// The place of the failure, where the history supports a forecast for a train of this speed
    /// (metres a second, along the direction).
    pub fn place(&self, speed: f64) -> Option<Position> {
        self.place_within(speed, self.deviation)
    }

    /// The same where another deviation decides whether the train is fast enough.
    pub(super) fn place_within(&self, speed: f64, deviation: f64) -> Option<Position> {
        let sound = self.failed_trips >= SUPPORT;
        (sound && deviation <= SPREAD_S * speed).then(|| self.any_place())
    }

    /// The same, whether it is supported or not.
    pub fn any_place(&self) -> Position {
        self.at(self.place)
    }

    /// Where nearly every handover has begun, for a forecast at this place.
    pub fn end(&self, place: Position) -> Position {
        let last = self.mean + NORMAL * self.deviation;
        self.at(self.along_way(place).max(last))
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
        (EARLY * speed / 2.0).max(self.deviation)
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
}

/// With fewer handovers of its own a node knows no usual place of a cell.
const OWN_MIN: u32 = 3;
/// Nobody knows when a handover is whose usual place spreads over more seconds of travel.
const SPREAD_S: f64 = 5.0;
/// A forecast is early when the place is reached so many seconds before the failure (POLYCORN 3:
/// t2).
const EARLY: f64 = 2.5;
/// So many deviations beyond the farthest handover nothing is known.
const LET_GO: f64 = 3.0;
