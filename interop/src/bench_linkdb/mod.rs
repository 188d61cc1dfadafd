//! What forecasts gain with real daemons on the emulated rail: bytes in flight on a carrier at the
//! moment its predictable handover fails.
//!
//! Each trip is made in each mode with forecasts and without, one after the other; all four see the
//! same links, the same telemetry and databases with the same trips behind them. The download never
//! ends, so that both carriers are full until something keeps a scheduler off one. A trip whose
//! carrier was not full is refused (`pairs`).

mod journey;
mod pairs;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::rail::Trip;

use self::journey::{Foreseeable, Line};
use self::pairs::{Pair, Pairs, Seen};
use crate::bench::{Effort, Suite, in_world};
use crate::bulk::{Bulk, Source};
use crate::carrier::{self, Medium};
use crate::report::Report;
use crate::world::{Plan, Rail, Side, World};

/// What forecasts gain.
pub const SUITE: Suite =
    Suite { file: "linkdb-rail", check: || Ok(()), benchmarks: &[("in_flight", in_flight)] };

/// A scheduler, and how much less is to be in flight with forecasts.
struct Case {
    /// The prefix of the mode in figures.
    name: &'static str,
    chain: &'static str,
    /// By how much, where the carrier was full without; none where it need not be.
    fall: Option<f64>,
}

/// HSRSCH as published fills a carrier, and turns it away for each forecast; the default chain
/// keeps queues short, turns a carrier away only where a failure is likely, and copies elsewhere.
const CHAINS: [Case; 2] = [
    Case { name: "", chain: "hsrsch", fall: Some(FALL) },
    Case { name: "default_", chain: "polyrail", fall: None },
];

/// A trip, and the failure that it leads to.
struct Journey {
    line: Line,
    trip: Trip,
    ahead: Foreseeable,
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
        outcome = outcome.and(pairs.tell(report));
        // In short, speeds say nothing: that it works at all does.
        if effort == Effort::Smoke {
            outcome = outcome.and(pairs.are_foreseen());
        }
    }
    outcome
}

/// A trip without forecasts and with them; every other trip begins with the other one.
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

/// Trips with a predictable failure, from as many routes as needed.
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
    ensure!(found.len() == count, "only {} routes have a failure to foresee", found.len());
    Ok(found)
}

/// Makes a trip up to its handover and 2 s beyond; again when the machine was too busy for it.
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
        .rail(Rail { records: [records.clone(), records], telemetry: line.telemetry(trip) });
    for (name, carrier) in line.carriers().iter().zip(&trip.carriers) {
        plan = plan.medium(name, Medium::Course(Box::new(carrier.links.clone())));
    }
    for _ in 1..TRIES {
        if let Some(seen) = in_world(&plan, |world| watch(world, line, ahead))? {
            return Ok(seen);
        }
        println!("the machine was too busy for this trip; once more");
    }
    let seen = in_world(&plan, |world| watch(world, line, ahead))?;
    seen.with_context(|| format!("the machine was too busy {TRIES} times"))
}

/// None when the machine was too busy to look in time.
fn watch(world: &World, line: &Line, ahead: &Foreseeable) -> Result<Option<Seen>> {
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
        seen.foreseen[place] = world.foreseen(side, name)?.map(|one| one.permille);
    }
    // The last look before the handover begins: the epoch is known to some milliseconds.
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

/// So much less is to be in flight.
const FALL: f64 = 0.7;
/// The routes, and how many may be tried.
const ROUTES: u64 = 61_000;
const ROUTES_MAX: u64 = 200;
/// The trips behind each trip.
const LEARNED: u64 = 24;
const FLOWS: usize = 4;
/// A carrier with so many bytes in flight is full: a full one has some 100 kB.
const FULL: f64 = 10_000.0;
/// The carriers are full for so long at least before the handover.
const WARM: Duration = Duration::from_secs(5);
/// The daemons are asked for their forecasts so long before it.
const ASKED: Duration = Duration::from_millis(600);
/// How wrong the epoch of the links may be.
const EPOCH_ERROR: Duration = Duration::from_millis(20);
/// A last look that is older is none.
const OLD: Duration = Duration::from_millis(50);
const AFTER: Duration = Duration::from_secs(2);
/// How often a trip is tried.
const TRIES: usize = 3;
