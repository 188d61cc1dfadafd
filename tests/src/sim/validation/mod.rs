//! How honest the simulator is: single flows of its cubic and bbr beside the kernel's.
//!
//! `polyrail-kernel-tcp` has played the trials before; here they are played in virtual time, the
//! figures of both stand in one table, and their courses in one picture.

mod course;
mod figures;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::results::{Goal, Report, median, results_folder};
use polyrail_emulator::trials::{Played, Trial, trials};

use crate::congestion::Algorithm;
use crate::world::transport::play;
use figures::Figures;

/// A trial with one congestion control, from both halves.
struct Pair {
    trial: Trial,
    control: &'static str,
    kernel: Vec<Played>,
    simulated: Vec<Played>,
}

/// How to validate.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What the kernel did; default: sim/kernel.json among the results
    #[arg(long)]
    kernel: Option<PathBuf>,
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
    let mut report = Report::default();
    run(&mut report, &kernel, &out)?;
    report.write(&out.join("validation.json"))
}

/// Compares with what the kernel did; tables and pictures go to the folder `out`.
///
/// # Errors
/// The kernel's half is missing or of other links, or a file cannot be written.
pub fn run(report: &mut Report, kernel_results: &Path, out: &Path) -> Result<()> {
    let text = std::fs::read(kernel_results).with_context(|| {
        format!("{}: run `polyrail-kernel-tcp` first (as root)", kernel_results.display())
    })?;
    let kernel: Vec<Played> = serde_json::from_slice(&text)?;
    let mut pairs = Vec::new();
    for trial in trials()? {
        for (control, algorithm) in [("cubic", Algorithm::Cubic), ("bbr", Algorithm::Bbr)] {
            pairs.push(Pair::new(&trial, control, algorithm, &kernel)?);
        }
    }
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

impl Pair {
    fn new(
        trial: &Trial,
        control: &'static str,
        algorithm: Algorithm,
        kernel: &[Played],
    ) -> Result<Self> {
        let of_it = |played: &&Played| played.trial == trial.name && played.control == control;
        let kernel: Vec<Played> = kernel.iter().filter(of_it).cloned().collect();
        ensure!(!kernel.is_empty(), "the kernel has not played {} with {control}", trial.name);
        let mark = trial.mark();
        ensure!(
            kernel.iter().all(|played| played.mark == mark),
            "the links of {} have changed since the kernel played it",
            trial.name
        );
        let simulated = (1..=SEEDS).map(|seed| Played {
            trial: trial.name.to_owned(),
            control: control.to_owned(),
            seed,
            mark,
            samples: play(trial, algorithm, seed),
        });
        Ok(Self { trial: trial.clone(), control, simulated: simulated.collect(), kernel })
    }

    /// The kernel's, then the simulator's: medians over the runs.
    fn figures(&self) -> [Figures; 2] {
        [&self.kernel, &self.simulated].map(|runs| {
            let runs: Vec<Figures> =
                runs.iter().map(|run| Figures::of(&self.trial, &run.samples)).collect();
            Figures::median(&runs)
        })
    }

    fn name(&self) -> String {
        format!("{}_{}", self.trial.name, self.control)
    }
}

/// All figures in Markdown; behind the stroke the simulator's.
fn table(pairs: &[Pair], rows: &[[Figures; 2]]) -> String {
    let mut text = String::from(
        "| trial | control | Mbit/s: kernel | simulated | ratio | queue ms | first byte s \
         | 80 % s | resent |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for (pair, [kernel, simulated]) in pairs.iter().zip(rows) {
        let both = |a: f64, b: f64, digits: usize| match a.is_nan() && b.is_nan() {
            true => String::new(),
            false => format!("{a:.digits$} / {b:.digits$}"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {:.2} | {:.3} | {} | {} | {} | {} |",
            pair.trial.name,
            pair.control,
            kernel.mbps,
            simulated.mbps,
            simulated.mbps / kernel.mbps,
            both(kernel.queue_ms, simulated.queue_ms, 0),
            both(kernel.first_s, simulated.first_s, 2),
            both(kernel.again_s, simulated.again_s, 2),
            both(kernel.resent, simulated.resent, 0),
        );
    }
    text
}

fn tell(report: &mut Report, pairs: &[Pair], rows: &[[Figures; 2]]) {
    let errors: Vec<f64> = rows.iter().map(|[k, s]| (s.mbps / k.mbps - 1.0).abs()).collect();
    for ((pair, [kernel, simulated]), error) in pairs.iter().zip(rows).zip(&errors) {
        let name = pair.name();
        let rates = [kernel.mbps, simulated.mbps];
        report.result(&format!("sim_validate_{name}_error"), *error, "ratio", Goal::None, &rates);
        if pair.trial.dark.is_some() {
            let both = |time: fn(&Figures) -> f64| [time(kernel), time(simulated)];
            for (what, times) in [("first", both(|f| f.first_s)), ("80", both(|f| f.again_s))] {
                let apart = times[1] - times[0];
                let name = format!("sim_validate_recovery_{name}_{what}_apart");
                report.result(&name, apart.abs(), "s", Goal::None, &times);
            }
        }
    }
    for (control, share) in [("cubic", 0), ("bbr", 1)] {
        let own: Vec<f64> = errors.iter().skip(share).step_by(2).copied().collect();
        let name = format!("sim_validate_goodput_median_error_{control}");
        report.result(&name, median(&own), "ratio", Goal::AtMost(ERROR_MOST), &own);
    }
    let name = "sim_validate_goodput_median_error";
    report.result(name, median(&errors), "ratio", Goal::AtMost(ERROR_MOST), &errors);
    let within = errors.iter().filter(|error| **error <= ERROR_MOST).count() as f64;
    let share = within / errors.len().max(1) as f64;
    report.result("sim_validate_within_15_percent", share, "ratio", Goal::None, &[]);
}

/// How often the simulator plays each trial.
const SEEDS: u64 = 9;
/// The goodputs may differ by so much in the median for tables of the simulator to count.
const ERROR_MOST: f64 = 0.15;
