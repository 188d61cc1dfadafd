//! A fleet's record traffic through clouds that share a LinkDB in a real PostgreSQL.
//!
//! The clouds' LinkDB threads, files and connections are real; trains are messages to them. The
//! server runs here, in a scratch folder, with Debian's defaults.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::statistics::quantile;
use polyrail_predictor::entry::LogId;
use polyrail_shared::scratch::{Cloud, Postgres, handovers};

use crate::bench::{Benchmark, Effort, measure};
use crate::linkdb::{DAY_MS, EPOCH_MS};
use crate::report::{Goal, Report};

/// Measures, and writes `fleet.json`; needs no root.
///
/// # Errors
/// A benchmark fails, or there is none of the name `only`.
pub fn run(smoke: bool, only: Option<&str>) -> Result<()> {
    measure("fleet", &BENCHMARKS, smoke, only)
}

const BENCHMARKS: [Benchmark; 3] = [("day", day), ("lag", lag), ("outage", outage)];

/// A server and clouds.
struct Fleet {
    postgres: Postgres,
    folder: tempfile::TempDir,
    clouds: Vec<Cloud>,
    trains: u64,
}

impl Fleet {
    fn start(effort: Effort) -> Result<Self> {
        let postgres = Postgres::start(&[])?;
        postgres.prepare(&NAMES)?;
        let folder = tempfile::tempdir()?;
        let trains = effort.pick(300, 12);
        let mut fleet = Self { postgres, folder, clouds: Vec::new(), trains };
        for name in &NAMES[..CLOUDS] {
            fleet.clouds.push(fleet.cloud(name)?);
        }
        Ok(fleet)
    }

    fn cloud(&self, name: &str) -> Result<Cloud> {
        Ok(Cloud::start(self.folder.path(), name, self.postgres.server(name))?)
    }

    /// Each train sends `count` entries, from the number `first` on, to its cloud, `at_once` in a
    /// message.
    fn send(&mut self, first: u64, count: u64, at_once: u64) {
        for from in (first..first + count).step_by(at_once as usize) {
            let more = at_once.min(first + count - from);
            for train in 0..self.trains {
                let at_ms = EPOCH_MS + from * DAY_MS / A_DAY;
                let clouds = self.clouds.len();
                let cloud = &mut self.clouds[train as usize % clouds];
                cloud.send(&log(train), from, handovers(train, from, more, at_ms));
            }
            // A cloud takes a few hundred messages at once.
            let far = |cloud: &Cloud| cloud.state().is_none();
            while self.clouds.iter().any(far) {}
        }
    }

    /// Waits until all clouds have `count` entries and the server has as many.
    fn settle(&self, count: u64) -> Result<()> {
        for cloud in &self.clouds {
            cloud.wait(PATIENCE, |entries, shared| {
                let is_settled = (shared.waiting, shared.behind) == (0, 0);
                entries == count && shared.connected && is_settled
            })?;
        }
        Ok(())
    }

    /// The rows of the server, none of them twice, and their bytes with indexes.
    fn rows(&self) -> Result<(u64, u64)> {
        let sql = "SELECT count(*), count(DISTINCT (log, sequence)), (SELECT
            sum(pg_total_relation_size(inhrelid)) FROM pg_inherits
            WHERE inhparent = 'polyrail.entry'::regclass) FROM polyrail.entry";
        let row = self.postgres.sql(sql)?;
        let columns: Result<Vec<u64>, _> = row.split('|').map(str::parse).collect();
        let columns = columns.with_context(|| row.clone())?;
        let [rows, distinct, bytes] = columns[..] else { anyhow::bail!("{row}") };
        ensure!(rows == distinct, "{} entries are there twice", rows - distinct);
        Ok((rows, bytes))
    }

    /// Stops all clouds, and checks that each has all entries, without a gap.
    fn check(self, each: u64) -> Result<()> {
        let wanted: BTreeMap<LogId, (u64, u64)> =
            (0..self.trains).map(|train| (log(train), (each, each - 1))).collect();
        for cloud in self.clouds {
            // A key is there once, so as many entries as numbers leave no gap.
            let counts = cloud.stop_and_count()?;
            let wrong = wanted.iter().find(|(log, want)| counts.get(log) != Some(want));
            ensure!(wrong.is_none(), "a gap: {:?}", wrong.map(|(log, _)| (log, counts.get(log))));
            ensure!(counts.len() == wanted.len(), "{} logs", counts.len());
        }
        Ok(())
    }
}

/// All trains' entries as fast as the clouds take them, and an empty cloud afterwards.
fn day(report: &mut Report, effort: Effort) -> Result<()> {
    let mut fleet = Fleet::start(effort)?;
    let each = effort.pick(3_400, 100);
    let count = fleet.trains * each;
    let began = Instant::now();
    fleet.send(0, each, 100);
    fleet.settle(count)?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    report.result("fleet.rows", rate, "rows/s", Goal::AtLeast(1_000.0), &[]);
    let (rows, bytes) = fleet.rows()?;
    ensure!(rows == count, "{rows} rows of {count}");
    let row = bytes as f64 / rows as f64;
    report.result("fleet.row", row, "bytes", Goal::None, &[]);
    let size = row * (A_DAY * 300) as f64 / 1e9;
    report.result("fleet.day_of_300_trains", size, "GB", Goal::None, &[]);
    let began = Instant::now();
    let empty = fleet.cloud(NAMES[CLOUDS])?;
    let waits = fill(&empty, count)?;
    let took = began.elapsed().as_secs_f64();
    let million = took * 1e6 / count as f64;
    report.result("fleet.empty_cloud", took, "s", Goal::AtMost(60.0), &[count as f64]);
    report.result("fleet.empty_cloud_a_million", million, "s", Goal::AtMost(60.0), &[]);
    for (name, share) in [("fleet.linkdb_wait_p50", 0.5), ("fleet.linkdb_wait_p99", 0.99)] {
        report.result(name, quantile(&waits, share), "s", Goal::None, &[]);
    }
    fleet.clouds.push(empty);
    fleet.check(each)
}

