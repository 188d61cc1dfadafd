//! The rail bench: real daemons and real rivals on the same generated trips.
//!
//! Several contenders play each trip ([`Course`]) in real time and at once, each in its own
//! namespaces over its own emulator. Every run becomes a line of JSON ([`Run`]). The report is made
//! of these lines, so `--resume` adds to them.

mod contender;
mod diagnosis;
mod document;
mod figures;
mod load;
mod machine;
mod paired;
mod sample;
mod stage;
mod statistics;
mod timeline;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::rail::{Course, Route, Trip, Workload};
use polyrail_emulator::record::{Machine, Run, VERSION};

use self::contender::Contender;
use self::load::Load;
use self::machine::Watch;
use self::sample::Sampler;
use self::stage::Stage;
use self::statistics::Summary;
use crate::report::{Report, results_folder};
use crate::{linkdb, privilege};

/// The trips to play, and the contenders.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The contenders, separated by commas; ratios are to the first
    #[arg(long, value_delimiter = ',', default_value = "quic,tls,mptcp-bbr,ideal")]
    contenders: Vec<String>,
    /// The load
    #[arg(long, value_enum, default_value = "downloads")]
    workload: Workload,
    /// The speed of the train in km/h: 300 or 350
    #[arg(long, default_value_t = 300)]
    speed: u32,
    /// The percentage of handovers that fail at 300 km/h
    #[arg(long, default_value_t = 6.0)]
    failures: f64,
    /// The minimum number of trips
    #[arg(long, default_value_t = 10)]
    trips: u64,
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

/// One contender's turn on a trip.
#[derive(Clone, Debug)]
struct Turn {
    contender: Contender,
    repeat: u32,
}

/// A trip with all that contenders share.
struct Stretch {
    course: Course,
    route: Route,
    trip: Trip,
    /// The records of earlier trips, for LinkDB.
    history: String,
}

/// Plays the trips and writes the report.
///
/// # Errors
/// A contender does not exist or cannot run, or a byte arrived wrong.
pub fn run(options: &Options) -> Result<()> {
    let options = if options.smoke { &options.small() } else { options };
    let contenders: Vec<Contender> =
        options.contenders.iter().map(|name| name.parse()).collect::<Result<_>>()?;
    ensure!(!contenders.is_empty() && options.trips > 0 && options.repeats > 0, "nothing to play");
    privilege::become_root()?;
    let folder = results_folder()?.join("rail");
    std::fs::create_dir_all(&folder)?;
    let bench = Bench { options, contenders, file: folder.join(options.name() + ".jsonl") };
    let mut runs = if options.resume { bench.stored()? } else { Vec::new() };
    bench.store(&runs)?;
    let started = Instant::now();
    let mut number = 0;
    let mut played = 0_u32;
    while bench.wants(number, &runs)? {
        let stretch = Stretch::new(options.course(number))?;
        for group in bench.groups(number, &stretch.course, &runs) {
            let took = Instant::now();
            let new = bench.play(&stretch, &group)?;
            bench.append(&new)?;
            runs.extend(new);
            played += 1;
            let each = started.elapsed() / played;
            let left = bench.groups_left(number, &runs, group.len());
            println!(
                "trip {} (seed {}), {} contenders: {:.0} s; about {:.0} min left",
                number + 1,
                stretch.course.seed,
                group.len(),
                took.elapsed().as_secs_f64(),
                each.as_secs_f64() * left / 60.0
            );
        }
        number += 1;
    }
    bench.report(&runs)
}

struct Bench<'a> {
    options: &'a Options,
    contenders: Vec<Contender>,
    /// The runs, one per line.
    file: PathBuf,
}

