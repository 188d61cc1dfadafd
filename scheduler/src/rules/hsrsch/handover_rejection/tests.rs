//! Tests of `handover_rejection`.

use super::*;
use crate::samples::{base, chosen, full, ms, path, sent, stalled};
use crate::{Chain, ChainSpec, Decision, SegmentView};

fn failing(path: PathView, fails_in: u64) -> PathView {
    let forecast = Forecast { fails_in: ms(fails_in), uncertainty: ms(200), permille: 300 };
    PathView { forecast: Some(forecast), ..path }
}

fn timed_out(path: PathView) -> PathView {
    PathView { timeouts: 1, ..path }
}

/// A train that stands still.
fn unsure(path: PathView) -> PathView {
    let (fails_in, uncertainty) = (ms(3_600_000), Duration::MAX);
    PathView { forecast: Some(Forecast { fails_in, uncertainty, permille: 300 }), ..path }
}

fn choice(chain: &mut Chain, now: Instant, paths: &[PathView]) -> Option<usize> {
    chosen(chain.decide(&Input { paths, segment: SegmentView::default(), now }))
}

#[test]
fn table() {
    let (a, b) = (path(1, 40), path(2, 60));
    for (name, paths, wanted) in [
        ("no forecast", [a, b], Some(0)),
        ("far away", [failing(a, 240), b], Some(0)),
        ("nearer than round trip and error", [failing(a, 239), b], Some(1)),
        ("here", [failing(a, 0), b], Some(1)),
        ("an error without bound", [unsure(a), b], Some(1)),
        ("all fail: the farthest stays", [failing(a, 100), failing(b, 101)], Some(1)),
        ("the other is dead", [failing(a, 100), stalled(b)], Some(0)),
        ("the other hears nothing any more", [failing(a, 100), timed_out(b)], Some(0)),
        ("the other is dead and fails later", [failing(a, 100), failing(stalled(b), 200)], Some(0)),
    ] {
        let mut chain = ChainSpec::of(&["handover_rejection", "min_rtt"]).unwrap().build();
        assert_eq!(choice(&mut chain, base(), &paths), wanted, "{name}");
    }
    let spec = ChainSpec::of(&["handover_rejection(block=true)", "min_rtt"]).unwrap();
    assert_eq!(choice(&mut spec.build(), base(), &[failing(a, 9), failing(b, 9)]), None);
}

#[test]
fn unlikely_failure_rejects_no_path() {
    let likely = |permille| {
        let mut a = failing(path(1, 40), 0);
        a.forecast = a.forecast.map(|forecast| Forecast { permille, ..forecast });
        [a, path(2, 60)]
    };
    let rules = ["handover_rejection(permille=350)", "min_rtt"];
    let mut chain = ChainSpec::of(&rules).unwrap().build();
    assert_eq!(choice(&mut chain, base(), &likely(349)), Some(0));
    assert_eq!(choice(&mut chain, base(), &likely(350)), Some(1));
    // The probability may change on the way.
    assert_eq!(choice(&mut chain, base() + ms(10), &likely(349)), Some(0));
    assert!(ChainSpec::of(&["handover_rejection(permille=1001)", "min_rtt"]).is_err());
    let default = |permille| {
        let remaining = polyrail_model::Bytes::from_mib(1);
        let segment = SegmentView { remaining, ..SegmentView::default() };
        let paths = likely(permille);
        match ChainSpec::default().build().decide(&Input { paths: &paths, segment, now: base() }) {
            Decision::Send { primary, copies, .. } => (primary, copies.iter().collect()),
            Decision::Wait { .. } => (usize::MAX, Vec::new()),
        }
    };
    assert_eq!(default(349), (0, vec![1]), "the default chain uses it, and copies");
    assert_eq!(default(350), (1, vec![]), "the default chain turns it away");
}

