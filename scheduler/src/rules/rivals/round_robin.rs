//! `round_robin`: one segment a path in turn; full paths are skipped.
//!
//! Rule: the round-robin scheduler of out-of-tree MPTCP with its quota of one segment
//! (multipath-tcp/mptcp, `net/mptcp/mptcp_rr.c`). A turn ends when every available path has used
//! its quota. Invariant: selects at most one available path, and grants a single segment.

use std::time::Instant;

use polyrail_model::PathId;

use crate::rules::hsrsch::min_rtt::is_open;
use crate::{Input, Note, PathSets, SEGMENT, Schedulerlet};

#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    /// The paths that have used their quota in this turn; at most as many as there are paths.
    used: Vec<PathId>,
}

impl Schedulerlet for RoundRobin {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let live = sets.candidates().filter(|i| !input.paths[i].stalled);
        let regular = live.filter(|i| !input.paths[i].backup);
        let group = if regular.is_empty() { live } else { regular };
        let fresh = group.without(input.segment.carried);
        let group = if fresh.is_empty() { group } else { fresh };
        let available = group.filter(|i| is_open(&input.paths[i]));
        let unused = |used: &[PathId]| available.filter(|i| !used.contains(&input.paths[i].id));
        let mut turn = unused(&self.used);
        if turn.is_empty() && !available.is_empty() {
            self.used.clear();
            turn = available;
        }
        if let Some(path) = turn.iter().next() {
            sets.select(path);
            sets.limit_run(SEGMENT);
        }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        match *note {
            Note::Sent { path, copy: false, .. } => {
                if self.used.len() < crate::PATHS_MAX && !self.used.contains(&path) {
                    self.used.push(path);
                }
            }
            Note::Gone { path } => self.used.retain(|used| *used != path),
            Note::Sent { .. } | Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::samples::{base, full, path, send, sent, stalled};
    use crate::{Chain, PathView, SegmentView};

    fn turns(chain: &mut Chain, paths: &[PathView], count: usize) -> Vec<usize> {
        let mut turn = || send(chain, paths, SegmentView::default(), SEGMENT, base());
        (0..count).flat_map(|_| turn()).collect()
    }

    #[test]
    fn table() {
        let mut chain = Chain::new(vec![Box::new(RoundRobin::default())]);
        let (a, b, c) = (path(1, 40), path(2, 60), path(3, 10));
        assert_eq!(turns(&mut chain, &[a, b, c], 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(turns(&mut chain, &[a, full(b), c], 4), [0, 2, 0, 2]);
        assert_eq!(turns(&mut chain, &[stalled(a), b], 2), [1, 1]);
        assert_eq!(turns(&mut chain, &[full(a), full(b)], 1), [0; 0]);
    }

    #[test]
    fn paths_that_are_gone_are_forgotten() {
        let mut rule = RoundRobin::default();
        for id in 0..3 * crate::PATHS_MAX as u64 {
            let path = PathId(id);
            rule.note(&sent(path, 1), base());
            assert_eq!(rule.used, [path]);
            rule.note(&Note::Gone { path }, base());
        }
        assert!(rule.used.is_empty());
    }
}
