//! Sets of paths, and the three sets that a chain works on.
//!
//! Invariant: the selected, candidate and unavailable sets are disjoint, and together hold all
//! paths of the decision. Moves that the kind of the schedulerlet does not permit are ignored.

use std::time::Instant;

/// The moves that a schedulerlet may make (POLYCORN 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Candidates become unavailable.
    CandidateFilter,
    /// Selected paths become candidates again.
    SelectionFilter,
    /// Candidates become selected.
    SoftSelector,
    /// Candidates or unavailable paths become selected.
    HardSelector,
}

/// A set of paths, by their index in the views of one decision (or by slot in the session).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSet(u64);

impl PathSet {
    /// No path.
    pub const EMPTY: Self = Self(0);

    /// The paths `0..count`; `count` is at most [`crate::PATHS_MAX`].
    pub fn first(count: usize) -> Self {
        if count >= 64 { Self(u64::MAX) } else { Self((1 << count) - 1) }
    }

    /// Just this path.
    pub fn only(path: usize) -> Self {
        let mut set = Self::EMPTY;
        set.insert(path);
        set
    }

    /// The members for which `keep` holds.
    pub fn filter(self, keep: impl Fn(usize) -> bool) -> Self {
        self.iter().filter(|&path| keep(path)).collect()
    }

    /// Whether the path is a member.
    pub fn contains(self, path: usize) -> bool {
        path < 64 && self.0 & (1 << path) != 0
    }

    /// Adds a path; an index beyond the bound is ignored.
    pub fn insert(&mut self, path: usize) {
        if path < 64 {
            self.0 |= 1 << path;
        }
    }

    /// Takes a path out.
    pub fn remove(&mut self, path: usize) {
        if path < 64 {
            self.0 &= !(1 << path);
        }
    }

    /// Whether there is no member.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many members there are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The members of either.
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The members of this set that are not in the other.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The members in rising order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let path = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                path
            })
        })
    }
}

impl FromIterator<usize> for PathSet {
    fn from_iter<I: IntoIterator<Item = usize>>(paths: I) -> Self {
        paths.into_iter().fold(Self::EMPTY, |mut set, path| {
            set.insert(path);
            set
        })
    }
}

/// The sets S (selected), C (candidates) and U (unavailable) of one decision.
#[derive(Clone, Debug)]
pub struct PathSets {
    selected: PathSet,
    candidates: PathSet,
    unavailable: PathSet,
    /// Selected once, and deselected by a filter.
    deselected: PathSet,
    count: usize,
    primary: Option<usize>,
    run_max: u64,
    ahead: u64,
    wake_at: Option<Instant>,
    kind: Kind,
}

impl PathSets {
    /// All of the first `count` paths are candidates.
    pub fn all_candidates(count: usize) -> Self {
        Self {
            selected: PathSet::EMPTY,
            candidates: PathSet::first(count),
            unavailable: PathSet::EMPTY,
            deselected: PathSet::EMPTY,
            count,
            primary: None,
            run_max: crate::RUN_MAX,
            ahead: 0,
            wake_at: None,
            kind: Kind::SoftSelector,
        }
    }

    /// S: the paths that get the segment.
    pub fn selected(&self) -> PathSet {
        self.selected
    }

    /// C: the paths that may still be selected.
    pub fn candidates(&self) -> PathSet {
        self.candidates
    }

    /// U: the paths that only a hard selector may take.
    pub fn unavailable(&self) -> PathSet {
        self.unavailable
    }

    /// The path that was selected first; the others in S carry copies.
    pub fn primary(&self) -> Option<usize> {
        self.primary
    }

    /// The longest run that this decision may grant, in bytes.
    pub fn run_max(&self) -> u64 {
        self.run_max
    }

    /// Shortens the run to at most `bytes`, and at least one segment.
    pub fn limit_run(&mut self, bytes: u64) {
        self.run_max = self.run_max.min(bytes.max(crate::SEGMENT));
    }

