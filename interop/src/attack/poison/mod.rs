//! A gateway with a valid certificate poisons LinkDB.
//!
//! Three trains know a line, and their logs reach the cloud and a train with an empty database,
//! which then drives the line for the first time. The same world is measured twice, without and
//! with the forger. Afterwards the operator purges the forger's entries from the fleet.

mod forger;
mod line;
mod ride;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use polyrail_predictor::entry::{Entry, LogId};
use polyrail_predictor::store::{Limits, Store};
use serde_json::Value;

use self::forger::{Forger, Log, NAME, Size, forged};
use self::line::{CARRIERS, Train};
use self::ride::{Forecasts, ride};
use super::train::OtherTrain;
use crate::admin;
use crate::bench::{Effort, in_world};
use crate::lab::Side;
use crate::linkdb::{self, Rail};
use crate::process::Process;
use crate::report::{Goal, Report};
use crate::usage;
use crate::world::{Plan, World};

/// A first trip without the forger, one after its entries have arrived, and the purge.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let length = effort.pick(6_000.0, 700.0);
    let full = Size { trips: 20_001, invented: 50_000, each: 128 };
    let size = effort.pick(full, Size { trips: 1_000, invented: 2_500, each: 32 });
    let plan = CARRIERS.iter().fold(Plan::new(), |plan, name| plan.wire(name));
    let plan = plan.rail(Rail::default());
    let quiet = || in_world(&plan, |world| Fleet::start(world, length)?.ride(world));
    let attacked = || in_world(&plan, |world| attack(world, length, size));
    let (quiet, attacked) = match effort {
        Effort::Full => (quiet(), attacked()),
        Effort::Smoke => std::thread::scope(|scope| {
            let quiet = scope.spawn(quiet);
            let attacked = attacked();
            (quiet.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), attacked)
        }),
    };
    publish(report, &quiet?, &attacked?);
    Ok(())
}

/// What the forger achieved.
struct Seen {
    forecasts: Forecasts,
    /// Entries that the forger sent, and those of it that the cloud kept.
    sent: u64,
    kept: u64,
    /// Entries of honest trains that the cloud lost.
    lost: u64,
    /// Growth of the cloud's memory, MiB.
    growth: f64,
    log_lines: f64,
    upload: Duration,
    /// The forger's entries in all databases after the purge.
    left: u64,
}

fn publish(report: &mut Report, quiet: &Forecasts, attacked: &Seen) {
    let after = &attacked.forecasts;
    let first = quiet.keys().filter(|(side, ..)| *side == Side::Gateway.name()).count();
    let created: Vec<_> = after.keys().filter(|place| !quiet.contains_key(*place)).collect();
    let removed: Vec<_> = quiet.keys().filter(|place| !after.contains_key(*place)).collect();
    println!("created: {created:?}, removed: {removed:?}");
    let moved: Vec<f64> = quiet
        .iter()
        .filter_map(|(place, metres)| Some((after.get(place)? - metres).abs()))
        .collect();
    let most = moved.iter().copied().fold(0.0, f64::max);
    let mut result = |name: &str, value: f64, unit: &str, goal: Goal, samples: &[f64]| {
        report.result(&format!("attack_poison_{name}"), value, unit, goal, samples);
    };
    result("first_trip_forecasts", first as f64, "forecasts", Goal::AtLeast(1.0), &[]);
    result("forecasts_quiet", quiet.len() as f64, "forecasts", Goal::None, &[]);
    let none = Goal::AtMost(0.0);
    result("forecasts_created", created.len() as f64, "forecasts", none, &[]);
    result("forecasts_removed", removed.len() as f64, "forecasts", none, &[]);
    result("place_moved", most, "m", Goal::AtMost(PLACE_MOVED_M), &moved);
    result("sent", attacked.sent as f64, "entries", Goal::None, &[]);
    result("kept", attacked.kept as f64, "entries", Goal::None, &[]);
    result("upload", attacked.upload.as_secs_f64(), "s", Goal::None, &[]);
    result("honest_lost", attacked.lost as f64, "entries", none, &[]);
    result("memory", attacked.growth, "MiB", Goal::None, &[]);
    result("log_lines", attacked.log_lines, "1/s", Goal::AtMost(10.0), &[]);
    result("left_after_purge", attacked.left as f64, "entries", none, &[]);
}

