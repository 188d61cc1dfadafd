//! Compares the generated rail with the published figures, measured in the same way.
//!
//! The published rates and round-trip times are those of one long-lived bbr flow: [`flow`] runs one
//! over each generated link. [`campaign`] counts handovers, durations and losses over many trips.
//! POLYCORN is Ni et al., NSDI 2023; Wang et al. is MobiCom 2019. The constants were found on the
//! tuning seeds; `docs/emulation.md` has the other findings.

pub mod campaign;
pub mod flow;

use anyhow::Result;
use clap::Args;
use polyrail_emulator::rail::{CarrierProfile, Speed};
use polyrail_emulator::results::{Goal, Report, results_folder};

use campaign::{Handovers, handovers, losses};
use flow::{Flows, flows};

/// The options of a calibration.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How many routes, of the tuning seeds and of the held-back ones.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    routes: u64,
    /// The first of the tuning seeds.
    #[arg(long, default_value_t = 1_000)]
    from: u64,
    /// The first of the held-back seeds.
    #[arg(long, default_value_t = 9_000)]
    held_back: u64,
}

/// The goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    /// The published value, within this relative error.
    Near(f64),
    /// This goal; for the figures with none see `docs/emulation.md`.
    Value(Goal),
}

/// A published figure and the generated one.
#[derive(Clone, Debug, PartialEq)]
struct Figure {
    name: String,
    unit: &'static str,
    published: f64,
    wanted: Wanted,
    value: f64,
}

/// Prints the table and the figures, writes them as JSON.
///
/// # Errors
/// The results cannot be written.
pub fn command(options: &Options) -> Result<()> {
    let mut report = Report::default();
    let tuning = figures(options.from, options.routes);
    let held = figures(options.held_back, options.routes);
    println!("| figure | unit | published | generated, tuning | generated, held back |");
    println!("|---|---|---|---|---|");
    for (figure, held) in tuning.iter().zip(&held) {
        let other = shown(held.value);
        let Figure { name, unit, published, value, .. } = figure;
        println!("| {name} | {unit} | {} | {} | {other} |", shown(*published), shown(*value));
    }
    for (seeds, list) in [("tuning", &tuning), ("held", &held)] {
        list.iter().for_each(|figure| figure.report(&mut report, seeds));
    }
    report.write(&results_folder()?.join("calibration.json"))
}

impl Figure {
    fn report(&self, report: &mut Report, seeds: &str) {
        let name = format!("rail_{seeds}_{}", self.name);
        match self.wanted {
            Wanted::Near(error) => {
                let off = (self.value / self.published - 1.0).abs();
                report.result(&name, self.value, self.unit, Goal::None, &[]);
                report.result(&format!("{name}_error"), off, "ratio", Goal::AtMost(error), &[]);
            }
            Wanted::Value(goal) => report.result(&name, self.value, self.unit, goal, &[]),
        }
    }
}

fn shown(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}

fn figures(from: u64, routes: u64) -> Vec<Figure> {
    let mut list = Vec::new();
    let mut add = |name: String, unit, published, wanted, value| {
        list.push(Figure { name, unit, published, wanted, value });
    };
    of_flows(&mut add, &mut flows(from, routes));
    let at_300 = handovers(Speed::Kmh300, from, routes);
    let at_350 = handovers(Speed::Kmh350, from, routes);
    for (speed, published, counted) in [(300, 13.7, &at_300), (350, 8.6, &at_350)] {
        let seconds: f64 = counted.iter().map(|one| one.seconds).sum();
        let count: u64 = counted.iter().map(|one| one.all[0]).sum();
        let name = format!("handover_every_{speed}");
        add(name, "s", published, Wanted::Near(0.1), seconds / count as f64);
    }
    for (name, profile, counted) in profiles().zip(&at_300).map(|((n, p), c)| (n, p, c)) {
        of_failures(&mut add, name, &profile, counted);
    }
    of_durations(&mut add, &at_300);
    let loss = losses(from, routes);
    for ((name, profile), loss) in profiles().zip(loss) {
        add(format!("{name}_loss_350"), "share", profile.loss, Wanted::Near(0.1), loss);
    }
    list
}

fn profiles() -> impl Iterator<Item = (&'static str, CarrierProfile)> {
    [CarrierProfile::A, CarrierProfile::B].into_iter().map(|profile| (profile.name, profile))
}

