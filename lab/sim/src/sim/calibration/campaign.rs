//! Handovers, losses and outages over campaigns of trips, measured without a flow.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_emulator::link::{LinkModel, LinkSpec};
use polyrail_emulator::rail::{CarrierProfile, Handover, HandoverResult, Route, Speed, Trip};

/// The counts of one carrier.
#[derive(Clone, Debug, Default)]
pub struct Handovers {
    /// All handovers, and those that failed.
    pub all: [u64; 2],
    /// The duration of the trips, in seconds.
    pub seconds: f64,
    /// Cells that trains left, those with a failure, and those with a failure rate of 20 to 80 %.
    pub cells: [u64; 3],
    /// Handovers within 200 m of the earliest of their cell, and the failed ones.
    pub early: [u64; 2],
    /// The same, beyond 200 m.
    pub late: [u64; 2],
    /// The same, with a signal of at least -95 dBm.
    pub strong: [u64; 2],
    /// The same, with a weaker signal.
    pub weak: [u64; 2],
    /// The outages in seconds: successes, type II, type III.
    pub dark: [Vec<f64>; 3],
}

/// A campaign over each of these routes, of carriers A and B.
pub fn handovers(speed: Speed, from: u64, routes: u64) -> [Handovers; 2] {
    let mut sums = [Handovers::default(), Handovers::default()];
    for seed in from..from + routes {
        let route = Route::new(seed, speed, METRES, &[CarrierProfile::A, CarrierProfile::B]);
        let trips: Vec<Trip> =
            (0..TRIPS).filter_map(|trip| Trip::new(&route, trip, START, LENGTH).ok()).collect();
        for (number, sum) in sums.iter_mut().enumerate() {
            let mut cells: BTreeMap<u32, Vec<&Handover>> = BTreeMap::new();
            for trip in &trips {
                sum.seconds += trip.length.as_secs_f64();
                for handover in &trip.carriers[number].handovers {
                    cells.entry(handover.from).or_default().push(handover);
                }
            }
            cells.values().for_each(|cell| sum.add(cell));
        }
    }
    sums
}

impl Handovers {
    /// Adds all handovers out of one cell.
    fn add(&mut self, cell: &[&Handover]) {
        let earliest = cell.iter().map(|handover| handover.metres).fold(f64::MAX, f64::min);
        let mut failed = 0;
        for handover in cell {
            let fails = u64::from(handover.outcome != HandoverResult::Success);
            failed += fails;
            let late = handover.metres >= earliest + LATE_METRES;
            let place = if late { &mut self.late } else { &mut self.early };
            *place = [place[0] + 1, place[1] + fails];
            let signal = if handover.rsrp < WEAK_DBM { &mut self.weak } else { &mut self.strong };
            *signal = [signal[0] + 1, signal[1] + fails];
            let kind = match handover.outcome {
                HandoverResult::Success => 0,
                HandoverResult::FailureHeld => 1,
                HandoverResult::FailureDropped => 2,
            };
            self.dark[kind].push(handover.dark.as_secs_f64());
        }
        let rate = failed as f64 / cell.len() as f64;
        self.all = [self.all[0] + cell.len() as u64, self.all[1] + failed];
        self.cells[0] += 1;
        self.cells[1] += u64::from(failed > 0);
        self.cells[2] += u64::from((0.2..=0.8).contains(&rate));
    }

    /// The share of the outages of a kind that exceed this many seconds.
    pub fn longer(&self, kind: usize, seconds: f64) -> f64 {
        let times = &self.dark[kind];
        times.iter().filter(|dark| **dark > seconds).count() as f64 / times.len() as f64
    }
}

/// The random loss of small packets, 20 a second, at 350 km/h (Wang et al., section 6.3).
pub fn losses(from: u64, routes: u64) -> [f64; 2] {
    let mut counts = [[0_u64; 2]; 2];
    for seed in from..from + routes {
        let carriers = [CarrierProfile::A, CarrierProfile::B];
        let route = Route::new(seed, Speed::Kmh350, METRES, &carriers);
        let Ok(trip) = Trip::new(&route, 0, START, LENGTH) else { continue };
        for (number, carrier) in trip.carriers.iter().enumerate() {
            let [lost, arrived] = probe(&carrier.links[1], seed);
            counts[number] = [counts[number][0] + lost, counts[number][1] + arrived];
        }
    }
    counts.map(|[lost, arrived]| lost as f64 / (lost + arrived) as f64)
}

fn probe(link: &LinkSpec, seed: u64) -> [u64; 2] {
    let start = Instant::now();
    let mut model = LinkModel::new(link.clone(), start, seed);
    for packet in 0..(LENGTH.as_millis() / PROBE.as_millis()) as u32 {
        let now = start + PROBE * packet;
        let _verdict = model.enqueue(now, (), PROBE_BYTES);
        while model.poll(now).is_some() {}
    }
    let end = start + LENGTH * 2;
    while model.poll(end).is_some() {}
    let counters = model.counters();
    [counters.lost.packets, counters.delivered.packets]
}

/// The trips of a campaign (POLYCORN 2.1).
const TRIPS: u64 = 24;
/// POLYCORN, table 1.
const LATE_METRES: f64 = 200.0;
const WEAK_DBM: f64 = -95.0;
const METRES: f64 = 30_000.0;
const START: f64 = 2_000.0;
const LENGTH: Duration = Duration::from_secs(200);
const PROBE: Duration = Duration::from_millis(50);
const PROBE_BYTES: usize = 41;
