//! Compares schedulers on many trips, and writes tables and RESULT lines.

mod validity;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::rail::Trip;
use polyrail_emulator::results::{Goal, median, results_folder};

use super::figures::Rows;
use super::goals::Verdicts;
use super::runs::{Entry, Workload, run};
use super::{Contestant, Engine, goals, report, special, traces, trips};

/// The options of a comparison.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How many trips.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub trips: u64,
    /// The first route seed, one of those for tuning.
    #[arg(long, default_value_t = trips::TUNING, conflicts_with = "held_back",
        value_parser = clap::value_parser!(u64).range(..trips::HELD_BACK))]
    pub from: u64,
    /// The held-back trips, which were never used for tuning.
    #[arg(long)]
    pub held_back: bool,
    /// Recordings instead of generated trips, with commas: a carrier each, at least two. They have
    /// tables, but no goals.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["from", "held_back"])]
    pub traces: Vec<PathBuf>,
    /// The contestants, with semicolons: chains, or rules with `/` between them, with `+oracle` or
    /// `+noisy`, `@a`, `@b` or `@aggregated`. Default: all for downloads, fewer for the rest.
    #[arg(long, value_delimiter = ';')]
    pub chains: Vec<String>,
    /// The engines, with commas: paper, full. Default: both.
    #[arg(long, value_delimiter = ',')]
    pub engines: Vec<String>,
    /// Workloads, with commas: downloads, messaging, bulk, pages. Default: all.
    #[arg(long, value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// How many users send messages, with commas.
    #[arg(long, value_delimiter = ',', default_values_t = USERS)]
    pub users: Vec<usize>,
    /// A short run: one trip, few contestants.
    #[arg(long)]
    pub smoke: bool,
}

/// Runs the comparison.
///
/// # Errors
/// A name is unknown, results cannot be written, or the simulated world found a breach.
pub fn run_all(options: &Options) -> Result<()> {
    let options = if options.smoke { smoke(options) } else { options.clone() };
    let first = if options.held_back { trips::HELD_BACK } else { options.from };
    let recorded = !options.traces.is_empty();
    let (all, seeds) = trips_of(&options, first)?;
    println!("{} trips: {seeds}", all.len());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut verdicts = Verdicts::new(options.held_back);
    if !recorded {
        report_seeds(first, options.trips, &mut verdicts);
    }
    let whole = options.chains.is_empty() && !recorded;
    if whole {
        speed(&all, if options.smoke { 1 } else { SPEED_GOES }, &mut verdicts)?;
    }
    let entries = entries(&options)?;
    let begun = Instant::now();
    let rows = run(&all, &entries, threads);
    println!("{} rows in {:.0} s", rows.len(), begun.elapsed().as_secs_f64());
    let rows = Rows(&rows);
    let (folder, name) = (results_folder()?, name(&options));
    let validity = validity::of(&folder.join("sim"));
    write(rows, &options, [&validity, &seeds], &folder.join(&name))?;
    if !options.smoke {
        println!("{validity}");
    }
    if !recorded {
        goals::judge(rows, &options.users, &mut verdicts);
    }
    if whole {
        let seeds = if options.smoke { 1 } else { SPECIAL_SEEDS };
        special::judge(first, seeds, threads, &mut verdicts)?;
    }
    verdicts.write(&folder.join(name).with_extension("json"))?;
    let broken = rows.broken();
    if !broken.is_empty() {
        bail!("{} runs broke:\n{}", broken.len(), broken.join("\n"));
    }
    Ok(())
}

/// The trips, and their seeds or recordings in words.
fn trips_of(options: &Options, first: u64) -> Result<(Vec<Trip>, String)> {
    if !options.traces.is_empty() {
        let all = traces::trips(&options.traces, options.trips)?;
        let names = traces::names(&options.traces, all.len());
        return Ok((all, names));
    }
    let routes = trips::route_seeds(first, options.trips);
    ensure!(
        options.held_back || routes.end <= trips::HELD_BACK,
        "trips from route {first} on reach into those held back: fewer --trips, or --held-back"
    );
    Ok((trips::trips(first, options.trips)?, trips::seeds(first, options.trips)))
}

/// The name of the results: only a whole run may replace the results of a whole run.
fn name(options: &Options) -> String {
    let all = [&options.chains, &options.engines, &options.workloads];
    let part = all.iter().any(|some| !some.is_empty()) || options.users != USERS;
    let mut name = String::from("sim");
    for (is_so, end) in [
        (options.smoke, "-smoke"),
        (options.held_back, "-held"),
        (!options.traces.is_empty(), "-traces"),
        (part && !options.smoke, "-part"),
    ] {
        name.push_str(if is_so { end } else { "" });
    }
    name
}

/// The seeds, so that the figures name them.
fn report_seeds(first: u64, count: u64, verdicts: &mut Verdicts) {
    for (name, seeds) in [
        ("sim_routes", trips::route_seeds(first, count)),
        ("sim_trips", trips::trip_seeds(first, count)),
    ] {
        let list: Vec<f64> = seeds.map(|seed| seed as f64).collect();
        verdicts.result(name, list.len() as f64, "seeds", Goal::None, &list);
    }
}

fn smoke(options: &Options) -> Options {
    Options { trips: 1, users: vec![10], ..options.clone() }
}

