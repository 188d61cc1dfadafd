//! Trips with known records.

use std::collections::BTreeSet;

use super::drive::Course;
use super::play::{Passage, play};
use super::*;

fn variant(name: &str) -> Variant {
    *VARIANTS.iter().find(|variant| variant.name == name).unwrap()
}

/// All trips of a short route.
fn passages(seed: u64, name: &str, noise: f64) -> Vec<Passage> {
    let setup = Setup { metres: 25_000.0, trips: 4, report: 0.0, noise };
    let course = Course::new(seed, &setup);
    let mut drives = course.drives(&setup).unwrap();
    // A handover that begins during an outage counts with the one before: leave it out.
    for drive in &mut drives {
        for carrier in &mut drive.trip.carriers {
            let mut last: Option<(f64, u32)> = None;
            carrier.handovers.retain_mut(|one| {
                let apart = last.is_none_or(|(over, _)| one.at.as_secs_f64() > over + 3.0);
                if apart {
                    one.from = last.map_or(one.from, |(_, cell)| cell);
                    last = Some(((one.at + one.dark).as_secs_f64(), one.to));
                }
                apart
            });
        }
        drive.signals = drive.trip.signals(&course.route);
    }
    play(&course, &drives, variant(name), &setup).unwrap()
}

#[test]
fn records_of_a_clean_trip_equal_the_truth() {
    for seed in [2_000, 2_001] {
        for passage in passages(seed, "events", 0.0) {
            let Passage { records, truths, counts } = passage;
            assert_eq!((records.len(), counts.unplaced), (truths.len(), 0));
            for truth in &truths {
                let own = &truth.handover;
                let same = |one: &&polyrail_model::Handover| {
                    one.carrier == own.carrier && one.from == own.from
                };
                let record = records.iter().find(same).unwrap();
                assert_eq!(
                    (record.trip, record.route, record.direction, record.to, record.outcome),
                    (own.trip, own.route, own.direction, own.to, own.outcome)
                );
                assert!(record.at_ms.abs_diff(own.at_ms) <= 2, "{record:?} {own:?}");
                let off = record.position.metres() - truth.metres;
                // A track consists of straight pieces, which are off the line by as much.
                assert!(off.abs() < 10.0, "{off} m: {record:?}");
            }
            let sequences: Vec<u32> = records.iter().map(|one| one.sequence).collect();
            assert_eq!(sequences, (0..records.len() as u32).collect::<Vec<_>>());
        }
    }
}

#[test]
fn busy_carriers_show_failures_and_successes() {
    let mut found = Found::default();
    for seed in 2_000..2_004 {
        passages(seed, "busy", 1.0).iter().for_each(|passage| found.count(passage));
    }
    println!("{found:?}");
    let Found { failures, successes, spurious, .. } = &found;
    assert!(failures.all > 20 && successes.all > 300, "{found:?}");
    assert!(failures.right * 10 >= failures.all * 8, "{found:?}");
    assert!(successes.right * 100 >= successes.all * 95 && *spurious == 0, "{found:?}");
}

#[test]
fn mute_modem_on_an_idle_carrier_yields_no_records() {
    for seed in [2_000, 2_001] {
        for passage in passages(seed, "mute", 1.0) {
            let (all, untold) = (passage.truths.len() as u64, passage.counts.untold);
            assert_eq!((passage.records.len(), untold), (0, all));
        }
    }
}

/// Regression: a train that entered a known line beyond its end began a second track, which grew
/// along the known one by a kilometre on each trip.
#[test]
fn each_trip_is_one_trip_on_one_track() {
    for seed in [2_000, 2_001, 2_003] {
        let passages = passages(seed, "events", 1.0);
        let routes: BTreeSet<_> = passages
            .iter()
            .flat_map(|passage| passage.truths.iter().map(|one| one.handover.route))
            .collect();
        assert_eq!(routes.len(), 1, "seed {seed}");
        for Passage { truths, .. } in &passages {
            let trips: BTreeSet<_> = truths.iter().map(|one| one.handover.trip).collect();
            assert_eq!(trips.len(), 1, "seed {seed}");
        }
    }
}
