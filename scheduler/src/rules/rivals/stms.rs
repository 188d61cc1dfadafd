//! `stms`, reconstructed: uses a slow path only for data that the fast one would deliver later.
//!
//! Rule: Shi, Cui, Wang and others, "STMS: Improving MPTCP Throughput Under Heterogeneous Networks"
//! (USENIX ATC 2018), reconstructed from its description, so it says nothing about the original.
//! The fast path sends the lowest unsent byte, a slow path the byte a gap further on, and only if
//! the backlog k exceeds the gap. The gap begins as `(owd_s - owd_f) B_f`. If a segment of the slow
//! path arrives late by t, the gap grows by `t B_f`, if early it shrinks, by 1/8 of the difference
//! at a time.
//!
//! Choices: k is the backlog of the whole session. If the flow itself is shorter than the gap, the
//! slow path gets its lowest byte, and the gap does not change. The path of the least delay is the
//! fast one, and each other path has its own gap. While k does not exceed the gap, the segment
//! waits for the fast path, at most for the time of the gap.

use std::time::{Duration, Instant};

use polyrail_model::{FlowId, PathId};

use crate::rules::hsrsch::min_rtt::{group, is_open};
use crate::rules::path_rate::{delay, rate};
use crate::rules::per_path::PerPath;
use crate::rules::waits::Waits;
use crate::{Input, Note, PathSets, Schedulerlet};

#[derive(Debug, Default)]
pub struct Stms {
    /// The gap of each slow path, in bytes.
    gaps: PerPath<Option<f64>>,
    /// Of the fast path, in bytes per second.
    fast_rate: f64,
    /// The slow path of the last decision, and where the segment began.
    decided: Option<(PathId, u64)>,
    /// Segments of slow paths that are on their way, the oldest first; at most [`OUT_MAX`], then
    /// the oldest is forgotten.
    out: Vec<Out>,
    waits: Waits,
}

/// A segment of a slow path.
#[derive(Clone, Copy, Debug)]
struct Out {
    path: PathId,
    flow: FlowId,
    offset: u64,
    /// When all before it had arrived.
    wanted_at: Option<Instant>,
    arrived_at: Option<Instant>,
}

impl Stms {
    /// The gap moves towards one greater by what the fast path delivers in `late_s`; less than none
    /// is none.
    fn learn(&mut self, path: PathId, late_s: f64) {
        if let Some(gap) = self.gaps.of(path) {
            *gap = (*gap + late_s * self.fast_rate / 8.0).max(0.0);
        }
    }

    /// A run has arrived: by its path, of this flow, of these bytes, and all before `cumulative`.
    fn acked(
        &mut self,
        path: PathId,
        flow: FlowId,
        run: (u64, u64),
        cumulative: u64,
        now: Instant,
    ) {
        let mut place = 0;
        while let Some(out) = self.out.get_mut(place) {
            let mut over = false;
            if out.flow == flow {
                let arrived = (run.0..run.1).contains(&out.offset);
                // By another path, which says nothing of this one.
                over = arrived && out.path != path;
                out.arrived_at = out.arrived_at.or(arrived.then_some(now));
                out.wanted_at = out.wanted_at.or((cumulative >= out.offset).then_some(now));
            }
            let (path, wanted, arrived) = (out.path, out.wanted_at, out.arrived_at);
            if let (Some(wanted), Some(arrived), false) = (wanted, arrived, over) {
                let late = arrived.saturating_duration_since(wanted).as_secs_f64();
                let early = wanted.saturating_duration_since(arrived).as_secs_f64();
                self.learn(path, late - early);
                over = true;
            }
            if over {
                self.out.remove(place);
            } else {
                place += 1;
            }
        }
    }
}

impl Schedulerlet for Stms {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        self.decided = None;
        let group = group(sets.candidates(), input);
        let by_delay = |path: &usize| delay(&input.paths[*path]);
        let Some(fast) = group.iter().min_by_key(by_delay) else { return };
        let fast_view = &input.paths[fast];
        self.fast_rate = rate(fast_view).as_bps() as f64 / 8.0;
        if is_open(fast_view) {
            sets.select(fast);
            return;
        }
        let mut longest: Option<Duration> = None;
        let slow = group.filter(|i| is_open(&input.paths[i]));
        for path in slow.iter() {
            let view = &input.paths[path];
            let slower = delay(view).saturating_sub(delay(fast_view)).as_secs_f64();
            let gap = *self.gaps.of(view.id).get_or_insert(slower * self.fast_rate);
            if input.segment.backlog.0 as f64 > gap {
                continue;
            }
            let lasts = Duration::try_from_secs_f64(gap / self.fast_rate).unwrap_or(Duration::MAX);
            longest = Some(longest.map_or(lasts, |known| known.min(lasts)));
        }
        let enough = |path: &usize| {
            let gap = self.gaps.of(input.paths[*path].id);
            gap.is_some_and(|gap| input.segment.backlog.0 as f64 > gap)
        };
        let mut path = slow.iter().filter(enough).min_by_key(by_delay);
        let mut ahead = path.and_then(|path| *self.gaps.of(input.paths[path].id));
        if let (None, Some(longest)) = (path, longest) {
            if self.waits.hold(sets, input, longest) {
                return;
            }
            path = slow.iter().min_by_key(by_delay);
            ahead = None;
        }
        if let Some(path) = path {
            self.decided = Some((input.paths[path].id, input.segment.offset));
            sets.select(path);
            sets.begin_ahead(ahead.unwrap_or_default() as u64);
        }
    }

    fn note(&mut self, note: &Note, now: Instant) {
        match *note {
            Note::Sent { path, flow, offset, copy: false, .. } => {
                // A segment in its turn is late anyway.
                let ahead = |&(slow, from): &(PathId, u64)| slow == path && offset > from;
                if self.decided.take().filter(ahead).is_none() {
                    return;
                }
                if self.out.len() >= OUT_MAX {
                    self.out.remove(0);
                }
                let (wanted_at, arrived_at) = (None, None);
                self.out.push(Out { path, flow, offset, wanted_at, arrived_at });
            }
            Note::Acked { path, flow, offset, bytes, cumulative, .. } => {
                let end = offset.saturating_add(bytes);
                self.acked(path, flow, (offset, end), cumulative, now);
            }
            Note::Gone { path } => {
                self.gaps.forget(path);
                self.out.retain(|out| out.path != path);
            }
            Note::Sent { .. } | Note::Reinjected { .. } => {}
        }
    }
}

