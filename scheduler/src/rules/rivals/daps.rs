//! `daps`: plans windows by delay, so that data sent in turn arrives in order.
//!
//! Rule: Kuhn, Lochin, Mifdaoui, Sarwar, Mehani and Boreli, "DAPS: Intelligent delay-aware packet
//! scheduling for multipath transport" (2014), as in `vkirany/mptcp-kau`, `net/mptcp/mptcp_daps.c`,
//! here for any number of paths. `d_i` is half the round-trip time rounded to 4 ms, at least 1 ms.
//! The plan covers the least common multiple of all `d_i`: at each t from 1 ms on that `d_i`
//! divides, path i gets a window, faster paths first. Windows are means (1/8 of the present one,
//! once per round trip) at the time of the plan. Then a new plan begins.
//!
//! Choices where the source is open: a plan is at most [`PLAN_MAX_MS`] long, and a new path joins
//! the next plan. While the path of the turn is full, the segment waits, at most a round trip; then
//! the turn is skipped. Retransmissions use the fastest path, outside of the plan.

use std::time::{Duration, Instant};

use polyrail_model::PathId;

use crate::rules::hsrsch::min_rtt::{fastest, group, is_open};
use crate::rules::path_rate::window;
use crate::rules::per_path::PerPath;
use crate::rules::waits::Waits;
use crate::{Input, Note, PathSet, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Debug, Default)]
pub struct Daps {
    windows: PerPath<Window>,
    /// The paths of the plan, the fastest first.
    plan: Vec<Planned>,
    /// The t of the plan at which it stands, and its end.
    at_ms: u64,
    end_ms: u64,
    /// The path of the last decision that was by the plan.
    decided: Option<PathId>,
    waits: Waits,
}

/// A path in the plan.
#[derive(Clone, Copy, Debug)]
struct Planned {
    path: PathId,
    delay_ms: u64,
    /// Segments a turn.
    window: u64,
    /// Segments of the turn at `at_ms` that were not sent yet.
    left: u64,
}

/// The mean of a window, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    mean: f64,
    taken_at: Option<Instant>,
}

impl Daps {
    fn observe(&mut self, path: &PathView, now: Instant) {
        let sample = window(path) as f64;
        let known = self.windows.of(path.id);
        match known.taken_at {
            Some(at) if now < at + path.srtt => return,
            Some(_) => known.mean += (sample - known.mean) / 8.0,
            None => known.mean = sample,
        }
        known.taken_at = Some(now);
    }

    /// Makes a new plan of these paths.
    fn renew(&mut self, group: PathSet, paths: &[PathView]) {
        self.plan.clear();
        for path in group.iter() {
            let view = &paths[path];
            let delay_ms = rounded(view.srtt / 2);
            let window = ((self.windows.of(view.id).mean / SEGMENT as f64) as u64).max(1);
            let place = self.plan.partition_point(|known| {
                let known = paths.iter().find(|path| path.id == known.path);
                known.is_some_and(|known| known.srtt <= view.srtt)
            });
            self.plan.insert(place, Planned { path: view.id, delay_ms, window, left: 0 });
        }
        let delays = self.plan.iter().map(|planned| planned.delay_ms);
        self.end_ms = delays.fold(1, |a, b| (a / divisor(a, b)).saturating_mul(b));
        self.end_ms = self.end_ms.min(PLAN_MAX_MS);
        self.at_ms = 0;
    }

    /// The place in the plan of the next turn among these paths, if one is left.
    fn turn(&mut self, group: PathSet, paths: &[PathView]) -> Option<usize> {
        let usable =
            |path: PathId| group.iter().any(|i| paths.get(i).is_some_and(|view| view.id == path));
        if let Some(place) = self.plan.iter().position(|p| p.left > 0 && usable(p.path)) {
            return Some(place);
        }
        let next = |planned: &Planned| (self.at_ms / planned.delay_ms + 1) * planned.delay_ms;
        let at_ms = self.plan.iter().filter(|p| usable(p.path)).map(next).min()?;
        if at_ms > self.end_ms {
            return None;
        }
        self.at_ms = at_ms;
        for planned in &mut self.plan {
            planned.left = if at_ms % planned.delay_ms == 0 { planned.window } else { 0 };
        }
        self.plan.iter().position(|planned| planned.left > 0 && usable(planned.path))
    }

    /// Selects the path of this place in the plan.
    fn select(&mut self, sets: &mut PathSets, place: usize, path: usize) {
        self.decided = Some(self.plan[place].path);
        if sets.select(path) {
            sets.limit_run(self.plan[place].left.saturating_mul(SEGMENT));
        }
    }
}

impl Schedulerlet for Daps {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        self.decided = None;
        let group = group(sets.candidates(), input);
        group.iter().for_each(|path| self.observe(&input.paths[path], input.now));
        let available = group.filter(|i| is_open(&input.paths[i]));
        if available.is_empty() {
            return;
        }
        if input.segment.reinjected || !input.segment.carried.is_empty() {
            if let Some(path) = fastest(group, input) {
                sets.select(path);
            }
            return;
        }
        let place = match self.turn(group, input.paths) {
            Some(place) => Some(place),
            None => {
                self.renew(group, input.paths);
                self.turn(group, input.paths)
            }
        };
        let Some(place) = place else { return };
        let of = |planned: &Planned| group.iter().find(|&i| input.paths[i].id == planned.path);
        let Some(path) = of(&self.plan[place]) else { return };
        if available.contains(path) {
            self.select(sets, place, path);
            return;
        }
        let round = input.paths[path].srtt;
        if self.waits.hold(sets, input, round) {
            return;
        }
        self.plan[place].left = 0;
        let next = self.turn(available, input.paths);
        match next.and_then(|place| Some((place, of(&self.plan[place])?))) {
            Some((place, path)) => self.select(sets, place, path),
            // The plan is over.
            None => {
                if let Some(path) = fastest(available, input) {
                    sets.select(path);
                }
            }
        }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        match *note {
            Note::Sent { path, bytes, copy: false, .. } if self.decided == Some(path) => {
                self.decided = None;
                let turn = self.plan.iter_mut().find(|planned| planned.path == path);
                if let Some(planned) = turn {
                    planned.left = planned.left.saturating_sub(bytes.div_ceil(SEGMENT).max(1));
                }
            }
            Note::Gone { path } => {
                self.windows.forget(path);
                self.plan.retain(|planned| planned.path != path);
            }
            _ => {}
        }
    }
}

