//! The chain: schedulerlets applied in order to the sets of one decision.

use std::fmt;
use std::time::Instant;

use polyrail_model::{Bytes, PathId};

use crate::{Again, Handler, Input, Kind, Note, OutView, PATHS_MAX, PathSet, PathSets, PathView};

/// One rule of a chain.
pub trait Schedulerlet: Send {
    /// The permitted moves; all others are ignored. Most rules select.
    fn kind(&self) -> Kind {
        Kind::SoftSelector
    }

    /// Applies the rule to one decision.
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>);

    /// Records an event.
    fn note(&mut self, _note: &Note, _now: Instant) {}
}

/// The decision of a chain for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No path: ask again when a path has room, or at this time.
    Wait {
        /// The latest time to ask again, if a rule waits for a time.
        until: Option<Instant>,
    },
    /// Send a run of at most `run_max` bytes.
    Send {
        /// The index of the path that carries it.
        primary: usize,
        /// The paths that carry a copy.
        copies: PathSet,
        /// The longest run that begins with this segment, at least one segment.
        run_max: u64,
        /// The distance in bytes from the segment to the start of the run; 0 for retransmissions.
        /// The session sends unsent data from there on, or the segment if there is none.
        ahead: u64,
    },
}

/// A scheduler: schedulerlets in order, and handlers.
pub struct Chain {
    links: Vec<Box<dyn Schedulerlet>>,
    handlers: Vec<Box<dyn Handler>>,
}

impl Chain {
    /// A chain of these schedulerlets, applied in this order.
    pub fn new(links: Vec<Box<dyn Schedulerlet>>) -> Self {
        Self { links, handlers: Vec::new() }
    }

    /// Adds handlers.
    #[must_use]
    pub fn with(mut self, handlers: Vec<Box<dyn Handler>>) -> Self {
        self.handlers.extend(handlers);
        self
    }

    /// Decides for one segment, among the first [`PATHS_MAX`] paths.
    pub fn decide(&mut self, input: &Input<'_>) -> Decision {
        let mut sets = PathSets::all_candidates(input.paths.len().min(PATHS_MAX));
        self.apply(&mut sets, input);
        // If a filter deselects every path, the selectors choose again without these paths.
        while sets.primary().is_none() && sets.restart() {
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

    /// Reports an event to all schedulerlets and handlers.
    pub fn note(&mut self, note: &Note, now: Instant) {
        self.links.iter_mut().for_each(|link| link.note(note, now));
        self.handlers.iter_mut().for_each(|handler| handler.note(note, now));
    }

    /// Whether a handler returns all data of the path to its flows. Asks every handler, because
    /// each records the path's state.
    pub fn gives_back(&mut self, path: &PathView, now: Instant) -> bool {
        let handlers = self.handlers.iter_mut();
        handlers.fold(false, |back, handler| handler.gives_back(path, now) | back)
    }

    /// The first handler's wish to duplicate a run in flight now, else the soonest.
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

    /// The lowest cap of all handlers on the bytes in flight of a path.
    pub fn cap(&self, path: PathId) -> Option<Bytes> {
        self.handlers.iter().filter_map(|handler| handler.cap(path)).min()
    }

    /// Whether a handler looks at the newest runs first.
    pub fn looks_back(&self) -> bool {
        self.handlers.iter().any(|handler| handler.looks_back())
    }

    /// Whether the chain has handlers.
    pub fn has_handlers(&self) -> bool {
        !self.handlers.is_empty()
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}
