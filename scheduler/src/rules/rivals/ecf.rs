//! `ecf`: takes a slower path only if the faster one would not finish sooner.
//!
//! Rule: Y. Lim and others, "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", as in
//! multipath-tcp/mptcp, `net/mptcp/mptcp_ecf.c`. If `min_rtt` would take a slower path s than the
//! fastest f, with k bytes not yet on a path, `x_f = max(k, W_f)` and `delta = max(v_f, v_s)`:
//!
//! ```text
//! if s_f (x_f + W_f) < (1 + beta waiting) W_f (s_s + delta):
//!     if s_s max(k, W_s) >= W_s (2 s_f + delta): waiting = 1, nothing is sent
//!     else: s
//! else: waiting = 0, s
//! ```
//!
//! Choices: f is the fastest path that `min_rtt` could take. A segment waits at most `s_s + delta`,
//! because it would have arrived over s by then. `waiting` belongs to the session. The slower path
//! gets one segment at a time. The products are 128 bits wide: the kernel's can overflow 32.

use std::time::Duration;

use crate::params::{ParamError, Reader};
use crate::rules::hsrsch::min_rtt::{fastest, group};
use crate::rules::path_rate::window;
use crate::rules::waits::Waits;
use crate::{Input, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Clone, Debug)]
pub struct Ecf {
    /// Beta in thousandths.
    beta: u128,
    waiting: bool,
    waits: Waits,
}

impl Ecf {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let beta = params.number("beta", 0.25, 0.0..=10.0)?;
        Ok(Self { beta: (beta * 1_000.0).round() as u128, waiting: false, waits: Waits::default() })
    }

    /// Whether waiting for the fast path is sooner.
    fn waits_for(&mut self, fast: &PathView, slow: &PathView, backlog: u64) -> bool {
        let (window_f, window_s) = (u128::from(window(fast)), u128::from(window(slow)));
        let (srtt_f, srtt_s) = (fast.srtt.as_micros(), slow.srtt.as_micros());
        let delta = fast.rtt_var.max(slow.rtt_var).as_micros();
        let backlog = u128::from(backlog);
        let done = srtt_f.saturating_mul(backlog.max(window_f).saturating_add(window_f));
        let patience = 1_000 + if self.waiting { self.beta } else { 0 };
        let over_slow = window_f.saturating_mul(srtt_s.saturating_add(delta));
        if done.saturating_mul(1_000) >= patience.saturating_mul(over_slow) {
            self.waiting = false;
            return false;
        }
        let over_slow = srtt_s.saturating_mul(backlog.max(window_s));
        let waits = over_slow >= window_s.saturating_mul((2 * srtt_f).saturating_add(delta));
        self.waiting |= waits;
        waits
    }
}

impl Schedulerlet for Ecf {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        let Some(slow) = fastest(group, input) else { return };
        let Some(fast) = group.iter().min_by_key(|&i| input.paths[i].srtt) else { return };
        if input.paths[fast].srtt < input.paths[slow].srtt {
            let (fast, slow) = (&input.paths[fast], &input.paths[slow]);
            if self.waits_for(fast, slow, input.segment.backlog.0) {
                let longest: Duration = slow.srtt.saturating_add(fast.rtt_var.max(slow.rtt_var));
                if self.waits.hold(sets, input, longest) {
                    return;
                }
            }
            sets.limit_run(SEGMENT);
        }
        sets.select(slow);
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;

    use super::*;
    use crate::samples::{backup, base, chosen, full, path, stalled};
    use crate::{Chain, ChainSpec, Decision, PathSet, SegmentView};

    /// A path with a window of ten segments, 14,000 bytes.
    fn at(id: u64, srtt_ms: u64) -> PathView {
        PathView { window: Bytes(14_000), ..path(id, srtt_ms) }
    }

    fn new() -> Chain {
        ChainSpec::of(&["ecf"]).unwrap().build()
    }

    fn ask(chain: &mut Chain, paths: &[PathView], backlog: u64, offset: u64) -> Option<usize> {
        let segment = SegmentView { backlog: Bytes(backlog), offset, ..SegmentView::default() };
        chosen(chain.decide(&Input { paths, segment, now: base() }))
    }

    #[test]
    fn table() {
        let (fast, slow) = (full(at(1, 20)), at(2, 100));
        let unsteady = PathView { rtt_var: Duration::from_millis(40), ..slow };
        for (name, paths, backlog, choice) in [
            ("the fast one has room", [at(1, 20), slow], 0, Some(0)),
            // 20 (14,000 + 14,000) < 14,000 x 100, and 100 x 14,000 >= 14,000 x 40.
            ("little is left", [fast, slow], 0, None),
            // 20 (55,999 + 14,000) < 14,000 x 100.
            ("just too little", [fast, slow], 55_999, None),
            ("20 (56,000 + 14,000) = 14,000 x 100", [fast, slow], 56_000, Some(1)),
            ("60 (14,000 + 14,000) >= 14,000 x 100", [full(at(1, 60)), slow], 0, Some(1)),
            // 60 x 28,000 < 14,000 (100 + 40), but 100 x 14,000 < 14,000 (120 + 40).
            ("as good as the fast one", [full(at(1, 60)), unsteady], 0, Some(1)),
            ("all full", [fast, full(slow)], 0, None),
            ("the fast one is dead", [stalled(fast), slow], 0, Some(1)),
            ("the fast one is a backup", [backup(fast), slow], 0, Some(1)),
            // 10^6 us x 2^62 bytes are zero in 64 bits.
            ("wide", [full(at(1, 1_000)), at(2, 2_000)], 1 << 62, Some(1)),
        ] {
            assert_eq!(ask(&mut new(), &paths, backlog, 0), choice, "{name}");
        }
    }

    #[test]
    fn waiting_raises_the_bar_for_the_slow_path() {
        let (mut chain, paths) = (new(), [full(at(1, 20)), at(2, 100)]);
        assert_eq!(ask(&mut chain, &paths, 0, 0), None);
        // 20 (k + 14,000) against 1.25 x 14,000 x 100: k = 73,500.
        assert_eq!(ask(&mut chain, &paths, 73_499, 0), None);
        assert_eq!(ask(&mut chain, &paths, 73_500, 0), Some(1));
        assert_eq!(ask(&mut chain, &paths, 56_000, 0), Some(1), "no longer");
    }

    #[test]
    fn of_three_paths_the_one_with_room_is_compared_with_the_fastest() {
        let paths = [full(at(1, 20)), full(at(2, 30)), at(3, 100), at(4, 200)];
        assert_eq!(ask(&mut new(), &paths, 55_999, 0), None);
        assert_eq!(ask(&mut new(), &paths, 56_000, 0), Some(2));
    }

    #[test]
    fn wait_is_bounded_and_the_slow_path_gets_one_segment() {
        let var = Duration::from_millis(10);
        let paths = [full(at(1, 20)), PathView { rtt_var: var, ..at(2, 100) }];
        let mut chain = new();
        let mut decide = |at| {
            let now = base() + Duration::from_millis(at);
            chain.decide(&Input { paths: &paths, segment: SegmentView::default(), now })
        };
        let until = Some(base() + Duration::from_millis(110));
        assert_eq!(decide(0), Decision::Wait { until });
        assert_eq!(decide(109), Decision::Wait { until });
        let sends =
            Decision::Send { primary: 1, copies: PathSet::EMPTY, run_max: SEGMENT, ahead: 0 };
        assert_eq!(decide(110), sends);
    }
}
