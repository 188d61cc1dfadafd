//! What all cells of a database have in common, learned from all of them at once.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{Direction, Rsrp, TripId};

use super::classifier::{Classifier, Sample};
use super::rates::{FailureRates, middle};
use super::settings::SUPPORT;
use crate::entry::WriterNumber;
use crate::fair::only;
use crate::history::{CellHistory, CellKey, Passage};

/// What all cells have in common.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The pooled deviation of the handovers of a cell, in metres.
    pub spread: f64,
    /// By how many deviations the place of a forecast is beyond the mean of the cell's handovers.
    /// Few of the failures are expected before it.
    pub quantile: f64,
    rates: BTreeMap<String, FailureRates>,
    unknown: FailureRates,
    /// Of carriers whose history supports one; empty until [`Pool::train`].
    pub(super) classifiers: BTreeMap<String, Classifier>,
    /// The failures that the quantile rests on; 0 if it is a median of several.
    pub(super) failures: u32,
}

impl Pool {
    /// From all records of these cells.
    pub fn new<'a>(cells: impl Iterator<Item = (&'a CellKey, &'a CellHistory)>) -> Self {
        Self::of_writers(cells, |_| true)
    }

    /// From the records of these cells by writers that `counts` accepts.
    pub(super) fn of_writers<'a>(
        cells: impl Iterator<Item = (&'a CellKey, &'a CellHistory)>,
        counts: impl Fn(WriterNumber) -> bool,
    ) -> Self {
        let carriers = places(cells, counts);
        let all = || carriers.values().flatten();
        let spread = spread(all());
        let seen: Vec<f64> = all().flat_map(|places| places.residuals(spread)).collect();
        let rates = carriers.iter().map(|(carrier, cells)| {
            let counts = cells.iter().map(|one| (one.passages(), one.failures()));
            (carrier.clone(), FailureRates::new(counts))
        });
        Self {
            spread,
            failures: seen.len() as u32,
            quantile: quantile(seen),
            rates: rates.collect(),
            unknown: FailureRates::new(std::iter::empty()),
            classifiers: BTreeMap::new(),
        }
    }

    /// Trains the classifiers on the records of these cells by writers that `counts` accepts.
    pub(super) fn train<'a>(
        &mut self,
        cells: impl Iterator<Item = (&'a CellKey, &'a CellHistory)>,
        counts: impl Fn(WriterNumber) -> bool,
    ) {
        self.classifiers.clear();
        for (carrier, cells) in places(cells, counts) {
            let samples =
                cells.iter().flat_map(|one| one.samples(self.spread, self.rates(&carrier)));
            if let Some(classifier) = Classifier::train(&samples.collect::<Vec<_>>()) {
                self.classifiers.insert(carrier, classifier);
            }
        }
    }

    /// The carrier's classifier, if its history supports one.
    pub fn classifier(&self, carrier: &str) -> Option<Classifier> {
        self.classifiers.get(carrier).copied()
    }

    /// The median of several in each value: one of them, whatever it holds, moves it no farther
    /// than the others are apart.
    pub(super) fn median(all: &[&Self]) -> Self {
        if all.is_empty() {
            return Self::default();
        }
        let carriers: BTreeSet<&String> = all.iter().flat_map(|one| one.rates.keys()).collect();
        let rates = carriers.into_iter().map(|carrier| {
            let known: Vec<&FailureRates> =
                all.iter().filter_map(|one| one.rates.get(carrier)).collect();
            (carrier.clone(), FailureRates::median(&known))
        });
        Self {
            spread: middle(all.iter().map(|one| one.spread)),
            quantile: middle(all.iter().map(|one| one.quantile)),
            rates: rates.collect(),
            // Without classifiers: other writers' records decide nothing there.
            ..Self::default()
        }
    }

    /// Whether its quantile rests on enough failures of its own.
    pub(super) fn is_sound(&self) -> bool {
        self.failures >= ENOUGH
    }

    /// How often the cells of a carrier fail.
    pub fn rates(&self, carrier: &str) -> &FailureRates {
        self.rates.get(carrier).unwrap_or(&self.unknown)
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(std::iter::empty())
    }
}

