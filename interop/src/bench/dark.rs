//! Carriers that go dark in the middle of a download.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::Effort;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

/// One carrier is dark for 5 s at a random moment of a download, which must complete.
pub(super) fn one_carrier(report: &mut Report, effort: Effort) -> Result<()> {
    let rounds = effort.pick(20, 2);
    let seed = super::fresh_seed("dark");
    let times = super::in_tls(&Plan::twins(), move |world| dark_rounds(world, rounds, seed))?;
    let whole = times.len() as f64;
    report.result(
        "dark_5s_downloads_whole",
        whole,
        "of 20",
        if effort == Effort::Full { Goal::AtLeast(20.0) } else { Goal::None },
        &times,
    );
    report.result("dark_5s_download_time", median(&times), "s", Goal::None, &times);
    Ok(())
}

fn dark_rounds(world: &mut World, rounds: usize, seed: u64) -> Result<Vec<f64>> {
    const SIZE: u64 = 20_000_000;
    let mut generator = Pcg64::seed_from_u64(seed);
    let file = world.web.add(SIZE, 2)?;
    let mut times = Vec::new();
    for round in 0..rounds {
        let carrier = generator.random_range(0..2);
        let moment = generator.random_range(0..SIZE * 9 / 10);
        let mut running = world.download(&file).start(&world.lab.passenger)?;
        running.wait_for_bytes(moment)?;
        world.carriers[carrier].dark_for(&world.lab, Duration::from_secs(5))?;
        match running.verify(&file) {
            Ok(report) => times.push(report.total_s),
            Err(error) => eprintln!("round {round}, dark after {moment} bytes: {error:#}"),
        }
    }
    Ok(times)
}

/// Both carriers are dark for 30 s under four downloads.
pub(super) fn all_carriers(report: &mut Report, effort: Effort) -> Result<()> {
    let night = Duration::from_secs(effort.pick(30, 3));
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(3, 1) {
        let times = super::in_tls(&Plan::twins(), move |world| darken_all(world, night))?;
        first.push(times.0.as_secs_f64() * 1000.0);
        last.push(times.1.as_secs_f64() * 1000.0);
    }
    report.result("night_30s_first_byte", median(&first), "ms", Goal::None, &first);
    report.result("night_30s_every_flow", median(&last), "ms", Goal::None, &last);
    Ok(())
}

/// Darkens all carriers under four downloads for this long. Returns the time from the return of the
/// carriers to the first byte of any flow, and to the first byte of the last flow. All downloads
/// must complete. One that had everything before, on a slow machine, is not waited for.
pub fn darken_all(world: &mut World, time: Duration) -> Result<(Duration, Duration)> {
    const SIZE: u64 = 4_000_000;
    let file = world.web.add(SIZE, 3)?;
    let mut flows = Vec::new();
    for _ in 0..4 {
        flows.push(world.download(&file).start(&world.lab.passenger)?);
    }
    for flow in &mut flows {
        flow.wait_for_bytes(300_000)?;
    }
    world.carriers.iter().try_for_each(|carrier| carrier.darken(&world.lab))?;
    std::thread::sleep(time);
    let before = flows.iter().map(|flow| (flow, flow.bytes()));
    let waiting: Vec<_> = before.filter(|(_, before)| *before < SIZE).collect();
    ensure!(!waiting.is_empty(), "all downloads ended before the carriers were dark");
    world.carriers.iter().try_for_each(|carrier| carrier.brighten(&world.lab))?;
    let returned = Instant::now();
    let mut first = None;
    loop {
        let moved = waiting.iter().filter(|(flow, before)| flow.bytes() > *before).count();
        if moved > 0 {
            first.get_or_insert(returned.elapsed());
        }
        if moved == waiting.len() {
            break;
        }
        let is_late = returned.elapsed() >= Duration::from_secs(60);
        ensure!(!is_late, "{moved} of {} flows went on", waiting.len());
        std::thread::sleep(Duration::from_millis(1));
    }
    let every = returned.elapsed();
    flows.into_iter().try_for_each(|flow| flow.verify(&file).map(|_| ()))?;
    Ok((first.unwrap_or(every), every))
}
