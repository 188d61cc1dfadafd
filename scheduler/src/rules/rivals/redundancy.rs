//! `redundancy`: a copy of the segment on every other live path that has room.
//!
//! Rule: the redundant scheduler of out-of-tree MPTCP (multipath-tcp/mptcp,
//! `net/mptcp/mptcp_redundant.c`); stands behind a selector of the first path. A copy whose path is
//! not available is dropped. Invariant: adds nothing while nothing is selected.

use crate::rules::hsrsch::min_rtt::is_open;
use crate::{Input, PathSets, Schedulerlet};

#[derive(Clone, Copy, Debug, Default)]
pub struct Redundancy;

impl Schedulerlet for Redundancy {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        if sets.selected().is_empty() {
            return;
        }
        let copies = sets.candidates().without(input.segment.carried);
        for path in copies.iter().filter(|&i| is_open(&input.paths[i])) {
            if !input.paths[path].backup {
                sets.select(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{backup, base, full, path, stalled};
    use crate::{ChainSpec, Decision, PathView, SegmentView};

    fn copies(paths: &[PathView]) -> Option<(usize, Vec<usize>)> {
        let input = Input { paths, segment: SegmentView::default(), now: base() };
        match ChainSpec::named("redundant").unwrap().build().decide(&input) {
            Decision::Send { primary, copies, .. } => Some((primary, copies.iter().collect())),
            Decision::Wait { .. } => None,
        }
    }

    #[test]
    fn table() {
        let (a, b, c) = (path(1, 40), path(2, 20), path(3, 60));
        assert_eq!(copies(&[a, b, c]), Some((1, vec![0, 2])));
        assert_eq!(copies(&[full(a), b, c]), Some((1, vec![2])));
        assert_eq!(copies(&[a, full(b), stalled(c)]), Some((0, vec![])));
        assert_eq!(copies(&[a, backup(b)]), Some((0, vec![])));
        assert_eq!(copies(&[full(a), full(b)]), None);
    }
}
