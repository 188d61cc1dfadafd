//! The rail bench: real daemons and real rivals on the same generated trips.
//!
//! Several contenders play each trip ([`Course`]) in real time and at once, each in its own
//! namespaces over its own emulator. Every run becomes a line of JSON ([`Run`]). The report is made
//! of these lines, so `--resume` adds to them.

pub(crate) mod call;
mod contender;
mod document;
mod figures;
pub(crate) mod flow;
mod load;
mod machine;
mod paired;
pub(crate) mod quic;
mod requests;
mod sample;
pub(crate) mod speech;
mod stage;
mod summary;
mod timeline;
mod turns;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::rail::{Course, Workload};
use polyrail_emulator::record::{Run, VERSION};

use self::contender::Contender;
use self::summary::Summary;
use self::turns::{Group, Turn};
use crate::privilege;
use crate::report::{Report, results_folder};

pub use turns::play_group;

/// The trips to play, and the contenders.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The contenders, separated by commas; ratios are to the first
    #[arg(long, value_delimiter = ',', default_value = "quic,tls,mptcp-bbr,ideal")]
    contenders: Vec<String>,
    /// The load
    #[arg(long, value_enum, default_value = "downloads")]
    workload: Workload,
    /// The speed of the train in km/h: 0, 200, 300 or 350
    #[arg(long, default_value_t = 300)]
    speed: u32,
    /// The percentage of handovers that fail at 300 km/h
    #[arg(long, default_value_t = 6.0)]
    failures: f64,
    /// The number of carriers, from 1 to 8
    #[arg(
        long,
        default_value_t = Course::CARRIERS,
        value_parser = clap::value_parser!(u8).range(1..=8)
    )]
    carriers: u8,
    /// The minimum number of trips
    #[arg(long, default_value_t = 10)]
    trips: u64,
    /// Skip this many trips before the first
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..10_000))]
    skip: u64,
    /// How often each contender plays each trip
    #[arg(long, default_value_t = 1)]
    repeats: u32,
    /// Add trips until the 95 % intervals of all ratios have at most this half-width
    #[arg(long)]
    until: Option<f64>,
    /// The maximum number of trips with --until
    #[arg(long, default_value_t = 48)]
    most: u64,
    /// Keep the runs of an earlier call, and play only missing and starved ones
    #[arg(long)]
    resume: bool,
    /// Play trips that nobody tunes on
    #[arg(long)]
    held_back: bool,
    /// Play one short trip, to check that everything measures; its figures mean little
    #[arg(long)]
    smoke: bool,
}

/// Plays the trips and writes the report.
///
/// # Errors
/// A contender does not exist or cannot run, or a byte arrived wrong.
pub fn run(options: &Options) -> Result<()> {
    privilege::become_root()?;
    if options.smoke { smoke(options) } else { play(options).map(drop) }
}

/// Plays one short trip with several workloads at once. Each contender must receive something.
fn smoke(options: &Options) -> Result<()> {
    let played = std::thread::scope(|scope| {
        let start = |(workload, names): (Workload, &[&str])| {
            let contenders = names.iter().map(ToString::to_string).collect();
            let small = Options {
                contenders,
                workload,
                trips: 1,
                skip: 0,
                repeats: 1,
                until: None,
                resume: false,
                ..options.clone()
            };
            scope.spawn(move || play(&small))
        };
        let threads = SMOKE.map(start);
        threads.map(std::thread::ScopedJoinHandle::join)
    });
    for (runs, (workload, names)) in played.into_iter().zip(SMOKE) {
        let runs = runs.map_err(|_| anyhow!("a smoke run panicked"))??;
        for name in names {
            let some = |run: &Run| {
                let packets = run.call.iter().flat_map(|call| call.up.iter().chain(&call.down));
                run.transfers.iter().all(|one| one.received > 0)
                    && run.messages.iter().flatten().count() * 2 >= run.messages.len()
                    && packets.clone().flatten().count() * 2 >= packets.count()
            };
            let received = runs.iter().any(|run| run.contender == *name && some(run));
            ensure!(received, "{workload:?}: {name} received nothing");
        }
    }
    Ok(())
}

