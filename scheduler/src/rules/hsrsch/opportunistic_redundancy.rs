//! `opportunistic_redundancy`: copies segments to idle paths in order to measure them.
//!
//! Rule: POLYCORN 4.6. A path is idle if it carried nothing for `idle` (alpha, 1 s), or while
//! `bytes` (beta, 8 KB) went over other paths. The next `segments` (tau, 16) segments are copied to
//! every idle path, even if a filter deselected it (4.2: a hard selector over C and U).
//!
//! Choices where the paper is open: a path that is about to fail, stalled, a backup, full, or has
//! carried the segment gets no copy. A path stays idle until its last copy. A copied run counts as
//! its segments, and is no longer than the copies that the path still needs.

use std::time::{Duration, Instant};

use polyrail_model::PathId;

use crate::params::{ParamError, Reader};
use crate::rules::per_path::PerPath;
use crate::{Input, Kind, Note, PathSets, SEGMENT, Schedulerlet};

#[derive(Debug)]
pub struct OpportunisticRedundancy {
    idle: Duration,
    bytes: u64,
    segments: u64,
    paths: PerPath<Use>,
}

/// How a path is used.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// When something was last scheduled on it that was no copy, or a series of copies ended.
    used_at: Option<Instant>,
    /// Bytes that went over others since.
    elsewhere: u64,
    /// Segments that are still to be copied to it.
    copies: u64,
}

impl OpportunisticRedundancy {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(3_600));
        Ok(Self {
            idle: params.time("idle", Duration::from_secs(1), least..=most)?,
            bytes: params.count("bytes", 8_192, 1..=1 << 30)?,
            segments: params.count("segments", 16, 1..=1 << 20)?,
            paths: PerPath::default(),
        })
    }

    /// How many segments are to be copied to the path: none while it is not idle.
    fn left(&mut self, path: PathId, now: Instant) -> u64 {
        let (idle, bytes, segments) = (self.idle, self.bytes, self.segments);
        let used = self.paths.of(path);
        let since = *used.used_at.get_or_insert(now);
        if used.copies == 0
            && (now.saturating_duration_since(since) >= idle || used.elsewhere >= bytes)
        {
            used.copies = segments;
        }
        used.copies
    }

    fn sent(&mut self, path: PathId, bytes: u64, copy: bool, now: Instant) {
        if !copy {
            for (_, other) in self.paths.iter_mut().filter(|(id, _)| *id != path) {
                other.elsewhere = other.elsewhere.saturating_add(bytes);
            }
        }
        let used = self.paths.of(path);
        if copy {
            used.copies = used.copies.saturating_sub(bytes.div_ceil(SEGMENT).max(1));
        } else {
            used.copies = 0;
        }
        if used.copies == 0 {
            *used = Use { used_at: Some(now), elsewhere: 0, copies: 0 };
        }
    }
}

impl Schedulerlet for OpportunisticRedundancy {
    fn kind(&self) -> Kind {
        Kind::HardSelector
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        if sets.selected().is_empty() {
            return;
        }
        let mut least: Option<u64> = None;
        let others = sets.candidates().or(sets.unavailable());
        for path in others.without(input.segment.carried).iter() {
            let view = &input.paths[path];
            let fit = view.available() && !view.backup && !view.is_about_to_fail();
            let left = if fit { self.left(view.id, input.now) } else { 0 };
            if left > 0 && sets.select(path) {
                least = Some(least.map_or(left, |least| least.min(left)));
            }
        }
        if let Some(left) = least {
            // No path gets more than its copies with a longer run.
            sets.limit_run(left.saturating_mul(SEGMENT));
        }
    }

