//! The quality of LinkDB's forecasts on the generated rail, and on recorded metro runs.
//!
//! The handovers of all trips on a route become records like those of a gateway ([`records`]), or
//! are played to the code that makes records on board ([`piloted`]). Then each trip is left out
//! once ([`polyrail_predictor::forecast::evaluate`]).

pub mod learned;
pub mod metro;
pub mod piloted;
pub mod records;
mod results;
mod speed;
mod store;
mod worlds;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use polyrail_emulator::results::{Report as Results, results_folder};
use polyrail_predictor::forecast::Rule;
use polyrail_predictor::forecast::evaluate::{EvaluateSettings, Report, evaluate_against};

use crate::sim::runs::parallel;
use records::{Campaign, REPORT_MS, Trips, campaign};
use serde_json::Value;
use worlds::World;

/// The options of an evaluation.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How many routes.
    #[arg(long, default_value_t = ROUTES, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    routes: u64,
    /// How many trips on each.
    #[arg(long, default_value_t = TRIPS, value_parser = clap::value_parser!(u64).range(2..=100))]
    trips: u64,
    /// The seed of the first route.
    #[arg(long, default_value_t = TUNING)]
    from: u64,
    /// The held-back routes, which were never used for tuning.
    #[arg(long, conflicts_with = "from")]
    held_back: bool,
    /// The rule that chooses the place of a failure.
    #[arg(long, value_enum, default_value_t = RuleName::Quantile)]
    rule: RuleName,
    /// On how many routes the simulator plays trips with the learned database.
    #[arg(long, default_value_t = ROUTES, value_parser = clap::value_parser!(u64).range(1..=200))]
    simulated: u64,
    /// A folder with recorded metro runs in CSV.
    #[arg(long)]
    metro: Option<PathBuf>,
    /// Only records that the gateway's pilot makes.
    #[arg(long)]
    pilot: bool,
    /// Only these parts, separated by commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Only this chain for the part `gains`; may be repeated. Rules with `/` between them.
    #[arg(long = "chain", value_name = "CHAIN")]
    chains: Vec<String>,
    /// With `--chain`: handovers fail so many times as often as usual.
    #[arg(long, default_value_t = 1.0, requires = "chains")]
    failures: f64,
    /// A short run: one route of six trips, and a part of the worlds and of the chains.
    #[arg(long)]
    smoke: bool,
}

/// The rule that chooses the place of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuleName {
    /// A quantile that few failures precede.
    Quantile,
    /// The mean of the failures, as POLYCORN does.
    Mean,
    /// A deviation before the mean of all handovers.
    Naive,
}

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The forecasts as they are.
    Forecasts,
    /// Other rules and conditions.
    Conditions,
    /// Worlds that differ from the generator's.
    Worlds,
    /// The time of forecasts, the database, and recorded runs.
    Speed,
    /// What forecasts gain, by simulation.
    Gains,
}

