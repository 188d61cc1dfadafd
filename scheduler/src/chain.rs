//! The chain: schedulerlets applied in order to the sets of one decision.

use std::fmt;
use std::time::Instant;

use polyrail_model::{Bytes, FlowId, PathId};

use crate::{Again, Handler, Input, OutView, PATHS_MAX, PathSet, PathSets, PathView};

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
    /// The moves that it may make; all others are refused.
    fn kind(&self) -> Kind;

    /// Applies the rule to one decision.
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>);

    /// Learns what happened since.
    fn note(&mut self, _note: &Note, _now: Instant) {}
}

/// What happened to data, as rules and handlers may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A run went out.
    Sent {
        /// On this path.
        path: PathId,
        /// Of this flow.
        flow: FlowId,
        /// From this byte of the flow on.
        offset: u64,
        /// So many bytes.
        bytes: u64,
        /// As a copy of what another path carries.
        copy: bool,
    },
    /// A run has arrived, for the first time.
    Acked {
        /// By this path, as far as is known.
        path: PathId,
        /// No copy was out on another one.
        sure: bool,
        /// Of this flow.
        flow: FlowId,
        /// From this byte of the flow on.
        offset: u64,
        /// So many bytes.
        bytes: u64,
        /// All of the flow before this byte has arrived.
        cumulative: u64,
    },
    /// Data went back to its flow's buffer, or out once more.
    Reinjected {
        /// The path that had it.
        path: PathId,
        /// So many bytes.
        bytes: u64,
    },
    /// A path is no more.
    Gone {
        /// It.
        path: PathId,
    },
}

/// What the chain decided for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No path for now: ask again when a path has room, or at this time.
    Wait {
        /// When to ask again at the latest, if a rule waits for a time.
        until: Option<Instant>,
    },
    /// Send a run of at most `run_max` bytes.
    Send {
        /// The index of the path that carries it.
        primary: usize,
        /// The paths that carry a copy.
        copies: PathSet,
        /// Bytes of the flow from this segment on that may go along, at least one segment.
        run_max: u64,
        /// How many bytes further on the run begins; more than 0 only for new data. The session
        /// takes what was never sent from there on; where that is nothing, the segment itself.
        ahead: u64,
    },
}

/// A scheduler: schedulerlets in order, and the handlers beside them.
pub struct Chain {
    links: Vec<Box<dyn Schedulerlet>>,
    handlers: Vec<Box<dyn Handler>>,
}

impl Chain {
    /// A chain of these schedulerlets, applied in this order.
    pub fn new(links: Vec<Box<dyn Schedulerlet>>) -> Self {
        Self { links, handlers: Vec::new() }
    }

    /// The same with these handlers beside it.
    #[must_use]
    pub fn with(mut self, handlers: Vec<Box<dyn Handler>>) -> Self {
        self.handlers.extend(handlers);
        self
    }

    /// Decides for one segment. At most [`PATHS_MAX`] paths are looked at.
    pub fn decide(&mut self, input: &Input<'_>) -> Decision {
        let mut sets = PathSets::all_candidates(input.paths.len().min(PATHS_MAX));
        self.apply(&mut sets, input);
        // What a filter takes from one path another may carry now: the selectors choose once more,
        // without those that were turned down.
        while sets.primary().is_none() && sets.begin_again() {
            self.apply(&mut sets, input);
        }
        let Some(primary) = sets.primary() else {
            return Decision::Wait { until: sets.wakes_at() };
        };
        let run_max = sets.run_max().min(input.paths[primary].run_max());
        let copies = sets.selected().without(PathSet::only(primary));
        let ahead = if input.segment.reinjected { 0 } else { sets.ahead() };
        Decision::Send { primary, copies, run_max, ahead }
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        for link in &mut self.links {
            sets.begin(link.kind());
            link.apply(sets, input);
        }
    }

    /// Tells all schedulerlets and handlers what happened.
    pub fn note(&mut self, note: &Note, now: Instant) {
        self.links.iter_mut().for_each(|link| link.note(note, now));
        self.handlers.iter_mut().for_each(|handler| handler.note(note, now));
    }

    /// Whether a handler wants back all that the path carries. Each is asked: they learn the path's
    /// figures thereby.
    pub fn gives_back(&mut self, path: &PathView, now: Instant) -> bool {
        let handlers = self.handlers.iter_mut();
        handlers.fold(false, |back, handler| handler.gives_back(path, now) | back)
    }

    /// Whether a handler wants a run that is out to go out once more; the first that wants it now,
    /// else the soonest.
    pub fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        let mut soonest = Again::No;
        for handler in &mut self.handlers {
            match (handler.again(out, paths, now), soonest) {
                (Again::On(path), _) => return Again::On(path),
                (Again::At(at), Again::At(known)) => soonest = Again::At(at.min(known)),
                (Again::At(at), _) => soonest = Again::At(at),
                (Again::No, _) => {}
            }
        }
        soonest
    }

    /// The most that a path may have out, by the strictest handler.
    pub fn cap(&self, path: PathId) -> Option<Bytes> {
        self.handlers.iter().filter_map(|handler| handler.cap(path)).min()
    }

    /// Whether a handler looks at the newest runs first.
    pub fn looks_back(&self) -> bool {
        self.handlers.iter().any(|handler| handler.looks_back())
    }

    /// Whether there are handlers that look at runs which are out.
    pub fn has_handlers(&self) -> bool {
        !self.handlers.is_empty()
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}