/// Three honest trains, whose logs have reached the cloud and the victim.
struct Fleet {
    length: f64,
    honest: Vec<(Train, Vec<Entry>)>,
    logs: Vec<LogId>,
    trains: Vec<(OtherTrain, PathBuf)>,
    now_ms: u64,
}

impl Fleet {
    fn start(world: &World, length: f64) -> Result<Fleet> {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        let of_number = |number| {
            let train = Train::new(number);
            let log = train.log(length + MARGIN, now_ms);
            (train, log)
        };
        let mut fleet = Fleet {
            length,
            honest: HONEST.map(of_number).collect(),
            logs: Vec::new(),
            trains: Vec::new(),
            now_ms,
        };
        for ((train, log), number) in fleet.honest.iter().zip(2..) {
            let path = world.lab.folder().join(format!("{}-linkdb.redb", train.name));
            let mut store = Store::open(&path, Limits::default())?;
            store.set_own_name(&train.name)?;
            store.append_own(log, now_ms)?;
            fleet.logs.extend(store.log(store.own_log()).map(|log| log.id.clone()));
            drop(store);
            fleet.trains.push((OtherTrain::start(world, number, Some(&path))?, path));
        }
        let all = fleet.honest.iter().map(|(_, log)| log.len()).sum::<usize>() as u64;
        for socket in [Side::Cloud, Side::Gateway].map(|side| side.admin_socket(&world.lab)) {
            wait(&socket, "the honest logs", |state| entries(state) >= all)?;
        }
        Ok(fleet)
    }

    fn ride(&self, world: &World) -> Result<Forecasts> {
        ride(world, self.length)
    }

    /// The databases of all gateways and of the cloud.
    fn databases(&self, world: &World) -> Vec<PathBuf> {
        let of_world = [Side::Cloud, Side::Gateway].map(|side| linkdb::database(&world.lab, side));
        of_world.into_iter().chain(self.trains.iter().map(|(_, path)| path.clone())).collect()
    }

    /// The admin sockets of all gateways.
    fn sockets(&self, world: &World) -> Vec<PathBuf> {
        let trains = self.trains.iter().map(|(train, _)| train.socket.clone());
        trains.chain([Side::Gateway.admin_socket(&world.lab)]).collect()
    }
}

fn attack(world: &mut World, length: f64, size: Size) -> Result<Seen> {
    let mut fleet = Fleet::start(world, length)?;
    world.keys.reissue(NAME, "gateway")?;
    let log = forged(length + MARGIN, &fleet.honest, size, fleet.now_ms);
    let (memory, lines) = (usage::memory_bytes(world.cloud.id())?, lines(&world.cloud));
    let started = Instant::now();
    let known = received(&Side::Gateway.admin_socket(&world.lab));
    let mut forger = Forger::connect(world)?;
    forger.impersonate(&fleet.logs, size.each)?;
    forger.upload(&log)?;
    let upload = started.elapsed();
    relayed(world, known)?;
    let over = AtomicBool::new(false);
    let forecasts = std::thread::scope(|scope| {
        let flood = scope.spawn(|| forger.flood(&fleet.logs, &over));
        let forecasts = fleet.ride(world);
        over.store(true, Ordering::Relaxed);
        flood.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        forecasts
    })?;
    let growth = usage::memory_bytes(world.cloud.id())?.saturating_sub(memory);
    let new = self::lines(&world.cloud) - lines;
    let log_lines = new as f64 / started.elapsed().as_secs_f64();
    drop(forger);
    end(&mut world.cloud)?;
    let database = linkdb::database(&world.lab, Side::Cloud);
    let kept = count(&database, NAME)?;
    let honest = fleet.honest.iter();
    let lost = honest.map(|(train, log)| {
        let kept = count(&database, &train.name)?;
        Ok((log.len() as u64).saturating_sub(kept))
    });
    let lost = lost.sum::<Result<u64>>()?;
    let left = purge(world, &mut fleet, &log)?;
    let (sent, growth) = (log.entries, growth as f64 / 1_048_576.0);
    Ok(Seen { forecasts, sent, kept, lost, growth, log_lines, upload, left })
}

