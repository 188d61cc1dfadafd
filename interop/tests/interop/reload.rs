//! Fifty reloads with every kind of change, and modes changed by hand, under load: no byte is lost
//! and no flow is reset.

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
use polyrail_interop::configuration::{CLOUD_NAME, Configuration, GATEWAY_NAME, strings};
use polyrail_interop::exchange::{Ending, Exchange, Ledger};
use polyrail_interop::services;
use polyrail_interop::world::{Plan, Side, World};
use toml::Value;

use crate::scenario;

const BOUND: Duration = Duration::from_secs(120);
const RELOADS: usize = 50;
const PAUSE: Duration = Duration::from_millis(250);
/// How long a reload may take until it shows.
const SOON: Duration = Duration::from_secs(10);
const LOAD_PORT: u16 = 5000;
const ECHO_PORT: u16 = 5001;
const LOADERS: u64 = 4;

fn three_carriers() -> Plan {
    ["alpha", "beta", "gamma"]
        .into_iter()
        .fold(Plan::new(), |plan, name| plan.carrier(name, Link::new(10.0, 40)))
}

/// What is done to a configuration.
enum Edit {
    Set(&'static str, Value),
    Carrier(usize, &'static str, Value),
    WithoutGamma,
    /// New certificates in the same files.
    Reissued,
    /// Back to the first configuration.
    AsAtFirst,
}

/// What must come of it.
#[derive(Clone, Copy)]
enum Outcome {
    Taken,
    /// The file is refused, and these words with it.
    Invalid(&'static [&'static str]),
    /// Refused, for the key needs a restart.
    Restart(&'static str),
}

struct Reload {
    side: Side,
    edit: Edit,
    outcome: Outcome,
}

/// Every kind of change, each on top of those before it.
fn reloads() -> Vec<Reload> {
    let gateway = |edit| Reload { side: Side::Gateway, edit, outcome: Outcome::Taken };
    let cloud = |edit| Reload { side: Side::Cloud, edit, outcome: Outcome::Taken };
    let refused = |side, edit, outcome| Reload { side, edit, outcome };
    let invalid = Outcome::Invalid(&["session.lingers", "unknown key"]);
    let wrong = Outcome::Invalid(&["carrier[2].role", "spare"]);
    let memory = Outcome::Restart("session.memory");
    vec![
        gateway(Edit::WithoutGamma),
        gateway(Edit::Carrier(0, "mode", "quic".into())),
        cloud(Edit::Set("scheduler.chain", "round_robin".into())),
        gateway(Edit::Carrier(1, "role", "backup".into())),
        cloud(Edit::Set("access.deny_ports", Value::Array(vec![25.into(), 9.into()]))),
        refused(Side::Gateway, Edit::Set("session.lingers", "9s".into()), invalid),
        gateway(Edit::Carrier(0, "mode", "tls".into())),
        gateway(Edit::Set("session.linger", "90s".into())),
        cloud(Edit::Set("congestion", "cubic".into())),
        gateway(Edit::Carrier(1, "role", "primary".into())),
        gateway(Edit::AsAtFirst),
        gateway(Edit::Carrier(0, "enabled", false.into())),
        cloud(Edit::Set("session.linger", "80s".into())),
        gateway(Edit::Carrier(1, "congestion", "cubic".into())),
        refused(Side::Gateway, Edit::Carrier(1, "role", "spare".into()), wrong),
        gateway(Edit::Carrier(0, "enabled", true.into())),
        cloud(Edit::Reissued),
        gateway(Edit::Set("scheduler.chain", "redundant".into())),
        gateway(Edit::Reissued),
        gateway(Edit::Set("log.level", "info".into())),
        gateway(Edit::Set("restart.interval", "200ms".into())),
        refused(Side::Gateway, Edit::Set("session.memory", "8 MiB".into()), memory),
        cloud(Edit::Set("log.level", "info".into())),
        refused(Side::Cloud, Edit::Set("session.lingers", "9s".into()), invalid),
        cloud(Edit::AsAtFirst),
        gateway(Edit::AsAtFirst),
        refused(
            Side::Cloud,
            Edit::Set("listen", strings(["[::]:4434"])),
            Outcome::Restart("listen"),
        ),
    ]
}

#[test]
fn fifty_reloads_under_load_lose_no_byte_and_reset_no_flow() -> Result<()> {
    scenario(&three_carriers(), BOUND, |world| {
        let load = Load::start(world)?;
        let mut files = world.configurations.clone();
        for (number, reload) in reloads().iter().cycle().take(RELOADS).enumerate() {
            one_reload(world, &mut files, reload, number)
                .with_context(|| format!("reload {number}"))?;
            load.must_go_on()?;
            std::thread::sleep(PAUSE);
        }
        let flows = load.finish()?;
        println!("{RELOADS} reloads beside {flows} flows");
        Ok(())
    })
}

/// Changes the file and reloads, by `polyrail reload` and SIGHUP in turns.
fn one_reload(
    world: &World,
    files: &mut [Configuration; 2],
    reload: &Reload,
    number: usize,
) -> Result<()> {
    let side = reload.side;
    let index = usize::from(side == Side::Cloud);
    let mut file = files[index].clone();
    match &reload.edit {
        Edit::Set(key, value) => file.set(key, value.clone()),
        Edit::Carrier(carrier, key, value) => file.set_carrier(*carrier, key, value.clone()),
        Edit::WithoutGamma => file.remove_last_carrier(),
        Edit::Reissued if side == Side::Cloud => world.keys.reissue(CLOUD_NAME, "cloud")?,
        Edit::Reissued => world.keys.reissue(GATEWAY_NAME, "gateway")?,
        Edit::AsAtFirst => file = world.configurations[index].clone(),
    }
    file.write(&side.configuration(&world.lab))?;
    let words = if number.is_multiple_of(2) {
        by_command(world, reload)?
    } else {
        by_signal(world, reload)?
    };
    let expected: &[&str] = match reload.outcome {
        Outcome::Taken => {
            files[index] = file;
            return Ok(());
        }
        Outcome::Invalid(words) => words,
        Outcome::Restart(ref key) => std::slice::from_ref(key),
    };
    for word in expected {
        ensure!(words.contains(word), "refused without `{word}`:\n{words}");
    }
    if matches!(reload.outcome, Outcome::Invalid(_)) {
        let text = std::fs::read_to_string(side.configuration(&world.lab))?;
        let key = expected[0].rsplit('.').next().unwrap_or_default();
        let lines = text.lines().enumerate().filter(|(_, line)| line.starts_with(key));
        let places: Vec<String> =
            lines.map(|(at, _)| format!("{}.toml:{}:", side.name(), at + 1)).collect();
        ensure!(places.iter().any(|place| words.contains(place)), "not {places:?}:\n{words}");
    }
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
