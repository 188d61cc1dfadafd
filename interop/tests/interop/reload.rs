//! Reloads with every kind of change, and modes changed by hand, under load. Each takes effect, no
//! byte is lost and no flow is reset.

mod kinds;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::carrier::Link;
use polyrail_interop::client;
use polyrail_interop::exchange::{Ending, Exchange, Verdicts};
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb::Rail;
use polyrail_interop::services;
use polyrail_interop::world::{Plan, World};

use self::kinds::{Answer, Reload};
use crate::scenario;

const BOUND: Duration = Duration::from_secs(60);
/// How long a reload may take until its effect is visible.
const SOON: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
const LOAD_PORT: u16 = 5000;
const ECHO_PORT: u16 = 5001;
const LOADERS: u64 = 4;
const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

#[test]
fn reloads_of_every_kind_under_load_lose_no_byte_and_reset_no_flow() -> Result<()> {
    let plan = Plan::new().rail(Rail::default());
    let plan = NAMES.into_iter().fold(plan, |plan, name| plan.carrier(name, Link::new(10.0, 40)));
    scenario(&plan, BOUND, |world| {
        let load = Load::start(world)?;
        let mut files = world.configurations.clone();
        let kinds = kinds::all();
        for (number, reload) in kinds.iter().enumerate() {
            let index = usize::from(reload.side == Side::Cloud);
            let old = files[index].clone();
            let edited = reload.edit.apply(world, reload.side, &mut files[index]);
            edited.and_then(|()| files[index].write(&reload.side.configuration(&world.lab)))?;
            // Every fifth reload is by signal.
            reload_once(world, reload, number % 5 == 4)
                .with_context(|| format!("reload {number}: {:?}", reload.edit))?;
            if !matches!(reload.answer, Answer::Taken) {
                files[index] = old;
                files[index].write(&reload.side.configuration(&world.lab))?;
            }
            load.must_continue()?;
        }
        println!("{} reloads next to {} flows", kinds.len(), load.finish()?);
        Ok(())
    })
}

/// Reloads. The daemon must accept or refuse the file as a whole and count that.
fn reload_once(world: &World, reload: &Reload, by_signal: bool) -> Result<()> {
    let (side, before) = (reload.side, world.reloads(reload.side)?);
    let daemon = if side == Side::Gateway { &world.gateway } else { &world.cloud };
    let log = daemon.log().len();
    let mut words = String::new();
    if by_signal {
        daemon.signal(Signal::SIGHUP)?;
        soon(|| {
            ensure!(world.reloads(side)? != before, "SIGHUP had no effect");
            Ok(())
        })?;
        words.push_str(&daemon.log()[log..]);
    } else {
        words.push_str(&world.operate(side, "reload")?.errors);
    }
    let after = world.reloads(side)?;
    let (taken, refused) = (after.taken - before.taken, after.refused - before.refused);
    let key = match reload.answer {
        Answer::Taken => {
            ensure!((taken, refused) == (1, 0), "{before:?} became {after:?}: {words}");
            return (reload.shows)(world).context("the reload has no effect");
        }
        Answer::Invalid(key) | Answer::Restart(key) => key,
    };
    ensure!((taken, refused) == (0, 1), "{before:?} became {after:?}: {words}");
    ensure!(words.contains(key), "refused without `{key}`:\n{words}");
    if matches!(reload.answer, Answer::Invalid(_)) {
        let text = std::fs::read_to_string(side.configuration(&world.lab))?;
        let own = key.rsplit('.').next().unwrap_or_default();
        let mut lines = text.lines().enumerate().filter(|(_, line)| line.starts_with(own));
        let place = |at: usize| format!("{}.toml:{}:", side.name(), at + 1);
        ensure!(lines.any(|(at, _)| words.contains(&place(at))), "no line of {key}:\n{words}");
    }
    Ok(())
}

