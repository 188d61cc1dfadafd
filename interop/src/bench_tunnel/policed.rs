//! UDP policed to 1 Mbit/s on one of two carriers, in mode `auto`: how soon the carrier runs in
//! `tls`, and what the minute costs against a run that began there.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::bulk::{Bulk, Source};
use super::watch::Watch;
use super::worlds::Worlds;
use crate::bench::Effort;
use crate::carrier::{self, Link};
use crate::client::PATIENCE;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, Side, World};

/// Undisturbed, before the policer comes.
const BEFORE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// What one run showed.
struct Run {
    /// Until the policed carrier ran in `tls`; the whole window when it never did.
    until_tls_s: f64,
    mbit_s: f64,
}

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (batches, pairs, window) =
        effort.pick((2, 3, Duration::from_secs(60)), (1, 1, Duration::from_secs(8)));
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    let mut rates = [const { Vec::new() }; 2];
    for _ in 0..batches {
        // A carrier that was demoted once is treated otherwise: each run has a world of its own.
        let plans: Vec<Plan> = (0..pairs).flat_map(|_| ["auto", "tls"].map(plan)).collect();
        let prepare = |world: &mut World, _| {
            Source::start(world)?;
            let bulk = Bulk::start(world)?;
            bulk.wait_for(2_000_000, PATIENCE)?;
            Ok(bulk)
        };
        let measure = move |world: &mut World, bulk: &mut Bulk, _| police(world, bulk, window);
        let runs = Worlds::start(&plans, prepare, measure)?.together(0)?;
        for pair in runs.chunks(2) {
            times.push(pair[0].until_tls_s);
            ratios.push(pair[0].mbit_s / pair[1].mbit_s);
            rates[0].push(pair[0].mbit_s);
            rates[1].push(pair[1].mbit_s);
        }
    }
    let worst = times.iter().copied().fold(0.0, f64::max);
    report.result("policed_until_tls", median(&times), "s", Goal::AtMost(5.0), &times);
    report.result("policed_until_tls_max", worst, "s", Goal::AtMost(5.0), &times);
    report.result("policed_rate_auto", median(&rates[0]), "Mbit/s", Goal::None, &rates[0]);
    report.result("policed_rate_tls", median(&rates[1]), "Mbit/s", Goal::None, &rates[1]);
    report.result("policed_rate_ratio", median(&ratios), "x", Goal::AtLeast(0.9), &ratios);
    Ok(())
}

fn plan(mode: &str) -> Plan {
    let link = Link::new(10.0, 40);
    super::plan(mode).carrier("alpha", link).carrier("beta", link)
}

fn police(world: &mut World, bulk: &Bulk, window: Duration) -> Result<Run> {
    std::thread::sleep(BEFORE);
    let watch = Watch::of(world, Side::Gateway);
    carrier::command(&world.lab, "set alpha udp 1 Mbit/s")?;
    let (started, before) = (Instant::now(), bulk.bytes());
    let mut until_tls = window;
    while started.elapsed() < window {
        std::thread::sleep(POLL);
        if until_tls == window && watch.look_at(world, "alpha")?.mode == "tls" {
            until_tls = started.elapsed();
        }
    }
    let mbit_s = (bulk.bytes() - before) as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e6;
    Ok(Run { until_tls_s: until_tls.as_secs_f64(), mbit_s })
}
