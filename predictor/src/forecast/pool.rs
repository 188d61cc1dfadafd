//! What all cells of a database have in common, learned from all of them at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polyrail_model::Direction;

use super::lateness::Lateness;
use super::middle::middle;
use super::rates::FailureRates;
use crate::entry::WriterNumber;
use crate::history::{CellHistory, CellKey, Passage};

/// What all cells have in common.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The usual deviation of the handovers of a cell, in metres.
    pub spread: f64,
    /// By how many deviations failures usually are later than successes.
    pub gap: f64,
    /// How late handovers come in their cells.
    pub lateness: Arc<Lateness>,
    rates: BTreeMap<String, FailureRates>,
    unknown: FailureRates,
    /// The failures that lateness rests on.
    failures: u32,
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
        let mut all = Vec::new();
        for (key, history) in cells {
            let counted = history.passages().filter(|one| counts(one.writer));
            let places = Places::of_passages(counted, key.direction).into_iter();
            let places = places.filter(|places| !places.kept.is_empty());
            all.extend(places.map(|places| (key.carrier.as_str(), places)));
        }
        let mut counts: BTreeMap<&str, Vec<(u32, u32)>> = BTreeMap::new();
        for (carrier, places) in &all {
            let count = (places.passages(), places.failures());
            counts.entry(carrier).or_default().push(count);
        }
        let spread = spread(all.iter().map(|(_, places)| places));
        let rates = counts
            .into_iter()
            .map(|(carrier, cells)| (carrier.to_owned(), FailureRates::new(cells.into_iter())));
        let rates: BTreeMap<String, FailureRates> = rates.collect();
        let all: Vec<(Places, f64)> = all
            .into_iter()
            .map(|(carrier, places)| {
                let rates: &FailureRates = &rates[carrier];
                let rate = rates.expected(places.passages(), places.failures());
                (places, rate)
            })
            .collect();
        // First roughly, then without what chance makes of the middles of cells.
        let [successes, failures] = lateness(&all, spread, 0.0).means();
        let gap = failures - successes;
        let failures = all.iter().filter(|(places, _)| places.kept.len() >= ENOUGH);
        Self {
            spread,
            gap,
            lateness: Arc::new(lateness(&all, spread, gap)),
            rates,
            unknown: FailureRates::new(std::iter::empty()),
            failures: failures.map(|(places, _)| places.failures()).sum(),
        }
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
        let latenesses: Vec<&Lateness> = all.iter().map(|one| &*one.lateness).collect();
        Self {
            spread: middle(all.iter().map(|one| one.spread)),
            gap: middle(all.iter().map(|one| one.gap)),
            lateness: Arc::new(Lateness::median(&latenesses)),
            rates: rates.collect(),
            unknown: FailureRates::new(std::iter::empty()),
            failures: all.iter().map(|one| one.failures).sum(),
        }
    }

    /// Whether it rests on enough of what was seen, so that nothing is assumed.
    pub(super) fn is_sound(&self) -> bool {
        self.failures as usize >= super::lateness::ENOUGH
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
    /// Metres, growing with travel, and whether it failed.
    pub kept: Vec<(f64, bool)>,
    /// The mean of those kept; 0 when there are none.
    mean: f64,
    /// The sum of their squared distances from it.
    squares: f64,
    /// The only writer of all of them, if there is just one.
    pub sole_writer: Option<WriterNumber>,
}

/// Metres along the direction of travel, whether the handover failed, and who observed it.
type Seen = (f64, bool, WriterNumber);

impl Places {
    /// A cell may be left at several places on one trip, as when the train comes back to it for a
    /// moment: one of each, the first first along the way. At least one, perhaps without handovers.
    pub fn of(history: &CellHistory, direction: Direction) -> Vec<Self> {
        Self::of_passages(history.passages(), direction)
    }

