//! `min_rtt`: the path with the lowest smoothed round-trip time that has room.
//!
//! Rule: the default scheduler of out-of-tree MPTCP (`mptcp_sched.c`). A path that has carried the
//! segment is left out. While a path that has not carried it is only full, the segment waits.
//! Backups come last. A segment that every path has carried may use any path again. A path in the
//! loss state after a timeout counts as full (`mptcp_is_temp_unavailable`).
//!
//! Choices: a path is in the loss state while it has unanswered timeouts and data in flight
//! ([`is_open`]). The first acknowledgement ends the state; Linux waits for all data in flight at
//! the timeout. A path without data in flight is open, because no acknowledgement would ever come.
//! All rules that follow MPTCP use this definition.
//!
//! Invariant: selects at most one path, and only if it is available.

use polyrail_model::Bytes;

use crate::{Input, PathSet, PathSets, PathView, Schedulerlet};

#[derive(Clone, Copy, Debug, Default)]
pub struct MinRtt;

impl Schedulerlet for MinRtt {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        if let Some(path) = fastest(group, input) {
            sets.select(path);
        }
    }
}

/// The members from which the rule takes the fastest that has room: live, not among those that have
/// carried the segment while there are others, and no backups while there are others.
pub(crate) fn group(set: PathSet, input: &Input<'_>) -> PathSet {
    let live = set.filter(|i| !input.paths[i].stalled);
    let fresh = live.without(input.segment.carried);
    // Every live path has carried it: the mask is cleared.
    let usable = if fresh.is_empty() { live } else { fresh };
    let regular = usable.filter(|i| !input.paths[i].backup);
    if regular.is_empty() { usable } else { regular }
}

/// Whether the path takes new data now: it is available, and not in the state of loss.
pub(crate) fn is_open(path: &PathView) -> bool {
    let in_loss = path.timeouts > 0 && path.outstanding > Bytes::ZERO;
    path.available() && !in_loss
}

/// The open member with the least smoothed round-trip time; the first of equals.
pub(crate) fn fastest(group: PathSet, input: &Input<'_>) -> Option<usize> {
    group.iter().filter(|&i| is_open(&input.paths[i])).min_by_key(|&i| input.paths[i].srtt)
}

#[cfg(test)]
mod tests;
