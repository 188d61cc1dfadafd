//! BBR+ next to bbr and cubic: one download over one carrier, as Wang et al. measure it
//! (MobiCom 2019, sections 4.1 and 7.2): 150 s at 300 and 350 km/h.

use anyhow::{Context, Result};
use polyrail_emulator::rail::Trip;
use polyrail_emulator::results::{Goal, Report};
use std::time::Duration;

use super::Options;
use super::picture::{Curve, Panel, picture};
use crate::congestion::Algorithm;
use crate::sim::figures::{Ratio, ratio};
use crate::sim::metrics::{mean, quantile};
use crate::sim::runs::{caught, parallel};
use crate::sim::table::Table;
use crate::world::transport::{Endless, State, endless};

/// The lambdas of the table, in percent, of those with the goodput of Table 5 on tuning seeds.
pub(super) const LAMBDAS: [u32; 2] = [100, 200];

/// One flow.
struct Flow {
    mbps: f64,
    rtts_ms: Vec<f64>,
    in_flight_mb: Vec<f64>,
}

pub(super) fn study(options: &Options, report: &mut Report) -> Result<()> {
    let mut controls = vec![Algorithm::Cubic, Algorithm::Bbr];
    let plus = |lambda_percent: &u32| Algorithm::BbrPlus { lambda_percent: *lambda_percent };
    controls.extend(options.lambdas.iter().map(plus));
    let seconds = options.seconds.unwrap_or(SECONDS);
    for speed_kmh in [300, 350] {
        let trips = options.trips(speed_kmh, seconds)?;
        for (carrier, name) in ["A", "B"].into_iter().enumerate() {
            let flows = parallel(controls.len() * trips.len(), options.threads, |task| {
                let (control, trip) = (controls[task / trips.len()], &trips[task % trips.len()]);
                caught(|| Flow::of(&played(trip, carrier, control), seconds))
            });
            let flows: Vec<Flow> =
                flows.into_iter().collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
            let rows: Vec<&[Flow]> = flows.chunks(trips.len()).collect();
            let title = format!("BBR+: carrier {name}, {speed_kmh} km/h, {} trips", trips.len());
            println!("{}", table(title, &controls, &rows).markdown());
            if options.judges() && (speed_kmh, carrier) == (350, 0) {
                judge(&options.lambdas, &rows, report);
            }
        }
    }
    options.draw("bbr-plus.svg", || {
        let trips = options.trips(350, seconds)?;
        let trip = trips.first().context("no trip")?;
        let lambda = plus(options.lambdas.first().context("no lambda")?);
        trace(seconds, &played(trip, 0, Algorithm::Bbr), &played(trip, 0, lambda))
    })
}

fn played(trip: &Trip, carrier: usize, control: Algorithm) -> Endless {
    let seed = trip.seed ^ (carrier as u64) << 40;
    endless(&trip.carriers[carrier].links, seed, control, trip.length)
}

impl Flow {
    fn of(flow: &Endless, seconds: u64) -> Self {
        let bytes: usize = flow.arrivals.iter().map(|(_, bytes)| bytes).sum();
        Self {
            mbps: bytes as f64 * 8e-6 / seconds as f64,
            rtts_ms: flow.rtts.iter().map(|(_, rtt)| rtt.as_secs_f64() * 1e3).collect(),
            in_flight_mb: flow.states.iter().map(|state| state.in_flight as f64 * 1e-6).collect(),
        }
    }
}

fn table(title: String, controls: &[Algorithm], rows: &[&[Flow]]) -> Table {
    let name = |control: &Algorithm| match control {
        Algorithm::BbrPlus { lambda_percent } => {
            format!("BBR+, lambda {}", f64::from(*lambda_percent) / 100.0)
        }
        other => format!("{other:?}").to_lowercase(),
    };
    let mut table = Table::new(title, controls.iter().map(name).collect());
    table.column("Mbit/s", rows.iter().map(|row| mean(&goodputs(row).concat())));
    let gains: Vec<Ratio> =
        rows.iter().map(|row| ratio(&goodputs(row), &goodputs(rows[1]))).collect();
    table.column("x bbr", gains.iter().map(|gain| gain.value));
    table.column("from (95 %)", gains.iter().map(|gain| gain.between[0]));
    table.column("to", gains.iter().map(|gain| gain.between[1]));
    for (heading, share) in [("RTT p25 ms", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95)] {
        let rtts = |row: &&[Flow]| of_all(row, |flow| &flow.rtts_ms);
        table.column(heading, rows.iter().map(|row| quantile(&rtts(row), share)));
    }
    for (heading, share) in [("in flight p50 MB", 0.5), ("p95", 0.95)] {
        let flights = |row: &&[Flow]| of_all(row, |flow| &flow.in_flight_mb);
        table.column(heading, rows.iter().map(|row| quantile(&flights(row), share)));
    }
    table
}

fn goodputs(row: &[Flow]) -> Vec<Vec<f64>> {
    row.iter().map(|flow| vec![flow.mbps]).collect()
}

