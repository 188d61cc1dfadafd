//! The value of learned forecasts, compared with none and with an oracle.
//!
//! LinkDB learns from 24 trips on a route, and a later trip is measured. A forecast is made every
//! 250 ms, and when a modem reports another cell, from the position and the serving cells as the
//! gateway knows them. Both sides receive it a moment later, as in the daemons. Source of the
//! figures: POLYCORN 6.2, Fig. 11a.

mod next;

use anyhow::{Result, ensure};
use polyrail_emulator::rail::Speed;
use polyrail_emulator::results::{Goal, Report};
use polyrail_scheduler::ChainSpec;

use self::next::Next;
use crate::sim::metrics::{interval, mean, quantile};
use crate::sim::runs::parallel;
use crate::sim::{Bulk, Contestant, Engine, Message, Page, bulk_in, messaging, pages};

/// A chain that is measured, and its goals.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in figures.
    pub name: &'static str,
    /// The scheduler.
    pub chain: &'static str,
    /// The engine around it.
    pub engine: Engine,
    /// The goals for the gain of the goodput after failures: mean and median.
    gains: [f64; 2],
    /// The goal for the share of the oracle's gain.
    of_oracle: Goal,
}

impl Case {
    /// HSRSCH as published.
    pub const PAPER: Self = Self {
        name: "paper",
        chain: "hsrsch",
        engine: Engine::Paper,
        gains: [1.2, 1.5],
        of_oracle: Goal::AtLeast(0.8),
    };
    /// HSRSCH in Polyrail's engine.
    pub const FULL: Self = Self { name: "full", engine: Engine::Full, ..Self::PAPER };
    /// The default chain. It recovers so soon after a failure that forecasts can gain little; they
    /// must not cost anything.
    pub const DEFAULT: Self = Self {
        name: "default",
        chain: "polyrail",
        engine: Engine::Full,
        gains: [1.0, 1.0],
        of_oracle: Goal::None,
    };

    /// The chain with rejection for every forecast, and without rejection, by name.
    fn variants(self) -> Result<[Variant; 2]> {
        let chain = ChainSpec::named(self.chain)?;
        let rules = chain.names().iter().map(String::as_str);
        let without =
            rules.filter(|rule| !rule.starts_with(REJECTION)).collect::<Vec<_>>().join("/");
        let all = Contestant::parse(&format!("{REJECTION}/{without}"), self.engine)?;
        let none = Contestant::parse(&without, self.engine)?;
        Ok([("all_rejected", all), ("none_rejected", none)])
    }
}

/// A contestant with learned forecasts, and its name in figures.
pub type Variant = (&'static str, Contestant);

/// Measures all cases on so many routes, and prints RESULT lines.
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
    let trips = Trips::after(first_route, routes, Speed::Kmh300, 1.0, threads)?;
    for case in [Case::PAPER, Case::FULL] {
        trips.bulk(case, &[], &format!("{prefix}_sim_{}", case.name), report)?;
    }
    let (case, variants) = (Case::DEFAULT, Case::DEFAULT.variants()?);
    let prefix = format!("{prefix}_sim_{}", case.name);
    trips.bulk(case, &variants, &prefix, report)?;
    trips.loads(case, &prefix, report)?;
    let trips = Trips::after(first_route, routes, Speed::Kmh350, 1.0, threads)?;
    trips.bulk(case, &variants, &format!("{prefix}_350"), report)?;
    let trips = Trips::after(first_route, routes, Speed::Kmh300, OFTEN, threads)?;
    trips.bulk(case, &variants, &format!("{prefix}_often"), report)
}

/// The default chain alone, on one route.
///
/// # Errors
/// A trip cannot be drawn, or a trip cannot be simulated.
pub fn judge_default(route: u64, threads: usize, prefix: &str, report: &mut Report) -> Result<()> {
    let trips = Trips::after(route, 1, Speed::Kmh300, 1.0, threads)?;
    trips.bulk(Case::DEFAULT, &[], &format!("{prefix}_sim_{}", Case::DEFAULT.name), report)
}

