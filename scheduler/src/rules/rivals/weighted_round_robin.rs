//! `weighted_round_robin`: paths in turn, each with as many segments as its weight.
//!
//! Rule: P. Dong and others, "Improving Onboard Internet Services for High-Speed Vehicles by
//! Multipath Transmission in Heterogeneous Wireless Networks", use weights inverse to the
//! round-trip time. With `window = true` the weight is the congestion window over the round-trip
//! time, as they describe LS-SCTP. Full paths are skipped, and a turn ends when every available
//! path has used its share, as in `round_robin`.
//!
//! Choices: the least weight of the live paths is one segment per turn, the greatest at most
//! [`SHARE_MAX`]. Each turn computes new weights, and fractions of a segment carry over. A full
//! path carries over at most one segment.

use std::time::{Duration, Instant};

use crate::params::{ParamError, Reader};
use crate::rules::hsrsch::min_rtt::group;
use crate::rules::path_rate::window;
use crate::rules::per_path::PerPath;
use crate::{Input, Note, PathSet, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Clone, Debug)]
pub struct WeightedRoundRobin {
    window: bool,
    /// What each path may still carry in this turn, in segments.
    shares: PerPath<f64>,
}

impl WeightedRoundRobin {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        Ok(Self { window: params.flag("window", false)?, shares: PerPath::default() })
    }

    fn weight(&self, path: &PathView) -> f64 {
        let amount = if self.window { window(path) as f64 } else { 1.0 };
        amount / path.srtt.max(RTT_MIN).as_secs_f64()
    }

    fn begin_turn(&mut self, group: PathSet, paths: &[PathView]) {
        let least = group.iter().map(|i| self.weight(&paths[i])).fold(f64::INFINITY, f64::min);
        for path in group.iter().map(|i| &paths[i]) {
            let weight = (self.weight(path) / least).clamp(1.0, SHARE_MAX);
            let share = self.shares.of(path.id);
            *share = share.clamp(0.0, 1.0) + weight;
        }
    }

    fn first(&mut self, set: PathSet, paths: &[PathView]) -> Option<(usize, f64)> {
        let shares = set.iter().map(|i| (i, *self.shares.of(paths[i].id)));
        shares.into_iter().find(|(_, share)| *share >= 1.0)
    }
}

impl Schedulerlet for WeightedRoundRobin {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        let available = group.filter(|i| input.paths[i].available());
        if available.is_empty() {
            return;
        }
        let first = self.first(available, input.paths).or_else(|| {
            self.begin_turn(group, input.paths);
            self.first(available, input.paths)
        });
        if let Some((path, share)) = first {
            sets.select(path);
            sets.limit_run(share as u64 * SEGMENT);
        }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        match *note {
            Note::Sent { path, bytes, copy: false, .. } => {
                *self.shares.of(path) -= bytes as f64 / SEGMENT as f64;
            }
            Note::Gone { path } => self.shares.forget(path),
            Note::Sent { .. } | Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

/// The most segments that a path may carry in one turn.
const SHARE_MAX: f64 = 64.0;

/// A shorter round-trip time, or none, counts as this.
const RTT_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;

    use super::*;
    use crate::samples::{backup, base, full, path, send, stalled};
    use crate::{Chain, ChainSpec, Decision, SegmentView};

    fn chain(rule: &str) -> Chain {
        ChainSpec::of(&[rule]).unwrap().build()
    }

    /// The paths of so many decisions of one segment each.
    fn turns(chain: &mut Chain, paths: &[PathView], count: usize) -> Vec<usize> {
        let mut turn = || send(chain, paths, SegmentView::default(), SEGMENT, base());
        (0..count).flat_map(|_| turn()).collect()
    }

    #[test]
    fn shares_are_inverse_to_the_round_trip_time() {
        // 1/20 : 1/40 : 1/60 = 3 : 1.5 : 1; the half is kept, so that two turns are 6 : 3 : 2.
        let paths = [path(1, 20), path(2, 40), path(3, 60)];
        let mut chain = chain("weighted_round_robin");
        assert_eq!(turns(&mut chain, &paths, 11), [0, 0, 0, 1, 2, 0, 0, 0, 1, 1, 2]);
        let skipping = [full(paths[0]), paths[1], stalled(paths[2])];
        assert_eq!(turns(&mut chain, &skipping, 3), [1, 1, 1], "full paths are skipped");
        assert_eq!(turns(&mut chain, &[full(paths[0])], 1), [0; 0]);
        assert_eq!(turns(&mut chain, &[backup(paths[0]), paths[2]], 2), [1, 1]);
    }

    #[test]
    fn windows_may_count_as_well() {
        // 40 KB / 20 ms : 10 KB / 10 ms = 2 : 1; by round-trip time alone 1 : 2.
        let paths = [
            PathView { window: Bytes(40_000), ..path(1, 20) },
            PathView { window: Bytes(10_000), ..path(2, 10) },
        ];
        let by_window = &mut chain("weighted_round_robin(window=true)");
        assert_eq!(turns(by_window, &paths, 6), [0, 0, 1, 0, 0, 1]);
        assert_eq!(turns(&mut chain("weighted_round_robin"), &paths, 6), [0, 1, 1, 0, 1, 1]);
    }

    #[test]
    fn a_run_is_no_longer_than_the_share() {
        let paths = [path(1, 20), path(2, 50)];
        let mut chain = chain("weighted_round_robin");
        let input = Input { paths: &paths, segment: SegmentView::default(), now: base() };
        let wanted =
            Decision::Send { primary: 0, copies: PathSet::EMPTY, run_max: 2 * SEGMENT, ahead: 0 };
        assert_eq!(chain.decide(&input), wanted, "2.5 segments");

        let far = [path(3, 0), path(4, 5_000)];
        let turns = turns(&mut chain, &far, 66);
        assert_eq!((&turns[..64], &turns[64..]), (&[0; 64][..], &[1, 0][..]), "64 at most");
    }
}
