//! Runs a row: a world, a download with faults one after another, and the check of the hash.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polyrail_emulator::namespace::Namespace;
use serde::{Deserialize, Serialize};

use crate::addresses::{CLOUD, CLOUD_PORT, SERVER};
use crate::carrier::{self, Link};
use crate::configuration::strings;
use crate::datagrams::{self, Call, ECHO_PORT, PACKET_EVERY, RunningCall};
use crate::download::{Download, Running};
use crate::lab::Side;
use crate::web::sha256_of;
use crate::world::{Plan, World};

use super::endless::Endless;
use super::fault::{self, MODE_LIMIT, Mark, Victim};
use super::target::{Class, QUEUE_KIB, RATE_MBIT_S, ROUND_TRIP_MS};
use super::{CloudMode, Expected, Fault, Row, Ways};

/// The names of the carriers.
pub(super) const NAMES: [&str; 2] = ["alpha", "beta"];
/// The port of the server with the endless file.
pub(super) const PORT: u16 = 8080;
/// How long a download runs before its first fault in mid-transfer.
pub(super) const RUN_UP: Duration = Duration::from_millis(1500);
/// How long it runs between faults and after the last one.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// How long the end of a download may take.
const END_LIMIT: Duration = Duration::from_secs(20);
/// How long the echo of a datagram may take after the row.
const ECHO_PATIENCE: Duration = Duration::from_secs(3);
/// The longest datagram, which crosses in parts.
const LONGEST: usize = 2_048;
/// So long may a call be silent in sum while a carrier suffers a fault and another one works.
const LOST_MOST: Duration = Duration::from_secs(1);
/// How long a row that cannot connect is observed.
const REFUSED_TIME: Duration = Duration::from_secs(3);

/// The verdict about a row or one of its faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The right bytes, and the carrier in use within the target.
    Ok,
    /// The right bytes; the carrier was in use later.
    Late,
    /// Anything else.
    Failed,
}

/// One fault of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepResult {
    /// The fault.
    pub fault: String,
    /// Its carrier.
    pub carrier: String,
    /// The class of its target.
    pub class: String,
    /// Until the carrier was in use, ms.
    pub took_ms: u64,
    /// The target, ms.
    pub target_ms: u64,
    /// Datagrams that a passenger sent from the beginning of the fault to `PAUSE` after it.
    pub datagrams: usize,
    /// How many of them had no echo.
    pub lost: usize,
    /// The verdict.
    pub verdict: Verdict,
}

/// The result of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RowResult {
    /// Modes, family and faults.
    pub row: String,
    /// The worst verdict of its steps.
    pub verdict: Verdict,
    /// Each fault.
    pub steps: Vec<StepResult>,
    /// The download's length.
    pub bytes: u64,
    /// The duration of the row including its setup, s.
    pub total_s: f64,
    /// Why the row failed.
    pub error: Option<String>,
}

/// Runs a row in a world of its own. The row fails if a carrier takes more than `tolerance` times
/// its target. Keeps the logs of all programs in the folder `logs`.
pub(super) fn run(row: &Row, tolerance: u32, logs: Option<&Path>) -> RowResult {
    on_thread(row.to_string(), |outcome| in_world(row, tolerance, logs, outcome))
}

/// Runs the work of a row named `line` on a thread of its own.
pub(super) fn on_thread(
    line: String,
    work: impl FnOnce(&mut RowResult) -> Result<()> + Send,
) -> RowResult {
    let started = Instant::now();
    let mut outcome = RowResult {
        row: line,
        verdict: Verdict::Failed,
        steps: Vec::new(),
        bytes: 0,
        total_s: 0.0,
        error: None,
    };
    let result = std::thread::scope(|scope| {
        // Namespaces and children end with this thread.
        let worker = scope.spawn(|| work(&mut outcome));
        worker.join().unwrap_or_else(|_| bail!("the row panicked"))
    });
    outcome.total_s = started.elapsed().as_secs_f64();
    match result {
        Ok(()) => {
            let worst = outcome.steps.iter().map(|step| step.verdict).max();
            outcome.verdict = worst.unwrap_or(Verdict::Ok);
        }
        Err(error) => outcome.error = Some(format!("{error:#}")),
    }
    outcome
}

