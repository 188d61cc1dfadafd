//! `raven`, interval reconstructed: copies to every path that may be the fastest.
//!
//! Rule: Lee, Flinn and Tonshal, "RAVEN: Improving Interactive Latency for the Connected Car"
//! (MobiCom 2018); `forkjoseph/mptcp`, `net/mptcp/mptcp_raven.c`. Each path has an interval that
//! contains its latency with 90 % and widens as its samples age. The best path has the least lower
//! bound. Every path whose lower bound is at most the best path's upper bound carries the segment,
//! and so does every path without an interval. Retransmissions get no copies.
//!
//! Reconstructed, so it says nothing about the original, whose bounds are tables fitted to two
//! cars. Here the interval is `srtt -+ 1.645 sigma` of a normal distribution, sigma 1.2533 times
//! the mean deviation (`rtt_var`), at least 1 ms to each side, times the root of `1 + age / fade`
//! (1 s), a random walk. The age is the time since the last acknowledgement of the path, beyond a
//! round trip. The path of the least round-trip time with room is the first; if none has room, the
//! fastest other path.

use std::time::{Duration, Instant};

use crate::params::{ParamError, Reader};
use crate::rules::hsrsch::min_rtt::{fastest, group, is_open};
use crate::rules::per_path::PerPath;
use crate::{Input, Note, PathSet, PathSets, PathView, Schedulerlet};

#[derive(Debug)]
pub struct Raven {
    fade: Duration,
    /// When a run of the path was last acknowledged, or the path was first seen.
    fresh_at: PerPath<Option<Instant>>,
}

impl Raven {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(3_600));
        let fade = params.time("fade", Duration::from_secs(1), least..=most)?;
        Ok(Self { fade, fresh_at: PerPath::default() })
    }

    /// The bounds of the latency in seconds; `None` while nothing was measured.
    fn interval(&mut self, path: &PathView, now: Instant) -> Option<(f64, f64)> {
        let fresh_at = *self.fresh_at.of(path.id).get_or_insert(now);
        if path.srtt.is_zero() {
            return None;
        }
        let age = now.saturating_duration_since(fresh_at).saturating_sub(path.srtt);
        let sigma = path.rtt_var.as_secs_f64() * DEVIATION;
        let half = (sigma * QUANTILE).max(LEAST_S)
            * (1.0 + age.as_secs_f64() / self.fade.as_secs_f64()).sqrt();
        let mean = path.srtt.as_secs_f64();
        Some(((mean - half).max(0.0), mean + half))
    }

    /// The members that may well be the fastest.
    fn overlapping(&mut self, group: PathSet, input: &Input<'_>) -> PathSet {
        let mut bound: Option<(f64, f64)> = None;
        for path in group.iter() {
            let Some((low, high)) = self.interval(&input.paths[path], input.now) else { continue };
            if bound.is_none_or(|best| (low, high) < best) {
                bound = Some((low, high));
            }
        }
        let mut wanted = PathSet::EMPTY;
        for path in group.iter() {
            let own = self.interval(&input.paths[path], input.now);
            let overlaps = match (own, bound) {
                (Some((low, _)), Some((_, high))) => low <= high,
                _ => true,
            };
            if overlaps {
                wanted.insert(path);
            }
        }
        wanted
    }
}

impl Schedulerlet for Raven {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        let wanted = self.overlapping(group, input);
        let first = fastest(wanted, input).or_else(|| fastest(group, input));
        let Some(first) = first else { return };
        sets.select(first);
        let segment = &input.segment;
        if segment.reinjected || !segment.carried.is_empty() || !wanted.contains(first) {
            return;
        }
        for path in wanted.filter(|i| is_open(&input.paths[i])).iter() {
            if !input.paths[path].backup {
                sets.select(path);
            }
        }
    }

    fn note(&mut self, note: &Note, now: Instant) {
        match *note {
            Note::Acked { path, sure: true, .. } => *self.fresh_at.of(path) = Some(now),
            Note::Gone { path } => self.fresh_at.forget(path),
            Note::Acked { .. } | Note::Sent { .. } | Note::Reinjected { .. } => {}
        }
    }
}

/// 90 % of a normal distribution lie within so many standard deviations.
const QUANTILE: f64 = 1.645;

