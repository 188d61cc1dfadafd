//! Fifty reloads with every kind of change that load can stand, and modes changed by hand, under
//! load: each does what it says, no byte is lost and no flow is reset. The other kinds of change,
//! by which some flows are not opened, come without load.

mod kinds;
mod rail;
mod running;
mod shows;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::carrier::Link;
use polyrail_interop::client::{self, Target};
use polyrail_interop::configuration::Configuration;
use polyrail_interop::exchange::{Ending, Exchange, Ledger};
use polyrail_interop::services;
use polyrail_interop::world::{Plan, Rail, Side, World};
use serde_json::Value;

use self::kinds::{Outcome, Reload};
use self::running::Running;
use crate::scenario;

const BOUND: Duration = Duration::from_secs(120);
const RELOADS: usize = 50;
const PAUSE: Duration = Duration::from_millis(250);
/// How long a reload may take until it shows.
const SOON: Duration = Duration::from_secs(10);
const LOAD_PORT: u16 = 5000;
const ECHO_PORT: u16 = 5001;
const LOADERS: u64 = 4;
const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

fn three_carriers() -> Plan {
    NAMES.into_iter().fold(Plan::new(), |plan, name| plan.carrier(name, Link::new(10.0, 40)))
}

#[test]
fn fifty_reloads_under_load_lose_no_byte_and_reset_no_flow() -> Result<()> {
    scenario(&three_carriers(), BOUND, |world| {
        let kinds = kinds::all();
        ensure!(kinds.len() <= RELOADS, "{} kinds", kinds.len());
        under_load(world, kinds.iter().cycle().take(RELOADS))
    })
}

#[test]
fn reloads_of_databases_and_telemetry_under_load_lose_no_byte_and_reset_no_flow() -> Result<()> {
    let plan = Plan::twins().rail(Rail::default());
    scenario(&plan, BOUND, |world| {
        let _train = rail::Train::start(world)?;
        under_load(world, rail::all().iter())
    })
}

fn under_load<'a>(world: &mut World, reloads: impl Iterator<Item = &'a Reload>) -> Result<()> {
    let load = Load::start(world)?;
    let mut files = world.configurations.clone();
    let running = Running::with(world)?;
    let mut count = 0;
    for (number, reload) in reloads.enumerate() {
        one_reload(world, &mut files, &running, reload, number)
            .with_context(|| format!("reload {number}: {:?}", reload.edit))?;
        load.must_go_on()?;
        std::thread::sleep(PAUSE);
        count = number + 1;
    }
    let flows = load.finish()?;
    println!("{count} reloads beside {flows} flows");
    Ok(())
}

#[test]
fn reloads_after_which_some_flows_are_not_opened_do_what_they_say() -> Result<()> {
    scenario(&Plan::twins().gateway("socks5.reply", "dialed"), BOUND, |world| {
        let mut files = world.configurations.clone();
        let running = Running::with(world)?;
        for (number, reload) in kinds::without_load().iter().enumerate() {
            one_reload(world, &mut files, &running, reload, number)
                .with_context(|| format!("reload {number}: {:?}", reload.edit))?;
        }
        Ok(())
    })
}

/// Changes the file and reloads, by `polyrail reload` and SIGHUP in turns; then the daemon must run
/// with what was taken, or with what it had.
fn one_reload(
    world: &mut World,
    files: &mut [Configuration; 2],
    running: &Running,
    reload: &Reload,
    number: usize,
) -> Result<()> {
    let side = reload.side;
    let index = usize::from(side == Side::Cloud);
    let mut file = files[index].clone();
    reload.edit.apply(world, side, &mut file)?;
    file.write(&side.configuration(&world.lab))?;
    let before = running::taken_at(world, side)?;
    let seen = running::last_event(world, side)?;
    let words = if number.is_multiple_of(2) {
        by_command(world, reload)?
    } else {
        by_signal(world, reload)?
    };
    let event = running::event_of_reload(world, side, seen)?;
    let after = running::taken_at(world, side)?;
    match reload.outcome {
        Outcome::Taken => {
            files[index] = file;
            ensure!(after != before, "taken, but the configuration is still that of {before}");
            ensure!(event["event"] == "reloaded", "taken, but {event}");
            must_list(&event, &reload.edit.keys())?;
            (reload.shows)(world).context("what the reload shows")?;
        }
        Outcome::Invalid(expected) => {
            must_name(&words, expected)?;
            must_point_at(world, side, &words, expected[0])?;
        }
        Outcome::Restart(key) => must_name(&words, &[key])?,
    }
    if !matches!(reload.outcome, Outcome::Taken) {
        ensure!(after == before, "refused, but the configuration is that of {after}");
        ensure!(event["event"] == "reload_refused", "refused, but {event}");
        file = files[index].clone();
        file.write(&side.configuration(&world.lab))?;
    }
    running.must_be(world, files)
}