/// A delay in ms, to the nearest multiple of 4; 1 ms at least.
fn rounded(delay: Duration) -> u64 {
    let whole = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX).min(PLAN_MAX_MS);
    ((whole + 2) / 4 * 4).max(1)
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// The longest plan: with many paths the least common multiple is beyond any use.
const PLAN_MAX_MS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;

    use super::*;
    use crate::samples::{base, full, path, send};
    use crate::{Chain, ChainSpec, Decision, SegmentView};

    fn at(id: u64, srtt_ms: u64, segments: u64) -> PathView {
        PathView { window: Bytes(segments * SEGMENT), ..path(id, srtt_ms) }
    }

    fn one(chain: &mut Chain, paths: &[PathView], now: Instant) -> Option<usize> {
        send(chain, paths, SegmentView::default(), SEGMENT, now).first().copied()
    }

    fn sent(chain: &mut Chain, paths: &[PathView], count: usize) -> Vec<usize> {
        (0..count).map_while(|_| one(chain, paths, base())).collect()
    }

    fn daps() -> Chain {
        ChainSpec::named("daps").unwrap().build()
    }

    #[test]
    fn two_paths() {
        // d = 20 and 60 ms: turns of path 0 at 20, 40 and 60, then of path 1 at 60.
        let paths = [at(1, 40, 2), at(2, 120, 3)];
        let plan = [0, 0, 0, 0, 0, 0, 1, 1, 1];
        assert_eq!(sent(&mut daps(), &paths, 18), [plan, plan].concat());
        assert_eq!(sent(&mut daps(), &[paths[1], paths[0]], 9), plan.map(|path| 1 - path));
    }

    #[test]
    fn three_paths_and_odd_delays() {
        // 20.5 ms is 20, 31 is 32 and 42 is 44 when rounded to 4; here 8, 12 and 16: over 48.
        // t: 8 a, 12 b, 16 a c, 24 a b, 32 a c, 36 b, 40 a, 48 a b c.
        let paths = [at(1, 16, 1), at(2, 24, 1), at(3, 32, 1)];
        assert_eq!(sent(&mut daps(), &paths, 13), [0, 1, 0, 2, 0, 1, 0, 2, 1, 0, 0, 1, 2]);
        assert_eq!(sent(&mut daps(), &[at(1, 40, 1)], 3), [0, 0, 0]);
        let us = Duration::from_micros;
        assert_eq!([20_500, 31_000, 42_000, 1_000, 0].map(|t| rounded(us(t))), [20, 32, 44, 1, 1]);
    }

    #[test]
    fn full_path_is_skipped_after_a_round_trip() {
        let (a, b) = (at(1, 40, 2), at(2, 120, 3));
        let mut chain = daps();
        let later = |millis| base() + Duration::from_millis(millis);
        assert_eq!(one(&mut chain, &[a, b], base()), Some(0));
        assert_eq!(one(&mut chain, &[full(a), b], later(0)), None);
        assert_eq!(one(&mut chain, &[full(a), b], later(39)), None);
        // A round trip is over: on to 60, the next turn of the other.
        assert_eq!(one(&mut chain, &[full(a), b], later(40)), Some(1));
        assert_eq!(sent(&mut chain, &[a, b], 5), [0, 0, 1, 1, 0], "the rest of 60, and a new plan");

        let mut chain = daps();
        assert_eq!(sent(&mut chain, &[a, b], 4), [0; 4], "20 and 40");
        assert_eq!(one(&mut chain, &[full(a), b], later(0)), None);
        assert_eq!(one(&mut chain, &[full(a), b], later(40)), Some(1));
        assert_eq!(sent(&mut chain, &[a, b], 3), [1, 1, 0], "the turn at 60 was given up");
    }

    #[test]
    fn retransmissions_are_outside_of_the_plan() {
        let paths = [at(1, 40, 1), at(2, 40, 1)];
        let mut chain = daps();
        assert_eq!(sent(&mut chain, &paths, 1), [0]);
        let segment = SegmentView { reinjected: true, ..SegmentView::default() };
        let again = chain.decide(&Input { paths: &paths, segment, now: base() });
        assert!(matches!(again, Decision::Send { primary: 0, .. }));
        assert_eq!(sent(&mut chain, &paths, 1), [1], "the turn was kept");
    }

    #[test]
    fn windows_are_means() {
        let mut rule = Daps::default();
        let mut seen = |segments, millis| {
            rule.observe(&at(1, 40, segments), base() + Duration::from_millis(millis));
            rule.windows.of(PathId(1)).mean / SEGMENT as f64
        };
        assert_eq!(seen(8, 0), 8.0);
        assert_eq!(seen(16, 39), 8.0, "once a round trip");
        assert_eq!(seen(16, 40), 9.0);
    }
}
