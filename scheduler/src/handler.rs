//! Handlers: what stands beside the chain and decides when data that is out goes again
//! (POLYCORN 4.2: the reinjection handler).

use std::time::Instant;

use polyrail_model::{Bytes, FlowId, PathId};

use crate::{Note, PathSet, PathView};

/// A rule about data that is out.
pub trait Handler: Send {
    /// Whether all that the path carries goes back to its flows' buffers, lazily. Asked whenever
    /// the path's figures change, also when it carries nothing, and whatever other handlers say.
    fn gives_back(&mut self, _path: &PathView, _now: Instant) -> bool {
        false
    }

    /// Whether a run that is out goes out once more. Asked for the first unacknowledged run of a
    /// flow when the flow has nothing new that may be sent, whenever something changed.
    fn again(&mut self, _out: &OutView, _paths: &[PathView], _now: Instant) -> Again {
        Again::No
    }

    /// Whether it wants to see the newest runs of a flow's tail first, and then older ones.
    fn looks_back(&self) -> bool {
        false
    }

    /// The most that a path may have out, beside its own window; less than a segment counts as one.
    fn cap(&self, _path: PathId) -> Option<Bytes> {
        None
    }

    /// Learns what happened since.
    fn note(&mut self, _note: &Note, _now: Instant) {}
}

/// A run that is out, as handlers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutView {
    /// Its flow.
    pub flow: FlowId,
    /// Its first byte in the flow.
    pub offset: u64,
    /// Its length.
    pub length: Bytes,
    /// What the path that it went out on last still has out, up to and with this run.
    pub ahead: Bytes,
    /// When it went out last.
    pub sent_at: Instant,
    /// The paths (by index) that have carried it.
    pub carried: PathSet,
    /// Those from which it is still expected.
    pub expected: PathSet,
    /// All of the flow was written and sent: nothing follows the last run.
    pub tail: bool,
    /// The receiver's window, not the writer, holds new data back.
    pub blocked: bool,
}

/// What a handler says of a run that is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It stays.
    No,
    /// Ask again at this time.
    At(Instant),
    /// It goes out on this path (by index) as well.
    On(usize),
}