/// The daemon lists exactly these keys, or, when none are known, some.
fn must_list(event: &Value, keys: &[String]) -> Result<()> {
    let changes = event["changes"].as_array().context("a reload without changes")?;
    let mut listed: Vec<&str> = changes.iter().filter_map(|line| line["key"].as_str()).collect();
    listed.dedup();
    ensure!(!listed.is_empty(), "nothing changed: {event}");
    ensure!(keys.is_empty() || listed == keys, "changed {keys:?}, listed {event}");
    Ok(())
}

fn must_name(words: &str, expected: &[&str]) -> Result<()> {
    for word in expected {
        ensure!(words.contains(word), "refused without `{word}`:\n{words}");
    }
    Ok(())
}

/// The refusal names the line at which the wrong key stands.
fn must_point_at(world: &World, side: Side, words: &str, key: &str) -> Result<()> {
    let text = std::fs::read_to_string(side.configuration(&world.lab))?;
    let key = key.rsplit('.').next().unwrap_or_default();
    let lines = text.lines().enumerate().filter(|(_, line)| line.starts_with(key));
    let places: Vec<String> =
        lines.map(|(at, _)| format!("{}.toml:{}:", side.name(), at + 1)).collect();
    ensure!(places.iter().any(|place| words.contains(place)), "not {places:?}:\n{words}");
    Ok(())
}

/// Returns what the command said when the reload was refused.
fn by_command(world: &World, reload: &Reload) -> Result<String> {
    let before = world.reloads(reload.side)?;
    let answer = world.operate(reload.side, "reload")?;
    let after = world.reloads(reload.side)?;
    let taken = matches!(reload.outcome, Outcome::Taken);
    ensure!(answer.good == taken, "polyrail reload says {answer:?}");
    ensure!(after.taken - before.taken == u64::from(taken), "{before:?} became {after:?}");
    ensure!(after.refused - before.refused == u64::from(!taken), "{before:?} became {after:?}");
    ensure!(!taken || answer.output.contains("reloaded"), "{answer:?}");
    Ok(answer.errors)
}

/// Returns what was logged when the reload was refused.
fn by_signal(world: &World, reload: &Reload) -> Result<String> {
    let daemon = if reload.side == Side::Gateway { &world.gateway } else { &world.cloud };
    let (before, log) = (world.reloads(reload.side)?, daemon.log().len());
    daemon.signal(Signal::SIGHUP)?;
    let started = Instant::now();
    let mut after = before;
    while after == before {
        ensure!(started.elapsed() < SOON, "nothing came of SIGHUP");
        std::thread::sleep(Duration::from_millis(10));
        after = world.reloads(reload.side)?;
    }
    let text = daemon.log()[log..].to_string();
    let taken = matches!(reload.outcome, Outcome::Taken);
    ensure!((after.taken > before.taken) == taken, "{before:?} became {after:?}: {text}");
    Ok(text)
}