/// Prints tables and RESULT lines, writes the figures as JSON.
///
/// # Errors
/// A trip cannot be drawn, metro runs cannot be read, the results cannot be written.
pub fn command(options: &Options) -> Result<()> {
    let mut options = options.clone();
    options.choose();
    let (first, last) = (options.from, options.from + options.routes - 1);
    println!("seeds of routes {first} to {last}, {} trips on each", options.trips);
    let rule = options.rule();
    let prefix = if options.held_back { "linkdb_held" } else { "linkdb" };
    if options.pilot {
        return options.piloted(prefix);
    }
    let (mut report, mut results) = (Report::default(), Results::default());
    if options.has(Part::Forecasts) {
        report = options.evaluated("as it is", &Campaign::default(), rule, true)?;
        results::judge(&mut results, prefix, &report);
    }
    if options.has(Part::Conditions) {
        options.beside(&mut results, prefix, rule)?;
    }
    if options.has(Part::Worlds) {
        options.worlds(&mut results, prefix)?;
    }
    if options.has(Part::Speed) && !options.held_back {
        speed::judge(&mut results);
        store::judge(&mut results, if options.smoke { 10_000 } else { 1_000_000 })?;
        if let Some(folder) = &options.metro {
            metro::judge(&mut results, folder)?;
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let first = options.from / 2 * 2 + SIMULATED;
    if options.has(Part::Gains) {
        if options.smoke && options.chains.is_empty() {
            learned::judge_default(first, threads, prefix, &mut results)?;
        } else if options.chains.is_empty() {
            learned::judge(first, options.simulated, threads, prefix, &mut results)?;
        } else {
            let speed = polyrail_emulator::rail::Speed::Kmh300;
            let trips =
                learned::Trips::after(first, options.simulated, speed, options.failures, threads)?;
            let often = if options.failures > 1.0 { "_often" } else { "" };
            let name = format!("{prefix}_sim{often}_chain");
            trips.chains(&options.chains, &name, &mut results)?;
        }
    }
    if options.smoke {
        options.pilots(&mut results, prefix, 1)?;
    }
    options.write(&results, &serde_json::to_value(&report)?)
}

impl Options {
    /// Applies the flags that imply others.
    fn choose(&mut self) {
        if self.smoke {
            (self.routes, self.trips, self.simulated) = (1, 6, 1);
        }
        if self.held_back {
            self.from = HELD_BACK;
        }
    }

    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Only a whole run writes the published results.
    fn results_name(&self) -> &'static str {
        let sizes = [self.routes, self.trips, self.simulated];
        let all = self.only.is_empty() && self.chains.is_empty();
        let whole = all && sizes == [ROUTES, TRIPS, ROUTES] && self.rule == RuleName::Quantile;
        match self.from {
            _ if self.smoke => "linkdb-smoke",
            TUNING if whole && self.pilot => "linkdb-pilot",
            TUNING if whole => "linkdb",
            HELD_BACK if whole && self.pilot => "linkdb-pilot-held",
            HELD_BACK if whole => "linkdb-held",
            _ => "linkdb-part",
        }
    }

    fn rule(&self) -> Rule {
        match self.rule {
            RuleName::Quantile => Rule::Quantile,
            RuleName::Mean => Rule::Mean,
            RuleName::Naive => Rule::Naive,
        }
    }

    /// Evaluates only records that the pilot makes.
    fn piloted(&self, prefix: &str) -> Result<()> {
        let mut results = Results::default();
        let tables = self.pilots(&mut results, prefix, self.routes)?;
        self.write(&results, &tables)
    }

    /// Plays this many routes to the pilot, in all variants.
    fn pilots(&self, results: &mut Results, prefix: &str, routes: u64) -> Result<Value> {
        let setup = piloted::Setup {
            metres: METRES,
            trips: self.trips,
            report: REPORT_MS as f64 / 1_000.0,
            noise: 1.0,
        };
        let settings = EvaluateSettings { rule: self.rule(), classify: true, ..unclassified() };
        piloted::judge(results, prefix, self.from..self.from + routes, &setup, &settings)
    }

    /// Writes figures and tables.
    fn write(&self, results: &Results, tables: &Value) -> Result<()> {
        let (folder, name) = (results_folder()?, self.results_name());
        results.write(&folder.join(format!("{name}.json")))?;
        let tables = serde_json::to_string_pretty(tables)?;
        std::fs::write(folder.join(format!("{name}-tables.json")), tables)?;
        Ok(())
    }

    /// Other rules on the same trips, and the forecaster under other conditions.
    fn beside(&self, results: &mut Results, prefix: &str, own: Rule) -> Result<()> {
        let usual = Campaign::default();
        for (name, rule, title) in [
            ("mean", Rule::Mean, "the mean of failures (POLYCORN)"),
            ("naive", Rule::Naive, "a deviation before the mean of all handovers"),
        ] {
            let report = self.evaluated(title, &usual, rule, false)?;
            results::beside(results, &format!("{prefix}_{name}"), &report.told);
        }
        let dealt = Campaign { dealt: true, ..usual };
        let slow = Campaign { report_ms: 1_000, ..usual };
        let speeds = Campaign { speeds: true, ..usual };
        let drift = Campaign { drift: true, ..usual };
        let wrong = |percent: u64| Campaign { mislabelled: percent, ..usual };
        for (name, title, what) in [
            ("dealt", "outcomes shuffled within their cells", dealt),
            ("report_1s", "modems report once a second", slow),
            ("speeds", "300, 200 and 350 km/h in turns", speeds),
            ("drift", "the position's error wanders", drift),
            (
                "mislabelled_5",
                "5 % of failures recorded as successes, and as many successes as failures",
                wrong(5),
            ),
            ("mislabelled_10", "the same with 10 %", wrong(10)),
        ] {
            let report = self.evaluated(title, &what, own, false)?;
            results::beside(results, &format!("{prefix}_{name}"), &report.told);
        }
        Ok(())
    }

    /// The rule in other worlds, next to fixed quantiles.
    fn worlds(&self, results: &mut Results, prefix: &str) -> Result<()> {
        let usual = Campaign { trips: self.trips, ..Campaign::default() };
        let spread = |factor: f64| Campaign { spread: factor, ..usual };
        let world = |world: World| Campaign { world, ..usual };
        let worlds = [
            ("generated", usual),
            ("spread_half", spread(0.5)),
            ("spread_2", spread(2.0)),
            ("spread_4", spread(4.0)),
            ("heavy_tails", world(World::HeavyTails)),
            ("two_places", world(World::TwoPlaces)),
            ("renumbered", world(World::Renumbered)),
            ("by_speed", Campaign { speeds: true, ..world(World::PlacesBySpeed) }),
            ("by_signal", world(World::FailuresBySignal)),
            ("by_lateness", world(World::FailuresByLateness)),
            ("by_chance", world(World::FailuresByChance)),
        ];
        for (name, what) in &worlds[..if self.smoke { 2 } else { worlds.len() }] {
            let routes: Result<Vec<_>> =
                (self.from..self.from + self.routes).map(|route| campaign(route, what)).collect();
            let routes = routes?;
            let report = |settings: EvaluateSettings| judged_at_once(&routes, &settings);
            let learning = WORLD_LEARNING.to_vec();
            let own = report(EvaluateSettings { classify: true, learning, ..unclassified() });
            let fixed = QUANTILES.map(|quantile| {
                report(EvaluateSettings { rule: Rule::Fixed(quantile), ..unclassified() })
            });
            let fixed = fixed.map(|report| report.told.failures);
            results::world(results, &format!("{prefix}_world_{name}"), &own, &fixed);
            for (rule, name_of) in [(Rule::Naive, "naive"), (Rule::Mean, "mean")] {
                let told = report(EvaluateSettings { rule, ..unclassified() }).told;
                results::beside(results, &format!("{prefix}_world_{name}_{name_of}"), &told);
            }
        }
        Ok(())
    }

    /// Evaluates all routes together, and prints the report.
    fn evaluated(&self, title: &str, what: &Campaign, rule: Rule, full: bool) -> Result<Report> {
        let settings = if full { EvaluateSettings::default() } else { unclassified() };
        let settings = EvaluateSettings { rule, ..settings };
        let mut all = Report::default();
        for route in self.from..self.from + self.routes {
            let trips = campaign(route, &Campaign { trips: self.trips, ..*what })?;
            all.merge(&judged(&[trips], &settings));
        }
        println!("\n## {title}\n\n{all}");
        Ok(all)
    }
}

/// Without the SVM and the learning curve.
fn unclassified() -> EvaluateSettings {
    let learning = Vec::new();
    EvaluateSettings { classify: false, learning, ..Default::default() }
}

/// All routes together.
fn judged(routes: &[Trips], settings: &EvaluateSettings) -> Report {
    let mut all = Report::default();
    for trips in routes {
        all.merge(&evaluate_against(&trips.records, &trips.truths, settings));
    }
    all
}

/// The same by all processors.
fn judged_at_once(routes: &[Trips], settings: &EvaluateSettings) -> Report {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let one = |number| judged(&routes[number..=number], settings);
    let mut all = Report::default();
    parallel(routes.len(), threads, one).iter().for_each(|report| all.merge(report));
    all
}

/// A whole run.
const ROUTES: u64 = 24;
const TRIPS: u64 = 24;
/// In each world, the figures after so many trips are judged as well.
const WORLD_LEARNING: [usize; 3] = [4, 8, 16];
/// In deviations.
const QUANTILES: [f64; 12] =
    [-3.0, -2.5, -2.0, -1.75, -1.5, -1.25, -1.0, -0.75, -0.5, 0.0, 0.5, 1.0];
/// The length of a route.
const METRES: f64 = 60_000.0;
/// The distance of the simulator's route seeds from the others.
const SIMULATED: u64 = 10_000;
/// The first seed of the routes for tuning.
const TUNING: u64 = 2_000;
/// The first seed of the held-back routes.
const HELD_BACK: u64 = 51_000;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn only_whole_runs_write_the_published_results() {
        for (text, wanted) in [
            ("", "linkdb"),
            ("--held-back", "linkdb-held"),
            ("--metro folder", "linkdb"),
            ("--pilot", "linkdb-pilot"),
            ("--pilot --held-back", "linkdb-pilot-held"),
            ("--smoke", "linkdb-smoke"),
            ("--smoke --held-back", "linkdb-smoke"),
            ("--routes 2", "linkdb-part"),
            ("--pilot --routes 2", "linkdb-part"),
            ("--from 2100", "linkdb-part"),
            ("--rule mean", "linkdb-part"),
            ("--only gains,worlds", "linkdb-part"),
            ("--chain min_rtt", "linkdb-part"),
            ("--held-back --trips 6", "linkdb-part"),
        ] {
            let mut options =
                Arguments::parse_from(format!("eval {text}").split_whitespace()).options;
            options.choose();
            assert_eq!(options.results_name(), wanted, "{text}");
        }
    }
}