/// Plays the trips of one workload, writes the report and returns the runs.
fn play(options: &Options) -> Result<Vec<Run>> {
    for name in &options.contenders {
        name.parse::<Contender>()?;
    }
    ensure!(options.trips > 0 && options.repeats > 0, "there is nothing to play");
    let folder = results_folder()?.join("rail");
    std::fs::create_dir_all(&folder)?;
    let bench = Bench { options, file: folder.join(options.name() + ".jsonl") };
    let build = turns::build()?;
    let mut runs = if options.resume { bench.stored(&build)? } else { Vec::new() };
    if !options.resume && bench.file.exists() {
        std::fs::rename(&bench.file, bench.file.with_extension("jsonl.old"))?;
    }
    bench.store(&runs)?;
    let started = Instant::now();
    let mut number = options.skip;
    let mut played = 0_u32;
    while bench.wants(number, &runs)? {
        let course = options.course(number);
        for group in bench.groups(number, &course, &runs) {
            let took = Instant::now();
            let together = group.len();
            let group =
                Group { course, workload: options.workload, build: build.clone(), turns: group };
            let new = group.play()?;
            for run in &new {
                if let Some(reason) = &run.starved {
                    println!("{} does not count: {reason}", run.contender);
                }
            }
            bench.append(&new)?;
            runs.extend(new);
            played += 1;
            let each = started.elapsed() / played;
            let left = bench.groups_left(number, &runs, together);
            println!(
                "trip {} (seed {}), {} contenders: {:.0} s; about {:.0} min left",
                number + 1,
                course.seed,
                together,
                took.elapsed().as_secs_f64(),
                each.as_secs_f64() * left / 60.0
            );
        }
        number += 1;
    }
    runs.sort_by_key(|run| bench.place(run));
    bench.report(&runs)?;
    Ok(runs)
}

struct Bench<'a> {
    options: &'a Options,
    /// The runs, one per line.
    file: PathBuf,
}

impl Bench<'_> {
    /// Whether trip `number` is to be played.
    fn wants(&self, number: u64, runs: &[Run]) -> Result<bool> {
        let Options { trips, skip, most, until, .. } = self.options;
        let played = number - skip;
        let Some(until) = until.filter(|_| played >= *trips) else { return Ok(played < *trips) };
        if played >= *most {
            return Ok(false);
        }
        let own = |run: &&Run| self.place(run) < self.options.contenders.len();
        let own: Vec<Run> = runs.iter().filter(own).cloned().collect();
        let half = Summary::of(&own)?.half_width();
        println!("half-width {:.3} after {played} trips", half.unwrap_or(f64::NAN));
        Ok(half.is_none_or(|half| half > until))
    }

    /// The turns that a trip still needs, at most [`TOGETHER`] at once. The order rotates from trip
    /// to trip.
    fn groups(&self, number: u64, course: &Course, runs: &[Run]) -> Vec<Vec<Turn>> {
        let mut turns: Vec<Turn> = (0..self.options.repeats)
            .flat_map(|repeat| {
                let turn = move |name: &String| Turn { contender: name.clone(), repeat };
                self.options.contenders.iter().map(turn).collect::<Vec<_>>()
            })
            .collect();
        let length = turns.len();
        turns.rotate_left(number as usize % length);
        turns.retain(|turn| !runs.iter().any(|run| self.is_run_of(turn, course, run)));
        turns.chunks(TOGETHER).map(<[Turn]>::to_vec).collect()
    }

    fn is_run_of(&self, turn: &Turn, course: &Course, run: &Run) -> bool {
        run.course == *course
            && run.workload == self.options.workload
            && run.contender == turn.contender
            && run.repeat == turn.repeat
            && run.starved.is_none()
    }

    /// How many groups of turns remain after trip `number`, if the minimum of trips is enough.
    fn groups_left(&self, number: u64, runs: &[Run], together: usize) -> f64 {
        let missing = |number: u64| -> usize {
            let course = self.options.course(number);
            self.groups(number, &course, runs).iter().map(Vec::len).sum()
        };
        let turns: usize = (number..self.options.skip + self.options.trips).map(missing).sum();
        turns as f64 / together as f64
    }

    /// The runs of earlier calls with the same daemons.
    fn stored(&self, build: &str) -> Result<Vec<Run>> {
        let name = || self.file.display().to_string();
        let text = match std::fs::read_to_string(&self.file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.with_context(name)?,
        };
        let runs = read_runs(&self.file, &text)?;
        let same = runs.iter().all(|run| run.build == build);
        ensure!(same, "{} has runs of other daemons; call without --resume", name());
        Ok(runs)
    }

    /// Replaces the file.
    fn store(&self, runs: &[Run]) -> Result<()> {
        let new = self.file.with_extension("jsonl.new");
        std::fs::write(&new, lines(runs)?).with_context(|| new.display().to_string())?;
        std::fs::rename(&new, &self.file).with_context(|| self.file.display().to_string())
    }

    fn append(&self, runs: &[Run]) -> Result<()> {
        let mut file = File::options().append(true).open(&self.file)?;
        Ok(file.write_all(lines(runs)?.as_bytes())?)
    }

    /// The place of a run's contender among those of this call; others are behind them.
    fn place(&self, run: &Run) -> usize {
        let names = &self.options.contenders;
        names.iter().position(|name| *name == run.contender).unwrap_or(names.len())
    }

    /// Writes the report, the figures and the timeline of the first trip.
    fn report(&self, runs: &[Run]) -> Result<()> {
        let summary = Summary::of(runs)?;
        let text = summary.markdown();
        println!("{text}");
        let mut report = Report::default();
        summary.report(&mut report, &self.prefix());
        let seeds: Vec<u64> = summary.trips.iter().map(|trip| trip.seed).collect();
        let whole = serde_json::json!({
            "workload": self.options.workload,
            "speed_kmh": self.options.speed,
            "failures": self.options.failures,
            "carriers": self.options.carriers,
            "seeds": seeds,
            "starved": summary.starved,
            "figures": report.figures(),
        });
        let json = serde_json::to_string_pretty(&whole)?;
        std::fs::write(self.file.with_extension("json"), json)?;
        std::fs::write(self.file.with_extension("md"), text)?;
        let first = runs.iter().map(|run| run.course).min_by_key(|course| course.seed);
        if let Some(course) = first {
            let own: Vec<&Run> =
                runs.iter().filter(|run| run.course == course && run.repeat == 0).collect();
            let picture = timeline::svg(&course, &own)?;
            std::fs::write(self.file.with_extension("svg"), picture)?;
        }
        println!("written to {} and next to it", self.file.display());
        Ok(())
    }

    /// The prefix of figures.
    fn prefix(&self) -> String {
        format!("rail_{}", self.options.name().replace('-', "_"))
    }
}

