//! The accuracy of the simulator: single flows of its cubic and bbr compared with the kernel's, and
//! downloads through its QUIC tunnels compared with the daemons'.
//!
//! `polyrail-lab trials` plays the trials first. Here they are played in virtual time, and one
//! table has the figures of both.

mod figures;
mod tunnel;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use polyrail_emulator::results::{Goal, Report, median, results_folder};
use polyrail_emulator::trials::{Played, Trial, trials};

use crate::congestion::Algorithm;
use crate::sim::metrics::quantile;
use crate::sim::runs::parallel;
use crate::world::transport::play;
use figures::{Figures, lateness};

/// A trial with one congestion control, or through a tunnel: real and simulated.
struct Pair {
    trial: Trial,
    flow: Flow,
    real: Vec<Played>,
    simulated: Vec<Played>,
}

/// The kind of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flow {
    /// The kernel's TCP with this control.
    Kernel(&'static str, Algorithm),
    /// The daemons' QUIC tunnel.
    Tunnel,
}

/// All flows, in the order of the tables.
const FLOWS: [Flow; 3] =
    [Flow::Kernel("cubic", Algorithm::Cubic), Flow::Kernel("bbr", Algorithm::Bbr), Flow::Tunnel];

/// Compares with the trials of the kernel and of the daemons in the folder `sim` of the results,
/// and writes the figures and the table there.
///
/// # Errors
/// Trials are missing or of other links, or a file cannot be written.
pub fn validate() -> Result<()> {
    let folder = results_folder()?.join("sim");
    let real = [read(&folder.join("kernel.json"))?, read(&folder.join("tunnel.json"))?].concat();
    let mut pairs = Vec::new();
    for trial in trials()? {
        for flow in FLOWS {
            pairs.push(Pair::new(&trial, flow, &real)?);
        }
    }
    simulate(&mut pairs)?;
    let rows: Vec<[Figures; 2]> = pairs.iter().map(Pair::figures).collect();
    let table = table(&pairs, &rows);
    println!("{table}");
    std::fs::write(folder.join("validation.md"), &table)?;
    let mut report = Report::default();
    report_figures(&mut report, &pairs, &rows);
    report.write(&folder.join("validation.json"))
}

/// Reads the trials that a program has played.
fn read(results: &Path) -> Result<Vec<Played>> {
    let text = std::fs::read(results).with_context(|| {
        format!("{}: run `polyrail-lab trials` first (as root)", results.display())
    })?;
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
    /// A pair that is not simulated yet.
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

    /// The real figures, then the simulated ones: medians over the runs.
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

/// All figures in Markdown: real / simulated.
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
            // Retransmissions of a tunnel are not counted.
            if pair.flow.is_kernel() { both(real.resent, simulated.resent, 0) } else { "".into() },
        );
    }
    text
}

fn report_figures(report: &mut Report, pairs: &[Pair], rows: &[[Figures; 2]]) {
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
        let late = quantile(&real.flat_map(|run| lateness(&run.samples)).collect::<Vec<_>>(), 0.99);
        report.result(&format!("{prefix}_late_p99"), late, "ms", Goal::None, &[]);
        report.result(&format!("{prefix}_goodput_median_error"), median(&own), "ratio", most, &own);
        let within = own.iter().filter(|error| **error <= ERROR_MOST).count() as f64;
        let share = within / own.len().max(1) as f64;
        report.result(&format!("{prefix}_within_15_percent"), share, "ratio", Goal::None, &[]);
    }
}

/// Runs of each trial in the simulator.
const SEEDS: usize = 9;
/// The largest median error of goodput with which tables of the simulator count.
const ERROR_MOST: f64 = 0.15;
