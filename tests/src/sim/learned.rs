//! What forecasts that were learned are worth, beside none and beside an oracle.
//!
//! A train has made 24 trips on a route; the trip that is measured comes after. Learned
//! forecasts are made once a second, and when a modem reports another cell, from the position and
//! the serving cells as the gateway has them, and told to both sides a moment later, as the daemons
//! do. Source of the figures: POLYCORN 6.2, Fig. 11a.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_emulator::rail::{CarrierProfile, Route, Speed, Trip};
use polyrail_emulator::results::{Goal, Report};
use polyrail_model::{CellId, Direction, Handover, LinkForecast, RouteId};
use polyrail_predictor::forecast::{ForecastSettings, Forecaster, Situation};

use super::bulk::failures;
use super::metrics::{mean, quantile};
use super::runs::parallel;
use super::{Bulk, Contestant, Engine, Message, Page, bulk_in, messaging_in, pages_in, world_told};
use crate::dice::Dice;
use crate::linkdb::records::{REPORT_MS, recorded};
use crate::world::World;

/// One route, what was learned of it, and the next trip.
struct Next {
    route: Route,
    trip: Trip,
    learned: Arc<Vec<Handover>>,
}

/// Whose trips are measured, and how much forecasts are to gain there.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it is called in figures.
    pub name: &'static str,
    /// The scheduler.
    pub chain: &'static str,
    /// The engine around it.
    pub engine: Engine,
    /// What the mean and the median of the goodput after failures are to gain.
    gains: [f64; 2],
    /// The share of the oracle's gain that learned forecasts are to have, if any.
    of_oracle: Option<f64>,
}

impl Case {
    /// HSRSCH as published.
    pub const PAPER: Self = Self {
        name: "paper",
        chain: "hsrsch",
        engine: Engine::Paper,
        gains: [1.2, 1.5],
        of_oracle: Some(0.8),
    };
    /// HSRSCH with all that Polyrail has around it.
    pub const FULL: Self = Self { name: "full", engine: Engine::Full, ..Self::PAPER };
    /// What users get: it finds another way so soon after a failure that forecasts have little to
    /// gain, and nothing to spoil.
    pub const DEFAULT: Self = Self {
        name: "default",
        chain: "polyrail",
        engine: Engine::Full,
        gains: [1.0, 1.0],
        of_oracle: None,
    };
}

/// Measures over so many routes all cases, and prints RESULT lines.
///
/// # Errors
/// A trip cannot be drawn.
pub fn judge(
    first_route: u64,
    routes: u64,
    threads: usize,
    prefix: &str,
    report: &mut Report,
) -> Result<()> {
    let nexts = nexts(first_route, routes)?;
    for case in [Case::PAPER, Case::FULL, Case::DEFAULT] {
        let prefix = format!("{prefix}_sim_{}", case.name);
        bulk_of(&nexts, threads, case, &prefix, report)?;
    }
    let prefix = format!("{prefix}_sim_{}", Case::DEFAULT.name);
    loads_of(&nexts, threads, Case::DEFAULT, &prefix, report)
}

/// What one case makes of bulk data.
///
/// # Errors
/// A trip cannot be drawn.
pub fn measure(
    first_route: u64,
    routes: u64,
    threads: usize,
    case: Case,
    prefix: &str,
    report: &mut Report,
) -> Result<()> {
    bulk_of(&nexts(first_route, routes)?, threads, case, prefix, report)
}

fn nexts(first_route: u64, routes: u64) -> Result<Vec<Next>> {
    let mut nexts = Vec::new();
    for number in 0..routes {
        // Even routes are passed upwards.
        nexts.extend(next(first_route + 2 * number)?);
    }
    Ok(nexts)
}

fn bulk_of(
    nexts: &[Next],
    threads: usize,
    case: Case,
    prefix: &str,
    report: &mut Report,
) -> Result<()> {
    let none = Contestant::parse(case.chain, case.engine)?;
    let oracle = Contestant::parse(&format!("{}+oracle", case.chain), case.engine)?;
    let runs = parallel(nexts.len(), threads, |number| {
        let next = &nexts[number];
        let ridden = |contestant: &Contestant, learned: bool| {
            bulk_in(next.world(contestant, learned), &next.trip, contestant)
        };
        [ridden(&none, false), ridden(&none, true), ridden(&oracle, false)]
    });
    let foreseen: Vec<bool> = nexts.iter().flat_map(Next::foreseen).collect();
    let seen: usize = runs.iter().map(|run| run[0].after_failures.len()).sum();
    ensure!(seen == foreseen.len(), "{seen} failures were seen of {}", foreseen.len());
    tell_figures(report, case, prefix, &runs, &foreseen);
    Ok(())
}

