//! Synthetic runs, also for the tests of the modules next to this one.

use polyrail_emulator::record::{CallRun, CarrierRun, Event, VERSION};

use super::*;

/// A short trip, which has at least one download of each size.
pub(in crate::rail) const COURSE: Course =
    Course { speed_kmh: 300, failures: 6.0, seed: 7, seconds: 60, carriers: 2 };

/// A finished download.
pub(in crate::rail) fn transfer(at_s: f64, bytes: u64, took_s: f64) -> Transferred {
    let progress = vec![0, bytes];
    Transferred { at_s, bytes, up: false, received: bytes, took_s, finished: true, progress }
}

/// A run of the workload `Downloads` in which each transfer has this goodput in Mbit/s.
pub(in crate::rail) fn run(course: Course, contender: &str, goodput: f64) -> Run {
    let planned = course.transfers(Workload::Downloads);
    let took = |one: &Transfer| one.bytes as f64 * 8e-6 / goodput;
    let done = |one: &Transfer| transfer(one.at.as_secs_f64(), one.bytes, took(one));
    let transfers: Vec<Transferred> = planned.iter().map(done).collect();
    let payload: u64 = transfers.iter().map(|one| one.received).sum();
    let offered = [payload + payload / 4, payload / 20];
    Run {
        version: VERSION,
        course,
        contender: contender.to_owned(),
        transfers,
        carriers: vec![CarrierRun { name: "a".to_owned(), offered, samples: Vec::new() }],
        ..Run::default()
    }
}

pub(in crate::rail) fn seed(seed: u64) -> Course {
    Course { seed, ..COURSE }
}

fn close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
}

fn over(summary: &Summary, size: Option<usize>) -> super::super::paired::Ratio {
    let [a, b] = [0, 1].map(|place: usize| &summary.contenders[place].goodput);
    summary.paired(a, b).ratio(size).unwrap()
}

#[test]
fn ratio_counts_only_trips_that_both_have_with_a_run_that_counts() {
    let mut late = run(seed(9), "tls", 1.0);
    late.starved = Some("processors were busy".to_owned());
    let runs = [
        run(seed(7), "quic", 6.0),
        run(seed(7), "tls", 4.0),
        run(seed(8), "quic", 100.0),
        run(seed(9), "quic", 100.0),
        late,
    ];
    let summary = Summary::of(&runs).unwrap();
    assert_eq!(summary.sizes, [256_000, 1_000_000, 4_000_000]);
    for size in [None, Some(0), Some(2)] {
        let ratio = over(&summary, size);
        close(ratio.value, 1.5);
        assert_eq!(ratio.trips, 1);
    }
    assert_eq!(summary.contenders.iter().map(|it| it.runs).collect::<Vec<_>>(), [3, 1]);
    assert_eq!(summary.starved, ["tls on seed 9, repeat 0: processors were busy"]);
    assert_eq!(summary.half_width(), None, "tls has one trip");
}

#[test]
fn tail_is_over_the_bound_of_the_same_transfers() {
    let mut late = run(seed(8), "tls", 0.001);
    late.starved = Some("processors were busy".to_owned());
    let (slow, fast) = (run(seed(7), "tls", 2.0), run(seed(7), "quic", 4.0));
    let summary = Summary::of(&[slow, fast, late]).unwrap();
    let tail = |contender: usize| summary.tail(&summary.contenders[contender], 2).unwrap();
    // A download of 4 MB takes 16 s or 8 s; the bound's 95th percentile is that of trip 7 alone.
    let bounds = summary.split.time[0].iter().zip(&summary.size_of[0]);
    let bounds: Vec<f64> = bounds.filter(|it| *it.1 == 2).filter_map(|it| *it.0).collect();
    close(tail(0), 16.0 / quantile(&bounds, 0.95));
    close(tail(1), tail(0) / 2.0);
}

#[test]
fn repeats_are_averaged_and_their_variation_is_reported() {
    let runs = [1.0, 3.0, 4.0].map(|goodput| match goodput {
        4.0 => run(COURSE, "tls", goodput),
        _ => run(COURSE, "quic", goodput),
    });
    let summary = Summary::of(&runs).unwrap();
    close(over(&summary, None).value, 0.5);
    // The mean is 2, the deviation sqrt(2).
    summary.contenders[0].variation.iter().for_each(|it| close(it.unwrap(), 0.5_f64.sqrt()));
    assert_eq!(summary.contenders[1].variation, [None; 4]);
    // 1.25 bytes down and 0.05 up for each byte, but for rounding.
    assert!((summary.contenders[0].price[0] - 1.25).abs() < 1e-3);
    assert!((summary.contenders[0].price[1] - 0.05).abs() < 1e-3);
}

