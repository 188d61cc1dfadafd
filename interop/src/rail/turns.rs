//! Contenders that play a trip at once, in a child process.
//!
//! The kernel frees all sockets, namespaces and threads of a trip when the child ends. A child that
//! takes too long ends itself.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use polyrail_emulator::namespace::die_with_parent;
use polyrail_emulator::rail::{Course, Route, Trip, Workload};
use polyrail_emulator::record::{Machine, Run, VERSION};
use serde::{Deserialize, Serialize};

use super::contender::{Contender, Linked};
use super::load::{Load, Outcome};
use super::machine::{self, Watch};
use super::sample::Sampler;
use super::stage::Stage;
use crate::linkdb;
use crate::programs::Programs;

/// Contenders on one trip.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) course: Course,
    pub(super) workload: Workload,
    /// [`build`].
    pub(super) build: String,
    pub(super) turns: Vec<Turn>,
}

/// One contender's turn on a trip.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Turn {
    /// Its name.
    pub(super) contender: String,
    pub(super) repeat: u32,
}

/// A trip with the data that its contenders share.
struct Stretch {
    course: Course,
    workload: Workload,
    build: String,
    route: Route,
    trip: Trip,
    /// The records of earlier trips, for LinkDB.
    history: String,
}

impl Group {
    /// Plays the turns in a child process.
    pub(super) fn play(&self) -> Result<Vec<Run>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("rail-group").arg(serde_json::to_string(self)?);
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        die_with_parent(&mut command);
        let output = command.output().context("a child process for a trip")?;
        let seed = self.course.seed;
        ensure!(output.status.success(), "the trip of seed {seed} failed: {}", output.status);
        let text = String::from_utf8(output.stdout)?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

/// Plays the group that a JSON text describes, and prints a line for each run.
///
/// # Errors
/// A contender cannot run, or a byte arrived wrong.
pub fn play_group(text: &str) -> Result<()> {
    let group: Group = serde_json::from_str(text)?;
    let limit = group.course.length() + LONGER;
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("polyrail-lab: the trip did not end within {limit:?}");
        std::process::exit(1);
    });
    let Group { course, workload, build, turns } = group;
    let route = course.route()?;
    let trip = course.trip(&route)?;
    let history = linkdb::history(&route, &course.earlier(&route, LEARNED)?);
    let begin = Instant::now() + course.begin(workload);
    let stretch = Stretch { course, workload, build, route, trip, history };
    let watch = Watch::start(begin);
    let outcomes = std::thread::scope(|scope| {
        let play = |(place, turn)| {
            let stretch = &stretch;
            scope.spawn(move || {
                std::thread::sleep(APART * place);
                play_turn(stretch, turn)
            })
        };
        let turns: Vec<_> = (0..).zip(&turns).map(play).collect();
        turns.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let machine = watch.finish()?;
    for outcome in outcomes {
        let outcome = outcome.map_err(|_| anyhow!("a contender's thread panicked"))??;
        let Some(mut run) = outcome else { continue };
        let Machine { emulator_p99_ms, emulator_p999_ms, .. } = run.machine;
        run.machine = Machine { emulator_p99_ms, emulator_p999_ms, ..machine };
        run.starved = machine::starved(&run.machine);
        println!("{}", serde_json::to_string(&run)?);
    }
    Ok(())
}

/// Plays one turn on the calling thread, which moves to other namespaces. `None` if the contender
/// does not start in time, as when a carrier is dark at the beginning of the trip.
fn play_turn(stretch: &Stretch, turn: &Turn) -> Result<Option<Run>> {
    let Stretch { course, workload, build, route, trip, history } = stretch;
    let contender: Contender = turn.contender.parse()?;
    let stage = match Stage::start(&contender, turn.repeat, route, trip, history) {
        Ok(stage) if stage.epoch()?.elapsed() + EARLY < course.begin(*workload) => stage,
        Ok(_) => {
            eprintln!("{contender} started too late on the trip of seed {}", course.seed);
            return Ok(None);
        }
        Err(error) => {
            eprintln!("{contender} did not start on the trip of seed {}: {error:#}", course.seed);
            return Ok(None);
        }
    };
    let outcome = (|| {
        let load = Load::start(&stage, course, *workload)?;
        let mut sampler = Sampler::new(&stage)?;
        let begin = stage.epoch()? + course.begin(*workload);
        let forecasts = matches!(contender, Contender::Polyrail { linkdb: Linked::Forecasts, .. });
        let machine = sampler.watch(&load, begin, forecasts)?;
        sampler.add_events(&stage.events()?)?;
        let Outcome { transfers, messages, call } = load.finish()?;
        Ok(Some(Run {
            version: VERSION,
            course: *course,
            workload: *workload,
            contender: turn.contender.clone(),
            repeat: turn.repeat,
            transfers,
            messages,
            call,
            copies: stage.copies()?,
            carriers: sampler.carriers,
            events: sampler.events,
            machine,
            starved: None,
            build: build.clone(),
        }))
    })();
    outcome.map_err(|error: anyhow::Error| {
        eprintln!("{}", stage.tails());
        error.context(format!("{contender} on the trip of seed {}", course.seed))
    })
}

/// A digest of the daemons' programs.
pub(super) fn build() -> Result<String> {
    let programs = Programs::find()?;
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    for name in ["polyrail-gateway", "polyrail-cloud"] {
        digest.update(&std::fs::read(programs.path(name))?);
    }
    let digest = digest.finish();
    Ok(digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// Contenders begin so far apart: the same download of all would need the processors at the same
/// moment.
const APART: Duration = Duration::from_millis(1_500);
/// A contender must be up this long before the load begins.
const EARLY: Duration = Duration::from_millis(200);
/// The earlier trips in LinkDB.
const LEARNED: u64 = 24;
/// How much longer than its trip a group may take.
const LONGER: Duration = Duration::from_secs(60);