/// What learned forecasts make of web pages and of messages, over the same without any.
fn loads_of(
    nexts: &[Next],
    threads: usize,
    case: Case,
    prefix: &str,
    report: &mut Report,
) -> Result<()> {
    let contestant = Contestant::parse(case.chain, case.engine)?;
    let runs = parallel(nexts.len(), threads, |number| {
        let next = &nexts[number];
        [false, true].map(|learned| {
            let world = || next.world(&contestant, learned);
            let pages = pages_in(world(), &next.trip);
            (pages, messaging_in(world(), &next.trip, USERS).list)
        })
    });
    let pages = |which: usize| -> Vec<f64> {
        let all = runs.iter().flat_map(|run| &run[which].0);
        all.map(|page: &Page| page.time.as_secs_f64()).collect()
    };
    let messages = |which: usize| -> Vec<f64> {
        let all = runs.iter().flat_map(|run| &run[which].1);
        all.map(|message: &Message| message.round).collect()
    };
    let (pages, messages) = ([pages(0), pages(1)], [messages(0), messages(1)]);
    let mut say = |name: &str, [none, learned]: [f64; 2], most: f64| {
        let ratio = learned / none;
        let name = format!("{prefix}_{name}_over_none");
        report.result(&name, ratio, "x", Goal::AtMost(most), &[none, learned]);
    };
    let at = |values: &[Vec<f64>; 2], share: f64| {
        [quantile(&values[0], share), quantile(&values[1], share)]
    };
    say("pages_mean", [mean(&pages[0]), mean(&pages[1])], 1.01);
    say("pages_p95", at(&pages, 0.95), 1.02);
    say("messages_mean", [mean(&messages[0]), mean(&messages[1])], 1.01);
    say("messages_p99", at(&messages, 0.99), 1.02);
    Ok(())
}

fn tell_figures(
    report: &mut Report,
    case: Case,
    prefix: &str,
    runs: &[[Bulk; 3]],
    foreseen: &[bool],
) {
    let after = |which: usize| -> Vec<f64> {
        runs.iter().flat_map(|run| run[which].after_failures.clone()).collect()
    };
    let [none, learned, oracle] = [after(0), after(1), after(2)];
    for (name, goal) in ["mean", "median"].into_iter().zip(case.gains) {
        let figure = |values: &[f64]| match name {
            "mean" => mean(values),
            _ => quantile(values, 0.5),
        };
        let (none, learned, oracle) = (figure(&none), figure(&learned), figure(&oracle));
        let say = |report: &mut Report, what: &str, value: f64, unit: &str, goal| {
            report.result(&format!("{prefix}_{what}_{name}"), value, unit, goal, &[value]);
        };
        say(report, "after_none", none, "Mbit/s", Goal::None);
        say(report, "after_learned", learned, "Mbit/s", Goal::None);
        say(report, "after_oracle", oracle, "Mbit/s", Goal::None);
        say(report, "gain", learned / none, "x", Goal::AtLeast(goal));
        // Where the oracle gains nothing there is no share of it: not a number, which is short.
        let gained = oracle > none * ORACLE_GAINS;
        let share = if gained { (learned - none) / (oracle - none) } else { f64::NAN };
        if let Some(goal) = case.of_oracle {
            say(report, "of_oracle_gain", share, "x", Goal::AtLeast(goal));
        }
    }
    let goodput =
        |which: usize| mean(&runs.iter().map(|run| run[which].goodput()).collect::<Vec<_>>());
    let all = goodput(1) / goodput(0);
    report.result(&format!("{prefix}_goodput"), all, "x", Goal::AtLeast(1.0), &[all]);
    for (name, wanted) in [("foreseen", true), ("unforeseen", false)] {
        let own = |values: &[f64]| -> Vec<f64> {
            let pairs = values.iter().zip(foreseen).filter(|(_, foreseen)| **foreseen == wanted);
            pairs.map(|(value, _)| *value).collect()
        };
        let [none, learned, oracle] = [own(&none), own(&learned), own(&oracle)];
        let count = none.len() as f64;
        report.result(&format!("{prefix}_{name}_failures"), count, "", Goal::None, &[count]);
        let (none, learned, oracle) = (mean(&none), mean(&learned), mean(&oracle));
        for (whose, gain) in [("gain", learned / none), ("oracle_gain", oracle / none)] {
            let name = format!("{prefix}_{name}_{whose}_mean");
            report.result(&name, gain, "x", Goal::None, &[gain]);
        }
    }
}

