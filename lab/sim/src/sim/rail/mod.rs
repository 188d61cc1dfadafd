//! The simulator compared with the rail bench: recorded runs are played again in virtual time.
//!
//! `polyrail-lab rail` records contenders in real time. Those with Polyrail's daemons and without
//! LinkDB are simulated on the same trips with the same transfers and messages; others are skipped.

pub(crate) mod play;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::rail::Workload;
use polyrail_emulator::record::{Run, VERSION};
use polyrail_emulator::results::{Goal, Report, median, results_folder};
use serde_json::Value;

use super::metrics::mean;
use super::runs::{caught, parallel};
use super::table::Table;
use super::{Contestant, Engine, Tunnels};
use play::{Played, play};

/// The recorded runs.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Runs of the rail bench, a line of JSON each.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Plays the runs, prints a table, and writes the figures to `sim-rail.json`.
///
/// # Errors
/// A file is invalid, no run can be played, results cannot be written, or the simulated world
/// found a breach.
pub fn command(options: &Options) -> Result<()> {
    let mut runs = Vec::new();
    for path in &options.files {
        let file = File::open(path).with_context(|| format!("{}", path.display()))?;
        runs.append(&mut read(path, BufReader::new(file))?);
    }
    let all = runs.len();
    runs.retain(|run| run.starved.is_none());
    println!("{all} runs, {} of them starved", all - runs.len());
    let (mut tasks, mut skipped) = (Vec::new(), BTreeMap::new());
    for run in &runs {
        match contestant(&run.contender) {
            Some(contestant) => tasks.push((run, contestant)),
            None => *skipped.entry(run.contender.as_str()).or_insert(0) += 1,
        }
    }
    for (contender, count) in skipped {
        println!("skipped {contender}: {count} runs; the simulator cannot play it");
    }
    ensure!(!tasks.is_empty(), "the simulator can play none of these runs");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes = parallel(tasks.len(), threads, |task| {
        let (run, contestant) = &tasks[task];
        caught(|| play(&run.course, run.workload, run.repeat, contestant))
    });
    let (mut pairs, mut broken) = (Pairs::new(), Vec::new());
    for ((run, _), outcome) in tasks.iter().zip(outcomes) {
        match outcome {
            Ok(played) => compare(run, &played?, &mut pairs),
            Err(breach) => broken.push(format!("{} {:?}: {breach}", run.contender, run.course)),
        }
    }
    let report = report(&pairs);
    report.write(&results_folder()?.join("sim-rail.json"))?;
    ensure!(broken.is_empty(), "{} runs broke:\n{}", broken.len(), broken.join("\n"));
    Ok(())
}

/// Reads the lines of a file, without the samples of carriers.
fn read(path: &Path, file: impl BufRead) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for (index, line) in file.lines().enumerate() {
        let place = || format!("{}:{}", path.display(), index + 1);
        let value: Value = serde_json::from_str(&line?).with_context(place)?;
        let version = &value["version"];
        if version.as_u64() != Some(u64::from(VERSION)) {
            bail!("{}: version {version} of a run; this program reads {VERSION}", place());
        }
        let mut run: Run = serde_json::from_value(value).with_context(place)?;
        ensure!(!run.workload.has_udp(), "{}: the simulator has no users' UDP", place());
        let (plan, messages) =
            (run.course.transfers(run.workload), run.course.messages(run.workload));
        let mut both = plan.iter().zip(&run.transfers);
        let same = plan.len() == run.transfers.len()
            && messages.len() == run.messages.len()
            && both.all(|(plan, run)| (plan.bytes, plan.up) == (run.bytes, run.up));
        ensure!(same, "{}: the plan of this course has changed since the run", place());
        (run.carriers, run.events) = (Vec::new(), Vec::new());
        runs.push(run);
    }
    Ok(runs)
}

