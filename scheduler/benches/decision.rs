//! What a decision costs: its time (criterion), its instructions (valgrind, where it is
//! installed), and whose turn it is among few and many users. Prints `RESULT` lines and writes
//! `results/scheduler.json` in the target folder.
//!
//! The time is that of the processor in this thread: what else runs beside it takes none of it,
//! though it may take caches.
//!
//! `--count NAME PATHS SCENE TIMES` makes so many decisions and ends: what valgrind looks at.

#![allow(clippy::unwrap_used)] // a benchmark
#![allow(clippy::disallowed_methods)] // the clock of the queue begins somewhere

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use criterion::Criterion;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use nix::time::{ClockId, clock_gettime};
use polyrail_model::{FlowId, UserId};
use polyrail_scheduler::{ChainSpec, FairQueue, SEGMENT, Turn};
use serde_json::{Value, json};

mod scene;

use scene::{SCENES, Scene, Work};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--count") {
        return count(&arguments[1..]);
    }
    let target = target_folder();
    let folder = target.join("criterion");
    let mut criterion = Criterion::default()
        .with_measurement(ThreadTime)
        .output_directory(&folder)
        .without_plots()
        .configure_from_args();
    for chain in CHAINS {
        for paths in PATHS {
            for (name, scene) in SCENES {
                let mut work = work(chain, paths, scene);
                criterion.bench_function(&id(chain, paths, name), |bencher| {
                    bencher.iter(|| {
                        let decision = work.decide(None);
                        work.note(decision);
                        decision
                    });
                });
            }
        }
    }
    for (users, flows) in CROWDS {
        let mut queue = crowd(users, flows);
        let mut now = Instant::now();
        criterion.bench_function(&format!("turn_{users}_users"), |bencher| {
            bencher.iter(|| {
                now += Duration::from_micros(100);
                turn(&mut queue, now)
            });
        });
        let mut queue = crowd(users, flows);
        let mut work = Work::new(build("polyrail"), 2, Scene::Calm, flows);
        let mut now = Instant::now();
        criterion.bench_function(&format!("turn_and_decision_{users}_users"), |bencher| {
            bencher.iter(|| {
                now += Duration::from_micros(100);
                let turn = turn(&mut queue, now);
                let decision = work.decide(Some(turn.flow));
                work.note(decision);
                decision
            });
        });
    }
    criterion.final_summary();
    if arguments.iter().any(|argument| argument == "--bench") {
        report(&target, &folder);
    }
}

/// Measures the time that this thread had the processor.
struct ThreadTime;

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
    }

    fn end(&self, started: Duration) -> Duration {
        self.start() - started
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, time: &Duration) -> f64 {
        time.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        static WALL: WallTime = WallTime;
        WALL.formatter()
    }
}

/// Prints the figures with their goals, and writes them down.
fn report(target: &Path, folder: &Path) {
    let mut figures = Vec::new();
    for chain in CHAINS {
        for (paths, goal_ns) in PATHS.into_iter().zip(GOALS_NS) {
            let times = SCENES.iter().filter_map(|(name, _)| ns(folder, &id(chain, paths, name)));
            if let Some(slowest) = times.reduce(f64::max) {
                let name = format!("{chain}_decision_{paths}_paths");
                figures.push(figure(&name, slowest, "ns", Some(goal_ns)));
            }
            if let Some(most) = instructions(chain, paths) {
                let name = format!("{chain}_decision_{paths}_paths_instructions");
                figures.push(figure(&name, most, "instructions", None));
            }
        }
    }
    for kind in ["turn", "turn_and_decision"] {
        let cost = |users: u64| ns(folder, &format!("{kind}_{users}_users"));
        let costs = CROWDS.map(|(users, _)| Some((users, cost(users)?)));
        for (users, cost) in costs.into_iter().flatten() {
            figures.push(figure(&format!("{kind}_{users}_users"), cost, "ns", None));
        }
        if let [Some((_, few)), Some((_, many))] = costs {
            let goal = (kind == "turn_and_decision").then_some(RATIO);
            figures.push(figure(&format!("{kind}_many_over_few"), many / few, "x", goal));
        }
    }
    let results = target.join("results");
    std::fs::create_dir_all(&results).unwrap();
    let text = serde_json::to_string_pretty(&figures).unwrap();
    std::fs::write(results.join("scheduler.json"), text).unwrap();
}

