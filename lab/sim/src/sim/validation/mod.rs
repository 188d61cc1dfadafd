//! How honest the simulator is: single flows of its cubic and bbr beside the kernel's, and
//! downloads through its QUIC tunnels beside the daemons'.
//!
//! `polyrail-lab trials` has played the trials before; here they are
//! played in virtual time, the figures of both stand in one table, and their courses in one
//! picture.

mod course;
mod figures;
mod tunnel;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::results::{Goal, Report, median, results_folder};
use polyrail_emulator::trials::{Played, Trial, trials};

use crate::congestion::Algorithm;
use crate::sim::runs::parallel;
use crate::world::transport::play;
use figures::{Figures, lateness};

/// A trial with one congestion control, or through a tunnel, as it was and as it is simulated.
struct Pair {
    trial: Trial,
    flow: Flow,
    real: Vec<Played>,
    simulated: Vec<Played>,
}

/// Whose flow it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flow {
    /// The kernel's, with this control.
    Kernel(&'static str, Algorithm),
    /// The daemons', through a QUIC tunnel.
    Tunnel,
}

/// All, in the order of the tables.
const FLOWS: [Flow; 3] =
    [Flow::Kernel("cubic", Algorithm::Cubic), Flow::Kernel("bbr", Algorithm::Bbr), Flow::Tunnel];

/// How to validate.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What the kernel did; default: sim/kernel.json among the results
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// What the daemons did; default: sim/tunnel.json among the results
    #[arg(long)]
    tunnel: Option<PathBuf>,
    /// Only trials whose name begins so
    #[arg(long, default_value = "")]
    only: String,
    /// Where table and pictures go; default: sim among the results
    #[arg(long)]
    out: Option<PathBuf>,
}

/// [`run`] with the options of the command line; the figures go to `sim/validation.json`.
///
/// # Errors
/// As those of [`run`].
pub fn validate(options: &Options) -> Result<()> {
    let out = match &options.out {
        Some(out) => out.clone(),
        None => results_folder()?.join("sim"),
    };
    let kernel = options.kernel.clone().unwrap_or_else(|| out.join("kernel.json"));
    let tunnel = options.tunnel.clone().unwrap_or_else(|| out.join("tunnel.json"));
    let mut report = Report::default();
    run(&mut report, [&kernel, &tunnel], &options.only, &out)?;
    report.write(&out.join("validation.json"))
}

/// Compares with what the kernel did and what the daemons did, in the trials whose names begin
/// with `only`; tables and pictures go to the folder `out`.
///
/// # Errors
/// One of both is missing or of other links, or a file cannot be written.
pub fn run(
    report: &mut Report,
    [kernel, tunnel]: [&Path; 2],
    only: &str,
    out: &Path,
) -> Result<()> {
    let real = [read(kernel, "polyrail-lab trials")?, read(tunnel, "polyrail-lab trials")?];
    let real = real.concat();
    let mut pairs = Vec::new();
    for trial in trials()?.into_iter().filter(|trial| trial.name.starts_with(only)) {
        for flow in FLOWS {
            pairs.push(Pair::new(&trial, flow, &real)?);
        }
    }
    ensure!(!pairs.is_empty(), "there is no trial {only:?}");
    simulate(&mut pairs)?;
    std::fs::create_dir_all(out)?;
    let rows: Vec<[Figures; 2]> = pairs.iter().map(Pair::figures).collect();
    let table = table(&pairs, &rows);
    println!("{table}");
    std::fs::write(out.join("validation.md"), &table)?;
    for pair in &pairs {
        course::draw(pair, out)?;
    }
    tell(report, &pairs, &rows);
    Ok(())
}

/// What a program has played and written to a file.
fn read(results: &Path, program: &str) -> Result<Vec<Played>> {
    let text = std::fs::read(results)
        .with_context(|| format!("{}: run `{program}` first (as root)", results.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{}", results.display()))
}

/// Plays every pair in virtual time, on all cores.
fn simulate(pairs: &mut [Pair]) -> Result<()> {
    let late: Vec<Trial> =
        pairs.iter().map(|pair| pair.trial.after_lead()).collect::<Result<_, _>>()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let runs = parallel(pairs.len() * SEEDS, threads, |task| {
        let (pair, late, seed) = (&pairs[task / SEEDS], &late[task / SEEDS], task % SEEDS + 1);
        let seed = seed as u64;
        let samples = match pair.flow {
            Flow::Kernel(_, algorithm) => play(&pair.trial, algorithm, seed),
            Flow::Tunnel => tunnel::play(late, seed),
        };
        let (trial, control) = (pair.trial.name.to_owned(), pair.flow.name().to_owned());
        Played { trial, control, seed, mark: 0, samples }
    });
    for (pair, runs) in pairs.iter_mut().zip(runs.chunks(SEEDS)) {
        pair.simulated = runs.to_vec();
    }
    Ok(())
}

impl Flow {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel(control, _) => control,
            Self::Tunnel => "quic",
        }
    }

    /// The player of the real trial.
    fn who(self) -> &'static str {
        match self {
            Self::Kernel(..) => "kernel",
            Self::Tunnel => "daemons",
        }
    }

    fn is_kernel(self) -> bool {
        self != Self::Tunnel
    }
}

