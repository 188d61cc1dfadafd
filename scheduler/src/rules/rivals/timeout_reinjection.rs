//! `timeout_reinjection`: at a timeout of a path, duplicates the oldest run of each flow on it.
//!
//! Rule: POLYCORN 4.5 on MPTCP: after a retransmission timeout the oldest unacknowledged packet of
//! the path is sent again over the path that the scheduler chooses, and the rest waits for the next
//! timeout. (In multipath-tcp/mptcp, `mptcp_sub_retransmit_timer` of `net/mptcp/mptcp_output.c`
//! queues all data of the subflow again. `extended_reinjection(timeouts=1)` approximates that.)
//!
//! Choices: a subflow belongs to one connection, but a path to all flows, so each flow has its
//! oldest run duplicated. Data sent after the timeout does not count. The path is `min_rtt`'s
//! choice among those that never carried the run; without such a path with room, the run waits. A
//! count that falls and rises again between two calls goes unnoticed.

use std::time::Instant;

use polyrail_model::PathId;

use crate::rules::per_flow::PerFlow;
use crate::rules::per_path::PerPath;
use crate::rules::rivals::opportunistic_retransmission::min_rtt;
use crate::{Again, Handler, Note, OutView, PATHS_MAX, PathView};

#[derive(Clone, Debug, Default)]
pub struct TimeoutReinjection {
    paths: PerPath<Timeouts>,
    /// The path and its timeout that the flow has answered last.
    answered: PerFlow<Option<(PathId, u64)>>,
}

/// The timeouts of a path.
#[derive(Clone, Copy, Debug, Default)]
struct Timeouts {
    /// In a row, when last looked at.
    in_a_row: u32,
    /// Of all its life.
    count: u64,
    /// When the last one was seen.
    at: Option<Instant>,
}

impl TimeoutReinjection {
    fn look_at(&mut self, path: &PathView, now: Instant) -> Timeouts {
        let timeouts = self.paths.of(path.id);
        if path.timeouts > timeouts.in_a_row {
            timeouts.count += u64::from(path.timeouts - timeouts.in_a_row);
            timeouts.at = Some(now);
        }
        timeouts.in_a_row = path.timeouts;
        *timeouts
    }

    /// The timeout of this path that nothing of the flow has answered yet.
    fn unanswered(&mut self, out: &OutView, path: &PathView, now: Instant) -> Option<u64> {
        let timeouts = self.look_at(path, now);
        let since = timeouts.at.is_some_and(|at| out.sent_at < at);
        let answered = self.answered.get(out.flow).copied().flatten();
        let known = answered.is_some_and(|(id, count)| id == path.id && count >= timeouts.count);
        (path.timeouts > 0 && since && !known).then_some(timeouts.count)
    }
}

impl Handler for TimeoutReinjection {
    fn gives_back(&mut self, path: &PathView, now: Instant) -> bool {
        self.look_at(path, now);
        false
    }

    fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        for (index, path) in paths.iter().enumerate().take(PATHS_MAX) {
            if !out.expected.contains(index) {
                continue;
            }
            let Some(count) = self.unanswered(out, path, now) else { continue };
            let other = min_rtt(out.carried, paths, now);
            let Some(other) = other.filter(|&other| !out.carried.contains(other)) else {
                return Again::No;
            };
            *self.answered.of(out.flow) = Some((path.id, count));
            return Again::On(other);
        }
        Again::No
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        if let Note::Gone { path } = *note {
            self.paths.forget(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::FlowId;

    use super::*;
    use crate::samples::{base, full, path, run, stalled};
    use crate::{Chain, ChainSpec, PathSet};

    fn new() -> Chain {
        ChainSpec::of(&["min_rtt", "timeout_reinjection"]).unwrap().build()
    }

    fn at(millis: u64) -> Instant {
        base() + Duration::from_millis(millis)
    }

    /// A run of this flow that went out at this time over the first path.
    fn out(flow: u64, sent_ms: u64) -> OutView {
        OutView { flow: FlowId(flow), sent_at: at(sent_ms), ..run(&[0]) }
    }

    /// Three paths, of which the first has so many timeouts in a row.
    fn paths(timeouts: u32) -> [PathView; 3] {
        [PathView { timeouts, ..path(1, 20) }, path(2, 60), path(3, 40)]
    }

    #[test]
    fn one_run_of_each_flow_a_timeout() {
        let mut chain = new();
        assert_eq!(chain.again(&out(1, 0), &paths(0), at(100)), Again::No);
        assert_eq!(chain.again(&out(1, 0), &paths(1), at(200)), Again::On(2), "the fastest other");
        assert_eq!(chain.again(&out(1, 1), &paths(1), at(201)), Again::No, "the next of it waits");
        assert_eq!(chain.again(&out(2, 2), &paths(1), at(202)), Again::On(2), "another flow");
        assert_eq!(chain.again(&out(1, 1), &paths(2), at(600)), Again::On(2), "the next timeout");
        assert_eq!(chain.again(&out(3, 700), &paths(2), at(701)), Again::No, "sent after it");
    }

    #[test]
    fn timeouts_after_progress_count_again() {
        let mut chain = new();
        assert_eq!(chain.again(&out(1, 0), &paths(1), at(200)), Again::On(2));
        assert!(!chain.gives_back(&paths(0)[0], at(300)));
        assert_eq!(chain.again(&out(1, 250), &paths(1), at(600)), Again::On(2));
        assert_eq!(chain.again(&out(1, 250), &paths(1), at(601)), Again::No);
    }

    #[test]
    fn duplicate_avoids_paths_that_carried_the_run() {
        let [a, b, c] = paths(1);
        let had = |carried: &[usize], expected: usize| {
            let mut run = OutView { expected: PathSet::only(expected), ..out(1, 0) };
            carried.iter().for_each(|&i| run.carried.insert(i));
            run
        };
        assert_eq!(new().again(&had(&[2], 0), &[a, b, c], at(200)), Again::On(1));
        assert_eq!(new().again(&had(&[1, 2], 0), &[a, b, c], at(200)), Again::No, "all had it");
        assert_eq!(new().again(&had(&[], 0), &[a, b, stalled(c)], at(200)), Again::On(1));
        assert_eq!(new().again(&had(&[1], 1), &[a, b, c], at(200)), Again::No, "not timed out");
        let mut chain = new();
        assert_eq!(chain.again(&had(&[], 0), &[a, full(b), full(c)], at(200)), Again::No);
        assert_eq!(chain.again(&had(&[], 0), &[a, full(b), c], at(201)), Again::On(2), "now");
    }
}