impl Options {
    /// The trip with this number.
    fn course(&self, number: u64) -> Course {
        let first = if self.held_back { Course::HELD_BACK } else { 1 };
        Course {
            speed_kmh: self.speed,
            failures: self.failures,
            seed: first + number,
            seconds: if self.smoke { SMOKE_SECONDS } else { SECONDS },
            carriers: self.carriers,
        }
    }

    /// The name of the results' files.
    fn name(&self) -> String {
        let workload = document::name_of(self.workload);
        let held = if self.held_back { "-held-back" } else { "" };
        let smoke = if self.smoke { "-smoke" } else { "" };
        let carriers = match self.carriers {
            Course::CARRIERS => String::new(),
            number => format!("-{number}-carriers"),
        };
        let skip = if self.skip == 0 { String::new() } else { format!("-skip-{}", self.skip) };
        format!("{workload}-{}-{}{carriers}{held}{skip}{smoke}", self.speed, self.failures)
    }
}

/// Runs from lines of JSON.
fn read_runs(path: &Path, text: &str) -> Result<Vec<Run>> {
    let read = |(line, text): (usize, &str)| {
        let place = || format!("{}, line {}", path.display(), line + 1);
        let run: Run = serde_json::from_str(text).with_context(place)?;
        ensure!(run.version == VERSION, "{}: version {}", place(), run.version);
        Ok(run)
    };
    // An interrupted call leaves an incomplete last line.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().enumerate().map(read).collect()
}

fn lines(runs: &[Run]) -> Result<String> {
    let line = |run: &Run| Ok(serde_json::to_string(run)? + "\n");
    runs.iter().map(line).collect()
}

/// Contenders that play at once.
const TOGETHER: usize = 4;
/// The length of a trip.
const SECONDS: u64 = 120;
const SMOKE_SECONDS: u64 = 30;
/// The workloads of a smoke run with their contenders.
const SMOKE: [(Workload, &[&str]); 6] = [
    (Workload::Downloads, &["quic+linkdb", "mptcp-bbr", "ideal"]),
    (Workload::Uploads, &["tls", "round-robin"]),
    (Workload::MessagesBulk, &["auto", "mptcp-cubic", "single-b"]),
    (Workload::CallBulk, &["quic~forecast+linkdb", "single-a"]),
    (Workload::QuicDownloads, &["tls"]),
    (Workload::Requests, &["quic"]),
];