/// With LinkDB the second repeat has no bad packet, and without it both have only bad ones.
#[test]
fn calls_near_forecast_failures_are_averaged_over_repeats() {
    // Long enough for failures.
    let course = Course { seconds: 400, ..COURSE };
    let call = |contender: &str, repeat: u32, delay: Option<f32>| {
        let mut run = run(course, contender, 1.0);
        let route = course.route().unwrap();
        let event = |carrier: &str| Event {
            at_s: 0.0,
            kind: "forecast_begin".to_owned(),
            carrier: Some(carrier.to_owned()),
        };
        run.events = route.carriers.iter().map(|carrier| event(carrier.name)).collect();
        (run.workload, run.repeat) = (Workload::CallBulk, repeat);
        run.call = Some(CallRun { up: vec![delay; 15_000], down: vec![delay; 15_000] });
        run
    };
    let runs = [
        call("quic+linkdb", 0, None),
        call("quic+linkdb", 1, Some(40.0)),
        call("quic", 0, None),
        call("quic", 1, None),
        call("quic~always:9", 0, None),
    ];
    let names = ["quic+linkdb", "quic", "tls~always:9", "quic~always:9", "quic~always:9+linkdb"];
    let plain = names.map(|contender| run(course, contender, 1.0));
    let mut summary = Summary::of(&plain).unwrap();
    summary.foreseen.clear();
    summary.add_foreseen(&runs).unwrap();
    let found = summary.foreseen.iter().map(|(name, other, paired)| {
        (name.as_str(), other.as_str(), paired.ratio(None).map(|ratio| ratio.value))
    });
    let (usual, limited) = ("quic", "quic~always:9");
    let both = [(usual, usual, Some(0.5)), (usual, limited, Some(1.0))];
    let expected = [both[0], both[1], (limited, limited, None)];
    assert_eq!(found.collect::<Vec<_>>(), expected, "each repeat with that of the other one");
}

#[test]
fn unfinished_transfer_counts_with_the_bytes_received() {
    let mut cut = run(COURSE, "quic", 8.0);
    for one in &mut cut.transfers {
        (one.received, one.finished) = (one.bytes / 4, false);
    }
    let summary = Summary::of(&[cut, run(COURSE, "tls", 8.0)]).unwrap();
    close(over(&summary, None).value, 0.25);
    let quic = &summary.contenders[0];
    close(quic.transfers[2][0].time, 4.0);
    assert!(quic.transfers[2].iter().all(|one| !one.finished));
    let time = summary.paired(&quic.time, &summary.contenders[1].time).ratio(None).unwrap();
    close(time.value, 1.0);
}

/// A run as fast as the split bound of its trip.
fn perfect(course: Course) -> Run {
    let trip = course.trip(&course.route().unwrap()).unwrap();
    let mut run = run(course, "perfect", 1.0);
    let fluids = fluids(&trip);
    for (one, plan) in run.transfers.iter_mut().zip(course.transfers(Workload::Downloads)) {
        one.took_s = plan.bound(&fluids).split;
    }
    run
}

#[test]
fn run_at_the_split_bound_has_the_ratio_one_and_no_width() {
    let summary = Summary::of(&[perfect(seed(7)), perfect(seed(8))]).unwrap();
    let ratio = |bound: &BoundSeries| {
        summary.paired(&summary.contenders[0].goodput, &bound.goodput).ratio(None).unwrap().value
    };
    close(ratio(&summary.split), 1.0);
    assert!(ratio(&summary.fluid) > 1.0, "the fluid bound has one round trip more");
    close(summary.half_width().unwrap(), 0.0);
}

#[test]
fn half_width_is_the_largest_of_all_ratios() {
    let mut runs = vec![perfect(seed(7)), perfect(seed(8)), perfect(seed(9))];
    for (place, factor) in [1.0, 2.0, 4.0].into_iter().enumerate() {
        let mut slow = runs[place].clone();
        slow.contender = "slow".to_owned();
        slow.transfers.iter_mut().for_each(|one| one.took_s *= factor);
        runs.push(slow);
    }
    let summary = Summary::of(&runs).unwrap();
    let half = summary.half_width().unwrap();
    assert_eq!(half, Summary::of(&runs).unwrap().half_width().unwrap());
    let slow = &summary.contenders[1];
    let ratio = summary.paired(&slow.goodput, &summary.split.goodput).ratio(None).unwrap();
    assert!(ratio.between[0] < ratio.value && ratio.value < ratio.between[1], "{ratio:?}");
    close(ratio.half_width().unwrap(), half);
}

