//! The RESULT lines: each goal that can be judged in the simulator.

use polyrail_emulator::results::{Goal, Report};

use super::figures::{
    Ratio, Rows, bounds, bulk_share, delivery, downloads, goodput_bounds, goodputs, ratio,
    ratio_over, resent_share, spread, times, unfairness, wins,
};
use super::metrics::quantile;
use super::report::{singles, size_name};
use super::runs::{BOUND, Row, SIZES, Workload};
use super::{Carriers, PARTS};

/// What all ratios are over: the paper's engine with the scheduler that kernels had.
pub const BASE: &str = "min_rtt paper";
/// The sizes that the headline ratios are over.
pub const HEADLINE_SIZES: [u64; 3] = [256_000, 1_000_000, 4_000_000];

/// Prints all figures that these rows are enough for.
pub fn judge(rows: Rows<'_>, users: &[usize], report: &mut Report) {
    let find = |name: &str| rows.find(name, Workload::Downloads);
    let (base, polyrail) = (find(BASE), find(POLYRAIL));
    if let Some(base) = base {
        parts(rows, base, report);
    }
    if let (Some(base), Some(polyrail)) = (base, polyrail) {
        over_base(polyrail, base, report);
        over_others(rows, polyrail, report);
    }
    if let Some(polyrail) = polyrail {
        of_bound(polyrail, report);
    }
    for users in users {
        messaging(rows, *users, report);
    }
    bulk(rows, report);
}

/// HSRSCH and its parts, all with the paper's engine.
fn parts(rows: Rows<'_>, base: &Row, report: &mut Report) {
    let mut line = |name: &str, row: &str, goal: Goal| {
        if let Some(row) = rows.find(row, Workload::Downloads) {
            let over = ratio_over(row, base, &HEADLINE_SIZES);
            sure(report, &format!("sim_{name}_over_min_rtt_paper"), over, goal, &per_trip(row));
        }
    };
    // POLYCORN 6.2, Fig. 10c: near 1.16.
    line("hsrsch", "hsrsch+noisy paper", Goal::AtLeast(1.10));
    line("hsrsch_unforeseen", "hsrsch paper", Goal::None);
    line("hsrsch_oracle", "hsrsch+oracle paper", Goal::None);
    for (part, text) in PARTS {
        line(&format!("part_{part}"), &format!("{text} paper"), Goal::AtLeast(1.0));
    }
}

fn over_base(polyrail: &Row, base: &Row, report: &mut Report) {
    let over = ratio_over(polyrail, base, &HEADLINE_SIZES);
    let name = "sim_polyrail_over_min_rtt_paper";
    sure(report, name, over, Goal::AtLeast(1.4), &per_trip(polyrail));
    for size in HEADLINE_SIZES {
        let over = ratio(&goodputs(polyrail, size), &goodputs(base, size));
        let name = format!("sim_polyrail_over_min_rtt_paper_{}", size_name(size));
        sure(report, &name, over, Goal::AtLeast(1.25), &[]);
    }
    for size in HEADLINE_SIZES {
        let name = format!("sim_polyrail_p95_over_min_rtt_paper_{}", size_name(size));
        p95(report, &name, polyrail, base, size, 0.6);
    }
    let share = resent_share(polyrail);
    report.result("sim_polyrail_redundant_share", share, "x", Goal::AtMost(0.15), &[]);
}

/// Against `min_rtt` with the same engine, and against the best of all others.
fn over_others(rows: Rows<'_>, polyrail: &Row, report: &mut Report) {
    for size in SIZES {
        if let Some(other) = rows.find("min_rtt full", Workload::Downloads) {
            let over = ratio(&goodputs(polyrail, size), &goodputs(other, size));
            let name = format!("sim_polyrail_over_min_rtt_full_{}", size_name(size));
            sure(report, &name, over, Goal::AtLeast(1.0), &[]);
        }
        let over = |row: &&Row| ratio(&goodputs(polyrail, size), &goodputs(row, size)).value;
        let best = rows.of(Workload::Downloads).filter(|row| is_rival(row));
        let Some(best) = best.min_by(|a, b| over(a).total_cmp(&over(b))) else { continue };
        let over = ratio(&goodputs(polyrail, size), &goodputs(best, size));
        println!("the best baseline at {} is {}", size_name(size), best.name());
        let name = format!("sim_polyrail_over_best_baseline_{}", size_name(size));
        sure(report, &name, over, Goal::AtLeast(1.0), &[]);
    }
}

