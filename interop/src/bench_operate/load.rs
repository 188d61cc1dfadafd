//! New flows at the rate of a train's Wi-Fi, and at ten times that rate: what the daemons need.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use polyrail_emulator::dice::Dice;
use polyrail_emulator::statistics::quantile;

use crate::addresses::{self, Family, SERVER};
use crate::bench::{Effort, fresh_seed, in_world};
use crate::carrier::Link;
use crate::client;
use crate::lab::in_thread;
use crate::metrics::{LISTEN, Scrape};
use crate::report::{Goal, Report};
use crate::services;
use crate::usage;
use crate::world::{Plan, World};

/// The median of a day on a train (Wang et al., active-passive study, section 5).
const FLOWS_PER_MIN: f64 = 2_248.0;
/// Concurrent users, the median of a day there.
const USERS: u8 = 40;
/// The number of the first one's address.
const FIRST_USER: u8 = 100;
const PORT: u16 = 5_000;
/// A small machine of a train has as many.
const CORES: usize = 2;
/// The bytes of a request, as of a page's part.
const REQUEST: usize = 400;
/// Answers are log-normal: median 6 KB, 95 % below 84 KB, mean 21 KB. Nearly all flows on the train
/// have less than 100 KB.
const MEDIAN_BYTES: f64 = 6e3;
const SIGMA: f64 = 1.6;
const BYTES_MAX: f64 = 1e6;
/// The most flows at a time: more of them than threads may exist is a standstill.
const OPEN_MAX: usize = 2_000;
/// The time without load before and after, for the buckets of the last scrape.
const SETTLED: Duration = Duration::from_millis(1_500);

/// Runs on at most [`CORES`] cores: the daemons, the emulator and this program share them.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    // Threads and processes that this thread starts inherit its cores.
    in_thread(|| {
        let cores = pin()?;
        println!("load: on the cores {cores:?}");
        report.result("load_cores", cores.len() as f64, "cores", Goal::None, &[]);
        loads(report, effort)
    })
}

/// Binds this thread to the first [`CORES`] of its cores; returns their numbers.
fn pin() -> Result<Vec<usize>> {
    let own = Pid::from_raw(0);
    let permitted = sched_getaffinity(own).context("sched_getaffinity")?;
    let cores = (0..CpuSet::count()).filter(|core| permitted.is_set(*core).unwrap_or(false));
    let cores: Vec<usize> = cores.take(CORES).collect();
    let mut chosen = CpuSet::new();
    cores.iter().try_for_each(|core| chosen.set(*core))?;
    sched_setaffinity(own, &chosen).context("sched_setaffinity")?;
    Ok(cores)
}

/// Two carriers that have room for ten trains' flows, mode `auto`.
fn loads(report: &mut Report, effort: Effort) -> Result<()> {
    let length = Duration::from_secs(effort.pick(60, 4));
    let link = Link::new(100.0, 50);
    let listen = LISTEN.to_string();
    let plan = Plan::new().carrier("alpha", link).carrier("beta", link);
    let plan = plan.gateway("users.key", "address").gateway("metrics.listen", listen.as_str());
    let plan = plan.cloud("metrics.listen", listen.as_str());
    let seed = fresh_seed("load");
    let measured = in_world(&plan, move |world| {
        world.lab.add_users((0..USERS).map(|user| FIRST_USER + user))?;
        services::serve(&world.lab.server, SERVER.at(Family::V4, PORT), |stream, _| {
            // Fails if the client disconnects, which counts there.
            let _ = answer(stream);
        })?;
        let mut report = Report::default();
        for (name, times) in [("load", 1.0), ("load_tenfold", 10.0)] {
            measure(world, &mut report, name, (FLOWS_PER_MIN * times, length, seed))?;
        }
        Ok(report)
    })?;
    report.append(measured);
    Ok(())
}

/// What a daemon and this program have used so far.
struct Used {
    processor_s: [f64; 3],
    scrapes: [Scrape; 2],
}

impl Used {
    fn of(world: &World) -> Result<Self> {
        let ids = [world.gateway.id(), world.cloud.id(), std::process::id()];
        let [gateway, cloud, own] = ids.map(usage::processor_s);
        let [near, far] = [&world.lab.gateway, &world.lab.cloud].map(Scrape::of);
        Ok(Self { processor_s: [gateway?, cloud?, own?], scrapes: [near?, far?] })
    }
}

