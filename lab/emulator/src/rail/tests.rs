//! Trips are determined by their seeds, and similar to the measured ones.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::link::{LinkSpec, Rate};
use crate::scenario::Scenario;

const BOTH: [CarrierProfile; 2] = [CarrierProfile::A, CarrierProfile::B];
const LENGTH: Duration = Duration::from_secs(100);

fn route(seed: u64, speed: Speed) -> Route {
    Route::new(seed, speed, 60_000.0, &BOTH)
}

fn trip(route: &Route, seed: u64) -> Trip {
    Trip::new(route, seed, 1_000.0, LENGTH).unwrap()
}

#[test]
fn equal_seeds_make_equal_trips_and_others_do_not() {
    let one = trip(&route(1, Speed::Kmh300), 2);
    assert_eq!(one, trip(&route(1, Speed::Kmh300), 2));
    assert_ne!(one.carriers, trip(&route(1, Speed::Kmh300), 3).carriers);
    assert_ne!(one.carriers, trip(&route(2, Speed::Kmh300), 2).carriers);
    assert_ne!(one.carriers[0].links, one.carriers[1].links);
}

#[test]
fn the_route_fixes_the_cells() {
    let route = route(7, Speed::Kmh300);
    assert_eq!(route.cells, self::route(7, Speed::Kmh300).cells);
    let pairs = |trip: &Trip| -> Vec<(u32, u32)> {
        trip.carriers[0].handovers.iter().map(|handover| (handover.from, handover.to)).collect()
    };
    // The trip may end before a handover on one trip and after it on another.
    let (one, other) = (pairs(&trip(&route, 1)), pairs(&trip(&route, 2)));
    let common = one.iter().filter(|pair| other.contains(pair)).count();
    assert!(common + 2 >= one.len().max(other.len()), "{one:?} {other:?}");
    for handover in &trip(&route, 1).carriers[0].handovers {
        let cell = route.cells[0][handover.from as usize];
        assert!((handover.metres - cell.to).abs() < 6.0 * cell.border.spread);
    }
}

#[test]
fn failures_recur_at_the_same_cells() {
    let (mut often, mut other) = ([0_u32; 2], [0_u32; 2]);
    for seed in 0..20 {
        let route = route(seed, Speed::Kmh300);
        let mut first: BTreeMap<u32, [u32; 2]> = BTreeMap::new();
        for trip_seed in 0..40 {
            for handover in &trip(&route, trip_seed).carriers[0].handovers {
                let fails = u32::from(handover.outcome != HandoverResult::Success);
                let known = first.entry(handover.from).or_default();
                if trip_seed < 20 {
                    *known = [known[0] + fails, known[1] + 1];
                } else if known[1] > 0 {
                    let counts = if known[0] * 10 > known[1] { &mut often } else { &mut other };
                    *counts = [counts[0] + fails, counts[1] + 1];
                }
            }
        }
    }
    let share = |counts: [u32; 2]| f64::from(counts[0]) / f64::from(counts[1]);
    assert!(share(often) > 5.0 * share(other), "{often:?} {other:?}");
}

#[test]
fn handover_rates_match_the_published_ones() {
    for (speed, mean_s) in [(Speed::Kmh300, 13.7), (Speed::Kmh350, 8.6)] {
        let (mut counts, mut failed) = ([0_u32; 2], [0_u32; 2]);
        for seed in 0..150 {
            let route = route(seed, speed);
            for trip_seed in 0..4 {
                for (number, carrier) in trip(&route, trip_seed).carriers.iter().enumerate() {
                    counts[number] += carrier.handovers.len() as u32;
                    let fails = |one: &&Handover| one.outcome != HandoverResult::Success;
                    failed[number] += carrier.handovers.iter().filter(fails).count() as u32;
                    assert!(carrier.handovers.iter().all(dark_is_sound), "{carrier:?}");
                }
            }
        }
        for (number, profile) in BOTH.iter().enumerate() {
            let every = 150.0 * 4.0 * LENGTH.as_secs_f64() / f64::from(counts[number]);
            assert!((every / mean_s - 1.0).abs() < 0.07, "{speed:?} every {every} s");
            let share = f64::from(failed[number]) / f64::from(counts[number]);
            let wanted = profile.failures * speed.failure_share();
            assert!((share / wanted - 1.0).abs() < 0.2, "{speed:?} {share} of {wanted}");
        }
    }
}

fn dark_is_sound(handover: &Handover) -> bool {
    let dark = handover.dark.as_secs_f64();
    match handover.outcome {
        HandoverResult::Success => dark <= 0.1,
        _ => (0.3..=10.0).contains(&dark),
    }
}

#[test]
fn a_standing_train_has_no_handovers_and_the_best_links() {
    let rate = |speed| {
        let mut all: Vec<u64> = Vec::new();
        for seed in 0..20 {
            let links = &trip(&route(seed, speed), 1).carriers[0].links;
            all.extend(links[1].rate.values().map(|rate| match rate {
                Rate::Limited(rate) => rate.as_bps(),
                Rate::Unlimited => u64::MAX,
            }));
        }
        all.sort_unstable();
        all[all.len() / 2]
    };
    let standing = trip(&route(1, Speed::Standing), 1);
    assert!(standing.carriers.iter().all(|carrier| carrier.handovers.is_empty()));
    assert!(standing.fixes.iter().all(|fix| (fix.metres - 1_000.0).abs() < 60.0));
    assert!(
        rate(Speed::Standing) > rate(Speed::Kmh300) && rate(Speed::Kmh300) > rate(Speed::Kmh350)
    );
}

