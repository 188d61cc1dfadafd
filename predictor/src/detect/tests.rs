//! Handovers from tables of reports and silences.

use HandoverOutcome::{Success, TypeI, TypeII, TypeIII};

use super::*;
use crate::simulated::{Dice, seconds, start};

/// The reports of a modem and a path, in seconds.
#[derive(Clone, Copy)]
enum Show {
    Cell(f64, u64),
    None(f64),
    /// From, noticed, to, and whether the data in flight arrived.
    Silent(f64, f64, f64, Option<bool>),
    Says(f64, HandoverOutcome, Option<f64>),
    /// The modem is polled each second in this range.
    Polled(u32, u32, u64),
    /// The path makes progress each quarter of a second in this range, except during a silence.
    Talks(f64, f64),
    HeardAt(f64),
}
use Show::{Cell, HeardAt, None as NoCell, Polled, Says, Silent, Talks};

/// Begin in seconds, from, to, outcome, dark in seconds.
type Expected = (f64, u64, u64, HandoverOutcome, f64);

fn run(shows: &[Show]) -> (Vec<Expected>, Unrecorded) {
    let begin = start() + Duration::from_secs(1_000);
    let at = |time: f64| begin + seconds(time);
    let carrier = || "a".to_owned();
    let cell = |time: f64, cell: Option<u64>| {
        let rsrp = Rsrp::from_dbm(-90.0);
        (
            time,
            1,
            Observation::Serving(Serving {
                at: at(time),
                carrier: carrier(),
                cell: cell.map(CellId),
                rsrp,
            }),
        )
    };
    let silence = |time: f64, since: Option<f64>, kept: Option<bool>| {
        let since = since.map(at);
        (time, 0, Observation::Silence(Silence { at: at(time), carrier: carrier(), since, kept }))
    };
    let heard =
        |time: f64| (time, 0, Observation::Heard(Heard { at: at(time), carrier: carrier() }));
    let mut events: Vec<(f64, u8, Observation)> = Vec::new();
    let is_silent = |time: f64| {
        let within =
            |show: &Show| matches!(*show, Silent(from, _, to, _) if from < time && time < to);
        shows.iter().any(within)
    };
    for show in shows {
        match *show {
            Talks(from, to) => {
                let times = (0..).map(|count| from + 0.25 * f64::from(count));
                let times = times.take_while(|time| *time < to).filter(|time| !is_silent(*time));
                events.extend(times.map(heard));
            }
            HeardAt(time) => events.push(heard(time)),
            Cell(time, id) => events.push(cell(time, Some(id))),
            NoCell(time) => events.push(cell(time, None)),
            Polled(from, to, id) => {
                events.extend((from..to).map(|time| cell(f64::from(time), Some(id))));
            }
            Silent(from, noticed, to, kept) => {
                events.push(silence(noticed, Some(from), None));
                events.push(silence(to, None, kept));
            }
            Says(time, outcome, dark) => {
                let dark = dark.map(seconds);
                let says = Reported { at: at(time), carrier: carrier(), outcome, dark };
                events.push((time, 2, Observation::Reported(says)));
            }
        }
    }
    events.sort_by(|one, other| (one.0, one.1).partial_cmp(&(other.0, other.1)).unwrap());
    play(begin, events)
}

/// Feeds a detector in steps of a tenth of a second; returns its handovers.
fn play(begin: Instant, events: Vec<(f64, u8, Observation)>) -> (Vec<Expected>, Unrecorded) {
    let at = |time: f64| begin + seconds(time);
    let mut detector = Detector::default();
    let mut found = Vec::new();
    let end = events.last().map_or(0.0, |last| last.0) + 60.0;
    let mut events = events.into_iter().peekable();
    for tick in 0..(end * 10.0) as u32 {
        let time = f64::from(tick) / 10.0;
        while let Some((_, _, event)) = events.next_if(|event| event.0 <= time) {
            detector.observe(&event);
        }
        for one in detector.advance(at(time)) {
            assert_eq!(one.carrier, "a");
            let begin = one.at.saturating_duration_since(begin).as_secs_f64();
            let to = one.to.map_or(0, |to| to.0);
            let dark = one.dark.as_secs_f64();
            found.push((round(begin), one.from.0, to, one.outcome, round(dark)));
        }
    }
    (found, detector.unrecorded())
}