#[test]
fn messages_are_compared_with_their_bound() {
    let messages = COURSE.messages(Workload::Messages).len();
    let mut run = Run { workload: Workload::Messages, ..run(COURSE, "quic", 1.0) };
    (run.transfers, run.messages) = (Vec::new(), vec![Some(0.5); messages]);
    let mut other = Run { contender: "tls".to_owned(), ..run.clone() };
    other.messages = vec![Some(0.25); messages];
    other.messages[0] = None;
    let summary = Summary::of(&[run, other]).unwrap();
    let [quic, tls] = [0, 1].map(|place: usize| &summary.contenders[place]);
    let ratio = summary.paired_messages(&quic.round_trip, &tls.round_trip).ratio(None).unwrap();
    // The first message of `tls` counts until the end of the trip.
    let first = COURSE.length() - COURSE.messages(Workload::Messages)[0].at;
    let others = (messages - 1) as f64;
    close(ratio.value, 0.5 * (others + 1.0) / (0.25 * others + first.as_secs_f64()));
    assert_eq!((tls.unanswered, tls.round_trips.len()), (1, messages));
    let bound = summary.paired_messages(&quic.round_trip, &summary.message_bound).ratio(None);
    assert!((2.0..5.0).contains(&bound.unwrap().value), "RTTs of about 114 ms: {bound:?}");
}

#[test]
fn bulk_is_compared_with_the_volume() {
    let planned = COURSE.transfers(Workload::Bulk)[0];
    let trip = COURSE.trip(&COURSE.route().unwrap()).unwrap();
    let volume = planned.volume(&fluids(&trip));
    let mut bulk = Run { workload: Workload::Bulk, ..run(COURSE, "quic", 1.0) };
    let mut half = transfer(10.0, u64::MAX, patience(&planned));
    (half.received, half.finished) = ((volume / 2.0) as u64, false);
    bulk.transfers = vec![half];
    let summary = Summary::of(&[bulk]).unwrap();
    let ratio = summary.paired(&summary.contenders[0].goodput, &summary.split.goodput);
    assert!((ratio.ratio(None).unwrap().value - 0.5).abs() < 1e-6);
}

#[test]
fn mixed_groups_and_runs_off_their_plan_are_errors() {
    assert!(Summary::of(&[]).is_err());
    let uploads = Run { workload: Workload::Uploads, ..run(COURSE, "quic", 1.0) };
    assert!(Summary::of(&[run(COURSE, "quic", 1.0), uploads.clone()]).is_err());
    assert!(Summary::of(&[uploads]).is_err(), "it has downloads");
    let faster = Course { speed_kmh: 350, ..COURSE };
    assert!(Summary::of(&[run(COURSE, "quic", 1.0), run(faster, "quic", 1.0)]).is_err());
}

#[test]
fn linkdb_is_judged_over_pairs_of_trip_and_mode() {
    let goodputs = [("quic", 4.0), ("quic+linkdb", 2.0), ("tls", 4.0), ("tls+linkdb", 4.0)];
    let summary = Summary::of(&goodputs.map(|(name, goodput)| run(COURSE, name, goodput))).unwrap();
    let ratio = summary.with_linkdb().unwrap().ratio(None).unwrap();
    close(ratio.value, 0.75);
    assert_eq!(ratio.trips, 2);
    let alone = Summary::of(&[run(COURSE, "quic+linkdb", 2.0)]).unwrap();
    assert_eq!(alone.with_linkdb(), None);
}

#[test]
fn speeds_of_the_bound_divide_the_largest_transfers() {
    let runs: Vec<Run> = (7..27).map(|it| run(seed(it), "tls", 4.0)).collect();
    let summary = Summary::of(&runs).unwrap();
    let paired = summary.paired_by_speed(&summary.contenders[0]);
    let largest = |(run, bounds): (&Run, &Vec<Option<f64>>)| -> Vec<f64> {
        let pairs = run.transfers.iter().zip(bounds);
        pairs.filter(|(one, _)| one.bytes == 4_000_000).filter_map(|(_, bound)| *bound).collect()
    };
    let bounds: Vec<f64> = runs.iter().zip(&summary.fluid.goodput).flat_map(largest).collect();
    for (bin, range) in [0.0..10.0, 10.0..20.0, 20.0..40.0, 40.0..f64::MAX].iter().enumerate() {
        let within: Vec<f64> = bounds.iter().copied().filter(|it| range.contains(it)).collect();
        assert!(!within.is_empty(), "no bound in {range:?}");
        close(paired.ratio(Some(bin)).unwrap().value, 4.0 / mean(&within));
    }
}
