//! Tests of `handover_rejection`.

use super::*;
use polyrail_model::{Bitrate, Bytes};

use crate::samples::{backup, base, chosen, full, ms, path, sent, stalled};
use crate::{Chain, ChainSpec, Decision, Forecast, SegmentView};

fn failing(path: PathView, fails_in: u64) -> PathView {
    let forecast = Forecast {
        fails_in: ms(fails_in),
        ends_in: ms(fails_in),
        uncertainty: ms(200),
        permille: 300,
    };
    PathView { forecast: Some(forecast), ..path }
}

fn timed_out(path: PathView) -> PathView {
    PathView { timeouts: 1, ..path }
}

/// A train that stands still.
fn unsure(path: PathView) -> PathView {
    let (fails_in, uncertainty) = (ms(3_600_000), Duration::MAX);
    PathView {
        forecast: Some(Forecast { fails_in, ends_in: fails_in, uncertainty, permille: 300 }),
        ..path
    }
}

fn choice(chain: &mut Chain, now: Instant, paths: &[PathView]) -> Option<usize> {
    let segment = SegmentView { recovery: ms(500), ..SegmentView::default() };
    chosen(chain.decide(&Input { paths, segment, now }))
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

/// A path of 8 Mbit/s that fails with this probability (1/1,000) in the next `ends_in` ms.
fn risky(path: PathView, ends_in: u64, permille: u16) -> PathView {
    let (fails_in, ends_in) = (Duration::ZERO, ms(ends_in));
    let forecast = Forecast { fails_in, ends_in, uncertainty: Duration::ZERO, permille };
    PathView { forecast: Some(forecast), ..steady(path) }
}

/// The same, certainly, at a place so many ms ahead or in the second after it.
fn later(path: PathView, fails_in: u64) -> PathView {
    let risky = risky(path, fails_in + 1_000, 1_000);
    let forecast = risky.forecast.map(|one| Forecast { fails_in: ms(fails_in), ..one });
    PathView { forecast, ..risky }
}

/// A certain failure, whose place the train has passed within the position error.
fn unsteady(path: PathView) -> PathView {
    let risky = risky(path, 0, 1_000);
    let forecast = risky.forecast.map(|one| Forecast { uncertainty: ms(240), ..one });
    PathView { forecast, ..risky }
}

/// Empty, 8 Mbit/s.
fn steady(path: PathView) -> PathView {
    let rate = Some(Bitrate::from_mbps(8.0));
    PathView { rate, capacity: rate, window: Bytes(200_000), ..path }
}

/// It needs a minute.
fn slow(path: PathView) -> PathView {
    PathView { outstanding: Bytes(60_000_000), ..steady(path) }
}

/// Full, with 100 KB in flight; a window of data takes 200 ms more.
fn loaded(path: PathView) -> PathView {
    PathView { room: Bytes::ZERO, outstanding: Bytes(100_000), ..steady(path) }
}

#[test]
fn hazard_rejects_a_path_exactly_while_the_flow_is_expected_earlier_without_it() {
    // One segment is delivered after 50 and 80 ms, acknowledged after 100 and 160. A failure costs
    // 500 ms, and the window of 200 KB takes 200 ms over the other path.
    let (a, b) = (path(1, 100), path(2, 160));
    let (end, bulk) = (Bytes(1), Bytes::from_mib(1));
    for (name, paths, remaining, wanted) in [
        ("no forecast", [steady(a), steady(b)], bulk, [true, true]),
        ("certain", [risky(a, 0, 1_000), steady(b)], bulk, [false, true]),
        ("certain, at the end", [risky(a, 0, 1_000), steady(b)], end, [false, true]),
        (
            "below break-even: 30 ms * 0.944 are more than 500 ms * 0.056",
            [risky(a, 0, 56), steady(b)],
            end,
            [true; 2],
        ),
        ("above it", [risky(a, 0, 57), steady(b)], end, [false, true]),
        (
            "969 ms alone, 474 ms with both: 494 ms * 0.289 are more than 200 ms * 0.711",
            [risky(a, 0, 711), steady(b)],
            bulk,
            [true; 2],
        ),
        ("above it", [risky(a, 0, 712), steady(b)], bulk, [false, true]),
        ("far from the end: likely", [risky(a, 0, 990), steady(b)], Bytes(100_000_000), [true; 2]),
        ("the same, certain", [risky(a, 0, 1_000), steady(b)], Bytes(100_000_000), [false, true]),
        ("a tenth of the stretch: below", [risky(a, 1_000, 560), steady(b)], end, [true; 2]),
        ("the same, above", [risky(a, 1_000, 570), steady(b)], end, [false, true]),
        ("the same, certain to fail there", [risky(a, 1_000, 1_000), steady(b)], bulk, [true; 2]),
        ("acknowledged before the place", [later(a, 100), steady(b)], end, [true; 2]),
        ("56 ms of the second after it", [later(a, 44), steady(b)], end, [true; 2]),
        ("57 ms", [later(a, 43), steady(b)], end, [false, true]),
        ("an error of 240 ms: 42 % of certain", [unsteady(a), steady(b)], bulk, [true; 2]),
        ("the same, for the end of a flow", [unsteady(a), steady(b)], end, [false, true]),
        ("the other is the likelier one", [risky(a, 0, 500), risky(b, 0, 600)], end, [true, false]),
        (
            "both are certain: the first stays",
            [risky(a, 0, 1_000), risky(b, 0, 1_000)],
            end,
            [true; 2],
        ),
        ("the other is dead", [risky(a, 0, 1_000), stalled(b)], bulk, [true; 2]),
        ("the other has timed out", [risky(a, 0, 1_000), timed_out(steady(b))], bulk, [true; 2]),
        ("the other is a backup", [risky(a, 0, 1_000), backup(steady(b))], bulk, [true; 2]),
        // 1,069 ms alone, 524 with both.
        ("the other is full", [risky(a, 0, 731), loaded(b)], bulk, [true; 2]),
        ("and still earlier", [risky(a, 0, 732), loaded(b)], bulk, [false, true]),
        ("certain, however slow the other is", [risky(a, 0, 1_000), slow(b)], bulk, [false, true]),
        ("full, but the end of the flow", [risky(a, 0, 57), loaded(b)], end, [false, true]),
    ] {
        let params = "handover_rejection(hazard=true)";
        let mut chain = ChainSpec::of(&[params, "min_rtt", "redundancy"]).unwrap().build();
        let segment = SegmentView { remaining, recovery: ms(500), ..SegmentView::default() };
        let on = |view: &PathView| !view.stalled && view.room > Bytes::ZERO && !view.backup;
        let decision = chain.decide(&Input { paths: &paths, segment, now: base() });
        let taken = crate::samples::targets(decision);
        let allowed = [0, 1].map(|path| wanted[path] && on(&paths[path]));
        assert_eq!([0, 1].map(|path| taken.contains(&path)), allowed, "{name}: {taken:?}");
    }
}

/// The default chain rejects by hazard, and copies nothing because of a forecast.
#[test]
fn default_chain_rejects_by_hazard() {
    let (a, b) = (path(1, 100), path(2, 160));
    for (permille, wanted) in [(711, 0), (712, 1), (1_000, 1)] {
        let paths = [risky(a, 0, permille), steady(b)];
        let (remaining, recovery) = (Bytes::from_mib(1), ms(500));
        let segment =
            SegmentView { remaining, unsent: remaining, recovery, ..SegmentView::default() };
        let mut chain = ChainSpec::default().build();
        match chain.decide(&Input { paths: &paths, segment, now: base() }) {
            Decision::Send { primary, copies, .. } => {
                assert_eq!((primary, copies.is_empty()), (wanted, true), "{permille}");
            }
            Decision::Wait { .. } => panic!("{permille}: it waits"),
        }
    }
}

/// A slow train may stay in the cell beyond all places.
#[test]
fn hazard_beyond_the_last_place_ends() {
    let rules = ["handover_rejection(hazard=true)", "min_rtt"];
    let mut chain = ChainSpec::of(&rules).unwrap().build();
    let paths = [risky(path(1, 100), 0, 900), steady(path(2, 160))];
    for (at, wanted) in [(0, 1), (2_499, 1), (2_500, 0), (60_000, 0)] {
        assert_eq!(choice(&mut chain, base() + ms(at), &paths), Some(wanted), "{at} ms");
    }
    let next = [later(path(1, 100), 60_000), paths[1]];
    assert_eq!(choice(&mut chain, base() + ms(60_500), &next), Some(0), "the next cell");
    assert_eq!(choice(&mut chain, base() + ms(60_900), &paths), Some(1), "and beyond its places");
    let gone = [steady(path(1, 100)), steady(path(2, 160))];
    assert_eq!(choice(&mut chain, base() + ms(61_000), &gone), Some(0), "another cell");
    assert_eq!(choice(&mut chain, base() + ms(70_000), &paths), Some(1), "another forecast");
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