/// The most segments of slow paths that are watched.
const OUT_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use polyrail_model::{Bitrate, Bytes};

    use super::*;
    use crate::samples::{base, full, ms, path};
    use crate::{ChainSpec, Decision, Kind, PathView, SegmentView};

    /// 8 Mbit/s: 1,000 bytes are 1 ms.
    fn at(id: u64, owd_ms: u64) -> PathView {
        let owd = Some(Duration::from_millis(owd_ms));
        PathView { owd, rate: Some(Bitrate::from_mbps(8.0)), ..path(id, 2 * owd_ms) }
    }

    #[test]
    fn table() {
        let choice = |paths: &[PathView], backlog| {
            let segment = SegmentView { backlog: Bytes(backlog), ..SegmentView::default() };
            let mut chain = ChainSpec::named("stms").unwrap().build();
            match chain.decide(&Input { paths, segment, now: base() }) {
                Decision::Send { primary, .. } => Ok(primary),
                Decision::Wait { until } => {
                    let now = until.unwrap();
                    let later = chain.decide(&Input { paths, segment, now });
                    assert!(matches!(later, Decision::Send { .. }), "a wait is bounded");
                    Err(now - base())
                }
            }
        };
        let (fast, slow, slower) = (at(1, 20), at(2, 70), at(3, 100));
        assert_eq!(choice(&[slow, fast], 1 << 30), Ok(1), "the fast one has room");
        // The fast one delivers 50,000 bytes in the 50 ms that the slow one takes longer.
        assert_eq!(choice(&[full(fast), slow], 50_000), Err(ms(50)));
        assert_eq!(choice(&[full(fast), slow], 50_001), Ok(1));
        assert_eq!(choice(&[full(fast), slower, slow], 60_000), Ok(2));
        assert_eq!(choice(&[full(fast), slower, full(slow)], 60_000), Err(ms(80)));
        assert_eq!(choice(&[full(fast), slower, full(slow)], 80_001), Ok(1));
    }

    #[test]
    fn gap_follows_late_and_early_segments() {
        let paths = [full(at(1, 20)), at(2, 70)];
        let mut rule = Stms::default();
        let mut slow = |offset, notes: &[(u64, u64, u64, u64)]| {
            let (segment, flow) = (
                SegmentView { backlog: Bytes(1 << 30), offset: 900, ..SegmentView::default() },
                FlowId(0),
            );
            let before = rule.gaps.of(PathId(2)).unwrap_or(50_000.0);
            let mut sets = PathSets::all_candidates(2);
            sets.begin(Kind::SoftSelector);
            rule.apply(&mut sets, &Input { paths: &paths, segment, now: base() });
            assert_eq!(sets.primary(), Some(1));
            assert_eq!(sets.ahead(), before as u64);
            let note = Note::Sent { path: PathId(2), flow, offset, bytes: 100, copy: false };
            rule.note(&note, base());
            for &(path, offset, cumulative, at_ms) in notes {
                let (path, bytes) = (PathId(path), 100);
                let note = Note::Acked { path, sure: true, flow, offset, bytes, cumulative };
                rule.note(&note, base() + ms(at_ms));
            }
            (rule.gaps.of(PathId(2)).unwrap().round(), rule.out.len())
        };
        // The data before it arrives after 40 ms, the segment after 130: 50,000 + 90,000 / 8.
        assert_eq!(slow(1_000, &[(1, 900, 1_000, 40), (2, 1_000, 2_000, 130)]), (61_250.0, 0));
        // There at 130, wanted at 160: 61,250 - 30,000 / 8.
        let early = [(2, 3_000, 2_000, 130), (1, 2_900, 4_000, 160)];
        assert_eq!(slow(3_000, &early), (57_500.0, 0));
        assert_eq!(slow(5_000, &[(1, 5_000, 5_100, 130)]), (57_500.0, 0), "over another path");
        assert_eq!(slow(900, &[(2, 900, 800, 40), (1, 800, 1_000, 130)]), (57_500.0, 0), "in turn");
        for round in 1..=99 {
            let watched = slow(5_000 + 100 * round, &[]).1;
            assert_eq!(watched as u64, round.min(64), "bounded");
        }
    }
}