/// The simulated counterpart of a contender: `quic`, `tls` or `auto`, then maybe `/` and a chain.
fn contestant(name: &str) -> Option<Contestant> {
    let (mode, chain) = name.split_once('/').unwrap_or((name, "polyrail"));
    let tunnels = match mode {
        "quic" | "auto" => Tunnels::QUIC,
        "tls" => Tunnels::TLS,
        _ => return None,
    };
    let known = Contestant::parse(chain, Engine::Full).ok();
    let plain = known.filter(|it| !chain.contains('@') && it.oracle.is_none());
    plain.map(|it| Contestant { name: name.to_owned(), tunnels, ..it })
}

/// The values of a contender for one kind of load: real, then simulated.
type Pairs<'a> = BTreeMap<(&'a str, Kind), Vec<[f64; 2]>>;

/// A size of transfers, or messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    up: bool,
    /// A download runs next to messages.
    mixed: bool,
    /// 0 for messages.
    bytes: u64,
}

impl Kind {
    fn name(self) -> String {
        let name = match self.bytes {
            0 => "messages".to_owned(),
            u64::MAX => "bulk".to_owned(),
            bytes if bytes >= 1_000_000 => format!("{}mb", bytes / 1_000_000),
            bytes => format!("{}kb", bytes / 1_000),
        };
        let (up, mixed) =
            (if self.up { "up_" } else { "" }, if self.mixed { "_mixed" } else { "" });
        format!("{up}{name}{mixed}")
    }

    fn is_download(self) -> bool {
        !self.up && self.bytes > 0
    }
}

/// Adds goodput of transfers, and round-trip times of messages. A message without an answer counts
/// until the trip's end.
fn compare<'a>(run: &'a Run, played: &Played, pairs: &mut Pairs<'a>) {
    let mixed = run.workload == Workload::MessagesBulk;
    let mut add = |up: bool, bytes: u64, pair: [f64; 2]| {
        pairs.entry((&run.contender, Kind { up, mixed, bytes })).or_default().push(pair);
    };
    for (real, simulated) in run.transfers.iter().zip(&played.transfers) {
        add(real.up, real.bytes, [real.goodput(), simulated.goodput()]);
    }
    let plan = run.course.messages(run.workload);
    for (plan, both) in plan.iter().zip(run.messages.iter().zip(&played.messages)) {
        let left = (run.course.length() - plan.at).as_secs_f64();
        add(false, 0, [both.0.unwrap_or(left), both.1.unwrap_or(left)]);
    }
}

/// The table and the figures.
fn report(pairs: &Pairs<'_>) -> Report {
    let names = pairs.keys().map(|(contender, kind)| format!("{contender} {}", kind.name()));
    let title = "The rail bench, real and simulated (Mbit/s; messages: s)".to_owned();
    let mut table = Table::new(title, names.collect());
    let means = |half: usize| pairs.values().map(move |list| mean_of(list, half));
    table.column("count", pairs.values().map(|list| list.len() as f64));
    table.column("real", means(0));
    table.column("simulated", means(1));
    table.column("median of simulated / real", pairs.values().map(|list| median(&ratios(list))));
    table.column("ratio of means", means(1).zip(means(0)).map(|(own, real)| own / real));
    println!("{}", table.markdown());
    let mut report = Report::default();
    let mut downloads: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for ((contender, kind), list) in pairs {
        let contender = contender.replace(|letter: char| !letter.is_alphanumeric(), "_");
        let both = [mean_of(list, 0), mean_of(list, 1)];
        let name = format!("rail_sim_over_real_{contender}_{}", kind.name());
        report.result(&name, both[1] / both[0], "ratio", Goal::None, &both);
        if kind.is_download() {
            downloads.entry(contender).or_default().extend(ratios(list));
        }
    }
    for (contender, ratios) in downloads {
        let (name, middle) = (format!("rail_sim_median_{contender}"), median(&ratios));
        report.result(&name, middle, "ratio", Goal::None, &ratios);
        let name = format!("rail_sim_off_{contender}");
        report.result(&name, (middle - 1.0).abs(), "ratio", Goal::AtMost(OFF_MOST), &[]);
    }
    report
}

fn mean_of(list: &[[f64; 2]], half: usize) -> f64 {
    mean(&list.iter().map(|pair| pair[half]).collect::<Vec<_>>())
}

