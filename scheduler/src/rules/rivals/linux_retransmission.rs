//! `linux_retransmission`: retransmits the head of the line over an idle path.
//!
//! Rule: the retransmission timer of MPTCP in the Linux kernel (torvalds/linux,
//! `net/mptcp/protocol.c`; `linux`'s companion). If the flow makes no progress for the longest
//! retransmission timeout of the paths, the head of the line goes over the first path with empty
//! queues. A backup is used only if every other path has timed out more than once.
//!
//! Choices: a path's timeout is its round-trip time plus four deviations, these at least 200 ms,
//! doubled for each consecutive timeout. A path never carries the run twice. A retransmission
//! restarts the timer.

use std::time::{Duration, Instant};

use crate::rules::heads::Heads;
use crate::rules::per_flow::PerFlow;
use crate::{Again, Handler, Note, OutView, PATHS_MAX, PathView};

#[derive(Clone, Debug, Default)]
pub struct LinuxRetransmission {
    heads: Heads,
    /// When a flow moved on last.
    moved_at: PerFlow<Option<Instant>>,
}

/// When the transport of this path sends again by itself.
fn timeout(path: &PathView) -> Duration {
    let once = path.srtt.saturating_add(path.rtt_var.saturating_mul(4).max(DEVIATION_MIN));
    once.saturating_mul(1 << path.timeouts.min(DOUBLED_MAX)).min(TIMEOUT_MAX)
}

/// The first path that carries nothing and may take the run.
fn idle(out: &OutView, paths: &[PathView]) -> Option<usize> {
    let mut views = paths.iter().enumerate().take(PATHS_MAX);
    let free = |(index, path): &(usize, &PathView)| {
        let empty = path.in_flight.0 == 0 && path.unsent.0 == 0;
        empty && path.available() && !out.carried.contains(*index)
    };
    let regular = views.clone().filter(free).find(|(_, path)| !path.backup);
    let progress =
        views.clone().any(|(_, path)| !path.backup && !path.stalled && path.timeouts <= 1);
    let backup = || views.find(|view| !progress && free(view));
    regular.or_else(backup).map(|(index, _)| index)
}

impl Handler for LinuxRetransmission {
    fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        if !self.heads.is_head(out) {
            return Again::No;
        }
        let live = paths.iter().filter(|path| !path.stalled);
        let longest = live.map(timeout).max().unwrap_or(DEVIATION_MIN);
        let moved = self.moved_at.get(out.flow).copied().flatten();
        let due = moved.map_or(out.sent_at, |moved| moved.max(out.sent_at)) + longest;
        if now < due {
            return Again::At(due);
        }
        idle(out, paths).map_or(Again::No, Again::On)
    }

    fn note(&mut self, note: &Note, now: Instant) {
        if self.heads.note(note)
            && let Note::Acked { flow, .. } = *note
        {
            *self.moved_at.of(flow) = Some(now);
        }
    }
}

/// The least that deviations add to a round-trip time (`TCP_RTO_MIN`).
const DEVIATION_MIN: Duration = Duration::from_millis(200);

/// How often a timeout is doubled, and the longest one (`TCP_RTO_MAX`).
const DOUBLED_MAX: u32 = 10;
const TIMEOUT_MAX: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use polyrail_model::{Bytes, PathId};

    use super::*;
    use crate::samples::{acked, backup, base, full, path, run, stalled};
    use crate::{Chain, ChainSpec};

    fn new() -> Chain {
        ChainSpec::of(&["min_rtt", "linux_retransmission"]).unwrap().build()
    }

    fn at(millis: u64) -> Instant {
        base() + Duration::from_millis(millis)
    }

    fn out(offset: u64) -> OutView {
        OutView { offset, ..run(&[0]) }
    }

    #[test]
    fn the_longest_timeout_counts_from_the_last_progress() {
        let shaky = PathView { rtt_var: Duration::from_millis(60), ..path(2, 50) };
        let (mut chain, paths) = (new(), [path(1, 80), shaky]);
        // 80 + 200 ms; 50 + 4 x 60 = 290 ms.
        assert_eq!(chain.again(&out(0), &paths, at(0)), Again::At(at(290)));
        assert_eq!(chain.again(&out(0), &paths, at(290)), Again::On(1));
        let again = [PathView { timeouts: 1, ..path(1, 80) }, shaky];
        assert_eq!(chain.again(&out(0), &again, at(290)), Again::At(at(560)), "doubled");
        chain.note(&acked(PathId(2), 9, 9), at(100));
        assert_eq!(chain.again(&out(9), &paths, at(290)), Again::At(at(390)));
        assert_eq!(chain.again(&out(10), &paths, at(390)), Again::No, "not the head");
    }

    #[test]
    fn only_idle_paths_and_backups_last() {
        let a = PathView { in_flight: Bytes(1), ..path(1, 20) };
        let dead = PathView { timeouts: 2, ..a };
        let b = path(2, 60);
        for (name, paths, wanted) in [
            ("idle", [a, b], Again::On(1)),
            ("in flight", [a, PathView { in_flight: Bytes(1), ..b }], Again::No),
            ("unsent", [a, PathView { unsent: Bytes(1), ..b }], Again::No),
            ("full", [a, full(b)], Again::No),
            ("stalled", [a, stalled(b)], Again::No),
            ("it was there", [path(1, 20), full(b)], Again::No),
            ("a backup", [a, backup(b)], Again::No),
            ("a backup, and no progress", [dead, backup(b)], Again::On(1)),
            ("a backup, and the other is stalled", [stalled(a), backup(b)], Again::On(1)),
        ] {
            assert_eq!(new().again(&out(0), &paths, at(10_000)), wanted, "{name}");
        }
    }
}
