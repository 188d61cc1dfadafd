//! The suite of a cloud's workers: throughput of several gateways, a flood next to the other
//! worker's gateways, and many gateways on one cloud.
//!
//! Daemons and load share this machine, so the figures say how workers compare, not what a cloud
//! carries.

mod herd;
mod many;
mod others;

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::bench::{Effort, Suite};
use crate::carrier::Medium;
use crate::lab::in_thread;
use crate::report::{Goal, Report, median};
use crate::usage;
use herd::Herd;

/// The figures of a cloud's workers.
pub const SUITE: Suite = Suite {
    file: "workers",
    check: || Ok(()),
    benchmarks: &[("pairs", pairs), ("others", others::run), ("many", many::run)],
};

/// One run of the downloads.
struct Run {
    mbit_s: f64,
    cloud_s_per_gb: f64,
    /// The part of the processor time that the cloud did not use.
    load_share: f64,
}

/// Eight gateways download at once, with one worker and with two.
fn pairs(report: &mut Report, effort: Effort) -> Result<()> {
    let (rounds, gateways, time) = effort.pick((5, 8, 10), (1, 2, 1));
    let mut runs: [Vec<Run>; 2] = Default::default();
    for _ in 0..rounds {
        for (workers, runs) in [1, 2].into_iter().zip(&mut runs) {
            let time = Duration::from_secs(time);
            runs.push(in_thread(move || download(workers, gateways, time))?);
        }
    }
    let figures =
        |of: fn(&Run) -> f64| runs.each_ref().map(|runs| runs.iter().map(of).collect::<Vec<f64>>());
    let rates = figures(|run| run.mbit_s);
    let cost = figures(|run| run.cloud_s_per_gb);
    let load = figures(|run| run.load_share);
    for (number, of) in [(0, "one"), (1, "two")] {
        let name = |what: &str| format!("workers_{of}_{what}");
        let (rates, cost, load) = (&rates[number], &cost[number], &load[number]);
        report.result(&name("throughput"), median(rates), "Mbit/s", Goal::None, rates);
        report.result(&name("cloud_cpu"), median(cost), "s/GB", Goal::None, cost);
        report.result(&name("load_share"), median(load), "of CPU", Goal::None, load);
    }
    let ratios = |figures: &[Vec<f64>; 2]| -> Vec<f64> {
        figures[1].iter().zip(&figures[0]).map(|(two, one)| two / one).collect()
    };
    let (gain, price) = (ratios(&rates), ratios(&cost));
    report.result("workers_throughput_ratio", median(&gain), "x", Goal::None, &gain);
    report.result("workers_cpu_ratio", median(&price), "x", Goal::AtMost(1.15), &price);
    Ok(())
}

/// Downloads through all gateways for a time.
fn download(workers: i64, gateways: usize, time: Duration) -> Result<Run> {
    let herd = Herd::start(workers, gateways, &Medium::Wire, START_LIMIT)?;
    let mut flows = Vec::new();
    for gateway in 0..gateways {
        flows.push(herd.download(gateway)?);
    }
    let used = || -> Result<(f64, f64)> {
        let mut others = usage::processor_s(std::process::id())?;
        for gateway in &herd.gateways {
            others += usage::processor_s(gateway.id())?;
        }
        Ok((usage::processor_s(herd.cloud.id())?, others))
    };
    let (begun, before) = (Instant::now(), used()?);
    let readers: Vec<_> =
        flows.into_iter().map(|flow| std::thread::spawn(move || read_for(flow, time))).collect();
    let mut bytes = 0;
    for reader in readers {
        bytes += reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    let (took, after) = (begun.elapsed().as_secs_f64(), used()?);
    let (cloud, load) = (after.0 - before.0, after.1 - before.1);
    Ok(Run {
        mbit_s: bytes as f64 * 8e-6 / took,
        cloud_s_per_gb: cloud / (bytes as f64 / 1e9),
        load_share: load / (load + cloud),
    })
}

fn read_for(mut flow: TcpStream, time: Duration) -> Result<u64> {
    let (end, mut bytes, mut chunk) = (Instant::now() + time, 0, vec![0; 256 * 1024]);
    while Instant::now() < end {
        bytes += flow.read(&mut chunk).context("a download")? as u64;
    }
    Ok(bytes)
}

/// How long the daemons may take until all gateways have their paths.
const START_LIMIT: Duration = Duration::from_secs(120);