fn of_flows(add: &mut impl FnMut(String, &'static str, f64, Wanted, f64), flows: &mut Flows) {
    const PLACES: [(&str, f64); 3] = [("q1", 0.25), ("median", 0.5), ("q3", 0.75)];
    let carriers = profiles().zip(&mut flows.carriers).zip(&mut flows.leads_ms);
    for (((name, profile), seen), leads) in carriers.zip([457.0, 632.0]).map(|(c, lead)| {
        let ((names, seen), leads) = c;
        ((names, seen), (leads, lead))
    }) {
        seen.mbps.sort_by(f64::total_cmp);
        seen.rtt_ms.sort_by(f64::total_cmp);
        for ((place, share), published) in PLACES.into_iter().zip(profile.mbps) {
            let value = quantile(&seen.mbps, share);
            add(format!("{name}_rate_{place}"), "Mbit/s", published, Wanted::Near(0.1), value);
        }
        for ((place, share), published) in PLACES.into_iter().zip(profile.rtt_ms) {
            let value = quantile(&seen.rtt_ms, share);
            add(format!("{name}_rtt_{place}"), "ms", published, Wanted::Near(0.1), value);
        }
        let jumps = share(seen.jumps[0], seen.jumps[1]);
        add(format!("{name}_jumps"), "share", profile.jumps, Wanted::Near(0.15), jumps);
        let (leads, published) = leads;
        leads.sort_by(f64::total_cmp);
        let lead = quantile(leads, 0.5);
        add(format!("{name}_rtt_lead"), "ms", published, Wanted::Value(Goal::None), lead);
    }
    let ratios = [
        ("rate_a_under_half_b", 0.392, share(flows.rate_ratio[0], flows.rate_ratio[2])),
        ("rate_a_over_twice_b", 0.370, share(flows.rate_ratio[1], flows.rate_ratio[2])),
        ("rtt_a_under_half_b", 0.169, share(flows.rtt_ratio[0], flows.rtt_ratio[2])),
        ("rtt_a_over_twice_b", 0.232, share(flows.rtt_ratio[1], flows.rtt_ratio[2])),
    ];
    for (name, published, value) in ratios {
        add(name.to_owned(), "share", published, Wanted::Value(Goal::None), value);
    }
}

fn of_failures(
    add: &mut impl FnMut(String, &'static str, f64, Wanted, f64),
    name: &str,
    profile: &CarrierProfile,
    counted: &Handovers,
) {
    let rate = |[all, failed]: [u64; 2]| share(failed, all);
    add(format!("{name}_failures"), "share", profile.failures, Wanted::Near(0.1), {
        rate(counted.all)
    });
    let [cells, failing, often] = counted.cells;
    let ever = share(failing, cells);
    add(format!("{name}_cells_ever"), "share", profile.failing_cells, Wanted::Near(0.1), ever);
    let often = share(often, failing);
    add(format!("{name}_cells_20_to_80"), "share", 0.3, Wanted::Value(Goal::AtLeast(0.3)), often);
    // POLYCORN, table 1; its rows do not add up to the share of all that fail.
    let [late, weak] = if name == "a" { [1.386, 4.361] } else { [1.730, 1.994] };
    let ratio = rate(counted.late) / rate(counted.early);
    add(format!("{name}_late_to_early"), "ratio", late, Wanted::Value(Goal::AtLeast(1.2)), ratio);
    let ratio = rate(counted.weak) / rate(counted.strong);
    add(format!("{name}_weak_to_strong"), "ratio", weak, Wanted::Value(Goal::AtLeast(1.2)), ratio);
}

fn of_durations(
    add: &mut impl FnMut(String, &'static str, f64, Wanted, f64),
    counted: &[Handovers; 2],
) {
    let mut all = Handovers::default();
    for one in counted {
        for (mine, more) in all.dark.iter_mut().zip(&one.dark) {
            mine.extend(more);
        }
    }
    for (name, kind, seconds, published, wanted) in [
        ("success_over_100_ms", 0, 0.1, 0.15, Wanted::Value(Goal::AtMost(0.15))),
        ("type_2_over_1_s", 1, 1.0, 0.5, Wanted::Value(Goal::AtLeast(0.5))),
        ("type_2_over_2_s", 1, 2.0, 0.25, Wanted::Near(0.1)),
        ("type_3_over_1_s", 2, 1.0, 0.5, Wanted::Value(Goal::AtLeast(0.5))),
        ("type_3_over_5_s", 2, 5.0, 0.25, Wanted::Near(0.1)),
    ] {
        add(name.to_owned(), "share", published, wanted, all.longer(kind, seconds));
    }
    let longest = all.dark.iter().flatten().copied().fold(0.0, f64::max);
    add("failure_longest".to_owned(), "s", 10.0, Wanted::Value(Goal::AtMost(10.0)), longest);
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// The quantile of a sorted list.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seeds_give_the_same_figures() {
        let one = figures(5, 1);
        assert!(one.len() > 30 && one.iter().all(|figure| !figure.name.is_empty()));
        let bits = |list: &[Figure]| -> Vec<u64> {
            list.iter().map(|figure| figure.value.to_bits()).collect()
        };
        assert_eq!(bits(&one), bits(&figures(5, 1)));
    }

    #[test]
    fn handovers_over_many_trips_match_the_published_ones() {
        let [a, b] = handovers(Speed::Kmh300, 3_000, 30);
        for (counted, profile) in [(&a, CarrierProfile::A), (&b, CarrierProfile::B)] {
            let failures = share(counted.all[1], counted.all[0]);
            assert!((failures / profile.failures - 1.0).abs() < 0.25, "{failures}");
            let ever = share(counted.cells[1], counted.cells[0]);
            assert!((ever / profile.failing_cells - 1.0).abs() < 0.2, "{ever}");
        }
    }
}