/// Trips after those that LinkDB has learned from.
pub struct Trips {
    nexts: Vec<Next>,
    /// Handovers fail so many times as often as usual.
    failures: f64,
    threads: usize,
}

impl Trips {
    /// The trips of so many routes, to be measured by so many threads. Handovers fail `failures`
    /// times as often as usual.
    ///
    /// # Errors
    /// A trip cannot be drawn.
    pub fn after(
        first_route: u64,
        routes: u64,
        speed: Speed,
        failures: f64,
        threads: usize,
    ) -> Result<Self> {
        let mut nexts = Vec::new();
        for number in 0..routes {
            // Trains run upwards on even routes.
            nexts.extend(next::next(first_route + 2 * number, speed, failures)?);
        }
        Ok(Self { nexts, failures, threads })
    }

    /// The figures of one case, and of variants of its chain, with bulk data.
    ///
    /// # Errors
    /// The case names no chain.
    pub fn bulk(
        &self,
        case: Case,
        variants: &[Variant],
        prefix: &str,
        report: &mut Report,
    ) -> Result<()> {
        let nexts = &self.nexts;
        let none = Contestant::parse(case.chain, case.engine)?;
        let oracle = Contestant::parse(&format!("{}+oracle", case.chain), case.engine)?;
        let runs = parallel(nexts.len(), self.threads, |number| {
            let next = &nexts[number];
            let run = |contestant: &Contestant, learned: bool| {
                bulk_in(next.world(contestant, learned), &next.trip, contestant)
            };
            let mut runs = vec![run(&none, false), run(&none, true), run(&oracle, false)];
            runs.extend(variants.iter().map(|(_, variant)| run(variant, true)));
            runs
        });
        let forecast: Vec<bool> = nexts.iter().flat_map(Next::forecast_failures).collect();
        let seen: usize = runs.iter().map(|run| run[0].after_failures.len()).sum();
        ensure!(seen == forecast.len(), "{seen} failures were seen of {}", forecast.len());
        report_case(report, case, prefix, &runs);
        report_by_forecast(report, prefix, &runs, &forecast);
        for ((name, _), which) in variants.iter().zip(3..) {
            let gain = mean(&after(&runs, which)) / mean(&after(&runs, 0));
            let prefix = format!("{prefix}_{name}");
            report.result(&format!("{prefix}_gain_mean"), gain, "x", Goal::None, &[gain]);
            let share = goodput(&runs, which) / goodput(&runs, 0);
            report.result(&format!("{prefix}_goodput"), share, "x", Goal::None, &[share]);
        }
        Ok(())
    }

