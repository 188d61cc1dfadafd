//! `polyrail-sim`: schedulers on the simulated rail, side by side.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use polyrail_emulator::rail::{CarrierProfile, Route, Speed, Trip};
use polyrail_tests::sim::{Column, Contestant, Engine, Oracle, downloads, table};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let trips: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10);
    let names: Vec<String> = arguments.collect();
    let names = if names.is_empty() { vec!["min_rtt".into(), "hsrsch".into()] } else { names };
    let sizes = [64_000, 256_000, 1_000_000, 4_000_000];
    let contestants: Vec<Contestant> = names
        .iter()
        .flat_map(|name| [Engine::Paper, Engine::Full].map(|engine| contestant(name, engine)))
        .collect();
    let length = Duration::from_secs(100);
    let mut columns: Vec<Column> = sizes
        .iter()
        .flat_map(|size| {
            ["Mbit/s", "p95 s"].map(|what| Column {
                heading: format!("{} kB {what}", size / 1_000),
                values: Vec::new(),
            })
        })
        .collect();
    columns.push(Column { heading: "speed".into(), values: Vec::new() });
    for contestant in &contestants {
        let begun = Instant::now();
        let mut all = Vec::new();
        for trip in 0..trips {
            let route = Route::new(
                1_000 + trip / 4,
                Speed::Kmh300,
                60_000.0,
                &[CarrierProfile::A, CarrierProfile::B],
            );
            let start = 1_000.0 + 9_000.0 * (trip % 4) as f64;
            let Ok(trip) = Trip::new(&route, trip, start, length) else { continue };
            all.extend(downloads(&trip, contestant, &sizes));
        }
        let speed = trips as f64 * length.as_secs_f64() / begun.elapsed().as_secs_f64();
        for (place, size) in sizes.iter().enumerate() {
            let mut times: Vec<f64> = all
                .iter()
                .filter(|download| download.bytes == *size)
                .map(|download| download.time.as_secs_f64())
                .collect();
            times.sort_by(f64::total_cmp);
            let rates: Vec<f64> = times.iter().map(|time| *size as f64 * 8e-6 / time).collect();
            let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
            let p95 = times.get((times.len() * 95 / 100).min(times.len().saturating_sub(1)));
            columns[2 * place].values.push(mean);
            columns[2 * place + 1].values.push(p95.copied().unwrap_or(f64::NAN));
        }
        columns[8].values.push(speed);
    }
    let rows: Vec<String> = contestants.iter().map(|contestant| contestant.name.clone()).collect();
    println!("{}", table(&rows, &columns));
}

/// A chain by its name; behind `+oracle` it knows which handovers will fail.
fn contestant(name: &str, engine: Engine) -> Contestant {
    let (chain, oracle) = match name.strip_suffix("+oracle") {
        Some(chain) => (chain, Some(Oracle::PERFECT)),
        None => (name, None),
    };
    let contestant = Contestant::named(chain, engine);
    let name = format!("{}{}", contestant.name, if oracle.is_some() { " +oracle" } else { "" });
    Contestant { name, oracle, ..contestant }
}