impl Pair {
    /// Not yet simulated.
    fn new(trial: &Trial, flow: Flow, real: &[Played]) -> Result<Self> {
        let (name, control, who) = (trial.name, flow.name(), flow.who());
        let of_it = |played: &&Played| played.trial == name && played.control == control;
        let real: Vec<Played> = real.iter().filter(of_it).cloned().collect();
        ensure!(!real.is_empty(), "the {who} did not play {name} with {control}");
        let mark = if flow.is_kernel() { trial.mark() } else { trial.after_lead()?.mark() };
        ensure!(
            real.iter().all(|played| played.mark == mark),
            "the links of {name} have changed since the {who} played it with {control}"
        );
        Ok(Self { trial: trial.clone(), flow, real, simulated: Vec::new() })
    }

    /// What really was, then the simulator's: medians over the runs.
    fn figures(&self) -> [Figures; 2] {
        [&self.real, &self.simulated].map(|runs| {
            let runs: Vec<Figures> =
                runs.iter().map(|run| Figures::of(&self.trial, &run.samples)).collect();
            Figures::median(&runs)
        })
    }

    fn name(&self) -> String {
        format!("{}_{}", self.trial.name, self.flow.name())
    }
}

/// All figures in Markdown; behind the stroke the simulator's.
fn table(pairs: &[Pair], rows: &[[Figures; 2]]) -> String {
    let mut text = String::from(
        "| trial | control | Mbit/s: real | simulated | ratio | queue ms | first byte s \
         | 80 % s | resent |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for (pair, [real, simulated]) in pairs.iter().zip(rows) {
        let both = |a: f64, b: f64, digits: usize| match a.is_nan() && b.is_nan() {
            true => String::new(),
            false => format!("{a:.digits$} / {b:.digits$}"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {:.2} | {:.3} | {} | {} | {} | {} |",
            pair.trial.name,
            pair.flow.name(),
            real.mbps,
            simulated.mbps,
            simulated.mbps / real.mbps,
            both(real.queue_ms, simulated.queue_ms, 0),
            both(real.first_s, simulated.first_s, 2),
            both(real.again_s, simulated.again_s, 2),
            // Nobody counts those of a tunnel.
            if pair.flow.is_kernel() { both(real.resent, simulated.resent, 0) } else { "".into() },
        );
    }
    text
}

fn tell(report: &mut Report, pairs: &[Pair], rows: &[[Figures; 2]]) {
    let errors: Vec<f64> = rows.iter().map(|[real, s]| (s.mbps / real.mbps - 1.0).abs()).collect();
    for ((pair, [real, simulated]), error) in pairs.iter().zip(rows).zip(&errors) {
        let name = pair.name();
        let rates = [real.mbps, simulated.mbps];
        report.result(&format!("sim_validate_{name}_error"), *error, "ratio", Goal::None, &rates);
        if pair.trial.dark.is_some() {
            let both = |time: fn(&Figures) -> f64| [time(real), time(simulated)];
            for (what, times) in [("first", both(|f| f.first_s)), ("80", both(|f| f.again_s))] {
                let apart = times[1] - times[0];
                let name = format!("sim_validate_recovery_{name}_{what}_apart");
                report.result(&name, apart.abs(), "s", Goal::None, &times);
            }
        }
    }
    let of = |wanted: &dyn Fn(Flow) -> bool| -> Vec<f64> {
        let own = pairs.iter().zip(&errors).filter(|(pair, _)| wanted(pair.flow));
        own.map(|(_, error)| *error).collect()
    };
    let most = Goal::AtMost(ERROR_MOST);
    for flow in FLOWS.into_iter().filter(|flow| flow.is_kernel()) {
        let own = of(&|other| other == flow);
        let name = format!("sim_validate_goodput_median_error_{}", flow.name());
        report.result(&name, median(&own), "ratio", most, &own);
    }
    for (prefix, kernel) in [("sim_validate", true), ("sim_validate_quic", false)] {
        let own = of(&|flow| flow.is_kernel() == kernel);
        let real = pairs.iter().filter(|pair| pair.flow.is_kernel() == kernel);
        let real = real.flat_map(|pair| &pair.real);
        let late = quantile(real.flat_map(|run| lateness(&run.samples)).collect(), 0.99);
        report.result(&format!("{prefix}_late_p99"), late, "ms", Goal::None, &[]);
        report.result(&format!("{prefix}_goodput_median_error"), median(&own), "ratio", most, &own);
        let within = own.iter().filter(|error| **error <= ERROR_MOST).count() as f64;
        let share = within / own.len().max(1) as f64;
        report.result(&format!("{prefix}_within_15_percent"), share, "ratio", Goal::None, &[]);
    }
}

/// The least value that so large a share does not pass.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// How often the simulator plays each trial.
const SEEDS: usize = 9;
/// The goodputs may differ by so much in the median for tables of the simulator to count.
const ERROR_MOST: f64 = 0.15;
