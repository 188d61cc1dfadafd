//! `min_rtt`: the path with the lowest smoothed round-trip time that has room.
//!
//! Rule: the default scheduler of out-of-tree MPTCP (`mptcp_sched.c`). A path that has carried
//! the segment is left out; while a path that has not carried it is only full, the segment waits;
//! backups come after all others; a segment that every path has carried may go anywhere again.
//! Invariant: selects at most one path, and only one that is available.

use crate::{Input, Kind, PathSet, PathSets, Schedulerlet};

/// The soft selector of the lowest round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinRtt;

impl Schedulerlet for MinRtt {
    fn name(&self) -> &'static str {
        "min_rtt"
    }

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
    let live = among(set, |i| !input.paths[i].stalled);
    let fresh = live.without(input.segment.carried);
    // Every live path has carried it: the mask is cleared.
    let usable = if fresh.is_empty() { live } else { fresh };
    let (regular, backup) = split(usable, |i| !input.paths[i].backup);
    if regular.is_empty() { backup } else { regular }
}

/// The available member with the least smoothed round-trip time; the first of equals.
pub(crate) fn fastest(group: PathSet, input: &Input<'_>) -> Option<usize> {
    group.iter().filter(|&i| input.paths[i].available()).min_by_key(|&i| input.paths[i].srtt)
}

/// The members for which `keep` holds.
pub(crate) fn among(set: PathSet, keep: impl Fn(usize) -> bool) -> PathSet {
    split(set, keep).0
}

fn split(set: PathSet, left: impl Fn(usize) -> bool) -> (PathSet, PathSet) {
    let mut sides = (PathSet::EMPTY, PathSet::EMPTY);
    for path in set.iter() {
        if left(path) { sides.0.insert(path) } else { sides.1.insert(path) }
    }
    sides
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples::{backup, base, full, path, stalled};
    use crate::{Chain, Decision, PathView, SegmentView};

    fn choice(paths: &[PathView], carried: &[usize]) -> Option<usize> {
        let mut mask = PathSet::EMPTY;
        carried.iter().for_each(|&i| mask.insert(i));
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
}
