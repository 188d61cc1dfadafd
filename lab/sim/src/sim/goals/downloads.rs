//! Goals of downloads: HSRSCH and its parts, and the product against rivals and bound.

use polyrail_emulator::results::Goal;

use super::{POLYRAIL, Verdicts};
use crate::sim::contestants::{PARTS, TUNED};
use crate::sim::figures::{
    Ratio, Rows, downloads, goodputs, quantile_ratio, ratio, ratio_over, resent_share, times,
};
use crate::sim::report::size_name;
use crate::sim::runs::{BASE, BOUND, HEADLINE_SIZES, Row, SIZES, Workload};

/// Prints all of them.
pub fn judge(rows: Rows<'_>, verdicts: &mut Verdicts) {
    hsrsch(rows, verdicts);
    let polyrail = verdicts.find(rows, Workload::Downloads, POLYRAIL, "sim_polyrail");
    let Some(polyrail) = polyrail else { return };
    for rival in ["min_rtt", "mptcp"] {
        over_paper(rows, polyrail, rival, verdicts);
    }
    let share = resent_share(polyrail);
    verdicts.result("sim_polyrail_redundant_share", share, "x", Goal::AtMost(0.15), &[]);
    over_full(rows, polyrail, verdicts);
    over_best(rows, polyrail, verdicts);
    of_bound(rows, polyrail, verdicts);
}

/// HSRSCH and its parts, all with the paper's engine, and how far off the published gains they are.
fn hsrsch(rows: Rows<'_>, verdicts: &mut Verdicts) {
    let find = |verdicts: &Verdicts, row: &str, figure: &str| {
        verdicts.find(rows, Workload::Downloads, row, figure)
    };
    let Some(base) = find(verdicts, BASE, "sim_hsrsch") else { return };
    let mut line = |name: &str, row: &str, goal: Goal| -> Option<f64> {
        let name = format!("sim_{name}_over_min_rtt_paper");
        let row = find(verdicts, &format!("{row} paper"), &name)?;
        let over = ratio_over(row, base, &HEADLINE_SIZES);
        verdicts.sure(&name, over, goal, &per_trip(row));
        Some(over.value)
    };
    let whole = line("hsrsch", "hsrsch+noisy", Goal::AtLeast(1.10));
    line("hsrsch_unforeseen", "hsrsch", Goal::None);
    line("hsrsch_oracle", "hsrsch+oracle", Goal::None);
    let mut off = vec![("hsrsch".to_owned(), whole.map(|it| (it / PUBLISHED - 1.0).abs()))];
    for part in PARTS {
        let name = format!("part_{}", part.name);
        for (place, text) in part.texts().iter().enumerate() {
            match place {
                0 => {
                    let gain = line(&name, text, Goal::AtLeast(1.0));
                    if let Some(published) = part.published {
                        off.push((name.clone(), gain.map(|gain| (gain - published).abs())));
                    }
                }
                _ => drop(line(&format!("{name}_oracle"), text, Goal::None)),
            }
        }
    }
    for (name, off) in off {
        let name = format!("sim_{name}_over_min_rtt_paper_off_published");
        if let Some(off) = off {
            verdicts.result(&name, off, "x", Goal::AtMost(0.05), &[]);
        }
    }
}

/// Against what the paper compares with, in the paper's engine.
fn over_paper(rows: Rows<'_>, polyrail: &Row, rival: &str, verdicts: &mut Verdicts) {
    let name = format!("sim_polyrail_over_{rival}_paper");
    let base = format!("{rival} paper");
    let Some(base) = verdicts.find(rows, Workload::Downloads, &base, &name) else { return };
    let over = ratio_over(polyrail, base, &HEADLINE_SIZES);
    verdicts.sure(&name, over, Goal::AtLeast(1.4), &per_trip(polyrail));
    for size in HEADLINE_SIZES {
        let over = ratio(&goodputs(polyrail, size), &goodputs(base, size));
        let name = format!("{name}_{}", size_name(size));
        verdicts.sure(&name, over, Goal::AtLeast(1.25), &[]);
    }
    for size in HEADLINE_SIZES {
        let over = quantile_ratio(&times(polyrail, size), &times(base, size), 0.95);
        let name = format!("sim_polyrail_p95_over_{rival}_paper_{}", size_name(size));
        verdicts.sure(&name, over, Goal::AtMost(0.6), &[]);
    }
}

/// Against the same with all features of the engine, and with the tuned rules of ours.
fn over_full(rows: Rows<'_>, polyrail: &Row, verdicts: &mut Verdicts) {
    let tuned = TUNED.map(|(name, _)| name);
    for (name, rivals) in
        [("min_rtt", &["min_rtt"][..]), ("mptcp", &["mptcp"]), ("tuned_min_rtt", &tuned)]
    {
        let name = format!("sim_polyrail_over_{name}_full");
        let found = |rival: &&str| {
            verdicts.find(rows, Workload::Downloads, &format!("{rival} full"), &name)
        };
        let found: Vec<&Row> = rivals.iter().filter_map(found).collect();
        for size in SIZES {
            let name = format!("{name}_{}", size_name(size));
            if let Some((_, over)) = closest(polyrail, found.iter().copied(), size) {
                verdicts.sure(&name, over, Goal::AtLeast(1.0), &[]);
            }
        }
    }
}

/// Against the best of all others.
fn over_best(rows: Rows<'_>, polyrail: &Row, verdicts: &mut Verdicts) {
    let is_rival = |row: &&Row| row.contestant.as_ref().is_some_and(|it| it.is_rival());
    for size in SIZES {
        let rivals = rows.of(Workload::Downloads).filter(is_rival);
        let name = format!("sim_polyrail_over_best_baseline_{}", size_name(size));
        match closest(polyrail, rivals, size) {
            None => verdicts.missing(&name, "no baseline"),
            Some((best, over)) => {
                println!("the best baseline at {} is {}", size_name(size), best.name());
                verdicts.sure(&name, over, Goal::AtLeast(1.0), &[]);
            }
        }
    }
}

/// The row over which the product has the least gain, and that gain.
fn closest<'a>(
    polyrail: &Row,
    others: impl Iterator<Item = &'a Row>,
    size: u64,
) -> Option<(&'a Row, Ratio)> {
    let own = goodputs(polyrail, size);
    let over = |row: &'a Row| (row, ratio(&own, &goodputs(row, size)));
    others.map(over).min_by(|(_, a), (_, b)| a.value.total_cmp(&b.value))
}

/// Against the bound's own run: its mean, and its percentile.
fn of_bound(rows: Rows<'_>, polyrail: &Row, verdicts: &mut Verdicts) {
    let bound = verdicts.find(rows, Workload::Downloads, BOUND, "sim_polyrail_of_bound");
    let Some(bound) = bound else { return };
    for size in SIZES {
        let of = ratio(&goodputs(polyrail, size), &goodputs(bound, size));
        let name = format!("sim_polyrail_of_bound_{}", size_name(size));
        verdicts.sure(&name, of, Goal::AtLeast(0.78), &[]);
        let over = quantile_ratio(&times(polyrail, size), &times(bound, size), 0.95);
        let name = format!("sim_polyrail_p95_over_bound_{}", size_name(size));
        verdicts.sure(&name, over, Goal::AtMost(1.6), &[]);
    }
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

/// POLYCORN 6.2, Fig. 10c: all of HSRSCH's parts together over `min_rtt`.
const PUBLISHED: f64 = 1.16;
