//! Handlers decide about data in flight (POLYCORN 4.2: the reinjection handler).

use std::time::Instant;

use polyrail_model::{Bytes, FlowId, PathId};

use crate::{PathSet, PathView};

/// A rule about data in flight.
pub trait Handler: Send {
    /// Whether all data in flight on the path returns to its flows' buffers. The session asks
    /// whenever the path's state changes, even if the path carries nothing.
    fn gives_back(&mut self, _path: &PathView, _now: Instant) -> bool {
        false
    }

    /// Whether to duplicate a run in flight. The session asks for the first unacknowledged run of a
    /// flow that has no new data it may send, whenever the state changes.
    fn again(&mut self, _out: &OutView, _paths: &[PathView], _now: Instant) -> Again {
        Again::No
    }

    /// Whether the session asks for the newest runs of a flow's tail first.
    fn looks_back(&self) -> bool {
        false
    }

    /// A cap on the bytes in flight of a path; less than a segment counts as one.
    fn cap(&self, _path: PathId) -> Option<Bytes> {
        None
    }

    /// Records an event.
    fn note(&mut self, _note: &Note, _now: Instant) {}
}

/// An event that rules and handlers may record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A run was sent.
    Sent {
        /// The path.
        path: PathId,
        /// The flow.
        flow: FlowId,
        /// The first byte in the flow.
        offset: u64,
        /// The length in bytes.
        bytes: u64,
        /// Whether it is a copy of a run on another path.
        copy: bool,
    },
    /// A run was acknowledged for the first time.
    Acked {
        /// The path that probably delivered it.
        path: PathId,
        /// Whether no other path had a copy in flight.
        sure: bool,
        /// The flow.
        flow: FlowId,
        /// The first byte in the flow.
        offset: u64,
        /// The length in bytes.
        bytes: u64,
        /// All bytes of the flow before this one are acknowledged.
        cumulative: u64,
    },
    /// Data was returned to its flow's buffer or duplicated.
    Reinjected {
        /// The path that carried it.
        path: PathId,
        /// The length in bytes.
        bytes: u64,
    },
    /// A path was removed.
    Gone {
        /// The path.
        path: PathId,
    },
}

/// A run in flight, as handlers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutView {
    /// Its flow.
    pub flow: FlowId,
    /// Its first byte in the flow.
    pub offset: u64,
    /// Its length.
    pub length: Bytes,
    /// Bytes in flight on its latest path, up to and including this run.
    pub ahead: Bytes,
    /// When it was last sent.
    pub sent_at: Instant,
    /// The paths (by index) that have carried it.
    pub carried: PathSet,
    /// The paths that may still deliver it.
    pub expected: PathSet,
    /// The flow is closed and completely sent.
    pub tail: bool,
    /// The receive window, not the application, holds new data back.
    pub blocked: bool,
}

/// A handler's decision about a run in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Do not duplicate it.
    No,
    /// Ask again at this time.
    At(Instant),
    /// Duplicate it on this path (by index).
    On(usize),
}