/// A standard deviation over a mean deviation, of a normal distribution.
const DEVIATION: f64 = 1.2533;

/// The least distance of the mean from its bounds.
const LEAST_S: f64 = 0.001;

#[cfg(test)]
mod tests {

    use super::*;
    use crate::samples::{acked, backup, base, full, ms, path, targets};
    use crate::{Chain, ChainSpec, SegmentView};

    fn at(id: u64, srtt_ms: u64, rtt_var_ms: u64) -> PathView {
        PathView { rtt_var: ms(rtt_var_ms), ..path(id, srtt_ms) }
    }

    fn on(chain: &mut Chain, paths: &[PathView], segment: SegmentView, now: Instant) -> Vec<usize> {
        targets(chain.decide(&Input { paths, segment, now }))
    }

    #[test]
    fn table() {
        let choice = |paths: &[PathView]| {
            let mut chain = ChainSpec::named("raven").unwrap().build();
            on(&mut chain, paths, SegmentView::default(), base())
        };
        // 2.06 times 10 ms to each side: 79.4 to 120.6 ms.
        let a = at(1, 100, 10);
        assert_eq!(choice(&[a, at(2, 141, 10)]), [0, 1], "from 120.4 ms on");
        assert_eq!(choice(&[a, at(2, 142, 10)]), [0], "from 121.4 ms on");
        assert_eq!(choice(&[at(2, 130, 10), a, at(3, 125, 2)]), [1, 0], "109.4 ms; 120.9 ms");
        assert_eq!(choice(&[a, at(2, 122, 0)]), [0], "1 ms at least: from 121 ms on");
        assert_eq!(choice(&[a, at(2, 121, 0)]), [0, 1], "from 120 ms on");
        assert_eq!(choice(&[a, at(2, 110, 0)]), [0, 1]);
        // 190 - 2.06 x 60 = 66.3 is the least bound, so the best one reaches to 313.7 ms.
        assert_eq!(choice(&[a, at(2, 190, 60), at(3, 310, 0)]), [0, 1, 2]);
        let unknown = at(2, 0, 0);
        assert_eq!(choice(&[a, unknown, at(3, 300, 0)]), [1, 0], "nothing is known of it");
        assert_eq!(choice(&[unknown, at(3, 0, 0)]), [0, 1], "nothing is known at all");
        assert_eq!(choice(&[full(a), at(2, 120, 10)]), [1]);
        assert_eq!(choice(&[full(a), at(2, 300, 10)]), [1], "none of them has room");
        assert_eq!(choice(&[a, backup(a)]), [0]);
    }

    #[test]
    fn samples_age() {
        let paths = [at(1, 100, 10), at(2, 171, 10)];
        let mut chain = ChainSpec::named("raven").unwrap().build();
        let at = |millis| base() + ms(millis);
        let fresh = |chain: &mut Chain, path, millis| {
            chain.note(&acked(path, 1, 1), at(millis));
        };
        let segment = SegmentView::default();
        assert_eq!(on(&mut chain, &paths, segment, at(0)), [0]);
        // Path 0 stays fresh: 120.6 ms. Path 1 needs 50.4 / 20.6 = 2.45 times the width, which it
        // has at 1 + 4.98 s and a round trip.
        fresh(&mut chain, paths[0].id, 5_000);
        assert_eq!(on(&mut chain, &paths, segment, at(5_100)), [0]);
        fresh(&mut chain, paths[0].id, 5_200);
        assert_eq!(on(&mut chain, &paths, segment, at(5_200)), [0, 1]);
        fresh(&mut chain, paths[1].id, 5_300);
        assert_eq!(on(&mut chain, &paths, segment, at(5_300)), [0]);
    }

    #[test]
    fn retransmissions_get_no_copies() {
        let paths = [at(1, 100, 10), at(2, 110, 10), at(3, 120, 10)];
        let mut chain = ChainSpec::named("raven").unwrap().build();
        let carried = SegmentView { carried: PathSet::only(0), ..SegmentView::default() };
        assert_eq!(on(&mut chain, &paths, carried, base()), [1]);
        let again = SegmentView { reinjected: true, ..SegmentView::default() };
        assert_eq!(on(&mut chain, &paths, again, base()), [0]);
    }
}