/// The handovers at one place where a cell is left, along the direction of travel, without those
/// far off all others: what is left out counts nowhere.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Places {
    /// They grow with travel.
    pub kept: Vec<Seen>,
    /// The mean of those kept; 0 when there are none.
    pub mean: f64,
    /// The sum of their squared distances from it.
    squares: f64,
    /// The only writer of all of them, if there is just one.
    pub sole_writer: Option<WriterNumber>,
}

/// A handover out of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    /// Metres along the direction of travel.
    pub metres: f64,
    pub fails: bool,
    /// The signal of the cell, in dBm.
    dbm: Option<f64>,
    trip: TripId,
    writer: WriterNumber,
}

impl Places {
    /// A cell may be left at several places on one trip, as when the train comes back to it for a
    /// moment: one of each, the first first along the way. At least one, perhaps without handovers.
    pub fn of<'a>(passages: impl Iterator<Item = &'a Passage>, direction: Direction) -> Vec<Self> {
        let seen = |one: &Passage| Seen {
            metres: direction.sign() * one.position.metres(),
            fails: one.outcome.is_failure(),
            dbm: one.rsrp.map(Rsrp::dbm),
            trip: one.trip,
            writer: one.writer,
        };
        let mut all: Vec<Seen> = passages.map(seen).collect();
        all.sort_by(|one, other| one.metres.total_cmp(&other.metres));
        let (mut found, mut left) = (Vec::new(), vec![all.as_slice()]);
        while let Some(some) = left.pop() {
            match gap(some) {
                Some(at) => left.extend([&some[at..], &some[..at]]),
                None => found.push(Self::new(some)),
            }
        }
        found
    }

    fn new(all: &[Seen]) -> Self {
        let sole_writer = only(all.iter().map(|one| one.writer));
        let mut kept = all.to_vec();
        if let Some(middle) = median(kept.iter().map(|one| one.metres)) {
            let off = median(kept.iter().map(|one| (one.metres - middle).abs()));
            let most = FAR * off.unwrap_or_default() + FAR_METRES;
            kept.retain(|one| (one.metres - middle).abs() <= most);
        }
        let mean = kept.iter().map(|one| one.metres).sum::<f64>() / kept.len().max(1) as f64;
        let squares = kept.iter().map(|one| (one.metres - mean).powi(2)).sum();
        Self { kept, mean, squares, sole_writer }
    }

    /// Those that one writer observed.
    pub fn of_writer(&self, writer: WriterNumber) -> Self {
        Self::new(&self.kept.iter().filter(|one| one.writer == writer).copied().collect::<Vec<_>>())
    }

    /// The deviation of the next handover from the mean.
    pub fn deviation_of_next(&self, usual: f64) -> f64 {
        let handovers = f64::from(self.passages()).max(1.0);
        self.deviation(usual) * (1.0 + 1.0 / handovers).sqrt()
    }

    /// How many handovers.
    pub fn passages(&self) -> u32 {
        self.kept.len() as u32
    }

    /// How many of them failed.
    pub fn failures(&self) -> u32 {
        self.kept.iter().filter(|one| one.fails).count() as u32
    }

    /// On how many trips one failed: failures of one trip may have one cause.
    pub fn failed_trips(&self) -> u32 {
        let failed = self.kept.iter().filter(|one| one.fails);
        let trips: BTreeSet<_> = failed.map(|one| (one.writer, one.trip)).collect();
        trips.len() as u32
    }

    /// The mean of those that failed; of all if none did.
    pub fn mean_failure(&self) -> f64 {
        let failed = || self.kept.iter().filter(|one| one.fails).map(|one| one.metres);
        match failed().count() {
            0 => self.mean,
            count => failed().sum::<f64>() / count as f64,
        }
    }

    /// The deviation of the cell's handovers, shrunk towards the usual one.
    fn deviation(&self, usual: f64) -> f64 {
        let free = self.kept.len().saturating_sub(1) as f64;
        ((SPREAD_WEIGHT * usual * usual + self.squares) / (SPREAD_WEIGHT + free)).sqrt()
    }

    /// One deviation before the mean of the cell's handovers, by these alone.
    pub fn before_mean(&self) -> f64 {
        let free = self.kept.len().saturating_sub(1).max(1) as f64;
        self.mean - (self.squares / free).sqrt()
    }

    /// The mean signal where the handovers began, in dBm, without one of them; `None` if too few
    /// had one.
    pub fn signal(&self, without: Option<&Seen>) -> Option<f64> {
        let all = || self.kept.iter().filter_map(|one| one.dbm);
        let left_out = without.and_then(|one| one.dbm);
        let count = all().count() - usize::from(left_out.is_some());
        let sum = all().sum::<f64>() - left_out.unwrap_or_default();
        (count >= SIGNALS).then(|| sum / count as f64)
    }

    /// By how many deviations a handover came beyond the mean, by a forecast that does not know it.
    fn residual(&self, metres: f64, usual: f64) -> f64 {
        let count = self.kept.len() as f64;
        let mean = (count * self.mean - metres) / (count - 1.0);
        let squares = self.squares - (metres - self.mean).powi(2) * count / (count - 1.0);
        let sums = SPREAD_WEIGHT * usual * usual + squares.max(0.0);
        let spread = (sums / (SPREAD_WEIGHT + count - 2.0)).sqrt();
        (metres - mean) / (spread * (1.0 + 1.0 / (count - 1.0)).sqrt())
    }

    /// The residuals of the failures. Those of a cell with fewer than [`SUPPORT`] others do not
    /// count: such a cell makes no forecast, and failures do not move its mean, so they are later.
    fn residuals(&self, usual: f64) -> impl Iterator<Item = f64> {
        let foretold = self.failures() > SUPPORT;
        let failures = self.kept.iter().filter(move |one| foretold && one.fails);
        failures.map(move |one| self.residual(one.metres, usual))
    }

    /// What a forecast that does not know them would have seen of the handovers, where there would
    /// have been one.
    fn samples(&self, usual: f64, rates: &FailureRates) -> impl Iterator<Item = Sample> {
        let (passages, failures) = (self.passages(), self.failures());
        let sample = move |one: &Seen| {
            let others = failures - u32::from(one.fails);
            let signal = self.signal(Some(one)).zip(one.dbm).map(|(mean, dbm)| dbm - mean);
            (others >= SUPPORT).then(|| Sample {
                trip: one.trip,
                rate: rates.expected(passages - 1, others),
                lateness: self.residual(one.metres, usual),
                signal,
                fails: one.fails,
            })
        };
        self.kept.iter().filter_map(sample)
    }
}