/// Waits until a cloud has all entries. Returns how long LinkDB's thread took to answer meanwhile:
/// forecasts wait as long.
fn fill(cloud: &Cloud, count: u64) -> Result<Vec<f64>> {
    let (began, mut waits) = (Instant::now(), Vec::new());
    while began.elapsed() < PATIENCE {
        let asked = Instant::now();
        let state = cloud.state();
        waits.push(asked.elapsed().as_secs_f64());
        if state.is_some_and(|(entries, shared)| entries == count && shared.behind == 0) {
            return Ok(waits);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("not filled after {PATIENCE:?}: {:?}", cloud.state())
}

/// A thousand entries a second, and when another cloud has them.
fn lag(report: &mut Report, effort: Effort) -> Result<()> {
    let mut fleet = Fleet::start(effort)?;
    fleet.settle(0)?;
    let (seconds, turn) = (effort.pick(60, 3), Duration::from_millis(10));
    let watched = fleet.clouds.pop().context("no cloud")?;
    let mut sent: Vec<Instant> = Vec::new();
    let mut seen: Vec<Instant> = Vec::new();
    let mut next = vec![0; fleet.trains as usize];
    let began = Instant::now();
    let total = seconds * 1_000;
    let mut train = 0;
    while seen.len() < total && began.elapsed() < PATIENCE {
        let due = (began.elapsed().as_millis() as usize).min(total);
        while sent.len() + LAG_AT_ONCE <= due {
            let (first, number) = (next[train], train as u64);
            let clouds = fleet.clouds.len();
            let entries = handovers(number, first, LAG_AT_ONCE as u64, EPOCH_MS);
            fleet.clouds[train % clouds].send(&log(number), first, entries);
            next[train] = first + LAG_AT_ONCE as u64;
            train = (train + 1) % next.len();
            sent.extend(std::iter::repeat_n(Instant::now(), LAG_AT_ONCE));
        }
        if let Some((entries, _)) = watched.state() {
            seen.resize(entries as usize, Instant::now());
        }
        std::thread::sleep(turn);
    }
    ensure!(seen.len() == total, "{} of {total} entries arrived", seen.len());
    let lags = sent.iter().zip(&seen).map(|(sent, seen)| seen.duration_since(*sent));
    let lags: Vec<f64> = lags.map(|lag| lag.as_secs_f64()).collect();
    report.result("fleet.lag_p50", quantile(&lags, 0.5), "s", Goal::None, &[]);
    report.result("fleet.lag_p99", quantile(&lags, 0.99), "s", Goal::AtMost(2.0), &[]);
    let elapsed = sent.last().context("nothing sent")?.duration_since(began).as_secs_f64();
    report.result("fleet.lag_rate", total as f64 / elapsed, "entries/s", Goal::None, &[]);
    Ok(())
}

/// The server is away while a day's entries arrive. The clouds' files have room for them: an
/// operator sets `linkdb.events_max` (`docs/scaling.md`).
fn outage(report: &mut Report, effort: Effort) -> Result<()> {
    let mut fleet = Fleet::start(effort)?;
    fleet.settle(0)?;
    fleet.postgres.stop();
    let each = effort.pick(A_DAY, 96);
    let count = fleet.trains * each;
    let began = Instant::now();
    fleet.send(0, each, effort.pick(250, 4));
    for (index, cloud) in (0..).zip(&fleet.clouds) {
        let trains = (0..fleet.trains).filter(|train| train % CLOUDS as u64 == index).count();
        cloud.wait(PATIENCE, |entries, _| entries == trains as u64 * each)?;
    }
    let alone = began.elapsed().as_secs_f64();
    report.result("fleet.outage_append", count as f64 / alone, "rows/s", Goal::None, &[]);
    fleet.postgres.resume()?;
    let began = Instant::now();
    fleet.settle(count)?;
    let took = began.elapsed().as_secs_f64();
    let bytes: u64 = fleet.clouds.iter().map(|it| it.bytes()).sum::<std::io::Result<u64>>()?;
    report.result("fleet.outage_files", bytes as f64 / 1e9, "GB", Goal::None, &[]);
    report.result("fleet.outage", took, "s", Goal::None, &[count as f64]);
    let (rows, _) = fleet.rows()?;
    report.result("fleet.outage_lost", (count - rows) as f64, "rows", Goal::AtMost(0.0), &[]);
    fleet.check(each)
}

fn log(train: u64) -> LogId {
    LogId { writer: format!("train-{train}"), incarnation: train + 1 }
}

/// Entries of a train with three carriers in a day of twelve hours: a handover of each every 10 s,
/// and rates of each in both directions every 2.4 km.
const A_DAY: u64 = 18_000;
const CLOUDS: usize = 3;
const NAMES: [&str; CLOUDS + 1] = ["cloud-1", "cloud-2", "cloud-3", "cloud-4"];
/// Entries of a message while the lag is measured, as a train with three carriers sends.
const LAG_AT_ONCE: usize = 4;
const PATIENCE: Duration = Duration::from_secs(900);
