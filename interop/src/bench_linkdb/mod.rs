//! The effect of forecasts on real daemons on the emulated rail: bytes in flight on a carrier when
//! its predictable handover fails.
//!
//! Each trip runs in each mode with forecasts and without, one after the other. All runs have the
//! same links, telemetry and records of earlier trips. The downloads never end, so that both
//! carriers are full unless the scheduler avoids one. `pairs` rejects trips whose carrier was not.

mod journey;
mod pairs;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::rail::Trip;

use self::journey::{Line, Predictable};
use self::pairs::{Pair, Pairs, Seen};
use crate::bench::{Effort, Suite, in_world};
use crate::bulk::{Bulk, Source};
use crate::carrier::{self, Medium};
use crate::lab::Side;
use crate::linkdb::Rail;
use crate::report::Report;
use crate::world::{Plan, World};

/// The effect of forecasts.
pub const SUITE: Suite =
    Suite { file: "linkdb-rail", check: || Ok(()), benchmarks: &[("in_flight", in_flight)] };

/// A chain, and by how much forecasts must reduce its bytes in flight.
struct Case {
    /// The prefix of the mode in figures.
    name: &'static str,
    chain: &'static str,
    /// The required reduction on carriers that were full; `None` sets no goal.
    fall: Option<f64>,
}

/// HSRSCH as published fills a carrier and rejects it for each forecast. The default chain keeps
/// queues short, rejects a carrier only if a failure is likely, and otherwise sends copies.
const CHAINS: [Case; 2] = [
    Case { name: "", chain: "hsrsch", fall: Some(FALL) },
    Case { name: "default_", chain: "polyrail", fall: None },
];

/// A trip and its failed handover.
struct Journey {
    line: Line,
    trip: Trip,
    ahead: Predictable,
}

fn in_flight(report: &mut Report, effort: Effort) -> Result<()> {
    let (modes, trips): (&[&str], usize) = effort.pick((&["tls", "quic"], 10), (&["quic"], 1));
    let chains = effort.pick(&CHAINS[..], &CHAINS[..1]);
    let least = effort.pick(FULL, 1.0);
    let journeys = journeys(trips)?;
    let mut outcome = Ok(());
    for (case, mode) in chains.iter().flat_map(|case| modes.iter().map(move |mode| (case, mode))) {
        let some = journeys.iter().enumerate();
        let pairs = some.map(|(number, journey)| pair(case, mode, number, journey));
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let name = format!("{}{mode}", case.name);
        let pairs = Pairs::sift(&name, case.fall, &pairs, least);
        outcome = outcome.and(pairs.print(report));
        // Figures of a short run mean little; it only checks that forecasts exist.
        if effort == Effort::Smoke {
            outcome = outcome.and(pairs.have_forecasts());
        }
    }
    outcome
}

/// Runs a trip with forecasts and without. The order alternates from trip to trip.
fn pair(case: &Case, mode: &str, number: usize, journey: &Journey) -> Result<Pair> {
    let mut pair = Pair::default();
    let first = number.is_multiple_of(2);
    for forecast in [first, !first] {
        let seen = ride(journey, case.chain, mode, forecast)?;
        println!(
            "{}{mode} trip {number} forecast {forecast}: {:.0} bytes inside, foreseen {:?}, {:.2} \
             Mbit/s in the 2 s after",
            case.name, seen.inside, seen.foreseen, seen.after
        );
        *(if forecast { &mut pair.with } else { &mut pair.without }) = seen;
    }
    Ok(pair)
}

/// Trips with a predictable failure, each on a route of its own.
fn journeys(count: usize) -> Result<Vec<Journey>> {
    let mut found = Vec::new();
    for seed in ROUTES..ROUTES + ROUTES_MAX {
        if found.len() == count {
            break;
        }
        let line = Line::new(seed, LEARNED)?;
        if let Some((trip, ahead)) = line.trip(LEARNED + 1)? {
            found.push(Journey { line, trip, ahead });
        }
    }
    ensure!(found.len() == count, "only {} routes have a predictable failure", found.len());
    Ok(found)
}

