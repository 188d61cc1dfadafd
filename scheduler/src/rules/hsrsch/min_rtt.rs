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

use crate::{Input, Kind, PathSet, PathSets, PathView, Schedulerlet};

#[derive(Clone, Copy, Debug, Default)]
pub struct MinRtt;

impl Schedulerlet for MinRtt {
    fn kind(&self) -> Kind {
        Kind::SoftSelector
    }

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
mod tests {
    use super::*;
    use crate::samples::{backup, base, full, path, stalled};
    use crate::{Chain, ChainSpec, Decision, SegmentView};

    fn choice(paths: &[PathView], carried: &[usize]) -> Option<usize> {
        let mask = carried.iter().copied().collect();
        let segment = SegmentView { carried: mask, ..SegmentView::default() };
        let input = Input { paths, segment, now: base() };
        match Chain::new(vec![Box::new(MinRtt)]).decide(&input) {
            Decision::Send { primary, copies, .. } => {
                assert!(copies.is_empty());
                Some(primary)
            }
            Decision::Wait { .. } => None,
        }
    }

    #[test]
    fn table() {
        let (a, b) = (path(1, 40), path(2, 60));
        assert_eq!(choice(&[], &[]), None, "no path");
        assert_eq!(choice(&[a, b], &[]), Some(0), "the faster");
        assert_eq!(choice(&[b, a], &[]), Some(1), "whatever the order");
        assert_eq!(choice(&[full(a), b], &[]), Some(1), "the faster is full");
        assert_eq!(choice(&[full(a), full(b)], &[]), None, "all full");
        assert_eq!(choice(&[stalled(a), b], &[]), Some(1), "the faster is stalled");
        assert_eq!(choice(&[stalled(a), stalled(b)], &[]), None, "all stalled");
        assert_eq!(choice(&[a, b], &[0]), Some(1), "the faster had it");
        assert_eq!(choice(&[a, full(b)], &[0]), None, "wait for the one that had it not");
        assert_eq!(choice(&[a, b], &[0, 1]), Some(0), "a full mask is cleared");
        assert_eq!(choice(&[a, stalled(b)], &[0]), Some(0), "stalled paths do not keep the mask");
        assert_eq!(choice(&[backup(a), b], &[]), Some(1), "backups last");
        assert_eq!(choice(&[backup(a), full(b)], &[]), None, "a backup does not help a full path");
        assert_eq!(
            choice(&[backup(a), stalled(b)], &[]),
            Some(0),
            "backup when nothing else lives"
        );
        assert_eq!(choice(&[backup(a), b], &[1]), Some(0), "backup when the others had it");
    }

    /// The path after a timeout, with something out.
    fn lost(path: PathView) -> PathView {
        PathView { timeouts: 1, outstanding: Bytes(1), ..path }
    }

    #[test]
    fn path_in_loss_state_counts_as_full() {
        let (a, b) = (path(1, 40), path(2, 60));
        assert_eq!(choice(&[lost(a), b], &[]), Some(1), "the other");
        assert_eq!(choice(&[lost(a), full(b)], &[]), None);
        assert_eq!(choice(&[lost(a)], &[]), None, "alone");
        assert_eq!(choice(&[lost(a), lost(b)], &[]), None, "all");
        assert_eq!(choice(&[lost(a), b], &[1]), None, "wait for the one that had it not");
        assert_eq!(choice(&[lost(a), backup(b)], &[]), None, "a backup does not help");
        let idle = PathView { outstanding: Bytes::ZERO, ..lost(a) };
        assert_eq!(choice(&[idle, b], &[]), Some(0), "nothing is out: no acknowledgement comes");
        let progress = PathView { timeouts: 0, ..lost(a) };
        assert_eq!(choice(&[progress, b], &[]), Some(0), "something has arrived");
    }

    #[test]
    fn all_rules_after_mptcp_respect_the_loss_state() {
        let (a, b) = (path(1, 40), path(2, 60));
        for name in [
            "min_rtt",
            "hsrsch",
            "mptcp",
            "blest",
            "ecf",
            "redundant",
            "round_robin",
            "daps",
            "otias",
            "stms",
            "musher",
            "musher_scaled",
            "raven",
        ] {
            let on = |paths: &[PathView]| {
                let mut chain = ChainSpec::named(name).unwrap().build();
                let segment = SegmentView::default();
                let mut now = base();
                for _ in 0..2 {
                    match chain.decide(&Input { paths, segment, now }) {
                        Decision::Send { primary, copies, .. } => {
                            return [primary].into_iter().chain(copies.iter()).collect();
                        }
                        // A wait for the better path has an end.
                        Decision::Wait { until: Some(until) } => now = until,
                        Decision::Wait { until: None } => break,
                    }
                }
                Vec::new()
            };
            assert_eq!(on(&[lost(a), b]), [1], "{name}: the other");
            assert!(on(&[lost(a), lost(b)]).is_empty(), "{name}: all");
            let idle = PathView { outstanding: Bytes::ZERO, ..lost(a) };
            assert_eq!(on(&[idle, full(b)]), [0], "{name}: nothing is out");
        }
    }
}
