//! What forecasts that were learned are worth, beside none and beside an oracle.
//!
//! A train has made 24 trips on a route; the trip that is measured comes after. Learned
//! forecasts are made once a second, and when a modem reports another cell, from the position and
//! the serving cells as the gateway has them, and told to both sides a moment later, as the daemons
//! do. Source of the figures: POLYCORN 6.2, Fig. 11a.

mod next;

use anyhow::{Result, ensure};
use polyrail_emulator::rail::Speed;
use polyrail_emulator::results::{Goal, Report};
use polyrail_scheduler::ChainSpec;

use self::next::Next;
use super::metrics::{interval, mean, quantile};
use super::runs::parallel;
use super::{Bulk, Contestant, Engine, Message, Page, bulk_in, messaging_in, pages_in};

/// Whose trips are measured, and how much forecasts are to gain there.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in figures.
    pub name: &'static str,
    /// The scheduler.
    pub chain: &'static str,
    /// The engine around it.
    pub engine: Engine,
    /// What the mean and the median of the goodput after failures are to gain.
    gains: [f64; 2],
    /// The share of the oracle's gain that learned forecasts are to have.
    of_oracle: Goal,
    /// Learned forecasts are also tried with rejection for all of them, and for none.
    compared: bool,
}

impl Case {
    /// HSRSCH as published.
    pub const PAPER: Self = Self {
        name: "paper",
        chain: "hsrsch",
        engine: Engine::Paper,
        gains: [1.2, 1.5],
        of_oracle: Goal::AtLeast(0.8),
        compared: false,
    };
    /// HSRSCH with all that Polyrail has around it.
    pub const FULL: Self = Self { name: "full", engine: Engine::Full, ..Self::PAPER };
    /// What users get: it finds another way so soon after a failure that forecasts have little to
    /// gain. They are not to spoil anything either.
    pub const DEFAULT: Self = Self {
        name: "default",
        chain: "polyrail",
        engine: Engine::Full,
        gains: [1.0, 1.0],
        of_oracle: Goal::None,
        compared: true,
    };

    /// The chain with its rule of rejection for every forecast, and without it, by name.
    fn instead(self) -> Result<Vec<(&'static str, Contestant)>> {
        if !self.compared {
            return Ok(Vec::new());
        }
        let chain = ChainSpec::named(self.chain)?;
        let others: Vec<&str> = chain.names().iter().map(String::as_str).collect();
        let others = others.into_iter().filter(|rule| !rule.starts_with(REJECTION));
        let without = others.collect::<Vec<_>>().join("/");
        let all = format!("{REJECTION}/{without}");
        let made = |(name, rules)| Ok((name, Contestant::parse(rules, self.engine)?));
        [("all_rejected", all.as_str()), ("none_rejected", &without)]
            .map(made)
            .into_iter()
            .collect()
    }
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
    let trips = Trips::after(first_route, routes, Speed::Kmh300, threads)?;
    for case in [Case::PAPER, Case::FULL, Case::DEFAULT] {
        trips.bulk(case, &format!("{prefix}_sim_{}", case.name), report)?;
    }
    trips.loads(Case::DEFAULT, &format!("{prefix}_sim_{}", Case::DEFAULT.name), report)?;
    // Some cells fail more often there than the default chain bears.
    let trips = Trips::after(first_route, routes, Speed::Kmh350, threads)?;
    trips.bulk(Case::DEFAULT, &format!("{prefix}_sim_{}_350", Case::DEFAULT.name), report)
}

/// Trips that come after those that were learned from.
pub struct Trips {
    nexts: Vec<Next>,
    threads: usize,
}

impl Trips {
    /// Those of so many routes, measured by so many threads.
    ///
    /// # Errors
    /// A trip cannot be drawn.
    pub fn after(first_route: u64, routes: u64, speed: Speed, threads: usize) -> Result<Self> {
        let mut nexts = Vec::new();
        for number in 0..routes {
            // Even routes are passed upwards.
            nexts.extend(next::next(first_route + 2 * number, speed)?);
        }
        Ok(Self { nexts, threads })
    }