#[test]
fn block_waits_until_the_first_rejection_ends() {
    let (a, b) = (path(1, 40), path(2, 60));
    let spec = ChainSpec::of(&["handover_rejection(block=true)", "min_rtt"]).unwrap();
    let wakes = |chain: &mut Chain, at: u64, paths: &[PathView]| {
        let now = base() + ms(at);
        match chain.decide(&Input { paths, segment: SegmentView::default(), now }) {
            Decision::Wait { until } => Ok(until.map(|until| until - base())),
            Decision::Send { primary, .. } => Err(primary),
        }
    };
    let mut chain = spec.build();
    let ahead = [failing(a, 100), failing(b, 50)];
    assert_eq!(wakes(&mut chain, 0, &ahead), Ok(Some(ms(2_550))), "50 ms and 2.5 s");
    assert_eq!(wakes(&mut chain, 0, &[unsure(a)]), Ok(Some(ms(3_500))), "a second at most");
    let here = [failing(a, 0), failing(b, 50)];
    assert_eq!(wakes(&mut chain, 100, &here), Ok(Some(ms(2_600))), "since it was passed");
    assert_eq!(wakes(&mut chain, 2_000, &here), Ok(Some(ms(2_600))));
    assert_eq!(wakes(&mut chain, 2_600, &here), Err(0), "a probe");
    chain.note(&sent(a.id, 1), base() + ms(2_600));
    assert_eq!(wakes(&mut chain, 2_610, &here), Ok(Some(ms(2_640))), "a round trip");
    let other = [failing(a, 100), full(b)];
    assert_eq!(wakes(&mut spec.build(), 0, &other), Ok(None), "room wakes it");
}

#[test]
fn if_all_paths_passed_their_position_the_latest_is_used() {
    let paths = |a, b| [failing(path(1, 40), a), failing(path(2, 60), b)];
    let mut chain = ChainSpec::of(&["handover_rejection", "min_rtt"]).unwrap().build();
    let at = |millis| base() + ms(millis);
    assert_eq!(choice(&mut chain, at(0), &paths(100, 0)), Some(0), "the last to fail");
    assert_eq!(choice(&mut chain, at(100), &paths(0, 0)), Some(0), "the last that passed");
    assert_eq!(choice(&mut chain, at(2_499), &paths(0, 0)), Some(0));
}

#[test]
fn passed_position_is_probed_and_accepted() {
    let (a, b) = (failing(path(1, 40), 0), path(2, 60));
    let mut chain = ChainSpec::of(&["handover_rejection", "min_rtt"]).unwrap().build();
    let (path, flow) = (a.id, polyrail_model::FlowId(1));
    let acked = |sure| Note::Acked { path, sure, flow, offset: 0, bytes: 1, cumulative: 1 };
    let at = |millis| base() + ms(millis);
    assert_eq!(choice(&mut chain, at(0), &[a, b]), Some(1));
    chain.note(&acked(true), at(100));
    assert_eq!(choice(&mut chain, at(2_499), &[a, b]), Some(1), "an old segment proves nothing");
    assert_eq!(choice(&mut chain, at(2_500), &[a, b]), Some(0), "a probe");
    chain.note(&sent(path, 1), at(2_500));
    // The acknowledgement may belong to its copy on another path.
    chain.note(&acked(false), at(2_501));
    assert_eq!(choice(&mut chain, at(2_539), &[a, b]), Some(1), "one a round trip");
    assert_eq!(choice(&mut chain, at(2_540), &[a, b]), Some(0), "the next");
    chain.note(&acked(true), at(2_545));
    assert_eq!(choice(&mut chain, at(2_546), &[a, b]), Some(0), "it works");
    assert_eq!(choice(&mut chain, at(2_547), &[failing(a, 100), b]), Some(1), "the next position");
    assert_eq!(choice(&mut chain, at(2_548), &[failing(a, 999), b]), Some(0));
    assert_eq!(choice(&mut chain, at(2_549), &[a, b]), Some(1), "a new passage");
}