#[test]
fn two_to_eight_carriers_differ() {
    for count in 2..=8 {
        let carriers = CarrierProfile::mix(count);
        let route = Route::new(1, Speed::Kmh300, 20_000.0, &carriers);
        let trip = Trip::new(&route, 1, 500.0, LENGTH).unwrap();
        assert_eq!((carriers.len(), trip.carriers.len()), (count, count));
        let links: Vec<_> = trip.carriers.iter().map(|carrier| &carrier.links).collect();
        assert!(links.iter().enumerate().all(|(n, one)| !links[..n].contains(one)));
    }
}

#[test]
fn speeds_are_read_and_others_refused() {
    assert_eq!("350".parse(), Ok(Speed::Kmh350));
    for text in ["", "250", "-300", "fast"] {
        assert!(text.parse::<Speed>().is_err(), "{text}");
    }
}

#[test]
fn the_scenario_of_a_trip_reads_back_the_same() {
    let carriers = CarrierProfile::mix(3);
    let route = Route::new(3, Speed::Kmh350, 40_000.0, &carriers);
    let trip = Trip::new(&route, 4, 1_000.0, LENGTH).unwrap();
    assert!(trip.carriers.iter().any(|carrier| carrier.handovers.len() > 3));
    let read = Scenario::parse(&trip.scenario(&route).to_toml().unwrap()).unwrap();
    assert_eq!((read.seed, read.duration, read.links.len()), (4, Some(LENGTH), 3));
    for (link, carrier) in read.links.iter().zip(&trip.carriers) {
        let links: [&LinkSpec; 2] = [&link.up, &link.down];
        assert_eq!(links, [&carrier.links[0], &carrier.links[1]]);
    }
}

#[test]
fn telemetry_and_handovers_are_lines_of_json() {
    let route = route(1, Speed::Kmh300);
    let trip = trip(&route, 2);
    let read = |text: String| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let telemetry = read(trip.telemetry_lines(&route));
    assert_eq!(telemetry.len(), 101);
    let handovers = read(trip.handover_lines(&route));
    let count: usize = trip.carriers.iter().map(|carrier| carrier.handovers.len()).sum();
    assert_eq!(handovers.len(), count);
    for handover in handovers.iter().filter(|one| one["outcome"] == "success") {
        // The last report before it names the cell that is left, unless that had just been joined.
        let second = handover["time_s"].as_f64().unwrap() as usize;
        let place = usize::from(handover["carrier"] == "b");
        let cell = &telemetry[second]["carriers"][place]["cell"];
        assert!(cell == &handover["from"] || cell.is_null(), "{handover} {cell}");
    }
}

#[test]
fn train_sees_handovers_late_and_estimates_its_position_closely() {
    let route = route(3, Speed::Kmh300);
    let speed = route.speed.metres_per_second();
    let (mut late, mut off, mut count) = (0.0, 0.0, 0.0);
    for seed in 0..8 {
        let trip = trip(&route, seed);
        let seen = trip.sightings(Duration::from_millis(200));
        assert_eq!(seen, trip.sightings(Duration::from_millis(200)));
        assert_eq!(seen.len(), trip.carriers.iter().map(|one| one.handovers.len()).sum::<usize>());
        assert!(seen.is_sorted_by_key(|one| one.handover.at));
        for one in &seen {
            assert!(trip.carriers[one.carrier].handovers.contains(&one.handover));
            let after = one.at - one.handover.at;
            assert!(after <= Duration::from_millis(200), "{after:?}");
            let truly = one.handover.metres + speed * after.as_secs_f64();
            assert!((one.metres - truly).abs() < 25.0, "{} {truly}", one.metres);
            late += after.as_secs_f64();
            off += (one.metres - truly).powi(2);
            count += 1.0;
        }
    }
    // Half of the greatest delay; the mean of four readings with an error of 8 m each.
    let (late, off) = (late / count, f64::sqrt(off / count));
    assert!((0.08..0.12).contains(&late), "{late}");
    assert!((3.0..5.5).contains(&off), "{off}");
}

/// The last report equals the handover's signal, apart from its own error and the remaining time.
#[test]
fn signal_fades_to_that_of_the_handover() {
    let (mut off, mut steps) = (Vec::new(), Vec::new());
    for seed in 0..20 {
        let route = route(seed, Speed::Kmh300);
        let trip = trip(&route, seed);
        let signals = trip.signals(&route);
        assert_eq!(signals, trip.signals(&route));
        for (carrier, signals) in trip.carriers.iter().zip(&signals) {
            for handover in &carrier.handovers {
                let before = signals.partition_point(|signal| signal.at <= handover.at);
                let Some(last) = before.checked_sub(1).map(|last| signals[last]) else { continue };
                let (Some(rsrp), true) = (last.rsrp, last.cell == Some(handover.from)) else {
                    continue;
                };
                let left = (handover.at - last.at).as_secs_f64();
                off.push((left, rsrp - handover.rsrp));
                if let Some(Some(third)) = before.checked_sub(3).map(|at| signals[at].rsrp) {
                    steps.push(third - rsrp);
                }
            }
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let near: Vec<f64> = off.iter().filter(|(left, _)| *left < 0.3).map(|one| one.1).collect();
    let square: Vec<f64> = near.iter().map(|one| one * one).collect();
    assert!(near.len() > 30 && off.len() > 100, "{} of {}", near.len(), off.len());
    assert!(mean(&near).abs() < 1.0, "{}", mean(&near));
    assert!((1.0..2.7).contains(&mean(&square).sqrt()), "2 dB of its own: {}", mean(&square));
    assert!(mean(&steps) > 0.5, "it falls: {}", mean(&steps));
}