/// Prints one figure; a value up to the goal meets it.
fn figure(name: &str, value: f64, unit: &str, goal: Option<f64>) -> Value {
    let met = goal.is_none_or(|goal| value <= goal);
    let word = if met { "ok" } else { "short" };
    let goal = goal.map_or(">= 0".to_owned(), |goal| format!("<= {goal}"));
    let digits = if value < 10.0 { 2 } else { 0 };
    println!("RESULT {name} {value:.digits$} {unit} goal {goal} {word}");
    json!({ "name": name, "value": value, "unit": unit, "goal": goal, "met": met })
}

/// The median that criterion has found, if it has.
fn ns(folder: &Path, id: &str) -> Option<f64> {
    let text = std::fs::read_to_string(folder.join(id).join("new/estimates.json")).ok()?;
    serde_json::from_str::<Value>(&text).ok()?["median"]["point_estimate"].as_f64()
}

/// Instructions of one decision in the scene that takes most, as valgrind counts them.
fn instructions(chain: &str, paths: u64) -> Option<f64> {
    let run = |scene: &str, times: u64| {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args(["--count", chain, &paths.to_string(), scene, &times.to_string()])
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let (_, count) = text.split_once("Collected : ")?;
        count.split_whitespace().next()?.parse::<f64>().ok()
    };
    let each = SCENES
        .iter()
        .map(|(scene, _)| Some((run(scene, WARM + COUNTED)? - run(scene, WARM)?) / COUNTED as f64));
    let found = each.collect::<Option<Vec<_>>>();
    if found.is_none() {
        println!("instructions are not counted: valgrind is not installed, or fails");
    }
    found?.into_iter().reduce(f64::max)
}

/// Makes decisions and nothing else.
fn count(arguments: &[String]) {
    let [chain, paths, scene, times] = arguments else { panic!("NAME PATHS SCENE TIMES") };
    let (_, scene) = SCENES.into_iter().find(|(name, _)| name == scene).unwrap();
    let mut work = work(chain, paths.parse().unwrap(), scene);
    for _ in 0..times.parse::<u64>().unwrap() {
        let decision = black_box(work.decide(None));
        work.note(decision);
    }
}

fn work(chain: &str, paths: u64, scene: Scene) -> Work {
    Work::new(build(chain), paths, scene, FLOWS)
}

fn build(chain: &str) -> polyrail_scheduler::Chain {
    ChainSpec::named(chain).unwrap().build()
}

fn id(chain: &str, paths: u64, scene: &str) -> String {
    format!("{chain}_{paths}_paths_{scene}")
}

/// A queue in which all of these flows wait.
fn crowd(users: u64, flows: u64) -> FairQueue {
    let mut queue = FairQueue::new(Instant::now());
    for flow in 0..flows {
        let (user, interactive) = (UserId(flow % users), flow % 10 == 0);
        queue.push(Turn { user, flow: FlowId(flow), interactive });
    }
    queue
}

/// The next flow sends a run and waits again.
fn turn(queue: &mut FairQueue, now: Instant) -> Turn {
    let turn = queue.pop().unwrap();
    queue.charge(turn.user, 4 * SEGMENT, now);
    queue.push(turn);
    turn
}

/// The folder that all programs are built into.
fn target_folder() -> PathBuf {
    // target/PROFILE/deps/decision-...
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// The chains that are measured, and how many paths they have.
const CHAINS: [&str; 2] = ["polyrail", "hsrsch"];
const PATHS: [u64; 2] = [2, 8];
/// What a decision may cost on so many.
const GOALS_NS: [f64; 2] = [250.0, 1_000.0];
/// Flows that a decision's segments belong to, in turn.
const FLOWS: u64 = 64;
/// Users and flows of a queue.
const CROWDS: [(u64, u64); 2] = [(10, 100), (1_000, 10_000)];
/// How much more a turn with its decision may cost among many than among few: a decision's cost is
/// to be constant. The queue takes the logarithm of the users, 1,000 to 10, and so is over it.
const RATIO: f64 = 1.1;
/// Decisions before those whose instructions are counted, and these.
const WARM: u64 = 2_000;
const COUNTED: u64 = 10_000;