/// Runs a trip until 2 s after its handover. Repeats it if the machine was too busy.
fn ride(journey: &Journey, chain: &str, mode: &str, forecast: bool) -> Result<Seen> {
    let Journey { line, trip, ahead } = journey;
    let records = line.records();
    let mut plan = Plan::new()
        .gateway("mode", mode)
        .cloud("mode", mode)
        .gateway("scheduler.chain", chain)
        .cloud("scheduler.chain", chain)
        .gateway("linkdb.forecast", forecast)
        .cloud("linkdb.forecast", forecast)
        .rail(Rail { records: [records, String::new()], telemetry: line.telemetry(trip) });
    for (name, carrier) in line.carriers().iter().zip(&trip.carriers) {
        plan = plan.medium(name, Medium::Course(Box::new(carrier.links.clone())));
    }
    for _ in 1..TRIES {
        if let Some(seen) = in_world(&plan, |world| watch(world, line, ahead))? {
            return Ok(seen);
        }
        println!("the machine was too busy for this trip: retrying");
    }
    let seen = in_world(&plan, |world| watch(world, line, ahead))?;
    seen.with_context(|| format!("the machine was too busy {TRIES} times"))
}

/// `None` if the machine was too busy to read the counters in time.
fn watch(world: &World, line: &Line, ahead: &Predictable) -> Result<Option<Seen>> {
    let _source = Source::start(world)?;
    let bulks = (0..FLOWS).map(|_| Bulk::start(world)).collect::<Result<Vec<_>>>()?;
    let got = || bulks.iter().map(Bulk::bytes).sum::<u64>();
    let epoch = world.emulator.as_ref().context("no emulator")?.epoch;
    let begins = epoch + ahead.at;
    if Instant::now() + WARM > begins {
        return Ok(None);
    }
    sleep_until(begins - ASKED);
    let name = &line.carriers()[ahead.carrier];
    let mut seen = Seen::default();
    for (place, side) in [Side::Gateway, Side::Cloud].into_iter().enumerate() {
        seen.foreseen[place] = world.predicted_failure(side, name)?.map(|one| one.permille);
    }
    // The last reading is before the handover, because the epoch is known to some milliseconds.
    let last = begins - EPOCH_ERROR;
    let mut looked_at = None;
    while Instant::now() < last {
        let asked = Instant::now();
        let counters = carrier::counters(&world.lab)?;
        let own = counters.iter().find(|one| one.carrier == *name).context("no such carrier")?;
        if Instant::now() < begins {
            seen.inside = own.down_inside_bytes as f64;
            looked_at = Some(asked);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let (before, from) = (got(), Instant::now());
    std::thread::sleep(AFTER);
    seen.after = (got() - before) as f64 * 8.0 / 1e6 / from.elapsed().as_secs_f64();
    let in_time = looked_at.is_some_and(|at| at + OLD >= last);
    Ok(Some(seen).filter(|_| in_time))
}

fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}

/// The required reduction of the bytes in flight.
const FALL: f64 = 0.7;
/// The seed of the first route, and how many routes may be tried.
const ROUTES: u64 = 61_000;
const ROUTES_MAX: u64 = 200;
/// The number of earlier trips.
const LEARNED: u64 = 24;
const FLOWS: usize = 4;
/// A carrier with this many bytes in flight counts as full; a full one has about 100 kB.
const FULL: f64 = 10_000.0;
/// How long before the handover the downloads must run.
const WARM: Duration = Duration::from_secs(5);
/// How long before the handover the daemons are asked for their forecasts.
const ASKED: Duration = Duration::from_millis(600);
/// How wrong the epoch of the links may be.
const EPOCH_ERROR: Duration = Duration::from_millis(20);
/// An older last reading does not count.
const OLD: Duration = Duration::from_millis(50);
const AFTER: Duration = Duration::from_secs(2);
/// How often a trip is tried.
const TRIES: usize = 3;