impl Bench<'_> {
    /// Whether trip `number` is to be played.
    fn wants(&self, number: u64, runs: &[Run]) -> Result<bool> {
        let Options { trips, most, until, .. } = self.options;
        let Some(until) = until.filter(|_| number >= *trips) else { return Ok(number < *trips) };
        if number >= *most {
            return Ok(false);
        }
        let half = Summary::of(runs)?.half_width();
        println!("half-width {:.3} after {number} trips", half.unwrap_or(f64::NAN));
        Ok(half.is_none_or(|half| half > until))
    }

    /// The turns that a trip still needs, at most [`TOGETHER`] at once. The order rotates from trip
    /// to trip.
    fn groups(&self, number: u64, course: &Course, runs: &[Run]) -> Vec<Vec<Turn>> {
        let mut turns: Vec<Turn> = (0..self.options.repeats)
            .flat_map(|repeat| {
                let turn =
                    move |contender: &Contender| Turn { contender: contender.clone(), repeat };
                self.contenders.iter().map(turn).collect::<Vec<_>>()
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
            && run.contender == turn.contender.to_string()
            && run.repeat == turn.repeat
            && run.starved.is_none()
    }

    /// How many groups of turns remain after trip `number`, if the minimum of trips is enough.
    fn groups_left(&self, number: u64, runs: &[Run], together: usize) -> f64 {
        let missing = |number: u64| -> usize {
            let course = self.options.course(number);
            self.groups(number, &course, runs).iter().map(Vec::len).sum()
        };
        let turns: usize = (number..self.options.trips).map(missing).sum();
        turns as f64 / together as f64
    }

    /// Plays turns at once.
    fn play(&self, stretch: &Stretch, turns: &[Turn]) -> Result<Vec<Run>> {
        let watch = Watch::start();
        let outcomes = std::thread::scope(|scope| {
            let turns: Vec<_> =
                turns.iter().map(|turn| scope.spawn(|| self.turn(stretch, turn))).collect();
            turns.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        let machine = watch.finish()?;
        let mut runs = Vec::new();
        for outcome in outcomes {
            let mut run = outcome.map_err(|_| anyhow!("a contender's thread panicked"))??;
            let Machine { emulator_p99_ms, emulator_p999_ms, .. } = run.machine;
            run.machine = Machine { emulator_p99_ms, emulator_p999_ms, ..machine };
            run.starved = machine::starved(&run.machine);
            if let Some(reason) = &run.starved {
                println!("{} does not count: {reason}", run.contender);
            }
            runs.push(run);
        }
        Ok(runs)
    }

    /// Plays one turn on the calling thread, which moves to other namespaces.
    fn turn(&self, stretch: &Stretch, turn: &Turn) -> Result<Run> {
        let Stretch { course, route, trip, history } = stretch;
        let Turn { contender, repeat } = turn;
        let workload = self.options.workload;
        let stage = Stage::start(contender, route, trip, history)
            .with_context(|| format!("starting {contender}"))?;
        let outcome = (|| {
            let load = Load::start(&stage, course, workload)?;
            let mut sampler = Sampler::new(&stage)?;
            let begin = stage.epoch()? + course.begin(workload);
            let forecasts = matches!(contender, Contender::Polyrail { linkdb: true, .. });
            let machine = sampler.watch(&load, begin, forecasts)?;
            sampler.add_events(&stage.events()?)?;
            let (transfers, messages) = load.finish()?;
            Ok(Run {
                version: VERSION,
                course: *course,
                workload,
                contender: contender.to_string(),
                repeat: *repeat,
                transfers,
                messages,
                carriers: sampler.carriers,
                events: sampler.events,
                machine,
                starved: None,
            })
        })();
        outcome.map_err(|error: anyhow::Error| {
            eprintln!("{}", stage.tails());
            error.context(format!("{contender} on the trip of seed {}", course.seed))
        })
    }

    /// The runs of earlier calls.
    fn stored(&self) -> Result<Vec<Run>> {
        match std::fs::read_to_string(&self.file) {
            Ok(text) => read_runs(&self.file, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| self.file.display().to_string()),
        }
    }

    /// Replaces the file.
    fn store(&self, runs: &[Run]) -> Result<()> {
        std::fs::write(&self.file, lines(runs)?).with_context(|| self.file.display().to_string())
    }

    fn append(&self, runs: &[Run]) -> Result<()> {
        let mut file = File::options().append(true).open(&self.file)?;
        Ok(file.write_all(lines(runs)?.as_bytes())?)
    }

    /// Writes the report, the figures and the timeline of the first trip.
    fn report(&self, runs: &[Run]) -> Result<()> {
        let summary = Summary::of(runs)?;
        let text = summary.markdown();
        println!("{text}");
        let mut report = Report::default();
        summary.report(&mut report, &self.prefix());
        report.write(&self.file.with_extension("json"))?;
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
            failures: self.failures / GENERATED_FAILURES,
            seed: first + number,
            seconds: if self.smoke { SMOKE_SECONDS } else { SECONDS },
        }
    }

    fn small(&self) -> Options {
        Options { trips: 1, repeats: 1, until: None, resume: false, ..self.clone() }
    }

    /// The name of the results' files.
    fn name(&self) -> String {
        let workload = document::name_of(self.workload);
        let held = if self.held_back { "-held-back" } else { "" };
        let smoke = if self.smoke { "-smoke" } else { "" };
        format!("{workload}-{}-{}{held}{smoke}", self.speed, self.failures)
    }
}

impl Stretch {
    fn new(course: Course) -> Result<Stretch> {
        let route = course.route()?;
        let trip = course.trip(&route)?;
        let history = linkdb::history(&route, &course.earlier(&route, LEARNED)?);
        Ok(Stretch { course, route, trip, history })
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
    text.lines().enumerate().map(read).collect()
}

fn lines(runs: &[Run]) -> Result<String> {
    let line = |run: &Run| Ok(serde_json::to_string(run)? + "\n");
    runs.iter().map(line).collect()
}

/// Contenders that play at once.
const TOGETHER: usize = 4;
/// The percentage of failing handovers of the generator at 300 km/h.
const GENERATED_FAILURES: f64 = 6.0;
/// The earlier trips in LinkDB.
const LEARNED: u64 = 24;
/// The length of a trip.
const SECONDS: u64 = 120;
const SMOKE_SECONDS: u64 = 40;
