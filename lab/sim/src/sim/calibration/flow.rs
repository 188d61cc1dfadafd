//! The figures of each carrier as one long-lived bbr flow measures them, after POLYCORN.

use std::time::Duration;

use polyrail_emulator::rail::{CarrierProfile, Route, Speed, Trip};

use crate::congestion::Algorithm;
use crate::sim::runs::parallel;
use crate::world::transport::{Endless, endless};

/// The measurements of flows on two carriers.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    /// Those of each carrier.
    pub carriers: [CarrierFigures; 2],
    /// For how long each carrier had the lower round-trip time, in ms: once for each period.
    pub leads_ms: [Vec<f64>; 2],
    /// How often the rate of the first was under half of the second's, over twice it, and how often
    /// they were compared.
    pub rate_ratio: [u64; 3],
    /// The same for round-trip times.
    pub rtt_ratio: [u64; 3],
}

/// The measurements of flows on one carrier.
#[derive(Clone, Debug, Default)]
pub struct CarrierFigures {
    /// The rate in each window, Mbit/s.
    pub mbps: Vec<f64>,
    /// Round-trip times of packets, ms.
    pub rtt_ms: Vec<f64>,
    /// Windows whose rate differs by more than a factor of two from the second before, and all
    /// windows that can be compared.
    pub jumps: [u64; 2],
}

/// Flows over the carriers A and B at 300 km/h, one trip on each of these routes.
pub fn flows(from: u64, routes: u64) -> Flows {
    let mut all = Flows::default();
    let parts = parallel(routes as usize, THREADS, |number| flows_of(from + number as u64));
    parts.into_iter().for_each(|one| all.add(one));
    all
}

fn flows_of(seed: u64) -> Flows {
    let carriers = [CarrierProfile::A, CarrierProfile::B];
    let route = Route::new(seed, Speed::Kmh300, METRES, &carriers);
    let mut flows = Flows::default();
    let Ok(trip) = Trip::new(&route, seed, START, LENGTH) else { return flows };
    let mut seen = Vec::new();
    for (number, carrier) in trip.carriers.iter().enumerate() {
        let flow = endless(&carrier.links, seed ^ (number as u64) << 40, Algorithm::Bbr, LENGTH);
        let mbps = windows(&flow);
        flows.carriers[number] = CarrierFigures {
            jumps: jumps(&mbps),
            rtt_ms: flow.rtts.iter().map(|(_, rtt)| rtt.as_secs_f64() * 1e3).collect(),
            mbps,
        };
        seen.push(flow);
    }
    if let [a, b] = &seen[..] {
        flows.compare(a, b);
    }
    flows
}

impl Flows {
    fn add(&mut self, other: Self) {
        for (mine, other) in self.carriers.iter_mut().zip(other.carriers) {
            mine.mbps.extend(other.mbps);
            mine.rtt_ms.extend(other.rtt_ms);
            add(&mut mine.jumps, &other.jumps);
        }
        for (mine, other) in self.leads_ms.iter_mut().zip(other.leads_ms) {
            mine.extend(other);
        }
        add(&mut self.rate_ratio, &other.rate_ratio);
        add(&mut self.rtt_ratio, &other.rtt_ratio);
    }

    /// Compares the newest round-trip times of both carriers over time, and their rates.
    fn compare(&mut self, a: &Endless, b: &Endless) {
        let (mut newest, mut places) = ([None; 2], [0; 2]);
        let mut leader: Option<(usize, f64)> = None;
        let steps = LENGTH.as_millis() / GRID.as_millis();
        for step in 1..=steps as u32 {
            let now = GRID * step;
            for (number, flow) in [a, b].into_iter().enumerate() {
                while let Some((at, rtt)) = flow.rtts.get(places[number])
                    && *at <= now
                {
                    newest[number] = Some(rtt.as_secs_f64());
                    places[number] += 1;
                }
            }
            let [Some(a), Some(b)] = newest else { continue };
            count(&mut self.rtt_ratio, a / b);
            let ahead = usize::from(a > b);
            let grid = GRID.as_secs_f64() * 1e3;
            match &mut leader {
                Some((who, ms)) if *who == ahead => *ms += grid,
                _ => {
                    if let Some((who, ms)) = leader.replace((ahead, grid)) {
                        self.leads_ms[who].push(ms);
                    }
                }
            }
        }
        let [a, b] = [&self.carriers[0].mbps, &self.carriers[1].mbps];
        for (a, b) in a.iter().zip(b).filter(|(a, b)| **a > 0.0 || **b > 0.0) {
            count(&mut self.rate_ratio, a / b);
        }
    }
}

fn count(counts: &mut [u64; 3], ratio: f64) {
    counts[0] += u64::from(ratio < 0.5);
    counts[1] += u64::from(ratio > 2.0);
    counts[2] += 1;
}

fn add(sum: &mut [u64], more: &[u64]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// The rate in each window, Mbit/s, without the flow's beginning.
fn windows(flow: &Endless) -> Vec<f64> {
    let mut bytes = vec![0; (LENGTH.as_millis() / WINDOW.as_millis()) as usize];
    for (at, arrived) in &flow.arrivals {
        if let Some(sum) = bytes.get_mut((at.as_nanos() / WINDOW.as_nanos()) as usize) {
            *sum += *arrived;
        }
    }
    let rate = |bytes: &usize| *bytes as f64 * 8e-6 / WINDOW.as_secs_f64();
    bytes.iter().map(rate).collect()
}

/// Compares each window with the five before it (POLYCORN 2.2), unless all are empty.
fn jumps(mbps: &[f64]) -> [u64; 2] {
    let mut counts = [0; 2];
    for six in mbps.windows(6) {
        let before = six[..5].iter().sum::<f64>() / 5.0;
        if before > 0.0 || six[5] > 0.0 {
            counts[0] += u64::from(six[5] < 0.5 * before || six[5] > 2.0 * before);
            counts[1] += 1;
        }
    }
    counts
}

const METRES: f64 = 20_000.0;
const START: f64 = 2_000.0;
const LENGTH: Duration = Duration::from_secs(100);
/// POLYCORN 2.2.
const WINDOW: Duration = Duration::from_millis(200);
/// The interval at which round-trip times are compared.
const GRID: Duration = Duration::from_millis(10);
const THREADS: usize = 2;