/// A scheduler that others made, on the same carriers and without foresight.
fn is_rival(row: &Row) -> bool {
    row.contestant.as_ref().is_some_and(|it| {
        let own = ["polyrail", "hsrsch"].iter().any(|own| it.name.starts_with(own));
        let composed = it.name.contains('/');
        it.carriers == Carriers::All && it.oracle.is_none() && !own && !composed
    })
}

/// Each download against one that is asked for at the same moment over the fluid: who is faster
/// asks for more downloads while the carriers are fast.
fn of_bound(polyrail: &Row, report: &mut Report) {
    for size in SIZES {
        let of = ratio(&goodputs(polyrail, size), &goodput_bounds(polyrail, size));
        let name = format!("sim_polyrail_of_bound_{}", size_name(size));
        sure(report, &name, of, Goal::AtLeast(0.78), &[]);
        let name = format!("sim_polyrail_p95_over_bound_{}", size_name(size));
        let value =
            quantile(&times(polyrail, size), 0.95) / quantile(&bounds(polyrail, size), 0.95);
        report.result(&name, value, "x", Goal::AtMost(1.6), &[]);
    }
}

/// Round trips of messages, as FACTS count them.
fn messaging(rows: Rows<'_>, users: usize, report: &mut Report) {
    let find = |name: &str| rows.find(name, Workload::Messaging(users));
    let Some(polyrail) = find(POLYRAIL) else { return };
    let figures = |row: &Row| {
        let [mean, _, _, p99] = spread(&delivery(row)[1]);
        (mean, p99, unfairness(row))
    };
    let own = figures(polyrail);
    let mut line = |name: &str, value: f64, most: f64| {
        let name = format!("sim_messaging_{name}_{users}");
        report.result(&name, value, "x", Goal::AtMost(most), &[]);
    };
    if let Some(bound) = find(BOUND).map(figures) {
        line("mean_over_bound", own.0 / bound.0, 1.10);
    }
    if let Some(flows) = find("flow_round_robin paper").map(figures) {
        line("mean_over_flow_round_robin", own.0 / flows.0, 0.55);
        line("p99_over_flow_round_robin", own.1 / flows.1, 0.12);
        line("variation_over_flow_round_robin", own.2 / flows.2, 0.2);
    }
    if let Some(base) = find(BASE).map(figures) {
        line("p99_over_min_rtt", own.1 / base.1, 0.6);
    }
}

fn bulk(rows: Rows<'_>, report: &mut Report) {
    let find = |name: &str| rows.find(name, Workload::Bulk);
    let Some(polyrail) = find(POLYRAIL) else { return };
    if let Some(bound) = find(BOUND) {
        let of = bulk_share(polyrail, bound);
        sure(report, "sim_bulk_of_bound_rail", of, Goal::AtLeast(0.8), &[]);
    }
    if let Some(sum) = find("min_rtt@aggregated full") {
        let of = bulk_share(polyrail, sum);
        sure(report, "sim_bulk_of_aggregated_rail", of, Goal::None, &[]);
    }
    let singles = singles(rows);
    if !singles.is_empty() {
        let share = wins(polyrail, &singles);
        report.result("sim_bulk_beats_best_carrier", share, "x", Goal::AtLeast(0.95), &[]);
    }
}

/// A ratio with its confidence.
fn sure(report: &mut Report, name: &str, ratio: Ratio, goal: Goal, samples: &[f64]) {
    report.result(name, ratio.value, "x", goal, samples);
    println!("  {name}: 95 % between {:.3} and {:.3}", ratio.between[0], ratio.between[1]);
}

fn p95(report: &mut Report, name: &str, a: &Row, b: &Row, size: u64, most: f64) {
    let value = quantile(&times(a, size), 0.95) / quantile(&times(b, size), 0.95);
    report.result(name, value, "x", Goal::AtMost(most), &[]);
}

/// The mean goodput of each trip, over the headline sizes.
fn per_trip(row: &Row) -> Vec<f64> {
    let mut sums = vec![(0.0, 0.0); row.outcomes.len()];
    for size in HEADLINE_SIZES {
        for (sum, list) in sums.iter_mut().zip(downloads(row, size)) {
            for download in list {
                *sum = (sum.0 + download.goodput(), sum.1 + 1.0);
            }
        }
    }
    sums.into_iter().map(|(sum, count)| sum / f64::max(count, 1.0)).collect()
}

/// The product: the default chain with all that the engine can.
pub const POLYRAIL: &str = "polyrail full";