/// By carrier: the places where cells are left, of records by writers that `counts` accepts.
fn places<'a>(
    cells: impl Iterator<Item = (&'a CellKey, &'a CellHistory)>,
    counts: impl Fn(WriterNumber) -> bool,
) -> BTreeMap<String, Vec<Places>> {
    let mut carriers: BTreeMap<String, Vec<Places>> = BTreeMap::new();
    for (key, history) in cells {
        let own = history.passages().filter(|one| counts(one.writer));
        let places = Places::of(own, key.direction);
        let places = places.into_iter().filter(|one| !one.kept.is_empty());
        carriers.entry(key.carrier.clone()).or_default().extend(places);
    }
    carriers
}

/// Where sorted handovers fall in two groups, with more between them than either spreads.
fn gap(sorted: &[Seen]) -> Option<usize> {
    let last = sorted.len().checked_sub(GROUP)?;
    let gap = |at: usize| sorted[at].metres - sorted[at - 1].metres;
    let widest = (GROUP..=last).max_by(|one, other| gap(*one).total_cmp(&gap(*other)))?;
    let (before, after) = sorted.split_at(widest);
    let most = spread_of(before).max(spread_of(after));
    (gap(widest) > APART * most).then_some(widest)
}

/// The deviation of a group, which one that is far off does not change; of a small group, nearly
/// that of any cell.
fn spread_of(group: &[Seen]) -> f64 {
    let metres = || group.iter().map(|one| one.metres);
    let middle = median(metres()).unwrap_or_default();
    let off = median(metres().map(|metres| (metres - middle).abs())).unwrap_or_default();
    let count = group.len() as f64;
    let own = (DEVIATION * off).powi(2);
    ((SPREAD_WEIGHT * SPREAD * SPREAD + count * own) / (SPREAD_WEIGHT + count)).sqrt()
}