fn of_all(row: &[Flow], list: impl Fn(&Flow) -> &Vec<f64>) -> Vec<f64> {
    row.iter().flat_map(list).copied().collect()
}

/// Compares gain and delay with Table 5, and bbr with cubic as in Table 2, at 350 km/h on carrier A.
fn judge(lambdas: &[u32], rows: &[&[Flow]], report: &mut Report) {
    let [cubic, bbr, ..] = rows else { return };
    let median = |row: &[Flow]| quantile(&of_all(row, |flow| &flow.rtts_ms), 0.5);
    for ((lambda, row), (gain, delay)) in lambdas.iter().zip(&rows[2..]).zip(PUBLISHED) {
        let found = ratio(&goodputs(row), &goodputs(bbr));
        let name = format!("bbr_plus_{lambda}_gain");
        let each: Vec<f64> = row.iter().zip(*bbr).map(|(a, b)| a.mbps / b.mbps).collect();
        report.result(&name, found.value, "x", Goal::AtLeast(gain), &each);
        println!("  {name}: 95 % between {:.3} and {:.3}", found.between[0], found.between[1]);
        let later = median(row) - median(bbr);
        report.result(&format!("bbr_plus_{lambda}_rtt"), later, "ms", Goal::AtMost(delay), &[]);
    }
    let over = median(cubic) / median(bbr);
    report.result("bbr_rtt_below_cubic", over, "x", Goal::AtLeast(2.0), &[]);
}

/// The parameters over time, like Fig. 16.
fn trace(seconds: u64, bbr: &Endless, plus: &Endless) -> Result<String> {
    let every = seconds as f64 / bbr.states.len() as f64;
    let curve = |class, name: &str, flow: &Endless, of: &dyn Fn(&State) -> f64| Curve {
        class,
        name: name.to_owned(),
        points: (1..).map(|step| f64::from(step) * every).zip(flow.states.iter().map(of)).collect(),
    };
    let rtt = |state: &State| state.estimate.map_or(0.0, |it| it.round_trip.as_secs_f64() * 1e3);
    let rate = |state: &State| state.estimate.map_or(0.0, |it| it.bandwidth.as_bps() as f64 * 1e-6);
    let window = |state: &State| state.window as f64 * 1e-3;
    let measured = Curve { class: "c", name: "measured, BBR+".into(), points: rtts(plus, seconds) };
    let arrived = Curve { class: "c", name: "goodput, BBR+".into(), points: rates(plus, seconds) };
    let title = "bbr and BBR+ (reconstructed) on carrier A, 350 km/h, first held-back trip";
    picture(title, seconds as f64, &[
        Panel {
            label: "round-trip time, ms",
            top: 1_000.0,
            curves: vec![
                measured,
                curve("b", "RTprop', BBR+", plus, &rtt),
                curve("a", "RTprop, bbr", bbr, &rtt),
            ],
        },
        Panel {
            label: "rate, Mbit/s",
            top: 20.0,
            curves: vec![
                arrived,
                curve("b", "bottleneck, BBR+", plus, &rate),
                curve("a", "bottleneck, bbr", bbr, &rate),
            ],
        },
        Panel {
            label: "window, KB",
            top: 1_000.0,
            curves: vec![
                curve("b", "window, BBR+", plus, &window),
                curve("a", "window, bbr", bbr, &window),
            ],
        },
    ])
}

/// The median of the measured round-trip times in each half second, in ms.
fn rtts(flow: &Endless, seconds: u64) -> Vec<(f64, f64)> {
    let values = flow.rtts.iter().map(|(at, rtt)| (*at, rtt.as_secs_f64() * 1e3));
    binned(values, seconds, |values| quantile(values, 0.5))
}

/// The goodput in each half second, in Mbit/s.
fn rates(flow: &Endless, seconds: u64) -> Vec<(f64, f64)> {
    let values = flow.arrivals.iter().map(|(at, bytes)| (*at, *bytes as f64 * 8e-6));
    binned(values, seconds, |values| values.iter().sum::<f64>() / BIN_S)
}

/// A figure of the values of each bin. Without values, NaN makes a gap.
fn binned(
    values: impl Iterator<Item = (Duration, f64)>,
    seconds: u64,
    figure: impl Fn(&[f64]) -> f64,
) -> Vec<(f64, f64)> {
    let mut bins = vec![Vec::new(); (seconds as f64 / BIN_S) as usize];
    for (at, value) in values {
        if let Some(bin) = bins.get_mut((at.as_secs_f64() / BIN_S) as usize) {
            bin.push(value);
        }
    }
    let middle = |number: usize| (number as f64 + 0.5) * BIN_S;
    bins.iter().enumerate().map(|(number, bin)| (middle(number), figure(bin))).collect()
}

/// The length of a flow (section 3.2.2).
const SECONDS: u64 = 150;
const BIN_S: f64 = 0.5;
/// The gains in goodput and the rise of the median round-trip time in ms of Table 5: 4.44, 5.49 and
/// 6.06 Mbit/s; 149, 242 and 333 ms.
const PUBLISHED: [(f64, f64); 2] = [(5.49 / 4.44, 93.0), (6.06 / 4.44, 184.0)];