    fn note(&mut self, note: &Note, now: Instant) {
        match *note {
            Note::Sent { path, bytes, copy, .. } => self.sent(path, bytes, copy, now),
            Note::Gone { path } => self.paths.forget(path),
            Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::FlowId;

    use super::*;
    use crate::samples::{backup, base, full, ms, path, send, stalled};
    use crate::{Chain, ChainSpec, Decision, Forecast, PathView, SegmentView};

    struct Scene {
        chain: Chain,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            let rules = ["min_rtt", "opportunistic_redundancy"];
            Self { chain: ChainSpec::of(&rules).unwrap().build(), now: base() }
        }

        /// Sends one segment; answers with the paths that got it, the copies behind.
        fn send(&mut self, paths: &[PathView]) -> Vec<u64> {
            let on = send(&mut self.chain, paths, SegmentView::default(), SEGMENT, self.now);
            on.into_iter().map(|index| paths[index].id.0).collect()
        }
    }

    #[test]
    fn eight_kilobytes_on_others_cause_sixteen_copies() {
        let mut scene = Scene::new();
        let paths = [path(1, 40), path(2, 60)];
        for round in 0..3 {
            for segment in 0..6 {
                assert_eq!(scene.send(&paths), [1], "round {round}, segment {segment}");
            }
            for copy in 0..16 {
                assert_eq!(scene.send(&paths), [1, 2], "round {round}, copy {copy}");
            }
        }
    }

    #[test]
    fn run_is_no_longer_than_the_remaining_copies() {
        let fast = |id, srtt_ms| PathView {
            rate: Some(polyrail_model::Bitrate::from_mbps(100.0)),
            ..path(id, srtt_ms)
        };
        let paths = [fast(1, 40), fast(2, 60), fast(3, 80)];
        let mut scene = Scene::new();
        let mut run = |bytes: Option<u64>, paths: &[PathView]| {
            let segment = SegmentView::default();
            let decision = scene.chain.decide(&Input { paths, segment, now: scene.now });
            let Decision::Send { primary, copies, run_max, .. } = decision else {
                panic!("{decision:?}")
            };
            let bytes = bytes.unwrap_or(run_max);
            for index in [primary].into_iter().chain(copies.iter()) {
                let (path, flow, copy) = (paths[index].id, FlowId(1), index != primary);
                let note = Note::Sent { path, flow, offset: 0, bytes, copy };
                scene.chain.note(&note, scene.now);
            }
            (run_max / SEGMENT, copies.len())
        };
        assert_eq!(run(None, &paths[..2]), (11, 0), "nothing is idle");
        assert_eq!(run(None, &paths[..2]), (11, 1));
        assert_eq!(run(None, &paths[..2]), (5, 1), "16 in all");
        assert_eq!(run(None, &paths[..2]), (11, 0));
        assert_eq!(run(None, &paths[..2]), (11, 1));
        assert_eq!(run(Some(SEGMENT), &paths), (5, 1), "the third is new");
        assert_eq!(run(Some(8_192), &paths), (4, 1), "8 KB went elsewhere");
        assert_eq!(run(Some(8_192), &paths), (11, 1), "the third alone");
        assert_eq!(run(None, &paths), (10, 2), "16 and 10 are left");
    }

    #[test]
    fn idle_second_causes_copies() {
        let mut scene = Scene::new();
        let paths = [path(1, 40), path(2, 60), path(3, 80)];
        assert_eq!(scene.send(&paths), [1]);
        scene.now += Duration::from_millis(999);
        assert_eq!(scene.send(&paths), [1]);
        scene.now += Duration::from_millis(1);
        assert_eq!(scene.send(&paths), [1, 2, 3], "all idle paths");
        // Traffic of its own ends the series.
        assert_eq!(scene.send(&[full(paths[0]), paths[1]]), [2]);
        assert_eq!(scene.send(&[paths[0], paths[1]]), [1]);
    }

    #[test]
    fn deselected_path_gets_copies() {
        let at = |id, srtt_ms, owd_ms| PathView {
            owd: Some(ms(owd_ms)),
            rate: Some(polyrail_model::Bitrate::from_mbps(8.0)),
            ..path(id, srtt_ms)
        };
        // The first has the least round trip, and is late towards the peer.
        let paths = [at(1, 40, 200), at(2, 60, 20)];
        let rules = ["handover_rejection", "min_rtt", "tail_rejection", "opportunistic_redundancy"];
        let sends = |first: PathView| {
            let mut chain = ChainSpec::of(&rules).unwrap().build();
            let mut decide = |offset, at: Instant| {
                let segment = SegmentView { tail: true, offset, ..SegmentView::default() };
                let decision = chain.decide(&Input { paths: &[first, paths[1]], segment, now: at });
                let Decision::Send { primary, copies, .. } = decision else { return Vec::new() };
                [primary].into_iter().chain(copies.iter()).collect()
            };
            assert_eq!(decide(0, base()), [1], "the tail does not take the first");
            decide(SEGMENT, base() + ms(1_000))
        };
        assert_eq!(sends(paths[0]), [1, 0], "idle for a second");
        let forecast = Forecast { fails_in: ms(10), uncertainty: ms(200), permille: 300 };
        let failing = PathView { forecast: Some(forecast), ..paths[0] };
        assert_eq!(sends(failing), [1], "about to fail");
        assert_eq!(sends(full(paths[0])), [1]);
    }

    #[test]
    fn unsuitable_paths_get_no_copies() {
        let (a, b) = (path(1, 40), path(2, 60));
        let (fails_in, uncertainty) = (Duration::ZERO, Duration::from_millis(200));
        let forecast = Forecast { fails_in, uncertainty, permille: 300 };
        for (name, other) in [
            ("full", full(b)),
            ("stalled", stalled(b)),
            ("backup", backup(b)),
            ("about to fail", PathView { forecast: Some(forecast), ..b }),
        ] {
            let mut scene = Scene::new();
            scene.send(&[a, b]);
            scene.now += Duration::from_secs(2);
            assert_eq!(scene.send(&[a, other]), [1], "{name}");
            assert_eq!(scene.send(&[a, b]), [1, 2]);
        }
    }
}