/// The pooled deviation of the cells, with a few handovers of the assumed spread.
fn spread<'a>(cells: impl Iterator<Item = &'a Places>) -> f64 {
    let (mut squares, mut free) = (SPREAD_WEIGHT * SPREAD * SPREAD, SPREAD_WEIGHT);
    for cell in cells {
        let own = cell.kept.len().saturating_sub(1) as f64;
        // Of two handovers far apart neither is known to be wrong.
        squares += cell.squares.min(own * SPREAD_MAX * SPREAD_MAX);
        free += own;
    }
    (squares / free).sqrt().clamp(SPREAD_MIN, SPREAD_MAX)
}

/// The quantile of residuals that the next failure comes before as seldom as [`LATE_AIM`]: that of
/// a normal distribution with their mean and deviation, both shrunk towards those of all handovers.
/// Of many, its mean with the sample quantile; one more than n samples is below the least as often
/// as 1 in n + 1.
fn quantile(mut residuals: Vec<f64>) -> f64 {
    let count = residuals.len() as f64;
    let mean = residuals.iter().sum::<f64>() / (count + ASSUMED);
    let squares: f64 = residuals.iter().map(|one| (one - mean).powi(2)).sum();
    let assumed = ASSUMED * (1.0 + mean * mean);
    let normal = mean - NORMAL * ((squares + assumed) / (count + ASSUMED)).sqrt();
    if residuals.len() < ENOUGH as usize {
        return normal;
    }
    residuals.sort_by(f64::total_cmp);
    let place = (LATE_AIM * (count + 1.0) - 1.0).max(0.0);
    let (below, above) = (residuals[place as usize], residuals[place as usize + 1]);
    (normal + below + (above - below) * place.fract()) / 2.0
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Farther from the median than so many median distances, and these metres more, is far off: a
/// position that was wrong.
const FAR: f64 = 9.0;
const FAR_METRES: f64 = 100.0;
/// Fewer handovers are no group.
const GROUP: usize = 3;
/// Groups are so many deviations apart.
const APART: f64 = 4.0;
/// A deviation, in median distances.
const DEVIATION: f64 = 1.4826;
/// The usual spread counts as so many handovers of the cell.
const SPREAD_WEIGHT: f64 = 4.0;
/// The spread of handovers before any was seen, and its bounds, in metres.
const SPREAD: f64 = 100.0;
const SPREAD_MIN: f64 = 10.0;
const SPREAD_MAX: f64 = 1_000.0;
/// Of fewer signals the mean says nothing.
const SIGNALS: usize = 3;
/// So many failures of its own make a node's quantile sound.
const ENOUGH: u32 = 64;
/// The share of failures that may come before the place of a forecast: at most 0.02 are to, and
/// some of the difference is chance.
const LATE_AIM: f64 = 0.015;
/// The quantile of a standard normal distribution for it, without the sign.
pub(super) const NORMAL: f64 = 2.17;
/// Handovers in general, whose residuals have a mean of 0 and a deviation of 1, count as so many
/// failures.
const ASSUMED: f64 = 8.0;
