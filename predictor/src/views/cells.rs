//! The histories of cells in memory.
//!
//! At most [`CELLS_MAX`] cells are kept. A full collection evicts a 64th at once: cells that only
//! one writer holds, those of the writer with most such cells first, the one written longest ago
//! first. So invented cells, and the cells of invented tracks, displace each other.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use polyrail_model::{Handover, RouteId};

use crate::creator::creator_of;
use crate::entry::{EntryKey, WriterNumber};
use crate::fair::{holder, victims};
use crate::history::{CellHistory, CellKey, Inserted, Passage};

/// The cells that a node knows.
#[derive(Clone, Debug, Default)]
pub struct Cells {
    cells: BTreeMap<CellKey, Cell>,
    writes: u64,
    /// Passages added or removed so far.
    changes: u64,
    /// The writers by the hashes of their names.
    creators: BTreeMap<u32, WriterNumber>,
}

/// A cell.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Its last handovers.
    pub history: CellHistory,
    /// The number of its last change; grows over all cells.
    pub version: u64,
}

impl Cells {
    /// Adds a handover of this node without an entry, as from simulated records. Returns whether it
    /// was new.
    pub fn add(&mut self, handover: &Handover) -> bool {
        let passage = Passage::of(WriterNumber::OWN, EntryKey::default(), handover);
        passage.is_some_and(|passage| self.insert(CellKey::of(handover), passage).added)
    }

    /// Names a writer and the hash of its name.
    pub(super) fn introduce(&mut self, writer: WriterNumber, creator: u32) {
        self.creators.insert(creator, writer);
    }

    /// The same without cells, to count entries again.
    pub(super) fn emptied(&self) -> Self {
        Self { creators: self.creators.clone(), ..Self::default() }
    }

    /// Adds a passage of any writer to a cell.
    pub fn insert(&mut self, key: CellKey, passage: Passage) -> Inserted {
        self.writes += 1;
        let (is_full, written) = (self.cells.len() >= CELLS_MAX, self.writes);
        let inserted = match self.cells.entry(key) {
            Entry::Occupied(mut known) => {
                let inserted = known.get_mut().history.insert(passage);
                if inserted.added {
                    known.get_mut().version = written;
                }
                inserted
            }
            Entry::Vacant(free) => {
                let cell = free.insert(Cell { version: written, ..Cell::default() });
                let inserted = cell.history.insert(passage);
                if is_full {
                    self.evict();
                }
                inserted
            }
        };
        self.changes += u64::from(inserted.added);
        inserted
    }

    /// Replaces the history of a cell.
    pub fn put(&mut self, key: CellKey, history: CellHistory) {
        let fresh = history.passages().len();
        let known = self.cells.remove(&key).unwrap_or_default().history;
        let same = history.passages().filter(|one| known.passages().any(|old| old == *one));
        self.changes += (fresh - same.count()) as u64;
        self.writes += 1;
        self.cells.insert(key, Cell { history, version: self.writes });
        if self.cells.len() > CELLS_MAX {
            self.evict();
        }
    }

    /// The cell of a key.
    pub fn get(&self, key: &CellKey) -> Option<&Cell> {
        self.cells.get(key)
    }

    /// All cells, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&CellKey, &CellHistory)> + Clone {
        self.cells.iter().map(|(key, cell)| (key, &cell.history))
    }

    /// The number of cells.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether no cell is known.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The number of passages added or removed so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Replaces the cells of some tracks. The versions of equal ones stay.
    pub(super) fn replace(&mut self, is_meant: impl Fn(RouteId) -> bool, new: Self) {
        let Self { cells, changes, .. } = self;
        cells.retain(|key, cell| {
            let stays = !is_meant(key.route) || new.cells.contains_key(key);
            *changes += if stays { 0 } else { cell.history.passages().len() as u64 };
            stays
        });
        for (key, cell) in new.cells {
            if self.cells.get(&key).is_none_or(|known| known.history != cell.history) {
                self.put(key, cell.history);
            }
        }
    }

    /// Removes passages, and cells without any.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&CellKey, &Passage) -> bool) {
        let Self { cells, writes, changes, .. } = self;
        cells.retain(|key, cell| {
            let gone = |one: &Passage| is_gone(key, one);
            let before = cell.history.passages().len();
            if !cell.history.passages().any(gone) {
                return true;
            }
            cell.history = cell.history.retained(|one| !gone(one));
            *writes += 1;
            cell.version = *writes;
            let after = cell.history.passages().len();
            *changes += (before - after) as u64;
            after > 0
        });
    }

    fn evict(&mut self) {
        let count = self.cells.len() + CELLS_MAX / EVICTED - CELLS_MAX;
        let all = self.cells.iter();
        let all = all.map(|(key, cell)| {
            let passages = cell.history.passages().map(|one| (one.writer, one.projected));
            let creator = self.creators.get(&creator_of(key.route)).copied();
            (holder(passages, creator), cell.version, key)
        });
        let gone: Vec<CellKey> = victims(all, count).into_iter().cloned().collect();
        for key in &gone {
            self.cells.remove(key);
        }
    }
}

/// The most cells: six tracks of 1,300 km, both ways, for four carriers.
pub const CELLS_MAX: usize = 50_000;
/// A full collection evicts this part of its capacity, because each eviction looks at all cells.
const EVICTED: usize = 64;
