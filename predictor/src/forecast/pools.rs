//! What all cells have in common, from the records of several writers.
//!
//! Records of others are claims, and a forged writer may report any number of them in any number of
//! cells. So its records and those of others are not pooled together: each of at most [`GROUPS`]
//! groups of writers gives pooled values of its own, and their median counts. One writer spoils
//! those of its group, and moves the median no farther than the other groups are apart. The fit
//! without a writer uses the median without its group.
//!
//! A node with enough failures of its own uses its own records alone, and so does one that has just
//! one other writer to compare with. Only such a node has classifiers, on its own records.

use std::collections::{BTreeMap, BTreeSet};

use super::classifier::Classifier;
use super::pool::Pool;
use crate::entry::WriterNumber;
use crate::views::Cells;

/// The pooled values for all nodes.
#[derive(Debug, Default)]
pub(super) struct Pools {
    /// The group of each writer.
    groups: BTreeMap<WriterNumber, usize>,
    all: Pool,
    /// Without each group.
    without: Vec<Pool>,
    /// Of nodes that were asked for: from their own records alone, if these are enough.
    own: BTreeMap<WriterNumber, Option<Pool>>,
    /// Classifiers of such nodes, which outlive the pools.
    trained: BTreeMap<WriterNumber, Trained>,
    /// Nodes with a quarter more failures than when they were trained.
    due: BTreeSet<WriterNumber>,
}

#[derive(Debug, Default)]
struct Trained {
    /// The failures at that time.
    failures: u32,
    classifiers: BTreeMap<String, Classifier>,
}

impl Pools {
    /// From all cells; classifiers stay.
    pub fn renew(&mut self, cells: &Cells) {
        let trained = std::mem::take(&mut self.trained);
        *self = Self { trained, ..Self::new(cells) };
    }

    fn new(cells: &Cells) -> Self {
        let histories = cells.iter().map(|(_, history)| history);
        let writers: BTreeSet<WriterNumber> =
            histories.flat_map(|history| history.passages().map(|one| one.writer)).collect();
        let groups: BTreeMap<WriterNumber, usize> =
            writers.into_iter().zip((0..GROUPS).cycle()).collect();
        let of = |group: usize| {
            Pool::of_writers(cells.iter(), |writer| groups.get(&writer) == Some(&group))
        };
        let pools: Vec<Pool> = (0..groups.len().min(GROUPS)).map(of).collect();
        let without = |left_out: usize| {
            let rest = pools.iter().enumerate().filter(|(group, _)| *group != left_out);
            Pool::median(&rest.map(|(_, pool)| pool).collect::<Vec<_>>())
        };
        let without = (0..pools.len()).map(without).collect();
        let all = Pool::median(&pools.iter().collect::<Vec<_>>());
        Self { groups, all, without, ..Self::default() }
    }

    /// Estimates the values of a node's own records; call it before [`Pools::of`] for that node.
    pub fn prepare(&mut self, cells: &Cells, own: WriterNumber) {
        if !self.groups.contains_key(&own) || self.own.contains_key(&own) {
            return;
        }
        let mut pool = Pool::of_writers(cells.iter(), |writer| writer == own);
        let counts = self.groups.len() <= 2 || pool.is_sound();
        if counts {
            let trained = self.trained.entry(own).or_default();
            pool.classifiers.clone_from(&trained.classifiers);
            if pool.failures > trained.failures + trained.failures / 4 {
                self.due.insert(own);
            }
        }
        self.own.insert(own, counts.then_some(pool));
    }

    /// Trains the classifiers of one node that is due. Returns whether there was one.
    pub fn train(&mut self, cells: &Cells) -> bool {
        let Some(own) = self.due.pop_first() else { return false };
        let Some(Some(pool)) = self.own.get_mut(&own) else { return false };
        pool.train(cells.iter(), |writer| writer == own);
        let (failures, classifiers) = (pool.failures, pool.classifiers.clone());
        self.trained.insert(own, Trained { failures, classifiers });
        true
    }

    /// The values for the node `own`, without another writer.
    pub fn of(&self, own: WriterNumber, without: Option<WriterNumber>) -> &Pool {
        if let Some(Some(pool)) = self.own.get(&own) {
            return pool;
        }
        let group = without.and_then(|writer| self.groups.get(&writer));
        group.and_then(|group| self.without.get(*group)).unwrap_or(&self.all)
    }
}

/// The most groups: of five, the median of the four without one writer bears another bad one.
const GROUPS: usize = 5;