    /// Chains with learned forecasts and with an oracle's, over the first one without. The figures
    /// are numbered in the order of the chains.
    ///
    /// # Errors
    /// A text is no chain.
    pub fn chains(&self, chains: &[String], prefix: &str, report: &mut Report) -> Result<()> {
        let nexts = &self.nexts;
        let parse = |text: String| Contestant::parse(&text, Engine::Full);
        let chains: Vec<[Contestant; 2]> = chains
            .iter()
            .map(|chain| Ok([parse(chain.clone())?, parse(format!("{chain}+oracle"))?]))
            .collect::<Result<_>>()?;
        let runs = parallel(nexts.len(), self.threads, |number| {
            let next = &nexts[number];
            let run = |contestant: &Contestant, learned: bool| {
                let world = || next.world(contestant, learned);
                let bulk = bulk_in(world(), &next.trip, contestant);
                (bulk, messaging(world(), &next.trip, USERS).list)
            };
            let mut runs = vec![run(&chains[0][0], false)];
            for [learned, oracle] in &chains {
                runs.extend([run(learned, true), run(oracle, false)]);
            }
            runs
        });
        for (number, [chain, _]) in chains.iter().enumerate() {
            println!("\nchain {number}: {}", chain.name);
            for (name, which) in [("learned", 1 + 2 * number), ("oracle", 2 + 2 * number)] {
                let mut say = |what: &str, value: f64| {
                    let has_goal = number == 0 && name == "learned";
                    let goal = if has_goal { self.goal(what) } else { Goal::None };
                    let name = format!("{prefix}_{number}_{name}_{what}");
                    report.result(&name, value, "x", goal, &[value]);
                };
                let after = |which: usize, trips: &[usize]| {
                    let all = trips.iter().flat_map(|trip| &runs[*trip][which].0.after_failures);
                    mean(&all.copied().collect::<Vec<_>>())
                };
                let whole = |which: usize, trips: &[usize]| {
                    let all = trips.iter().map(|trip| runs[*trip][which].0.goodput());
                    mean(&all.collect::<Vec<_>>())
                };
                let all: Vec<usize> = (0..runs.len()).collect();
                let mut ratio = |what: &str, of: &dyn Fn(usize, &[usize]) -> f64| {
                    say(what, of(which, &all) / of(0, &all));
                    let drawn = |trips: &[usize]| of(which, trips) / of(0, trips);
                    let [low, high] = interval(runs.len(), drawn);
                    say(&format!("{what}_low"), low);
                    say(&format!("{what}_high"), high);
                };
                ratio("after_failures", &after);
                let in_flight = |which: usize, trips: &[usize]| {
                    let all = trips.iter().flat_map(|trip| &runs[*trip][which].0.at_failures);
                    mean(&all.map(|bytes| *bytes as f64).collect::<Vec<_>>())
                };
                ratio("in_flight", &in_flight);
                ratio("goodput", &whole);
                let rounds = |which: usize, share: f64| {
                    let all = runs.iter().flat_map(|run| &run[which].1);
                    quantile(&all.map(|one| one.round).collect::<Vec<_>>(), share)
                };
                for (what, share) in [("messages_p99", 0.99), ("messages_p999", 0.999)] {
                    say(what, rounds(which, share) / rounds(0, share));
                }
                let sum = |of: fn(&Bulk) -> u64| {
                    runs.iter().map(|run| of(&run[which].0)).sum::<u64>() as f64
                };
                say("resent", sum(|run| run.resent) / sum(|run| run.bytes));
            }
        }
        Ok(())
    }

    /// The goal of a figure of [`chains`](Self::chains); some are for worlds of bad cells.
    fn goal(&self, figure: &str) -> Goal {
        let is_bad = self.failures > 1.0;
        match figure {
            "goodput_low" => Goal::AtLeast(0.98),
            "messages_p99" => Goal::AtMost(1.02),
            "messages_p999" if is_bad => Goal::AtMost(0.9),
            "in_flight" if is_bad => Goal::AtMost(0.5),
            "after_failures" if is_bad => Goal::AtLeast(1.1),
            "after_failures_low" if is_bad => Goal::AtLeast(1.0),
            _ => Goal::None,
        }
    }