fn in_world(row: &Row, tolerance: u32, logs: Option<&Path>, outcome: &mut RowResult) -> Result<()> {
    let victims = row.victims().context("a fault that makes sense for no carrier")?;
    let mut world = World::start_cold(&plan(row, &victims, RATE_MBIT_S)).context("setting up")?;
    let result = if row.can_connect() {
        transfer_and_call(&mut world, row, &victims, tolerance, outcome)
    } else {
        refused(&mut world)
    };
    if let Some(folder) = logs {
        keep_logs(&world, folder)?;
    }
    result.inspect_err(|_| println!("{}", world.tails()))
}

pub(super) fn keep_logs(world: &World, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let emulator = world.emulator.as_ref().map(|emulator| &emulator.process);
    for process in [&world.gateway, &world.cloud].into_iter().chain(emulator) {
        std::fs::write(folder.join(format!("{}.log", process.name())), process.log())?;
    }
    Ok(())
}

pub(super) fn plan(row: &Row, victims: &[usize], rate_mbit_s: f64) -> Plan {
    let link = Link::new(rate_mbit_s, ROUND_TRIP_MS).queue_kib(QUEUE_KIB);
    let mut plan = Plan::new()
        .gateway("mode", row.gateway.key())
        .gateway("cloud.addresses", strings([CLOUD.at(row.family, CLOUD_PORT)]))
        .cloud("mode", row.cloud.key());
    for (index, name) in NAMES.into_iter().enumerate() {
        plan = plan.carrier(name, link);
        let mode = row.gateway.of_carrier(index);
        if mode != row.gateway.key() {
            plan = plan.carrier_key(index, "mode", mode);
        }
    }
    let first = row.faults.first().zip(victims.first());
    match first.and_then(|(fault, victim)| fault::before_start(*fault, NAMES[*victim])) {
        Some(command) => plan.command(&command),
        None => plan,
    }
}

/// [`transfer`] during a call of another program of the passenger.
fn transfer_and_call(
    world: &mut World,
    row: &Row,
    victims: &[usize],
    tolerance: u32,
    outcome: &mut RowResult,
) -> Result<()> {
    wait_for_carriers(world, row, victims)?;
    datagrams::serve_echo(&world.lab.server)?;
    let server = SERVER.at(row.family, ECHO_PORT);
    let call = RunningCall::start(&datagrams::connected(&world.lab.passenger, server)?)?;
    let times = transfer(world, row, victims, tolerance, outcome)?;
    let call = call.end()?;
    for ((step, time), victim) in outcome.steps.iter_mut().zip(times).zip(victims) {
        let packets = call.within(time);
        step.datagrams = packets.len();
        step.lost = packets.iter().filter(|trip| trip.is_none()).count();
        let (fault, lost) = (&step.fault, step.lost);
        let alternative = Ways::of(row.gateway, row.cloud, 1 - victim).any();
        ensure!(!alternative || PACKET_EVERY * lost as u32 <= LOST_MOST, "{fault}: {lost} lost");
    }
    let Call { repeated, corrupted, .. } = call;
    ensure!(repeated + corrupted == 0, "{repeated} datagrams repeated, {corrupted} corrupted");
    let socket = datagrams::connected(&world.lab.passenger, server)?;
    ensure!(datagrams::echoes(&socket, LONGEST, ECHO_PATIENCE)?, "no echo of a datagram");
    Ok(())
}

