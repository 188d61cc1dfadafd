//! Goodput of one carrier in mode `quic` over that in mode `tls` with the same congestion control,
//! on a link without loss and on a lossy one.

use anyhow::Result;

use super::congestion;
use super::worlds::Worlds;
use crate::bench::{Effort, fresh_seed};
use crate::carrier::{self, Link};
use crate::report::{Goal, Report, median};
use crate::web::WebFile;
use crate::world::{Plan, World};

const CLEAN: Link = Link { mbit_s: 50.0, round_trip_ms: 60, loss_percent: 0.0, queue_kib: 256 };

const MODES: [&str; 2] = ["quic", "tls"];

/// One comparison of the two modes.
#[derive(Clone, Copy)]
struct Pairing {
    name: &'static str,
    congestion: &'static str,
    loss_percent: f64,
    goal: Goal,
}

/// 50 Mbit/s and 60 ms without faults.
pub(super) fn clean(report: &mut Report, effort: Effort) -> Result<()> {
    let pairing = |name, congestion| Pairing {
        name,
        congestion,
        loss_percent: 0.0,
        goal: Goal::AtLeast(0.97),
    };
    let rail = pairing("clean_rail", "rail");
    let pairings = [pairing("clean_bbr", "bbr"), pairing("clean_cubic", "cubic"), rail];
    compare(report, effort, 7, &pairings)
}

/// The same link with 1 % random loss each way.
pub(super) fn lossy(report: &mut Report, effort: Effort) -> Result<()> {
    let goal = Goal::AtLeast(1.0);
    let lossy = |name, congestion| Pairing { name, congestion, loss_percent: 1.0, goal };
    // One round varies by a tenth.
    compare(report, effort, 21, &[lossy("loss_1_bbr", "bbr"), lossy("loss_1_rail", "rail")])
}

fn compare(report: &mut Report, effort: Effort, rounds: usize, pairings: &[Pairing]) -> Result<()> {
    let (rounds, size) = effort.pick((rounds, 30_000_000), (1, 5_000_000));
    let seed = fresh_seed(pairings[0].name);
    let cases: Vec<(&str, Pairing)> =
        pairings.iter().flat_map(|pairing| MODES.map(|mode| (mode, *pairing))).collect();
    let plans: Vec<Plan> = cases.iter().map(|(mode, pairing)| plan(*pairing, mode)).collect();
    let prepare = move |world: &mut World, number: usize| {
        let file = world.web.add(size, 1)?;
        world.download(&file).verify(&world.lab.passenger, &file)?;
        let (mode, pairing) = cases[number];
        if mode == "tls" {
            congestion::must_run(world, kernel_name(pairing.congestion))?;
        }
        Ok(file)
    };
    let measure = move |world: &mut World, file: &mut WebFile, round: usize| {
        // Both modes have the same random loss.
        carrier::command(
            &world.lab,
            &format!("set alpha seed {}", seed.wrapping_add(round as u64)),
        )?;
        Ok(world.download(file).verify(&world.lab.passenger, file)?.mbit_s())
    };
    let worlds = Worlds::start(&plans, prepare, measure)?;
    let mut rates = vec![Vec::new(); plans.len()];
    for round in 0..rounds {
        for (rates, rate) in rates.iter_mut().zip(worlds.in_turns(round)?) {
            rates.push(rate);
        }
    }
    for (pairing, pair) in pairings.iter().zip(rates.chunks(2)) {
        let (quic, tls) = (&pair[0], &pair[1]);
        let ratios: Vec<f64> = quic.iter().zip(tls).map(|(quic, tls)| quic / tls).collect();
        let name = pairing.name;
        report.result(&format!("{name}_quic"), median(quic), "Mbit/s", Goal::None, quic);
        report.result(&format!("{name}_tls"), median(tls), "Mbit/s", Goal::None, tls);
        report.result(&format!("{name}_ratio"), median(&ratios), "x", pairing.goal, &ratios);
    }
    Ok(())
}

/// The kernel has no `rail`; over TLS it stands for bbr.
fn kernel_name(congestion: &str) -> &str {
    if congestion == "rail" { "bbr" } else { congestion }
}

fn plan(pairing: Pairing, mode: &str) -> Plan {
    super::plan(mode)
        .carrier("alpha", CLEAN.loss_percent(pairing.loss_percent))
        .cloud("congestion", pairing.congestion)
        .carrier_key(0, "congestion", pairing.congestion)
}
