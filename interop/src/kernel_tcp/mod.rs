//! The kernel's half of the comparison with the simulator: trials played by real TCP.
//!
//! A few flows at a time, each over a link of its own; all links are of one emulator in real time,
//! which this program starts again as a child of itself. Namespaces are anonymous and children die
//! with their parent, so nothing is left behind however it ends.

mod emulate;
mod flow;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::control::Client;
use polyrail_emulator::namespace::Namespace;
use polyrail_emulator::trials::{FLOW_BEGINS, Played, SAMPLE_EVERY, Sample, Trial, trials};
use serde_json::Value;

pub use emulate::emulate;

use emulate::Emulator;
use flow::Flow;

/// How to play.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How often each trial is played, with another seed each time.
    pub runs: u64,
    /// How many flows at a time.
    pub together: usize,
    /// Only trials whose name begins so.
    pub only: String,
}

/// Plays all trials with cubic and bbr and writes what was seen to a file.
///
/// # Errors
/// Namespaces, emulator or sockets fail, or the file cannot be written.
pub fn play(plan: &Plan, out: &Path) -> Result<()> {
    let mut queue: Vec<(Trial, &str, u64)> = Vec::new();
    for trial in trials()?.into_iter().filter(|trial| trial.name.starts_with(&plan.only)) {
        for run in 1..=plan.runs {
            queue.extend(CONTROLS.map(|control| (trial.clone(), control, run)));
        }
    }
    // Those of one length together: a batch takes as long as its longest.
    queue.sort_by_key(|(trial, ..)| trial.length);
    ensure!(!queue.is_empty(), "there is no trial {:?}", plan.only);
    let batches: Vec<_> = queue.chunks(plan.together.max(1)).collect();
    let mut all = Vec::new();
    for (number, batch) in batches.iter().enumerate() {
        let seconds = batch.iter().map(|(trial, ..)| trial.length).max().unwrap_or_default();
        eprintln!("batch {} of {}, {} s", number + 1, batches.len(), seconds.as_secs());
        all.extend(play_batch(batch)?);
    }
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(out, serde_json::to_vec(&all)?).with_context(|| format!("{}", out.display()))
}

/// Trials at the same time, each with its control and seed.
fn play_batch(batch: &[(Trial, &str, u64)]) -> Result<Vec<Played>> {
    let (near, far) = (Namespace::new()?, Namespace::new()?);
    for side in [&near, &far] {
        // A connection must not begin with what the one before it learned.
        side.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    }
    let names: Vec<String> =
        batch.iter().map(|(trial, _, seed)| format!("{}={seed}", trial.name)).collect();
    let emulator = Emulator::start(&names, &near, &far)?;
    let mut control = Client::connect(emulator.control())?;
    let flows = batch.iter().enumerate().map(|(place, (trial, name, _))| {
        Flow::connect(&near, &far, place, name, emulator.epoch() + FLOW_BEGINS, trial.length)
    });
    let flows = flows.collect::<Result<Vec<Flow>>>()?;
    let longest = batch.iter().map(|(trial, ..)| trial.length).max().unwrap_or_default();
    let mut samples = vec![Vec::new(); batch.len()];
    let mut next = emulator.epoch() + FLOW_BEGINS;
    while next < emulator.epoch() + longest {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let at = Instant::now() - emulator.epoch();
        let queues = queues(&mut control)?;
        for (((trial, ..), flow), (queue, samples)) in
            batch.iter().zip(&flows).zip(queues.iter().zip(&mut samples))
        {
            if at <= trial.length {
                samples.push(Sample { at_s: at.as_secs_f64(), queue: *queue, ..flow.sample()? });
            }
        }
        next += SAMPLE_EVERY;
    }
    let played = batch.iter().zip(samples).map(|((trial, control, seed), samples)| Played {
        trial: trial.name.to_owned(),
        control: (*control).to_owned(),
        seed: *seed,
        mark: trial.mark(),
        samples,
    });
    Ok(played.collect())
}

/// What waits before each downlink, in bytes.
fn queues(control: &mut Client) -> Result<Vec<u64>> {
    let stats = control.command("stats")?;
    let links = stats.get("links").and_then(Value::as_array).context("no links")?;
    let waiting = |link: &Value| link["down"]["queued"]["bytes"].as_u64().context("no queue");
    links.iter().map(waiting).collect()
}

/// By the kernel's names.
const CONTROLS: [&str; 2] = ["cubic", "bbr"];
/// How long the emulator may take to make its devices.
const START_LIMIT: Duration = Duration::from_secs(10);