    /// The figures of one case with bulk data.
    ///
    /// # Errors
    /// The case names no chain.
    pub fn bulk(&self, case: Case, prefix: &str, report: &mut Report) -> Result<()> {
        let nexts = &self.nexts;
        let none = Contestant::parse(case.chain, case.engine)?;
        let oracle = Contestant::parse(&format!("{}+oracle", case.chain), case.engine)?;
        let instead = case.instead()?;
        let runs = parallel(nexts.len(), self.threads, |number| {
            let next = &nexts[number];
            let ridden = |contestant: &Contestant, learned: bool| {
                bulk_in(next.world(contestant, learned), &next.trip, contestant)
            };
            let mut runs = vec![ridden(&none, false), ridden(&none, true), ridden(&oracle, false)];
            runs.extend(instead.iter().map(|(_, other)| ridden(other, true)));
            runs
        });
        let foreseen: Vec<bool> = nexts.iter().flat_map(Next::foreseen).collect();
        let seen: usize = runs.iter().map(|run| run[0].after_failures.len()).sum();
        ensure!(seen == foreseen.len(), "{seen} failures were seen of {}", foreseen.len());
        tell_figures(report, case, prefix, &runs, &foreseen);
        tell_instead(report, prefix, instead.iter().map(|(name, _)| *name), &runs);
        Ok(())
    }

    /// What learned forecasts make of web pages and of messages, over the same without any.
    fn loads(&self, case: Case, prefix: &str, report: &mut Report) -> Result<()> {
        let nexts = &self.nexts;
        let contestant = Contestant::parse(case.chain, case.engine)?;
        let runs = parallel(nexts.len(), self.threads, |number| {
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
}

fn tell_figures(
    report: &mut Report,
    case: Case,
    prefix: &str,
    runs: &[Vec<Bulk>],
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
        if gained || case.of_oracle != Goal::None {
            say(report, "of_oracle_gain", share, "x", case.of_oracle);
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
    let goodput =
        |which: usize| mean(&runs.iter().map(|run| run[which].goodput()).collect::<Vec<_>>());
    let all = goodput(1) / goodput(0);
    report.result(&format!("{prefix}_goodput"), all, "x", Goal::AtLeast(1.0), &[all]);
    for (which, name) in [(0, "none"), (1, "learned")] {
        let sum = |of: fn(&Bulk) -> u64| runs.iter().map(|run| of(&run[which])).sum::<u64>() as f64;
        let share = sum(|run| run.resent) / sum(|run| run.bytes);
        report.result(&format!("{prefix}_resent_{name}"), share, "x", Goal::None, &[share]);
    }
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

/// What learned forecasts do with other rules, over the chain without forecasts.
fn tell_instead(
    report: &mut Report,
    prefix: &str,
    names: impl Iterator<Item = &'static str>,
    runs: &[Vec<Bulk>],
) {
    let after = |which: usize| {
        let all = runs.iter().flat_map(|run| run[which].after_failures.clone());
        mean(&all.collect::<Vec<_>>())
    };
    let goodput =
        |which: usize| mean(&runs.iter().map(|run| run[which].goodput()).collect::<Vec<_>>());
    for (name, which) in names.zip(3..) {
        let figures =
            [("gain_mean", after(which) / after(0)), ("goodput", goodput(which) / goodput(0))];
        for (what, value) in figures {
            report.result(&format!("{prefix}_{name}_{what}"), value, "x", Goal::None, &[value]);
        }
    }
}

/// What rejects.
const REJECTION: &str = "handover_rejection";
/// An oracle gains something when it is so much better than none.
const ORACLE_GAINS: f64 = 1.02;
/// Of messages.
const USERS: usize = 4;
