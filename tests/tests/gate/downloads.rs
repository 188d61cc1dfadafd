//! How fast downloads of `polyrail full` are beside others.

use polyrail_sim::sim::runs::{Entry, Measured, Row, Workload, run};
use polyrail_sim::sim::{Contestant, Engine, trips};

use super::TOLERANCE;

/// The goodput of downloads of `polyrail full`, the mean over sizes, over that of another: what it
/// was when this was committed.
const GATE: [(&str, Engine, f64); 2] =
    [("min_rtt", Engine::Paper, 1.2690), ("min_rtt", Engine::Full, 1.1311)];

/// The first route and how many trips.
const TRIPS: (u64, u64) = (trips::TUNING + 40, 30);
const SIZES: [u64; 3] = [256_000, 1_000_000, 4_000_000];

#[test]
fn downloads_are_as_fast_as_they_were() {
    let trips = trips::trips(TRIPS.0, TRIPS.1).unwrap();
    let others = GATE.map(|(name, engine, _)| Contestant::named(name, engine));
    let polyrail = Contestant::named("polyrail", Engine::Full);
    let all = std::iter::once(polyrail).chain(others);
    let entries: Vec<Entry> = all.map(|it| (Some(it), Workload::Downloads)).collect();
    let rows = run(&trips, &entries, 2);
    let measured: Vec<f64> = rows[1..].iter().map(|row| ratio(&rows[0], row)).collect();
    let mut table = String::new();
    for ((name, engine, _), value) in GATE.iter().zip(&measured) {
        table.push_str(&format!("    (\"{name}\", Engine::{engine:?}, {value:.4}),\n"));
    }
    println!("measured:\n{table}");
    for ((name, engine, held), value) in GATE.iter().zip(measured) {
        let off = value / held - 1.0;
        assert!(
            off.abs() <= TOLERANCE,
            "polyrail full over {name} {}: {value:.4} in place of {held}, {:+.1} %; now:\n{table}",
            engine.name(),
            off * 100.0,
        );
    }
}

/// The mean over sizes of the ratios of mean goodputs.
fn ratio(a: &Row, b: &Row) -> f64 {
    let each = SIZES.map(|size| goodput(a, size) / goodput(b, size));
    each.iter().sum::<f64>() / each.len() as f64
}

fn goodput(row: &Row, size: u64) -> f64 {
    let lists = row.outcomes.iter().map(|outcome| match outcome {
        Measured::Downloads(all) => &all.list,
        other => panic!("{}: {other:?}", row.name()),
    });
    let own: Vec<f64> =
        lists.flatten().filter(|it| it.bytes == size).map(|it| it.goodput()).collect();
    assert!(own.len() >= 3, "{} downloads of {size} by {}", own.len(), row.name());
    own.iter().sum::<f64>() / own.len() as f64
}