/// Simulated over real; a transfer of which neither received a byte has no ratio.
fn ratios(list: &[[f64; 2]]) -> Vec<f64> {
    list.iter().map(|[real, own]| own / real).filter(|ratio| !ratio.is_nan()).collect()
}

/// So far from 1 the median ratio of downloads may be.
const OFF_MOST: f64 = 0.1;

#[cfg(test)]
mod tests {
    use polyrail_emulator::rail::Course;
    use polyrail_emulator::record::Transferred;

    use super::*;

    const COURSE: Course =
        Course { speed_kmh: 300, failures: 6.0, seed: 7, seconds: 40, carriers: 2 };

    fn line(version: u32, workload: Workload) -> String {
        let transferred = |plan: polyrail_emulator::rail::Transfer| Transferred {
            at_s: plan.at.as_secs_f64(),
            bytes: plan.bytes,
            up: plan.up,
            received: 1_000_000,
            took_s: 2.0,
            finished: true,
            progress: vec![1],
        };
        let run = Run {
            version,
            course: COURSE,
            workload,
            contender: "tls/hsrsch".into(),
            repeat: 1,
            transfers: COURSE.transfers(workload).into_iter().map(transferred).collect(),
            messages: COURSE.messages(workload).iter().map(|_| Some(0.1)).collect(),
            ..Run::default()
        };
        serde_json::to_string(&run).unwrap() + "\n"
    }

    #[test]
    fn run_is_read_and_played_with_its_transfers_and_messages() {
        for (workload, name) in [
            (Workload::Downloads, "auto"),
            (Workload::Uploads, "tls/hsrsch"),
            (Workload::MessagesBulk, "tls"),
            (Workload::Train, "quic"),
        ] {
            let runs = read(Path::new("x"), line(VERSION, workload).as_bytes()).unwrap();
            let run = &runs[0];
            let contestant = contestant(name).unwrap();
            let played = play(&run.course, run.workload, run.repeat, &contestant).unwrap();
            let plan = COURSE.transfers(workload);
            assert_eq!(played.transfers.len(), plan.len());
            for (plan, own) in plan.iter().zip(&played.transfers) {
                let most = (plan.until - plan.at).as_secs_f64();
                assert!(own.received > 0 && own.took_s <= most, "{own:?}");
                assert_eq!(own.finished, own.received == plan.bytes, "{own:?}");
                assert_eq!(!own.finished, own.took_s == most, "{own:?}");
            }
            let way = usize::from(workload == Workload::Uploads);
            let offered = [0, 1]
                .map(|way| played.carriers.iter().map(|carrier| carrier.offered[way]).sum::<u64>());
            assert!(offered[way] > offered[1 - way], "{workload:?}: {offered:?}");
            let last = played.carriers.iter().filter_map(|carrier| carrier.samples.last());
            let delivered: u64 = last.map(|last| [last.down, last.up][way]).sum();
            assert!(offered[way] * 99 > delivered * 100, "{workload:?}: dropped packets count");
            let finished = played.transfers.iter().filter(|own| own.finished).count();
            assert_eq!(finished > 0, workload != Workload::MessagesBulk);
            assert_eq!(played.messages.len(), runs[0].messages.len());
            assert!(played.messages.iter().all(|round| round.is_none_or(|it| it > 0.05)));
            let mut pairs = Pairs::new();
            compare(&runs[0], &played, &mut pairs);
            let report = report(&pairs);
            assert_eq!(
                report.value("rail_sim_off_tls_hsrsch").is_some(),
                workload != Workload::Uploads
            );
        }
    }

    #[test]
    fn other_version_is_refused_with_its_line() {
        let text = line(VERSION, Workload::Bulk) + &line(VERSION + 1, Workload::Bulk);
        let error = read(Path::new("runs.jsonl"), text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("runs.jsonl:2: version 2 of a run"), "{error}");
    }

    #[test]
    fn only_contenders_without_linkdb_are_played() {
        for name in ["ideal", "quic+linkdb", "quic/hsrsch+linkdb", "tls/none", "auto/min_rtt@a"] {
            assert!(contestant(name).is_none(), "{name}");
        }
        assert_eq!(contestant("tls/hsrsch").unwrap().tunnels, Tunnels::TLS);
    }
}
