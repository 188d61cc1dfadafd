//! `opportunistic_retransmission`: when the receive window blocks, a fast path duplicates the head
//! of the line.
//!
//! Rule: multipath-tcp/mptcp, `net/mptcp/mptcp_sched.c` (`min_rtt`'s companion). The path p that
//! `min_rtt` would take for new data carries the head of the line, if it never did, and some holder
//! h has a window of at most four segments, or `4 s_p < s_h` for all holders.
//!
//! Differences: the original also does so when the send buffer is full and no data is new. An
//! unknown window is not small.

use std::time::Instant;

use crate::rules::heads::Heads;
use crate::rules::hsrsch::min_rtt::{fastest, group};
use crate::{
    Again, Handler, Input, Note, OutView, PATHS_MAX, PathSet, PathView, SEGMENT, SegmentView,
};

#[derive(Clone, Debug, Default)]
pub struct OpportunisticRetransmission {
    heads: Heads,
}

/// The path that `min_rtt` takes for a segment that these paths have carried.
pub(in crate::rules) fn min_rtt(
    carried: PathSet,
    paths: &[PathView],
    now: Instant,
) -> Option<usize> {
    let segment = SegmentView { carried, ..SegmentView::default() };
    let input = Input { paths, segment, now };
    fastest(group(PathSet::first(paths.len().min(PATHS_MAX)), &input), &input)
}

/// The other paths that have carried the run, as far as they are there.
pub(in crate::rules) fn holders<'a>(
    out: &OutView,
    but: usize,
    paths: &'a [PathView],
) -> impl Iterator<Item = &'a PathView> {
    let holders = out.carried.without(PathSet::only(but));
    paths.iter().enumerate().filter(move |(i, _)| holders.contains(*i)).map(|(_, path)| path)
}

impl Handler for OpportunisticRetransmission {
    fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        if !out.blocked || !self.heads.is_head(out) {
            return Again::No;
        }
        let Some(path) = min_rtt(PathSet::EMPTY, paths, now) else { return Again::No };
        if out.carried.contains(path) || holders(out, path, paths).next().is_none() {
            return Again::No;
        }
        let small = |holder: &PathView| (1..=WINDOW_SMALL).contains(&holder.window.0);
        let slow = |holder: &PathView| paths[path].srtt.saturating_mul(4) < holder.srtt;
        let helps = holders(out, path, paths).any(small) || holders(out, path, paths).all(slow);
        if helps { Again::On(path) } else { Again::No }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        self.heads.note(note);
    }
}

/// A holder with a window of at most this many bytes is not waited for.
const WINDOW_SMALL: u64 = 4 * SEGMENT;

#[cfg(test)]
mod tests {
    use polyrail_model::{Bytes, PathId};

    use super::*;
    use crate::samples::{acked, backup, base, full, path, run, stalled};
    use crate::{Chain, ChainSpec};

    fn out(offset: u64, carried: &[usize]) -> OutView {
        OutView { offset, blocked: true, ..run(carried) }
    }

    fn new() -> Chain {
        ChainSpec::of(&["min_rtt", "opportunistic_retransmission"]).unwrap().build()
    }

    #[test]
    fn table() {
        let (fast, slow) = (path(1, 20), path(2, 81));
        let other = path(3, 80);
        let small = |path| PathView { window: Bytes(WINDOW_SMALL), ..path };
        for (name, paths, carried, wanted) in [
            ("4 x 20 < 81", vec![fast, slow], vec![1], Again::On(0)),
            ("4 x 20 = 80", vec![fast, path(2, 80)], vec![1], Again::No),
            ("not slow enough, but small", vec![fast, small(path(2, 30))], vec![1], Again::On(0)),
            ("one of two is not slow", vec![fast, slow, other], vec![1, 2], Again::No),
            ("one of two is small", vec![fast, slow, small(other)], vec![1, 2], Again::On(0)),
            ("it has it", vec![fast, slow], vec![0, 1], Again::No),
            ("the fastest has it", vec![fast, path(2, 30), path(3, 300)], vec![0, 2], Again::No),
            ("full", vec![full(fast), slow], vec![1], Again::No),
            ("stalled", vec![stalled(fast), slow], vec![1], Again::No),
            ("a backup", vec![backup(fast), slow], vec![1], Again::No),
            ("the holder is stalled", vec![fast, stalled(slow)], vec![1], Again::On(0)),
            ("the holder is gone", vec![fast], vec![1], Again::No),
        ] {
            assert_eq!(new().again(&out(0, &carried), &paths, base()), wanted, "{name}");
        }
        let free = OutView { blocked: false, ..out(0, &[1]) };
        assert_eq!(new().again(&free, &[fast, slow], base()), Again::No, "nothing blocks");
    }

    #[test]
    fn the_head_alone() {
        let (mut chain, paths) = (new(), [path(1, 20), path(2, 100)]);
        assert_eq!(chain.again(&out(1_400, &[1]), &paths, base()), Again::No);
        chain.note(&acked(PathId(2), 1_400, 1_400), base());
        assert_eq!(chain.again(&out(1_400, &[1]), &paths, base()), Again::On(0));
        assert_eq!(chain.again(&out(2_800, &[1]), &paths, base()), Again::No);
    }
}
