//! Tests of `opportunistic_redundancy`.

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
    let forecast =
        Forecast { fails_in: ms(10), ends_in: ms(10), uncertainty: ms(200), permille: 300 };
    let failing = PathView { forecast: Some(forecast), ..paths[0] };
    assert_eq!(sends(failing), [1], "about to fail");
    assert_eq!(sends(full(paths[0])), [1]);
}

#[test]
fn unsuitable_paths_get_no_copies() {
    let (a, b) = (path(1, 40), path(2, 60));
    let (fails_in, uncertainty) = (Duration::ZERO, Duration::from_millis(200));
    let forecast = Forecast { fails_in, ends_in: fails_in, uncertainty, permille: 300 };
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
