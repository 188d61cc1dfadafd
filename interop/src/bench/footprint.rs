//! The memory that an idle flow costs each daemon, and the time of a scrape with many flows.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::namespace::Namespace;

use super::Effort;
use crate::addresses::{Family, SERVER};
use crate::client;
use crate::metrics::{LISTEN, Scrape};
use crate::process::{Process, Program};
use crate::report::{Goal, Report};
use crate::usage;
use crate::world::{Plan, World};

const PORT: u16 = 6000;
const OPENERS: usize = 16;
const AIM_BYTES: f64 = 8192.0;
const AIM_MS: f64 = 5.0;
const SCRAPES: usize = 9;
const USER_FLOWS_MAX: i64 = 20_000;

/// Opens flows through SOCKS5 and takes the difference of the resident memory.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let flows = effort.pick(10_000, 500);
    let listen = LISTEN.to_string();
    let plan = Plan::new().wire("alpha").wire("beta").gateway("socks5.reply", "dialed");
    let plan = plan.gateway("metrics.listen", listen.as_str());
    let plan = plan.cloud("metrics.listen", listen.as_str());
    // All of them belong to one user.
    let plan = plan.gateway("session.user_flows_max", USER_FLOWS_MAX);
    let plan = plan.cloud("session.user_flows_max", USER_FLOWS_MAX);
    let [memory, scrapes] = super::in_tls(&plan, move |world| measure(world, flows))?;
    let [gateway, cloud] = memory;
    let goal = if effort == Effort::Full { Goal::AtMost(AIM_BYTES) } else { Goal::None };
    report.result("idle_flow_memory_gateway", gateway, "bytes", goal, &[]);
    report.result("idle_flow_memory_cloud", cloud, "bytes", goal, &[]);
    let goal = if effort == Effort::Full { Goal::AtMost(AIM_MS) } else { Goal::None };
    let [gateway, cloud] = scrapes;
    report.result("scrape_time_gateway", gateway, "ms", goal, &[]);
    report.result("scrape_time_cloud", cloud, "ms", goal, &[]);
    Ok(())
}

/// Bytes of memory per flow, and milliseconds of a scrape, each of gateway and cloud.
fn measure(world: &mut World, flows: usize) -> Result<[[f64; 2]; 2]> {
    let holder = start_holder(world, flows)?;
    // A few flows come first, so that one-time allocations do not count.
    let few = open(world, 100)?;
    std::thread::sleep(Duration::from_secs(1));
    let before = [memory(&world.gateway)?, memory(&world.cloud)?];
    let started = Instant::now();
    let many = open(world, flows - few.len())?;
    println!("{} flows opened in {:?}", many.len(), started.elapsed());
    std::thread::sleep(Duration::from_secs(3));
    let after = [memory(&world.gateway)?, memory(&world.cloud)?];
    let each = |side: usize| (after[side] - before[side]) / many.len() as f64;
    ensure!(holder.log().contains("all there"), "the server holds too few: {}", holder.log());
    let namespaces = [&world.lab.gateway, &world.lab.cloud];
    let scrapes = namespaces.map(|namespace| scrape_ms(namespace, many.len()));
    let [gateway, cloud] = scrapes;
    Ok([[each(0), each(1)], [gateway?, cloud?]])
}

/// The median time of a scrape while so many flows are open.
fn scrape_ms(namespace: &Namespace, flows: usize) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..SCRAPES {
        // Scrapes within a second get the same text.
        std::thread::sleep(Duration::from_millis(1_100));
        let scrape = Scrape::of(namespace)?;
        let open = scrape.sum("polyrail_flows", &[]).unwrap_or(0.0);
        ensure!(open >= flows as f64, "{open} open flows");
        times.push(scrape.took.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[SCRAPES / 2])
}

fn memory(process: &Process) -> Result<f64> {
    Ok(usage::memory_bytes(process.id())? as f64)
}

fn open(world: &World, count: usize) -> Result<Vec<TcpStream>> {
    let (proxy, target) = (world.proxy(), SERVER.at(Family::V4, PORT));
    let connect = |index: usize| -> Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&proxy, client::PATIENCE)?;
        stream.set_read_timeout(Some(client::PATIENCE))?;
        let code =
            client::negotiate(&mut stream, target).with_context(|| format!("flow {index}"))?;
        ensure!(code == 0, "flow {index}: SOCKS5 reply {code}");
        Ok(stream)
    };
    // Several threads, because each flow waits for the cloud's dial.
    world.lab.passenger.run(|| {
        std::thread::scope(|scope| {
            let part = |first: usize| (first..count).step_by(OPENERS).map(connect).collect();
            let openers: Vec<_> = (0..OPENERS).map(|n| scope.spawn(move || part(n))).collect();
            let parts = openers.into_iter().map(|opener| {
                opener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            let parts: Result<Vec<Vec<TcpStream>>> = parts.collect();
            parts.map(|parts| parts.into_iter().flatten().collect())
        })
    })?
}

/// The server is a process of its own, because a process may have at most 20,000 descriptors.
fn start_holder(world: &World, flows: usize) -> Result<Process> {
    let program = std::env::current_exe()?;
    let mut holder = Program::new("holder", program, world.lab.log("holder"))
        .arg("hold")
        .arg(format!("{}={flows}", SERVER.at(Family::V4, PORT)))
        .start(&world.lab.server)?;
    holder.wait_for_log("listening", Duration::from_secs(5))?;
    Ok(holder)
}

/// The server's part, in a process of its own: accepts connections and holds them.
pub fn hold(what: &str) -> Result<()> {
    let (address, count) = what.split_once('=').context("ADDRESS=COUNT")?;
    let (address, count): (SocketAddr, usize) = (address.parse()?, count.parse()?);
    let listener = TcpListener::bind(address)?;
    println!("listening");
    let held: Vec<TcpStream> = listener.incoming().take(count).collect::<Result<_, _>>()?;
    println!("{} all there", held.len());
    loop {
        std::thread::park();
    }
}