/// Purges the forger's entries at the cloud that has ended, lets the forger send them again, before
/// and after a restart of the cloud, and counts its entries in all databases.
fn purge(world: &mut World, fleet: &mut Fleet, log: &Log) -> Result<u64> {
    let database = linkdb::database(&world.lab, Side::Cloud);
    linkdb::purge(&world.programs, NAME, &database)?;
    let honest = fleet.honest.iter().map(|(_, log)| log.len() as u64).sum::<u64>();
    for _ in 0..2 {
        world.restart_cloud()?;
        for socket in fleet.sockets(world) {
            wait(&socket, "the floor", |state| entries(state) <= honest + SLACK)?;
        }
        Forger::connect(world)?.repeat(log)?;
    }
    std::thread::sleep(RELAY);
    let trains = fleet.trains.iter_mut().map(|(train, _)| &mut train.process);
    trains.chain([&mut world.gateway, &mut world.cloud]).try_for_each(end)?;
    fleet.databases(world).iter().map(|database| count(database, NAME)).sum()
}

/// Waits until the victim has what the cloud relays: as much as the cloud received, or nothing new
/// arrives, because the cloud has dropped useless entries. It had `known` handovers before.
fn relayed(world: &World, known: u64) -> Result<()> {
    let sockets = [Side::Cloud, Side::Gateway].map(|side| side.admin_socket(&world.lab));
    let (mut before, mut since) = (0, Instant::now());
    while since.elapsed() < RELAY {
        let [cloud, now] = sockets.each_ref().map(|socket| received(socket));
        if now == cloud {
            break;
        } else if now != before {
            (before, since) = (now, Instant::now());
        }
        std::thread::sleep(POLL);
    }
    let [cloud, victim] = sockets.each_ref().map(|socket| received(socket));
    println!("the cloud received {cloud} handovers, the victim {victim}, and {known} before");
    ensure!(victim > known, "nothing of the forger has reached the victim");
    Ok(())
}

/// The handovers that a daemon has received; 0 if it is too busy to answer.
fn received(socket: &Path) -> u64 {
    let state = admin::get(socket, "/v1/linkdb").unwrap_or_default();
    state["received"].as_u64().unwrap_or(0)
}

/// Waits until a daemon's LinkDB is in a state.
fn wait(socket: &Path, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
    let started = Instant::now();
    loop {
        // A daemon that has just started, or that is busy, does not answer.
        match admin::get(socket, "/v1/linkdb") {
            Ok(state) if holds(&state) => return Ok(()),
            state if started.elapsed() > LIMIT => {
                let state = state.with_context(|| what.to_owned())?;
                anyhow::bail!("{}: not {what} within {LIMIT:?}: {state}", socket.display());
            }
            _ => std::thread::sleep(POLL),
        }
    }
}

/// The entries in a daemon's database.
fn entries(state: &Value) -> u64 {
    state.pointer("/store/stats/entries").and_then(Value::as_u64).unwrap_or(0)
}

/// The entries of a writer in a database that no daemon has open.
fn count(database: &Path, writer: &str) -> Result<u64> {
    let store = Store::open(database, Limits::default())?;
    let writers = store.writers();
    Ok(writers.iter().find(|(_, name)| name == writer).map_or(0, |(count, _)| *count))
}

/// Ends a daemon as its supervisor does.
fn end(daemon: &mut Process) -> Result<()> {
    daemon.signal(Signal::SIGTERM)?;
    let status = daemon.wait(LIMIT)?;
    ensure!(status.success(), "{} ended: {status}", daemon.name());
    Ok(())
}

/// The lines of a log that an operator sees by default.
fn lines(daemon: &Process) -> usize {
    let shown = |line: &&str| ["INFO", "WARN", "ERROR"].iter().any(|level| line.contains(level));
    daemon.log().lines().filter(shown).count()
}

/// The numbers of the honest trains.
const HONEST: std::ops::Range<u64> = 2..5;
/// The line is longer than the trip by this, in metres.
const MARGIN: f64 = 3_000.0;
/// The bound of `docs/linkdb.md`, section 8: 1.25 s of travel before the place of the others, and
/// the error of the measurement.
const PLACE_MOVED_M: f64 = 220.0;
/// Entries that the victim records itself.
const SLACK: u64 = 300;
/// Longer than a cloud collects entries before it relays them.
const RELAY: Duration = Duration::from_secs(6);
const POLL: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(60);