/// Retries for at most [`SOON`].
fn soon(holds: impl Fn() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    loop {
        match holds() {
            Err(error) if started.elapsed() > SOON => bail!("after {SOON:?}: {error:#}"),
            Err(_) => std::thread::sleep(POLL),
            Ok(()) => return Ok(()),
        }
    }
}

#[test]
fn modes_changed_by_hand_under_load_lose_no_byte_and_reset_no_flow() -> Result<()> {
    scenario(&Plan::twins(), BOUND, |world| {
        let load = Load::start(world)?;
        for round in 0..2 {
            for (name, mode) in
                [("alpha", "quic"), ("beta", "tls"), ("alpha", "tls"), ("beta", "quic")]
            {
                world.ask(Side::Gateway, &format!("path set {name} --mode {mode}"))?;
                world
                    .wait_for_path(name, SOON, |path| path["mode"] == mode && path["state"] == "up")
                    .with_context(|| format!("{name} in mode {mode}, round {round}"))?;
                load.must_continue()?;
            }
            world.ask(Side::Gateway, "path restart alpha")?;
            world.ask(Side::Gateway, "path set beta --disable")?;
            world.wait_for_path("beta", SOON, |path| path["state"] == "disabled")?;
            load.must_continue()?;
            world.ask(Side::Gateway, "path set beta --enable")?;
            world.wait_for_path("beta", SOON, |path| path["state"] == "up")?;
            for name in ["alpha", "beta"] {
                world.ask(Side::Gateway, &format!("path set {name} --mode auto"))?;
            }
            load.must_continue()?;
        }
        let unknown = world.operate(Side::Gateway, "path set delta --mode tls")?;
        ensure!(!unknown.good && unknown.errors.contains("delta"), "{unknown:?}");
        println!("next to {} flows", load.finish()?);
        Ok(())
    })
}

/// Four threads of consecutive exchanges, and one long flow.
struct Load {
    stop: Arc<AtomicBool>,
    flows: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Load {
    fn start(world: &World) -> Result<Load> {
        let verdicts = Verdicts::default();
        for address in SERVER.both(LOAD_PORT) {
            verdicts.serve(&world.lab.server, address)?;
        }
        services::serve_echo(&world.lab.server, SERVER.at(Family::V4, ECHO_PORT))?;
        let stop = Arc::new(AtomicBool::new(false));
        let flows = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        let passenger = &world.lab.passenger;
        for loader in 0..LOADERS {
            let (verdicts, stop, flows) = (verdicts.clone(), Arc::clone(&stop), Arc::clone(&flows));
            let to = SERVER.at(Family::BOTH[loader as usize % 2], LOAD_PORT);
            threads.push(client::thread(passenger, move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = loader << 32 | flows.fetch_add(1, Ordering::Relaxed);
                    let exchange =
                        Exchange { seed, up: 300_000, down: 700_000, ending: Ending::Together };
                    exchange.perform(connect(to)?)?;
                    verdicts.verdict(&exchange, SOON)?;
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
    fn must_continue(&self) -> Result<()> {
        let failed = self.threads.iter().any(JoinHandle::is_finished);
        ensure!(!failed, "a flow has failed");
        Ok(())
    }

    /// Ends the load and returns the number of flows.
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

/// Sends a number every 20 ms and checks its echo, over one SOCKS5 connection.
fn one_long_flow(proxy: SocketAddr, stop: &AtomicBool) -> Result<()> {
    let mut stream = connect(proxy)?;
    stream.set_nodelay(true)?;
    let target = SERVER.at(Family::V4, ECHO_PORT);
    ensure!(client::negotiate(&mut stream, target)? == 0, "refused");
    let mut count = 0u64;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&count.to_be_bytes())?;
        let mut heard = [0; 8];
        stream.read_exact(&mut heard).with_context(|| format!("word {count}"))?;
        ensure!(heard == count.to_be_bytes(), "the echo of {count} is {heard:?}");
        count += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
