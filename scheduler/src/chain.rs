//! The chain: schedulerlets applied in order to the sets of one decision.

use std::fmt;
use std::time::Instant;

use polyrail_model::PathId;

use crate::{Input, PATHS_MAX, PathSet, PathSets};

/// What moves a schedulerlet may make (POLYCORN 4.2).
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

/// One rule of a chain.
pub trait Schedulerlet: Send {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;

    /// The moves that it may make; all others are refused.
    fn kind(&self) -> Kind;

    /// Applies the rule to one decision.
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>);

    /// Learns that a decision was carried out: `bytes` went out on the path.
    fn sent(&mut self, _path: PathId, _bytes: u64, _now: Instant) {}
}

/// What the chain decided for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No path for now: ask again when a path has room.
    Wait,
    /// Send a run of at most `run_max` bytes.
    Send {
        /// The index of the path that carries it.
        primary: usize,
        /// The paths that carry a copy.
        copies: PathSet,
        /// Bytes of the flow from this segment on that may go along, at least one segment.
        run_max: u64,
    },
}

/// A scheduler: schedulerlets in order.
pub struct Chain {
    links: Vec<Box<dyn Schedulerlet>>,
}

impl Chain {
    /// A chain of these schedulerlets, applied in this order.
    pub fn new(links: Vec<Box<dyn Schedulerlet>>) -> Self {
        Self { links }
    }

    /// Decides for one segment. At most [`PATHS_MAX`] paths are looked at.
    pub fn decide(&mut self, input: &Input<'_>) -> Decision {
        let mut sets = PathSets::all_candidates(input.paths.len().min(PATHS_MAX));
        for link in &mut self.links {
            sets.begin(link.kind());
            link.apply(&mut sets, input);
        }
        let Some(primary) = sets.primary() else { return Decision::Wait };
        let run_max = sets.run_max().min(input.paths[primary].run_max());
        Decision::Send { primary, copies: sets.selected().without(PathSet::only(primary)), run_max }
    }

    /// Tells all schedulerlets what was sent.
    pub fn sent(&mut self, path: PathId, bytes: u64, now: Instant) {
        self.links.iter_mut().for_each(|link| link.sent(path, bytes, now));
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.links.iter().map(|link| link.name())).finish()
    }
}
