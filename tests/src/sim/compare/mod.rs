//! Schedulers side by side, over many trips: runs them, and writes tables, plots and RESULT lines.

use std::num::NonZero;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use polyrail_emulator::rail::Trip;
use polyrail_emulator::results::{Goal, Report, results_folder};

use super::figures::Rows;
use super::runs::{Entry, Workload, run};
use super::{Contestant, Engine, goals, plots, report, special, trips};

/// What is compared.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How many trips.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub trips: u64,
    /// The first route seed, of those for tuning.
    #[arg(long, default_value_t = trips::TUNING, conflicts_with = "held_back",
        value_parser = clap::value_parser!(u64).range(..trips::HELD_BACK))]
    pub from: u64,
    /// The trips on which nobody ever tunes.
    #[arg(long)]
    pub held_back: bool,
    /// Who, with semicolons: chains or rules with `/` between them, with `+oracle` or `+noisy`,
    /// `@a`, `@b` or `@aggregated`. Default: everybody at downloads, fewer at the rest.
    #[arg(long, value_delimiter = ';')]
    pub chains: Vec<String>,
    /// With which engines, with commas: paper, full. Default: both.
    #[arg(long, value_delimiter = ',')]
    pub engines: Vec<String>,
    /// What they do, with commas: downloads, messaging, bulk, pages. Default: all.
    #[arg(long, value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// How many users send messages, with commas.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 20, 30])]
    pub users: Vec<usize>,
    /// On so many threads. Default: one a core.
    #[arg(long)]
    pub threads: Option<NonZero<usize>>,
    /// One trip, few contestants: does it still run?
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
    let seeds = trips::seeds(first, options.trips);
    println!("{} trips: {seeds}", options.trips);
    let all = trips::trips(first, options.trips)?;
    let threads = threads(&options);
    let mut report = Report::default();
    if options.chains.is_empty() {
        speed(&all, if options.smoke { 1 } else { SPEED_GOES }, &mut report)?;
    }
    let entries = entries(&options)?;
    let begun = Instant::now();
    let rows = run(&all, &entries, threads.get());
    println!("{} rows in {:.0} s", rows.len(), begun.elapsed().as_secs_f64());
    let rows = Rows(&rows);
    let folder = results_folder()?;
    write(rows, &options, &seeds, &folder.join("sim"))?;
    goals::judge(rows, &options.users, &mut report);
    if options.chains.is_empty() {
        let polyrail = Contestant::parse("polyrail", Engine::Full)?;
        let seeds = if options.smoke { 1 } else { SPECIAL_SEEDS };
        special::judge(&polyrail, seeds, threads.get(), &mut report);
    }
    report.write(&folder.join("sim.json"))?;
    let broken = rows.broken();
    if !broken.is_empty() {
        bail!("{} runs broke:\n{}", broken.len(), broken.join("\n"));
    }
    Ok(())
}

fn threads(options: &Options) -> NonZero<usize> {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    options.threads.unwrap_or_else(cores)
}

fn smoke(options: &Options) -> Options {
    Options { trips: 1, users: vec![10], ..options.clone() }
}

/// Who does what.
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
        entries.push((None, workload));
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

/// Times the two-carrier trip on one core, by what this thread has computed: others use the
/// machine, too. The best of several goes.
fn speed(all: &[Trip], goes: usize, report: &mut Report) -> Result<()> {
    let polyrail = Contestant::parse("polyrail", Engine::Full)?;
    let trip = all.first().context("no trip")?;
    let mut samples = Vec::new();
    for _ in 0..goes {
        let begun = computed()?;
        super::downloads(trip, &polyrail, &super::runs::SIZES);
        samples.push(trip.length.as_secs_f64() / (computed()? - begun));
    }
    let best = samples.iter().copied().fold(0.0, f64::max);
    report.result("sim_speed", best, "times", Goal::AtLeast(200.0), &samples);
    Ok(())
}

/// For how many seconds this thread has had a core (proc(5), `schedstat`).
fn computed() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split(' ').next().context("an empty schedstat")?;
    Ok(nanoseconds.parse::<f64>()? / 1e9)
}

fn write(rows: Rows<'_>, options: &Options, seeds: &str, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    let tables = report::tables(rows, &options.users);
    let mut text = format!("# Schedulers on the simulated rail\n\nSeeds: {seeds}.\n\n");
    let mut lines = String::from("table,row,column,value\n");
    for table in &tables {
        text.push_str(&table.markdown());
        lines.push_str(&table.csv());
    }
    println!("{text}");
    std::fs::write(folder.join("tables.md"), &text)?;
    std::fs::write(folder.join("tables.csv"), lines)?;
    plots::draw(rows, &options.users, folder)?;
    println!("tables and plots are in {}", folder.display());
    Ok(())
}

/// Who takes part in everything.
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
/// Who takes part when it is only to be seen whether it runs.
const SMOKE: [&str; 5] =
    ["polyrail", "min_rtt", "flow_round_robin", "min_rtt@a", "min_rtt@aggregated"];
const SPECIAL_SEEDS: u64 = 4;
const SPEED_GOES: usize = 3;