/// A download in which the carriers suffer the faults of the row; they must be up. Returns when
/// each fault began, and when [`PAUSE`] after it ended.
pub(super) fn transfer(
    world: &mut World,
    row: &Row,
    victims: &[usize],
    tolerance: u32,
    outcome: &mut RowResult,
) -> Result<Vec<Range<Instant>>> {
    let server = SERVER.at(row.family, PORT);
    let endless = Endless::serve(&world.lab.server, server, Duration::ZERO)?;
    let mut times = Vec::new();
    let before = carrier::counters(&world.lab)?;
    let mut download = start_download(world, row, row.cloud != CloudMode::Auto)?;
    let drawer = Namespace::new()?;
    for (number, (fault, victim)) in row.faults.iter().zip(victims).enumerate() {
        let ways = Ways::of(row.gateway, row.cloud, *victim);
        let expected = fault.expected(ways).context("a fault without sense")?;
        let (Expected::Back(class) | Expected::OutThenBack(class)) = expected;
        let since = (number == 0 && fault::is_there_at_start(*fault))
            .then(|| Mark { at: download.started(), bytes: before[*victim].down_bytes });
        if number == 0 && since.is_none() {
            std::thread::sleep(RUN_UP);
        }
        let limit = class.target() * tolerance;
        let begin = Instant::now();
        let victim = Victim { world, carrier: *victim, drawer: &drawer, limit };
        let took = victim.suffer(*fault, expected, since).with_context(|| fault.to_string())?;
        let fault = fault.to_string();
        outcome.steps.push(step(fault, NAMES[victim.carrier], class, took));
        ensure!(!download.ended(), "the download ended on the way");
        std::thread::sleep(PAUSE);
        times.push(begin..Instant::now());
    }
    verify(download, &endless, outcome)?;
    Ok(times)
}

pub(super) fn step(fault: String, carrier: &str, class: Class, took: Duration) -> StepResult {
    let target = class.target();
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    StepResult {
        fault,
        carrier: carrier.into(),
        class: class.name().into(),
        took_ms: ms(took),
        target_ms: ms(target),
        datagrams: 0,
        lost: 0,
        verdict: if took <= target { Verdict::Ok } else { Verdict::Late },
    }
}

/// Waits until each carrier that can connect uses the mode of its row, except a carrier whose UDP
/// is blocked from the start.
pub(super) fn wait_for_carriers(world: &mut World, row: &Row, victims: &[usize]) -> Result<()> {
    let late = (row.faults.first() == Some(&Fault::UdpBlockedAtStart)).then(|| victims.first());
    let wanted: Vec<(&str, &str)> = (0..2)
        .filter(|index| late.flatten() != Some(index))
        .filter_map(|index| Some((NAMES[index], Ways::of(row.gateway, row.cloud, index).mode()?)))
        .collect();
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    world.wait_for_paths(&names)?;
    world.wait_until_up()?;
    wanted.iter().try_for_each(|(name, mode)| fault::must_travel_by(world, name, mode, MODE_LIMIT))
}

/// Starts the download through SOCKS5 or by interception.
pub(super) fn start_download(world: &World, row: &Row, by_proxy: bool) -> Result<Running> {
    let host = format!("{}:{PORT}", SERVER.host(row.family));
    let target = world.lab.folder().join("endless");
    let download = Download::new(&host, "endless", &target);
    let download = if by_proxy { download.socks5(world.proxy()) } else { download };
    download.start(&world.lab.passenger)
}

pub(super) fn verify(download: Running, endless: &Endless, outcome: &mut RowResult) -> Result<()> {
    let sent = endless.finish(END_LIMIT)?;
    let target = download.target().to_path_buf();
    let report = download.finish().context("the download")?;
    outcome.bytes = report.bytes;
    ensure!(report.bytes == sent.bytes, "received {} of {} bytes", report.bytes, sent.bytes);
    let hash = sha256_of(&target)?;
    ensure!(hash == sent.sha256, "SHA-256 {hash}, expected {}", sent.sha256);
    Ok(())
}

/// A gateway and a cloud without a common mode keep running without a tunnel, and the gateway logs
/// the reason for each carrier.
fn refused(world: &mut World) -> Result<()> {
    std::thread::sleep(REFUSED_TIME);
    for daemon in [&mut world.gateway, &mut world.cloud] {
        ensure!(daemon.exit()?.is_none(), "the {} has ended", daemon.name());
    }
    let mut paths = world.paths(Side::Gateway)?;
    paths.retain(|path| path["state"] == "up");
    let up: Vec<_> = paths.iter().map(|path| &path["name"]).collect();
    ensure!(up.is_empty(), "tunnels stand over {up:?} between modes that exclude each other");
    let log = world.gateway.log();
    for name in NAMES {
        let logged = log.lines().any(|line| line.contains(name) && line.contains("refuses"));
        ensure!(logged, "the gateway does not log why {name} is not up");
    }
    Ok(())
}