    /// Starts the run this many bytes further on in its flow; a faster path carries the data before
    /// it. See [`crate::Decision::Send`].
    pub fn begin_ahead(&mut self, bytes: u64) {
        self.ahead = bytes;
    }

    /// The distance to the start of the run, in bytes.
    pub fn ahead(&self) -> u64 {
        self.ahead
    }

    /// Requests another decision at this time at the latest.
    pub fn wake_at(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
    }

    /// The latest time of the next decision.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.wake_at
    }

    /// C to U (candidate filters). Returns whether the move was made.
    pub fn reject(&mut self, path: usize) -> bool {
        let permitted = self.permits(Kind::CandidateFilter) && self.candidates.contains(path);
        if permitted {
            self.candidates.remove(path);
            self.unavailable.insert(path);
        }
        permitted
    }

    /// S to C (selection filters). Returns whether the move was made.
    pub fn deselect(&mut self, path: usize) -> bool {
        let permitted = self.permits(Kind::SelectionFilter) && self.selected.contains(path);
        if permitted {
            self.selected.remove(path);
            self.candidates.insert(path);
            self.deselected.insert(path);
            if self.primary == Some(path) {
                self.primary = self.selected.iter().next();
            }
        }
        permitted
    }

    /// C to S (soft and hard selectors), or U to S (hard selectors alone). Returns whether the
    /// move was made.
    pub fn select(&mut self, path: usize) -> bool {
        let soft = self.candidates.contains(path)
            && (self.permits(Kind::SoftSelector) || self.permits(Kind::HardSelector));
        let hard = self.unavailable.contains(path) && self.permits(Kind::HardSelector);
        if soft || hard {
            self.candidates.remove(path);
            self.unavailable.remove(path);
            self.selected.insert(path);
            self.primary.get_or_insert(path);
        }
        soft || hard
    }

    /// Resets the sets, with the deselected paths in U. Returns whether filters deselected further
    /// paths since the last reset.
    pub(crate) fn restart(&mut self) -> bool {
        let (down, wake_at) = (self.deselected, self.wake_at);
        let known = down.without(self.unavailable).is_empty();
        *self = Self::all_candidates(self.count);
        self.candidates = self.candidates.without(down);
        (self.unavailable, self.deselected, self.wake_at) = (down, down, wake_at);
        !known
    }

    pub(crate) fn begin(&mut self, kind: Kind) {
        self.kind = kind;
    }

    fn permits(&self, kind: Kind) -> bool {
        self.kind == kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_makes_only_its_own_moves() {
        let moves = |kind| {
            let mut sets = PathSets::all_candidates(3);
            sets.begin(Kind::CandidateFilter);
            assert!(sets.reject(2));
            sets.begin(Kind::SoftSelector);
            assert!(sets.select(1));
            sets.begin(kind);
            (
                sets.clone().reject(0),
                sets.clone().deselect(1),
                sets.clone().select(0),
                sets.select(2),
            )
        };
        assert_eq!(moves(Kind::CandidateFilter), (true, false, false, false));
        assert_eq!(moves(Kind::SelectionFilter), (false, true, false, false));
        assert_eq!(moves(Kind::SoftSelector), (false, false, true, false));
        assert_eq!(moves(Kind::HardSelector), (false, false, true, true));
    }

    #[test]
    fn the_first_selected_path_is_the_primary() {
        let mut sets = PathSets::all_candidates(3);
        assert!(sets.select(2) && sets.select(0));
        assert_eq!(sets.primary(), Some(2));
        sets.begin(Kind::SelectionFilter);
        assert!(sets.deselect(2));
        assert_eq!(sets.primary(), Some(0));
    }

    #[test]
    fn sets_iterate_in_order_and_ignore_invalid_indices() {
        let mut set = PathSet::only(63);
        set.insert(2);
        set.insert(64);
        assert_eq!(set.iter().collect::<Vec<_>>(), [2, 63]);
        assert_eq!(PathSet::first(64).len(), 64);
        assert!(!set.contains(64));
    }
}