fn round(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[track_caller]
fn assert_detected(cases: &[(&str, &[Show], &[Expected])]) {
    for (name, shows, expected) in cases {
        assert_eq!(run(shows).0, *expected, "{name}");
    }
}

#[test]
fn outcomes_follow_from_cells_and_silence() {
    assert_detected(&[
        (
            "progress all the time",
            &[Talks(0.0, 30.0), Polled(0, 10, 1), Polled(10, 20, 2)],
            &[(9.5, 1, 2, Success, 0.0)],
        ),
        (
            "reported at once by a modem that reports only changes",
            &[Talks(0.0, 30.0), Cell(0.0, 1), Cell(25.0, 2)],
            &[(24.5, 1, 2, Success, 0.0)],
        ),
        (
            "a short silence that ends before the modem is polled",
            &[Polled(0, 10, 1), Silent(9.1, 9.4, 9.5, None), Polled(10, 20, 2)],
            &[(9.1, 1, 2, TypeI, 0.4)],
        ),
        (
            "data in flight arrived",
            &[
                Polled(0, 10, 1),
                Silent(9.3, 9.8, 10.8, Some(true)),
                NoCell(10.0),
                Polled(11, 20, 2),
            ],
            &[(9.3, 1, 2, TypeII, 1.5)],
        ),
        (
            "data in flight was lost",
            &[
                Polled(0, 10, 1),
                Silent(9.3, 9.8, 11.6, Some(false)),
                NoCell(10.0),
                Polled(11, 20, 2),
            ],
            &[(9.3, 1, 2, TypeIII, 2.3)],
        ),
        (
            "unknown, short",
            &[Polled(0, 10, 1), Silent(9.5, 9.9, 11.5, None), NoCell(10.0), Polled(11, 20, 2)],
            &[(9.5, 1, 2, TypeII, 2.0)],
        ),
        (
            "unknown, long",
            &[Polled(0, 10, 1), Silent(9.5, 9.9, 15.5, None), NoCell(10.0), Polled(13, 30, 2)],
            &[(9.5, 1, 2, TypeIII, 6.0)],
        ),
    ]);
}

#[test]
fn silence_and_change_of_cell_may_differ_in_time() {
    assert_detected(&[
        (
            "nothing was in flight, but the modem had no cell",
            &[Polled(0, 10, 1), NoCell(10.0), NoCell(11.0), Polled(12, 30, 2)],
            &[(9.5, 1, 2, TypeII, 2.0)],
        ),
        (
            "noticed after the next cell was reported",
            &[Polled(0, 10, 1), Silent(9.8, 11.2, 13.0, Some(true)), Polled(10, 30, 2)],
            &[(9.8, 1, 2, TypeII, 3.2)],
        ),
        (
            "the modem reports the old cell while its radio fails",
            &[Polled(0, 10, 1), Silent(7.0, 7.5, 10.5, Some(false)), Polled(10, 30, 2)],
            &[(7.0, 1, 2, TypeIII, 3.5)],
        ),
        (
            "found the same cell again",
            &[
                Polled(0, 10, 1),
                Silent(9.2, 9.6, 11.2, Some(true)),
                NoCell(10.0),
                Polled(11, 30, 1),
            ],
            &[(9.2, 1, 1, TypeI, 2.0)],
        ),
    ]);
}

#[test]
fn other_events_are_no_handovers() {
    let nothing: &[Expected] = &[];
    assert_detected(&[
        ("silence in one cell", &[Polled(0, 40, 1), Silent(9.0, 9.5, 14.0, Some(false))], nothing),
        ("the first cell", &[NoCell(0.0), NoCell(1.0), Polled(2, 40, 1)], nothing),
        ("a long tunnel", &[Polled(0, 10, 1), NoCell(10.0), Polled(45, 60, 9)], nothing),
        (
            "a dead path",
            &[Polled(0, 40, 1), Polled(40, 80, 2), Silent(9.0, 9.5, 79.0, None)],
            nothing,
        ),
        (
            "a path that dies with the change",
            &[Polled(0, 10, 1), Silent(9.5, 9.9, 70.0, None), Polled(10, 90, 2)],
            nothing,
        ),
        ("a modem that restarts", &[Polled(0, 10, 1), NoCell(11.0), Cell(40.0, 1)], nothing),
        ("a change without evidence", &[Polled(0, 10, 1), Polled(10, 30, 2)], nothing),
        ("success without a change", &[Polled(0, 30, 1), Says(9.0, Success, None)], nothing),
    ]);
    let gaps = |shows: &[Show]| run(shows).1.gaps;
    assert_eq!(gaps(&[Polled(0, 10, 1), NoCell(10.0), Polled(45, 60, 9)]), 1);
    assert_eq!(gaps(&[Polled(0, 10, 1), Silent(9.5, 9.9, 70.0, None), Polled(10, 90, 2)]), 1);
    let foreign = [Polled(0, 40, 1), Polled(40, 80, 2), Silent(9.0, 9.5, 79.0, None)];
    assert_eq!(run(&foreign).1.untold, 1);
}

#[test]
fn several_changes_are_distinguished() {
    assert_detected(&[
        (
            "flapping",
            &[
                Talks(0.0, 30.0),
                Polled(0, 10, 1),
                Polled(10, 11, 2),
                Polled(11, 12, 1),
                Polled(12, 30, 2),
            ],
            &[(9.5, 1, 2, Success, 0.0), (10.5, 2, 1, Success, 0.0), (11.5, 1, 2, Success, 0.0)],
        ),
        (
            "flapping during a silence",
            &[
                Polled(0, 10, 1),
                Silent(9.3, 9.7, 13.3, Some(false)),
                Polled(10, 11, 2),
                NoCell(11.0),
                Polled(12, 13, 1),
                Polled(13, 30, 3),
            ],
            &[(9.3, 1, 3, TypeIII, 4.0)],
        ),
        (
            "lost twice, and nothing in flight",
            &[Polled(0, 10, 1), NoCell(10.0), Polled(11, 12, 2), NoCell(12.0), Polled(13, 30, 3)],
            &[(9.5, 1, 2, TypeII, 1.0), (11.5, 2, 3, TypeII, 1.0)],
        ),
        (
            "a silence belongs to one handover",
            &[
                Polled(0, 10, 1),
                Silent(9.3, 9.7, 10.3, Some(true)),
                Polled(10, 11, 2),
                HeardAt(11.5),
                Polled(11, 30, 3),
            ],
            &[(9.3, 1, 2, TypeII, 1.0), (10.5, 2, 3, Success, 0.0)],
        ),
        (
            "after a gap, by a modem that reports losses",
            &[Polled(0, 10, 1), NoCell(10.0), Polled(45, 60, 9), Polled(60, 70, 10)],
            &[(59.5, 9, 10, Success, 0.0)],
        ),
    ]);
}

/// The source of reports is down on the move: the old cell was left long ago.
#[test]
fn outdated_cell_is_unknown() {
    let before = [Talks(0.0, 900.0), Polled(0, 10, 1)];
    let after = |at: u32| [Polled(at, at + 10, 8), Polled(at + 10, at + 30, 9)];
    for gone in [40, 70, 300, 609] {
        let (found, counts) = run(&[&before[..], &after(gone)].concat());
        let at = f64::from(gone) + 9.5;
        assert_eq!((&found[..], counts.gaps), (&[(at, 8, 9, Success, 0.0)][..], 1), "{gone}");
        // A silence at its return is no failure of the outdated cell either.
        let failure = [Silent(f64::from(gone) - 0.6, f64::from(gone) - 0.2, f64::from(gone), None)];
        let found = run(&[&before[..], &after(gone), &failure].concat()).0;
        assert_eq!(found, [(at, 8, 9, Success, 0.0)], "{gone}");
        let back = [NoCell(f64::from(gone)), Polled(gone + 1, gone + 9, 8)];
        assert_eq!(run(&[&before[..], &back].concat()).0, [], "{gone}: back without a cell");
    }
    let (found, counts) = run(&[&before[..], &after(39)].concat());
    assert_eq!((found.len(), counts.gaps), (2, 0), "30 s are not outdated");
    // The same cell is no change.
    let same = [Polled(60, 70, 1), Polled(70, 90, 2)];
    let found = run(&[&before[..], &same].concat()).0;
    assert_eq!(found, [(69.5, 1, 2, Success, 0.0)]);
    // The modem reports an outcome, but its cell is unknown.
    let said = [Says(60.0, TypeII, Some(0.5))];
    assert_eq!(run(&[&before[..], &said].concat()).0, []);
}

/// In long cells it reports nothing.
#[test]
fn modem_that_reports_only_changes_may_be_silent_for_minutes() {
    let talks = Talks(0.0, 900.0);
    let detected = |shows: &[Show]| {
        let (found, counts) = run(shows);
        (found.len(), counts.gaps)
    };
    assert_eq!(detected(&[talks, Cell(0.0, 1), Cell(200.0, 2), Cell(800.0, 3)]), (2, 0));
    assert_eq!(detected(&[talks, Cell(0.0, 1), Cell(601.0, 2)]), (0, 1), "ten minutes");
    // One repetition does not count, nor do rare ones.
    assert_eq!(detected(&[talks, Cell(0.0, 1), Cell(9.0, 1), Cell(200.0, 2)]), (1, 0));
    let seldom = [0.0, 40.0, 80.0, 120.0].map(|at| Cell(at, 1));
    assert_eq!(detected(&[&seldom[..], &[talks, Cell(160.0, 2)]].concat()), (1, 0));
    // Nor do several reports of one change, as when a modem registers for each service.
    let burst = [0.0, 0.01, 0.02, 0.03].map(|at| Cell(at, 1));
    assert_eq!(detected(&[&burst[..], &[talks, Cell(160.0, 2)]].concat()), (1, 0));
    // A modem that seemed to repeat its cell, and does not, loses one handover.
    let once = [0.0, 1.0, 2.0].map(|at| Cell(at, 1));
    let then = [talks, Cell(160.0, 2), Cell(300.0, 3), Cell(440.0, 4)];
    assert_eq!(detected(&[&once[..], &then].concat()), (2, 1));
}

/// Each case: name, reports, and whether a success is detected.
#[test]
fn success_needs_evidence() {
    let change = [Polled(0, 10, 1), Polled(10, 30, 2)];
    let cases: &[(&str, &[Show], bool)] = &[
        ("nothing", &[], false),
        ("progress during the change and after", &[HeardAt(9.4), HeardAt(10.6)], true),
        ("progress at the last report and a second after", &[HeardAt(9.0), HeardAt(11.0)], true),
        ("progress before only", &[HeardAt(9.4)], false),
        ("progress after only", &[HeardAt(10.6)], false),
        ("progress too long before", &[HeardAt(8.9), HeardAt(10.6)], false),
        ("progress too late after", &[HeardAt(9.4), HeardAt(11.1)], false),
        ("the end of a silence is progress", &[Silent(8.0, 8.3, 8.4, None), HeardAt(10.6)], false),
        ("a modem that has reported the loss of a cell", &[NoCell(0.0)], true),
        ("a modem that has reported an outcome", &[Says(3.5, Success, None)], true),
    ];
    for (name, shows, detected) in cases {
        let (found, counts) = run(&[shows, &change[..]].concat());
        let expected: &[Expected] = if *detected { &[(9.5, 1, 2, Success, 0.0)] } else { &[] };
        assert_eq!((&found[..], counts.untold), (expected, u64::from(!detected)), "{name}");
    }
    // The modem reports losses, but was polled too rarely to show this one.
    let seldom = [NoCell(0.0), Cell(1.0, 1), Cell(8.4, 1), Cell(10.0, 2), Cell(11.0, 2)];
    assert_eq!((run(&seldom).0.len(), run(&seldom).1.untold), (0, 1));
    let after = [NoCell(0.0), Cell(1.0, 1), Cell(9.0, 1), Cell(10.0, 2), Cell(11.6, 2)];
    assert_eq!((run(&after).0.len(), run(&after).1.untold), (0, 1));
    let often = [NoCell(0.0), Cell(1.0, 1), Cell(8.6, 1), Cell(10.0, 2), Cell(11.4, 2)];
    assert_eq!((run(&often).0.len(), run(&often).1.untold), (1, 0));
    // Five reports per second, and half as frequent progress.
    let quick = [Cell(9.6, 1), Cell(9.8, 1), Cell(10.0, 2), Cell(10.2, 2)];
    let quick = [&quick[..], &[HeardAt(9.6), HeardAt(10.1)]].concat();
    assert_eq!(run(&quick).0, [(9.9, 1, 2, Success, 0.0)]);
}

/// The scheduler avoided the path because of a forecast, and the modem was polled before and after.
#[test]
fn failure_on_an_empty_path_is_no_success() {
    // Each change may have been a failure that ended before the next poll.
    let mut shows = vec![Talks(0.0, 5.0)];
    for turn in 0..4 {
        shows.push(Polled(10 * turn, 10 * turn + 10, u64::from(turn)));
    }
    let (found, counts) = run(&shows);
    assert_eq!((found.len(), counts.untold), (0, 3));
}

#[test]
fn report_of_the_modem_decides() {
    let change = [Polled(0, 10, 1), Polled(10, 30, 2)];
    let with = |show: &[Show]| run(&[&change[..], show].concat()).0;
    assert_eq!(with(&[Says(9.8, TypeIII, Some(0.6))]), [(9.2, 1, 2, TypeIII, 0.6)]);
    assert_eq!(with(&[Says(10.4, TypeI, None)]), [(9.5, 1, 2, TypeI, 0.0)]);
    let silent = Silent(9.4, 9.8, 10.2, Some(false));
    assert_eq!(with(&[silent, Says(10.1, Success, Some(0.05))]), [(10.05, 1, 2, Success, 0.05)]);
    assert_eq!(with(&[silent, Says(9.9, TypeII, None)]), [(9.4, 1, 2, TypeII, 0.8)]);
    // A late report of a concluded handover is not another one.
    assert_eq!(with(&[Talks(0.0, 30.0), Says(12.0, TypeIII, None)]).len(), 1);
    assert_eq!(with(&[Talks(0.0, 30.0), Says(13.5, TypeIII, None)]).len(), 2);
    // A failure within a cell.
    let same = run(&[Polled(0, 30, 1), Says(9.8, TypeI, Some(0.5))]).0;
    assert_eq!(same, [(9.3, 1, 1, TypeI, 0.5)]);
}

#[test]
fn carriers_are_bounded_and_old_cells_unknown() {
    let at = start();
    let mut detector = Detector::default();
    let serving = |carrier: String| {
        Observation::Serving(Serving { at, carrier, cell: Some(CellId(5)), rsrp: None })
    };
    for number in 0..100 {
        detector.observe(&serving(format!("carrier {number}")));
    }
    detector.observe(&serving("x".repeat(CARRIER_NAME_MAX + 1)));
    assert_eq!(detector.unrecorded().strangers, 101 - TELEMETRY_CARRIERS_MAX as u64);
    assert_eq!(detector.carriers(at).len(), TELEMETRY_CARRIERS_MAX);
    assert!(detector.carriers(at).iter().all(|one| one.cell == Some(CellId(5))));
    assert!(detector.carriers(at + seconds(31.0)).is_empty());
}

/// Random events in any order: no panic, bounds hold, and no more handovers than reports.
#[test]
fn fuzz_any_order_of_events() {
    for seed in 0..300 {
        let mut dice = Dice::new(seed);
        let begin = start() + Duration::from_secs(10_000);
        let mut detector = Detector::default();
        let (mut reports, mut detected) = (0, 0);
        let mut now = begin;
        for _ in 0..500 {
            now += seconds(dice.between(0.0, 3.0));
            let at = now - seconds(if dice.share() < 0.1 { dice.between(0.0, 30.0) } else { 0.0 });
            let carrier = format!("{}", (dice.share() * 3.0) as u8);
            let observation = match (dice.share() * 5.0) as u8 {
                4 => Observation::Heard(Heard { at, carrier }),
                0 | 1 => {
                    reports += 1;
                    let cell = (dice.share() < 0.8).then(|| CellId((dice.share() * 3.0) as u64));
                    Observation::Serving(Serving { at, carrier, cell, rsrp: None })
                }
                2 => {
                    let since =
                        (dice.share() < 0.6).then(|| at - seconds(dice.between(-5.0, 9.0).abs()));
                    let kept = (dice.share() < 0.5).then_some(dice.share() < 0.5);
                    Observation::Silence(Silence { at, carrier, since, kept })
                }
                _ => {
                    reports += 1;
                    let outcome = if dice.share() < 0.5 { Success } else { TypeIII };
                    let dark = (dice.share() < 0.5).then(|| seconds(dice.between(0.0, 1e5)));
                    Observation::Reported(Reported { at, carrier, outcome, dark })
                }
            };
            detector.observe(&observation);
            for one in detector.advance(now) {
                detected += 1;
                assert!(one.at <= now && one.dark <= seconds(60.0), "seed {seed}: {one:?}");
            }
        }
        assert!(detected <= reports && detected > 0, "seed {seed}: {detected} of {reports}");
    }
}

/// Each handover is detected once, with the right outcome.
#[test]
fn random_handovers_are_detected_once() {
    let (mut handovers, mut wrong) = (0, 0);
    for seed in 0..100 {
        let mut dice = Dice::new(seed);
        let mut shows = vec![NoCell(0.0)];
        let mut truth = Vec::new();
        let (mut at, mut cell, mut polled) = (dice.between(5.0, 15.0), 1_u64, 0_u32);
        for _ in 0..20 {
            let fails = dice.share() < 0.3;
            let held = dice.share() < 0.5;
            let dark = if fails { dice.between(0.3, 9.0) } else { dice.between(0.02, 0.1) };
            let seen_from = polled..at.ceil() as u32;
            shows.push(Polled(seen_from.start, seen_from.end, cell));
            // Half of the trips are idle: then the modem's reports of losses are the evidence.
            if seed % 2 == 0 {
                shows.push(Talks(seen_from.start.into(), seen_from.end.into()));
            }
            let back = if fails { at + dark } else { at }.ceil() as u32;
            if fails {
                shows.extend((at.ceil() as u32..back).map(|second| NoCell(f64::from(second))));
                let noticed = (at + 0.3).max(at + dice.between(0.3, 0.6)).min(at + dark);
                shows.push(Silent(at, noticed, at + dark + dice.between(0.1, 0.3), Some(held)));
            }
            let outcome = match (fails, held) {
                (false, _) => Success,
                (true, true) => TypeII,
                (true, false) => TypeIII,
            };
            truth.push((at, cell, outcome));
            (cell, polled) = (cell + 1, back);
            at += dark + dice.between(3.0, 20.0);
        }
        shows.push(Polled(polled, polled + 20, cell));
        shows.extend((seed % 2 == 0).then_some(Talks(polled.into(), f64::from(polled) + 20.0)));
        let found = run(&shows).0;
        assert_eq!(found.len(), truth.len(), "seed {seed}");
        for (found, truth) in found.iter().zip(&truth) {
            handovers += 1;
            assert_eq!((found.1, found.2), (truth.1, truth.1 + 1), "seed {seed}");
            let exact = if truth.2 == Success { 0.51 } else { 0.01 };
            assert!((found.0 - truth.0).abs() < exact, "seed {seed}: {found:?} {truth:?}");
            wrong += u32::from(found.3 != truth.2);
        }
    }
    println!("{wrong} of {handovers} outcomes wrong");
    assert_eq!(wrong, 0);
}