fn measure(
    world: &World,
    report: &mut Report,
    name: &str,
    (per_min, length, seed): (f64, Duration, u64),
) -> Result<()> {
    std::thread::sleep(SETTLED);
    let before = Used::of(world)?;
    let began = Instant::now();
    let outcome = client::thread(&world.lab.passenger, move || offer(per_min, length, seed))?
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let took = began.elapsed().as_secs_f64();
    std::thread::sleep(SETTLED);
    let after = Used::of(world)?;

    let flows = outcome.times.len();
    let goal = Goal::AtLeast(0.9 * per_min);
    report.result(&format!("{name}_flows"), flows as f64 / took * 60.0, "/min", goal, &[]);
    let failed = outcome.failed as f64;
    report.result(&format!("{name}_failed"), failed, "flows", Goal::AtMost(0.0), &[]);
    let time = quantile(&outcome.times, 0.95);
    report.result(&format!("{name}_flow_p95"), time * 1e3, "ms", Goal::None, &[]);
    for (index, who) in ["gateway", "cloud", "program"].iter().enumerate() {
        let used = after.processor_s[index] - before.processor_s[index];
        let share = used / took * 100.0;
        report.result(&format!("{name}_cpu_{who}"), share, "% of a core", Goal::None, &[]);
    }
    for (index, who) in ["gateway", "cloud"].iter().enumerate() {
        let turns = after.scrapes[index].quantile_since(
            &before.scrapes[index],
            "polyrail_loop_turn_seconds",
            0.99,
        );
        let turn = turns.context("no turn of the event loop")? * 1e3;
        report.result(&format!("{name}_turn_p99_{who}"), turn, "ms", Goal::AtMost(5.0), &[]);
    }
    Ok(())
}

/// What became of the flows: how long each took, s.
#[derive(Debug, Default)]
struct Outcome {
    times: Vec<f64>,
    failed: usize,
}

/// Opens flows at random times, however long the earlier ones take, and waits for all of them.
fn offer(per_min: f64, length: Duration, seed: u64) -> Result<Outcome> {
    let mut dice = Dice::new(seed);
    let outcome = Arc::<Mutex<Outcome>>::default();
    let open = Arc::<AtomicUsize>::default();
    let began = Instant::now();
    let mut due = 0.0;
    loop {
        due += dice.pause(Duration::from_secs_f64(60.0 / per_min)).as_secs_f64();
        if due > length.as_secs_f64() {
            break;
        }
        std::thread::sleep(Duration::from_secs_f64(due).saturating_sub(began.elapsed()));
        ensure!(open.fetch_add(1, Ordering::SeqCst) < OPEN_MAX, "{OPEN_MAX} open flows");
        let user = dice.between(0, USERS.into()) as u8;
        let bytes = dice.lognormal(MEDIAN_BYTES, SIGMA).min(BYTES_MAX) as usize;
        let (outcome, open) = (Arc::clone(&outcome), Arc::clone(&open));
        std::thread::spawn(move || {
            let began = Instant::now();
            let result = fetch(user, bytes);
            let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(()) => outcome.times.push(began.elapsed().as_secs_f64()),
                Err(error) => {
                    outcome.failed += 1;
                    eprintln!("{bytes} bytes for user {user}: {error:#}");
                }
            }
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
    let ended = Instant::now();
    while open.load(Ordering::SeqCst) > 0 {
        ensure!(ended.elapsed() < client::PATIENCE, "flows hang");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(std::mem::take(&mut *outcome.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// One flow of a user: a request, the answer, the end.
fn fetch(user: u8, bytes: usize) -> Result<()> {
    let to = SERVER.at(Family::V4, PORT);
    let mut stream =
        client::connect_from(addresses::user(FIRST_USER + user), to, client::PATIENCE)?;
    let mut request = vec![b'x'; REQUEST];
    request[..8].copy_from_slice(&(bytes as u64).to_be_bytes());
    stream.write_all(&request)?;
    let got = std::io::copy(&mut stream, &mut std::io::sink())?;
    ensure!(got == bytes as u64, "{got} of {bytes} bytes");
    Ok(())
}

/// The server's part.
fn answer(mut stream: TcpStream) -> Result<()> {
    let mut request = [0; REQUEST];
    stream.read_exact(&mut request)?;
    let (length, _) = request.split_first_chunk().context("a length")?;
    let bytes = usize::try_from(u64::from_be_bytes(*length))?;
    ensure!(bytes <= BYTES_MAX as usize, "{bytes} bytes");
    stream.write_all(&vec![0; bytes])?;
    Ok(())
}