/// The runs of a comparison.
fn entries(options: &Options) -> Result<Vec<Entry>> {
    let engines = match options.engines.is_empty() {
        true => Engine::BOTH.to_vec(),
        false => options.engines.iter().map(|name| engine(name)).collect::<Result<_>>()?,
    };
    let few = if options.smoke { &SMOKE[..] } else { &FEW[..] };
    let few: Vec<String> = few.iter().map(|name| (*name).to_owned()).collect();
    let mut all = Contestant::catalogue(2);
    if options.smoke {
        all.clone_from(&few);
    }
    let (few, all) = match options.chains.is_empty() {
        true => (few, all),
        false => (options.chains.clone(), options.chains.clone()),
    };
    let mut entries = Vec::new();
    let mut add = |names: &[String], workload: Workload| -> Result<()> {
        // No bound is computed for pages.
        entries.extend((workload != Workload::Pages).then_some((None, workload)));
        for name in names {
            for engine in &engines {
                let contestant = Contestant::parse(name, *engine)?;
                entries.push((Some(contestant), workload));
            }
        }
        Ok(())
    };
    for workload in workloads(options)? {
        add(if workload == Workload::Downloads { &all } else { &few }, workload)?;
    }
    Ok(entries)
}

fn workloads(options: &Options) -> Result<Vec<Workload>> {
    let all = ["downloads", "messaging", "bulk", "pages"].map(str::to_owned);
    let names = if options.workloads.is_empty() { &all[..] } else { &options.workloads };
    let mut list = Vec::new();
    for name in names {
        match name.as_str() {
            "downloads" => list.push(Workload::Downloads),
            "messaging" => list.extend(options.users.iter().map(|it| Workload::Messaging(*it))),
            "bulk" => list.push(Workload::Bulk),
            "pages" => list.push(Workload::Pages),
            _ => bail!("no workload is named {name:?}"),
        }
    }
    Ok(list)
}

fn engine(name: &str) -> Result<Engine> {
    let found = Engine::BOTH.into_iter().find(|engine| engine.name() == name);
    found.with_context(|| format!("no engine is named {name:?}: paper or full"))
}

/// The speed of the simulator on one trip, by this thread's computing time: the median of several
/// runs.
fn speed(all: &[Trip], goes: usize, verdicts: &mut Verdicts) -> Result<()> {
    let polyrail = Contestant::parse("polyrail", Engine::Full)?;
    let trip = all.first().context("no trip")?;
    let mut samples = Vec::new();
    for _ in 0..goes {
        let begun = computed();
        super::downloads(super::world(trip, &polyrail), trip, &super::runs::SIZES);
        let (Some(begun), Some(ended)) = (begun, computed()) else {
            println!("NOT MEASURED sim_speed: this kernel has no {SCHEDSTAT}");
            return Ok(());
        };
        samples.push(trip.length.as_secs_f64() / (ended - begun));
    }
    verdicts.result("sim_speed", median(&samples), "times", Goal::AtLeast(200.0), &samples);
    Ok(())
}

/// The computing time of this thread in seconds (proc(5)), if the kernel counts it.
fn computed() -> Option<f64> {
    let text = std::fs::read_to_string(SCHEDSTAT).ok()?;
    let nanoseconds = text.split(' ').next()?;
    Some(nanoseconds.parse::<f64>().ok()? / 1e9)
}

fn write(rows: Rows<'_>, options: &Options, heads: [&str; 2], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    let tables = report::tables(rows, &options.users);
    let [validity, seeds] = heads;
    let mut text =
        format!("# Schedulers on the simulated rail\n\n{validity}\n\nSeeds: {seeds}.\n\n");
    tables.iter().for_each(|table| text.push_str(&table.markdown()));
    println!("{text}");
    std::fs::write(folder.join("tables.md"), &text)?;
    println!("tables are in {}", folder.display());
    Ok(())
}

/// The contestants in all workloads.
const FEW: [&str; 14] = [
    "polyrail",
    "polyrail+noisy",
    "hsrsch",
    "hsrsch+noisy",
    "min_rtt",
    "flow_round_robin",
    "mptcp",
    "blest",
    "linux",
    "redundant",
    "xlink",
    "min_rtt@a",
    "min_rtt@b",
    "min_rtt@aggregated",
];
/// The contestants of a short run.
const SMOKE: [&str; 6] =
    ["polyrail", "min_rtt", "mptcp", "flow_round_robin", "min_rtt@a", "min_rtt@aggregated"];
/// The numbers of users who send messages.
const USERS: [usize; 3] = [10, 20, 30];
const SPECIAL_SEEDS: u64 = 8;
const SPEED_GOES: usize = 3;
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    fn options(text: &str) -> Options {
        Arguments::parse_from(format!("compare {text}").split_whitespace()).options
    }

    #[test]
    fn only_whole_runs_write_the_published_results() {
        for (text, wanted) in [
            ("", "sim"),
            ("--trips 3 --from 1004", "sim"),
            ("--held-back", "sim-held"),
            ("--smoke", "sim-smoke"),
            ("--chains polyrail", "sim-part"),
            ("--engines full --held-back", "sim-held-part"),
            ("--workloads bulk", "sim-part"),
            ("--users 10", "sim-part"),
        ] {
            assert_eq!(name(&options(text)), wanted, "{text}");
        }
        assert_eq!(name(&smoke(&options("--smoke"))), "sim-smoke");
    }

    #[test]
    fn tuning_trips_that_reach_held_back_routes_are_refused() {
        let reaching = options("--from 28999 --trips 5 --chains min_rtt");
        let error = run_all(&reaching).unwrap_err().to_string();
        assert!(error.contains("--held-back"), "{error}");
    }
}