    /// Web pages and messages with learned forecasts, over the same without.
    fn loads(&self, case: Case, prefix: &str, report: &mut Report) -> Result<()> {
        let nexts = &self.nexts;
        let contestant = Contestant::parse(case.chain, case.engine)?;
        let runs = parallel(nexts.len(), self.threads, |number| {
            let next = &nexts[number];
            [false, true].map(|learned| {
                let world = || next.world(&contestant, learned);
                let loaded = pages(world(), &next.trip);
                (loaded, messaging(world(), &next.trip, USERS).list)
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
}

/// Goodputs in the 2 s after each failure: without forecasts (0), with learned ones (1), with an
/// oracle's (2), and those of variants.
fn after(runs: &[Vec<Bulk>], which: usize) -> Vec<f64> {
    runs.iter().flat_map(|run| run[which].after_failures.clone()).collect()
}

/// The mean number of bytes in flight on a carrier when it failed.
fn held(runs: &[Vec<Bulk>], which: usize) -> f64 {
    let all = runs.iter().flat_map(|run| &run[which].at_failures);
    mean(&all.map(|bytes| *bytes as f64).collect::<Vec<_>>())
}

/// The mean goodput of whole trips.
fn goodput(runs: &[Vec<Bulk>], which: usize) -> f64 {
    mean(&runs.iter().map(|run| run[which].goodput()).collect::<Vec<_>>())
}

fn report_case(report: &mut Report, case: Case, prefix: &str, runs: &[Vec<Bulk>]) {
    let all = [0, 1, 2].map(|which| after(runs, which));
    for (name, goal) in ["mean", "median"].into_iter().zip(case.gains) {
        let [none, learned, oracle] = all.each_ref().map(|values| match name {
            "mean" => mean(values),
            _ => quantile(values, 0.5),
        });
        let mut say = |what: &str, value: f64, unit: &str, goal| {
            report.result(&format!("{prefix}_{what}_{name}"), value, unit, goal, &[value]);
        };
        say("after_none", none, "Mbit/s", Goal::None);
        say("after_learned", learned, "Mbit/s", Goal::None);
        say("after_oracle", oracle, "Mbit/s", Goal::None);
        say("gain", learned / none, "x", Goal::AtLeast(goal));
        // If the oracle gains nothing, there is no share of its gain: NaN, which misses the goal.
        let gained = oracle > none * ORACLE_GAINS;
        let share = if gained { (learned - none) / (oracle - none) } else { f64::NAN };
        if gained || case.of_oracle != Goal::None {
            say("of_oracle_gain", share, "x", case.of_oracle);
        }
    }
    let drawn = |trips: &[usize]| {
        let of = |which: usize| -> Vec<f64> {
            trips.iter().flat_map(|&trip| runs[trip][which].after_failures.clone()).collect()
        };
        mean(&of(1)) / mean(&of(0))
    };
    for (end, value) in ["low", "high"].into_iter().zip(interval(runs.len(), drawn)) {
        report.result(&format!("{prefix}_gain_mean_{end}"), value, "x", Goal::None, &[value]);
    }
    let share = goodput(runs, 1) / goodput(runs, 0);
    report.result(&format!("{prefix}_goodput"), share, "x", Goal::AtLeast(1.0), &[share]);
    for (which, name) in [(1, "learned"), (2, "oracle")] {
        let held = held(runs, which) / held(runs, 0);
        let name = format!("{prefix}_in_flight_at_failure_{name}");
        report.result(&name, held, "x", Goal::None, &[held]);
    }
    for (which, name) in [(0, "none"), (1, "learned")] {
        let sum = |of: fn(&Bulk) -> u64| runs.iter().map(|run| of(&run[which])).sum::<u64>() as f64;
        let share = sum(|run| run.resent) / sum(|run| run.bytes);
        report.result(&format!("{prefix}_resent_{name}"), share, "x", Goal::None, &[share]);
    }
}

/// The gains over the failures with a forecast, and over the others.
fn report_by_forecast(report: &mut Report, prefix: &str, runs: &[Vec<Bulk>], forecast: &[bool]) {
    for (name, wanted) in [("foreseen", true), ("unforeseen", false)] {
        let [none, learned, oracle] = [0, 1, 2].map(|which| -> Vec<f64> {
            let all = after(runs, which).into_iter().zip(forecast);
            all.filter(|(_, forecast)| **forecast == wanted).map(|(value, _)| value).collect()
        });
        let count = none.len() as f64;
        report.result(&format!("{prefix}_{name}_failures"), count, "", Goal::None, &[count]);
        let none = mean(&none);
        for (whose, gain) in
            [("gain", mean(&learned) / none), ("oracle_gain", mean(&oracle) / none)]
        {
            let name = format!("{prefix}_{name}_{whose}_mean");
            report.result(&name, gain, "x", Goal::None, &[gain]);
        }
    }
}

/// The rule that rejects.
const REJECTION: &str = "handover_rejection";
/// An oracle has a gain if it is at least so much better than no forecasts.
const ORACLE_GAINS: f64 = 1.02;
/// Handovers fail so many times as often in the world of bad cells: in those four in five.
const OFTEN: f64 = 0.8 / 0.28;
/// Users who send messages.
const USERS: usize = 20;