#[test]
fn modes_changed_by_hand_under_load_lose_no_byte_and_reset_no_flow() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let load = Load::start(world)?;
        for round in 0..3 {
            for (name, mode) in
                [("alpha", "quic"), ("beta", "tls"), ("alpha", "tls"), ("beta", "quic")]
            {
                world.ask(Side::Gateway, &format!("path set {name} --mode {mode}"))?;
                world
                    .wait_for_path(name, SOON, |path| path["mode"] == mode && path["state"] == "up")
                    .with_context(|| format!("{name} in mode {mode}, round {round}"))?;
                load.must_go_on()?;
            }
            world.ask(Side::Gateway, "path restart alpha")?;
            world.ask(Side::Gateway, "path set beta --disable")?;
            world.wait_for_path("beta", SOON, |path| path["state"] == "disabled")?;
            load.must_go_on()?;
            world.ask(Side::Gateway, "path set beta --enable")?;
            world.wait_for_path("beta", SOON, |path| path["state"] == "up")?;
            for name in ["alpha", "beta"] {
                world.ask(Side::Gateway, &format!("path set {name} --mode auto"))?;
            }
            load.must_go_on()?;
        }
        let unknown = world.operate(Side::Gateway, "path set delta --mode tls")?;
        ensure!(!unknown.good && unknown.errors.contains("delta"), "{unknown:?}");
        println!("beside {} flows", load.finish()?);
        Ok(())
    })
}

/// Downloads and uploads one after another on four threads, and one flow that never pauses.
struct Load {
    stop: Arc<AtomicBool>,
    flows: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Load {
    fn start(world: &World) -> Result<Load> {
        let ledger = Ledger::default();
        for address in SERVER.both(LOAD_PORT) {
            ledger.serve(&world.lab.server, address)?;
        }
        services::serve_echo(&world.lab.server, SERVER.at(Family::V4, ECHO_PORT))?;
        let stop = Arc::new(AtomicBool::new(false));
        let flows = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        let passenger = &world.lab.passenger;
        for loader in 0..LOADERS {
            let (ledger, stop, flows) = (ledger.clone(), Arc::clone(&stop), Arc::clone(&flows));
            let to = SERVER.at(Family::BOTH[loader as usize % 2], LOAD_PORT);
            threads.push(client::thread(passenger, move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = loader << 32 | flows.fetch_add(1, Ordering::Relaxed);
                    let exchange =
                        Exchange { seed, up: 300_000, down: 700_000, ending: Ending::Together };
                    exchange.perform(connect(to)?)?;
                    ledger.verdict(&exchange, SOON)?;
                }
                Ok(())
            })?);
        }
        let (proxy, told) = (world.proxy(), Arc::clone(&stop));
        let chat = move || one_long_flow(proxy, &told).context("the flow that lasts");
        threads.push(client::thread(passenger, chat)?);
        Ok(Load { stop, flows, threads })
    }

    /// No flow has failed so far.
    fn must_go_on(&self) -> Result<()> {
        let failed = self.threads.iter().any(JoinHandle::is_finished);
        ensure!(!failed, "a flow has failed");
        Ok(())
    }

    /// Ends the load and tells how many flows there were.
    fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().ok().context("a client panicked")??;
        }
        Ok(self.flows.load(Ordering::Relaxed))
    }
}

fn connect(to: SocketAddr) -> Result<std::net::TcpStream> {
    let stream = std::net::TcpStream::connect_timeout(&to, client::PATIENCE)?;
    stream.set_read_timeout(Some(client::PATIENCE))?;
    Ok(stream)
}

/// Says something every 20 ms and hears it again, over one SOCKS5 connection.
fn one_long_flow(proxy: SocketAddr, stop: &AtomicBool) -> Result<()> {
    let mut stream = connect(proxy)?;
    stream.set_nodelay(true)?;
    let target = Target::Address(SERVER.at(Family::V4, ECHO_PORT));
    ensure!(client::negotiate(&mut stream, &target)? == 0, "refused");
    let mut count = 0u64;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&count.to_be_bytes())?;
        let mut heard = [0; 8];
        stream.read_exact(&mut heard).with_context(|| format!("word {count}"))?;
        ensure!(heard == count.to_be_bytes(), "{heard:?} came back for {count}");
        count += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