/// The trips after those that were learned from: each on another part of the route.
fn next(seed: u64) -> Result<Vec<Next>> {
    let carriers = [CarrierProfile::A, CarrierProfile::B];
    let route = Route::new(seed, Speed::Kmh300, METRES, &carriers);
    let whole = Duration::from_secs_f64((METRES - 1_000.0) / route.speed.metres_per_second());
    let report = Duration::from_millis(REPORT_MS);
    let mut learned = Vec::new();
    for number in 0..TRIPS {
        let trip = Trip::new(&route, seed * 1_000 + number, 0.0, whole)?;
        let records = recorded(&route, &trip, number, report);
        learned.extend(records.into_iter().map(|(record, _)| record));
    }
    let learned = Arc::new(learned);
    let part = |number: u64| {
        let start = START_METRES + PART_METRES * number as f64;
        let trip = Trip::new(&route, seed * 1_000 + TRIPS + number, start, super::trips::LENGTH)?;
        Ok(Next { route: route.clone(), trip, learned: learned.clone() })
    };
    (0..PARTS).map(part).collect()
}

impl Next {
    /// What is told of a carrier, and when after the trip's beginning: with each reading of the
    /// position, and when its modem reports another cell.
    fn forecasts(&self, begin: Instant, carrier: usize) -> Vec<(Duration, Option<LinkForecast>)> {
        let mut forecaster = Forecaster::new(ForecastSettings::default());
        self.learned.iter().for_each(|handover| forecaster.add(handover));
        let name = self.route.carriers[carrier].name;
        let mut last: Option<LinkForecast> = None;
        let one = |(after, cell): (Duration, Option<u32>)| {
            let at = begin + after;
            let situation = Situation {
                at,
                route: RouteId(self.route.seed),
                direction: Direction::Up,
                metres: self.trip.metres_seen(after),
                speed: self.route.speed.metres_per_second(),
                error: GPS_ERROR,
            };
            last = match cell {
                Some(cell) => forecaster.forecast(at, &situation, name, CellId(u64::from(cell))),
                // What was foreseen of the lost cell holds until it expires.
                None => last.filter(|last| last.expires_at > at),
            };
            (after + LAG, last)
        };
        self.reports(carrier).into_iter().map(one).collect()
    }

    /// Which cell a carrier's modem is known to be in, and since when: as often as there is a
    /// position, and up to [`REPORT_MS`] after each change, as in what was learned.
    fn reports(&self, carrier: usize) -> Vec<(Duration, Option<u32>)> {
        let signals = &self.trip.signals(&self.route)[carrier];
        let mut reports: Vec<_> = signals.iter().map(|signal| (signal.at, signal.cell)).collect();
        let mut dice = Dice::new(self.trip.seed ^ 0x4e_3057);
        for handover in &self.trip.carriers[carrier].handovers {
            let mut late = || Duration::from_millis(REPORT_MS).mul_f64(dice.unit());
            reports.push((handover.at + handover.dark + late(), Some(handover.to)));
        }
        reports.sort_by_key(|(at, _)| *at);
        reports
    }

    /// The trip's world for a contestant, with learned forecasts or none.
    fn world(&self, contestant: &Contestant, learned: bool) -> World {
        world_told(&self.trip, contestant, |world| {
            if learned {
                self.tell(world);
            }
        })
    }

    /// Tells the world all that will be foreseen, each at its time.
    fn tell(&self, world: &mut World) {
        let begin = world.now() - world.elapsed();
        for carrier in 0..self.trip.carriers.len() {
            for (at, forecast) in self.forecasts(begin, carrier) {
                if at >= world.elapsed() {
                    world.foresee(at - world.elapsed(), carrier, forecast);
                }
            }
        }
    }

    /// Whether each failure that [`Bulk::after_failures`] has was foreseen when it began.
    fn foreseen(&self) -> Vec<bool> {
        let begin = Instant::now();
        let mut foreseen = Vec::new();
        for (number, carrier) in self.trip.carriers.iter().enumerate() {
            let told = self.forecasts(begin, number);
            for handover in failures(&self.trip, carrier) {
                let before = told.iter().take_while(|(at, _)| *at <= handover.at).last();
                let near = |forecast: &LinkForecast| {
                    forecast.fails_at <= begin + handover.at + forecast.uncertainty
                };
                foreseen.push(before.and_then(|(_, last)| *last).is_some_and(|last| near(&last)));
            }
        }
        foreseen
    }
}

/// An oracle gains something when it is so much better than none.
const ORACLE_GAINS: f64 = 1.02;
/// Trips that were made before.
const TRIPS: u64 = 24;
const METRES: f64 = 40_000.0;
const START_METRES: f64 = 1_000.0;
/// So many parts of each route are passed again, so far apart.
const PARTS: u64 = 4;
const PART_METRES: f64 = 9_000.0;
const GPS_ERROR: f64 = 8.0;
/// Of messages.
const USERS: usize = 4;
/// From the reading to the forecast on both sides.
const LAG: Duration = Duration::from_millis(60);
