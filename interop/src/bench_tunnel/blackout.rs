//! The time from the end of a blackout of 5 s, which drops packets of a bulk download, until the
//! gateway receives users' data over the carrier again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::statistics::quantile;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::plan;
use super::worlds::Worlds;
use crate::admin;
use crate::bench::{Effort, fresh_seed};
use crate::bulk::{Bulk, Source};
use crate::carrier::Link;
use crate::client::PATIENCE;
use crate::lab::Side;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

const ROUND_TRIP_MS: u32 = 40;
/// Twice the round trip and 200 ms.
const GOAL_MS: f64 = 2.0 * ROUND_TRIP_MS as f64 + 200.0;
/// A carrier that has not recovered after this time counts with it.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The pause between two blackouts, once all carriers are in use.
const PAUSE_MS: std::ops::Range<u64> = 500..1500;
/// A carrier is in use if it delivers this much within [`CARRIES_WITHIN`].
const CARRIES_BYTES: u64 = 20_000;
const CARRIES_WITHIN: Duration = Duration::from_millis(200);

/// One configuration under blackouts.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    carriers: &'static [&'static str],
    dark: Dark,
    restart: bool,
    early_data: bool,
    has_goal: bool,
}

/// Which carriers go dark.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dark {
    /// A random one.
    One,
    /// All at once.
    All,
}

const BOTH: &[&str] = &["alpha", "beta"];

const PLAIN: Case = Case {
    name: "one_of_two",
    carriers: BOTH,
    dark: Dark::One,
    restart: true,
    early_data: true,
    has_goal: true,
};

const SINGLE: Case = Case { name: "single", carriers: &["alpha"], ..PLAIN };

const CASES: [Case; 7] = [
    PLAIN,
    SINGLE,
    Case { name: "both", dark: Dark::All, ..PLAIN },
    Case { name: "one_of_two_no_early_data", early_data: false, has_goal: false, ..PLAIN },
    Case { name: "one_of_two_no_restart", restart: false, has_goal: false, ..PLAIN },
    Case { name: "single_no_early_data", early_data: false, has_goal: false, ..SINGLE },
    Case { name: "single_no_restart", restart: false, has_goal: false, ..SINGLE },
];

/// The quantiles reported next to the median.
const QUANTILES: [(f64, &str); 5] =
    [(0.0, "min"), (0.25, "p25"), (0.75, "p75"), (0.95, "p95"), (1.0, "max")];

/// The state of a world between blackouts.
struct Kept {
    bulk: Bulk,
    generator: Pcg64,
    case: Case,
}

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (count, length) = effort.pick((50, Duration::from_secs(5)), (2, Duration::from_secs(1)));
    let seed = fresh_seed("blackout");
    let chosen = effort.pick(&CASES[..], &CASES[..2]);
    let cases: Vec<(&str, Case)> =
        chosen.iter().flat_map(|case| ["quic", "tls"].map(|mode| (mode, *case))).collect();
    let plans: Vec<Plan> = cases.iter().map(|(mode, case)| plan_of(mode, *case)).collect();
    let lookup = cases.clone();
    let prepare = move |world: &mut World, number: usize| {
        Source::start(world)?;
        let bulk = Bulk::start(world)?;
        bulk.wait_for(1_000_000, PATIENCE)?;
        Ok(Kept {
            bulk,
            generator: Pcg64::seed_from_u64(seed.wrapping_add(number as u64)),
            case: lookup[number].1,
        })
    };
    // All worlds run at once, because they mostly wait.
    let measure =
        move |world: &mut World, kept: &mut Kept, _| blackouts(world, kept, count, length);
    let all = Worlds::start(&plans, prepare, measure)?.together(0)?;
    for ((mode, case), times) in cases.iter().zip(all) {
        let goal = if case.has_goal { Goal::AtMost(GOAL_MS) } else { Goal::None };
        let name = format!("blackout_{}_{mode}", case.name);
        report.result(&format!("{name}_median"), median(&times), "ms", goal, &times);
        for (share, word) in QUANTILES {
            let value = quantile(&times, share);
            report.result(&format!("{name}_{word}"), value, "ms", Goal::None, &[]);
        }
    }
    Ok(())
}

fn plan_of(mode: &str, case: Case) -> Plan {
    let link = Link::new(6.0, ROUND_TRIP_MS);
    let plan = case.carriers.iter().fold(plan(mode), |plan, name| plan.carrier(name, link));
    let plan = if case.restart { plan } else { plan.gateway("restart.enabled", false) };
    if case.early_data { plan } else { plan.gateway("restart.early_data", false) }
}

fn blackouts(
    world: &mut World,
    kept: &mut Kept,
    count: usize,
    length: Duration,
) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for number in 0..count {
        wait_until_all_carry(world, kept)
            .with_context(|| format!("{}, before blackout {number}", kept.case.name))?;
        let pause = kept.generator.random_range(PAUSE_MS);
        std::thread::sleep(Duration::from_millis(pause));
        let dark: Vec<usize> = match kept.case.dark {
            Dark::One => vec![kept.generator.random_range(0..world.carriers.len())],
            Dark::All => (0..world.carriers.len()).collect(),
        };
        for place in &dark {
            world.carriers[*place].darken(&world.lab)?;
        }
        std::thread::sleep(length);
        let before = look(world)?;
        let returned = Instant::now();
        for place in &dark {
            world.carriers[*place].brighten(&world.lab)?;
        }
        times.extend(returns(world, &dark, &before, returned)?);
    }
    Ok(times)
}

/// The recovery times of the dark carriers, ms.
fn returns(world: &World, dark: &[usize], before: &[u64], returned: Instant) -> Result<Vec<f64>> {
    let mut waiting = dark.to_vec();
    let mut times = Vec::new();
    while !waiting.is_empty() && returned.elapsed() < WAIT_MAX {
        let now = look(world)?;
        let elapsed_ms = returned.elapsed().as_secs_f64() * 1000.0;
        waiting.retain(|place| {
            let carries = now[*place] > before[*place];
            if carries {
                times.push(elapsed_ms);
            }
            !carries
        });
    }
    times.extend(waiting.iter().map(|_| WAIT_MAX.as_secs_f64() * 1000.0));
    Ok(times)
}

fn wait_until_all_carry(world: &World, kept: &Kept) -> Result<()> {
    let started = Instant::now();
    let mut last = look(world)?;
    loop {
        std::thread::sleep(CARRIES_WITHIN);
        let now = look(world)?;
        let carries = |(now, last): (&u64, &u64)| *now >= last + CARRIES_BYTES;
        if now.iter().zip(&last).all(carries) {
            return Ok(());
        }
        let came = kept.bulk.bytes();
        let in_time = started.elapsed() < PATIENCE;
        ensure!(in_time, "not all carriers are in use: {now:?}, {came} bytes received");
        last = now;
    }
}

/// Users' bytes that the gateway has received over each carrier. Takes 1 to 2 ms.
fn look(world: &World) -> Result<Vec<u64>> {
    let paths = admin::paths(&Side::Gateway.admin_socket(&world.lab))?;
    paths.iter().map(admin::received_bytes).collect()
}