    fn of_passages<'a>(
        passages: impl Iterator<Item = &'a Passage>,
        direction: Direction,
    ) -> Vec<Self> {
        let place = |one: &Passage| {
            let along = direction.sign() * one.position.metres();
            (along, one.outcome.is_failure(), one.writer)
        };
        let mut all: Vec<Seen> = passages.map(place).collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
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
        let writer = all.first().map(|(.., writer)| *writer);
        let sole_writer = writer.filter(|writer| all.iter().all(|(.., one)| one == writer));
        let mut kept: Vec<(f64, bool)> =
            all.iter().map(|(metres, fails, _)| (*metres, *fails)).collect();
        if let Some(middle) = median(kept.iter().map(|(metres, _)| *metres)) {
            let off = median(kept.iter().map(|(metres, _)| (metres - middle).abs()));
            let most = FAR * off.unwrap_or_default() + FAR_METRES;
            kept.retain(|(metres, _)| (metres - middle).abs() <= most);
        }
        let mean = kept.iter().map(|(metres, _)| metres).sum::<f64>() / kept.len().max(1) as f64;
        let squares = kept.iter().map(|(metres, _)| (metres - mean).powi(2)).sum();
        Self { kept, mean, squares, sole_writer }
    }

    /// How many handovers.
    pub fn passages(&self) -> u32 {
        self.kept.len() as u32
    }

    /// How many of them failed.
    pub fn failures(&self) -> u32 {
        self.kept.iter().filter(|(_, fails)| *fails).count() as u32
    }

    /// The deviation of the cell's handovers, shrunk towards the usual one.
    pub fn deviation(&self, usual: f64) -> f64 {
        let free = self.kept.len().saturating_sub(1) as f64;
        ((SPREAD_WEIGHT * usual * usual + self.squares) / (SPREAD_WEIGHT + free)).sqrt()
    }

    /// One deviation before the mean of the cell's handovers, by these alone.
    pub fn before_mean(&self) -> f64 {
        let free = self.kept.len().saturating_sub(1).max(1) as f64;
        self.mean - (self.squares / free).sqrt()
    }

    /// The middle of the cell's handovers, without what chance made of it: of a cell of which more
    /// failed than usually do (`rate`), the mean is late, because failures are late by `gap`
    /// deviations beside successes.
    pub fn centre(&self, deviation: f64, gap: f64, rate: f64) -> f64 {
        let more = f64::from(self.failures()) / (self.kept.len() as f64).max(1.0) - rate;
        if self.kept.is_empty() { self.mean } else { self.mean - deviation * gap * more }
    }

    /// How late each handover was by all others of its cell, in deviations of what they foretold.
    fn lateness(&self, spread: f64, gap: f64, rate: f64) -> impl Iterator<Item = (f64, bool)> {
        let count = self.kept.len() as f64;
        let deviation = self.deviation(spread);
        let centre = self.centre(deviation, gap, rate);
        let foretold = deviation * (count / (count - 1.0)).sqrt();
        let own = move |(metres, fails): &(f64, bool)| {
            // What this one adds to the centre's sum, and the centre of the others.
            let adds = metres - deviation * gap * (f64::from(u8::from(*fails)) - rate);
            let others = (centre * count - adds) / (count - 1.0);
            ((metres - others) / foretold, *fails)
        };
        self.kept.iter().filter(move |_| count > 1.0).map(own)
    }
}

/// Where sorted handovers fall in two groups, with more between them than either spreads.
fn gap(sorted: &[Seen]) -> Option<usize> {
    let last = sorted.len().checked_sub(GROUP)?;
    let gap = |at: usize| sorted[at].0 - sorted[at - 1].0;
    let widest = (GROUP..=last).max_by(|one, other| gap(*one).total_cmp(&gap(*other)))?;
    let (before, after) = sorted.split_at(widest);
    let most = spread_of(before).max(spread_of(after));
    (gap(widest) > APART * most).then_some(widest)
}

/// The deviation of a group, which one that is far off does not change; of a small group, nearly
/// that of any cell.
fn spread_of(group: &[Seen]) -> f64 {
    let metres = || group.iter().map(|(metres, ..)| *metres);
    let middle = median(metres()).unwrap_or_default();
    let off = median(metres().map(|metres| (metres - middle).abs())).unwrap_or_default();
    let count = group.len() as f64;
    let own = (DEVIATION * off).powi(2);
    ((SPREAD_WEIGHT * SPREAD * SPREAD + count * own) / (SPREAD_WEIGHT + count)).sqrt()
}

/// The median deviation of cells with enough handovers.
fn spread<'a>(cells: impl Iterator<Item = &'a Places>) -> f64 {
    let enough = cells.filter(|cell| cell.kept.len() >= ENOUGH);
    let variances = enough.map(|cell| cell.squares / (cell.kept.len() - 1) as f64);
    let middle = median(variances).map_or(SPREAD, f64::sqrt);
    middle.clamp(SPREAD_MIN, SPREAD_MAX)
}

fn lateness(cells: &[(Places, f64)], spread: f64, gap: f64) -> Lateness {
    let (mut failures, mut successes) = (Vec::new(), Vec::new());
    for (cell, rate) in cells.iter().filter(|(cell, _)| cell.kept.len() >= ENOUGH) {
        for (late, fails) in cell.lateness(spread, gap, *rate) {
            if fails { failures.push(late) } else { successes.push(late) }
        }
    }
    Lateness::new(failures, successes)
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
/// Cells with fewer handovers tell nothing about others.
const ENOUGH: usize = 4;
/// The usual spread counts as so many handovers of the cell.
const SPREAD_WEIGHT: f64 = 4.0;
/// The spread of handovers before any was seen, and its bounds, in metres.
const SPREAD: f64 = 100.0;
const SPREAD_MIN: f64 = 10.0;
const SPREAD_MAX: f64 = 1_000.0;
