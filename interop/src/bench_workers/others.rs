//! A gateway of one worker floods, while a gateway of the other one downloads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::herd::Herd;
use super::{START_LIMIT, read_for};
use crate::attack::gateway::{FLOODS, Flood, flood_until};
use crate::bench::Effort;
use crate::carrier::{Link, Medium};
use crate::lab::in_thread;
use crate::report::{Goal, Report, median};
use crate::usage;

/// Gateways of which some belong to each worker.
const GATEWAYS: usize = 8;
/// The rate of each carrier, so low that the processors are not full.
const MBIT_S: f64 = 10.0;
/// How long a flood lasts before the download is measured.
const BEFORE: Duration = Duration::from_secs(1);

/// The effects of one flood, by pair.
#[derive(Debug, Default)]
struct Seen {
    /// Goodput over that without the flood.
    rates: Vec<f64>,
    /// The part of all processors in use, without the flood and with it.
    quiet: Vec<f64>,
    busy: Vec<f64>,
}

/// Each flood of a gateway (`make attack`) next to downloads of the other worker's gateway.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (pairs, time) = effort.pick((5, Duration::from_secs(6)), (1, Duration::from_secs(1)));
    let seen = in_thread(move || measure(pairs, time))?;
    let mut least = Vec::new();
    for (name, Seen { rates, quiet, busy }) in seen {
        let name = |figure: &str| format!("worker_flood_{name}_{figure}");
        report.result(&name("others"), median(&rates), "x", Goal::None, &rates);
        report.result(&name("processors_quiet"), median(&quiet), "of CPU", Goal::None, &quiet);
        report.result(&name("processors"), median(&busy), "of CPU", Goal::None, &busy);
        least.push(median(&rates));
    }
    let worst = least.iter().copied().fold(f64::INFINITY, f64::min);
    let goal = if effort == Effort::Full { Goal::AtLeast(0.98) } else { Goal::None };
    report.result("worker_flood_others", worst, "x", goal, &least);
    Ok(())
}

fn measure(pairs: usize, time: Duration) -> Result<Vec<(&'static str, Seen)>> {
    let medium = Medium::Link(Link::new(MBIT_S, 40));
    let mut herd = Herd::start(2, GATEWAYS, &medium, START_LIMIT)?;
    let workers = herd.workers()?;
    let of = |worker: usize| workers.iter().position(|own| *own == worker);
    let (intruder, reader) =
        of(0).zip(of(1)).context("one worker has all gateways: change their names")?;
    // Its certificate is now the intruder's.
    herd.gateways[intruder].kill();
    download(&herd, reader, time)?;
    let mut seen = Vec::new();
    for (name, flood, _) in FLOODS {
        let mut of_flood = Seen::default();
        for _ in 0..pairs {
            let (quiet, used) = download(&herd, reader, time)?;
            let (flooded, busy) = download_flooded(&herd, (intruder, reader), flood, time)?;
            of_flood.rates.push(flooded / quiet);
            of_flood.quiet.push(used);
            of_flood.busy.push(busy);
        }
        seen.push((name, of_flood));
    }
    Ok(seen)
}

/// Downloads while the intruder floods. Returns as [`download`].
fn download_flooded(
    herd: &Herd,
    (intruder, reader): (usize, usize),
    flood: Flood,
    time: Duration,
) -> Result<(f64, f64)> {
    let stop = AtomicBool::new(false);
    let (name, server) = (Herd::name(intruder), &herd.lab.server);
    let identity = (herd.keys.folder(), name.as_str());
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood_until(server, identity, &stop, flood));
        std::thread::sleep(BEFORE);
        let figures = download(herd, reader, time);
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        figures
    })
}

/// The rate of a download, Mbit/s, and the part of all processors in use meanwhile.
fn download(herd: &Herd, gateway: usize, time: Duration) -> Result<(f64, f64)> {
    let flow = herd.download(gateway)?;
    let (begun, before) = (Instant::now(), usage::machine_s()?);
    let bytes = read_for(flow, time)?;
    let took = begun.elapsed().as_secs_f64();
    let processors = std::thread::available_parallelism()?.get() as f64;
    let used = (usage::machine_s()? - before) / took / processors;
    Ok((bytes as f64 * 8e-6 / took, used))
}
