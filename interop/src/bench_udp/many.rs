//! A call next to a user with very many UDP flows, and what a flow costs.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::addresses::{self, Family, SERVER};
use crate::admin;
use crate::bench::Effort;
use crate::carrier::Link;
use crate::datagrams::{Call, ECHO_PORT, serve_echo};
use crate::lab::Side;
use crate::report::{Goal, Report};
use crate::usage;
use crate::world::{Plan, World};

/// The users: one calls, the other has the flows.
const CALLER: u8 = 100;
const OTHER: u8 = 66;
/// Flows a second.
const PACE: u32 = 2_000;
const FIRST_PORT: u16 = 20_000;
/// Files that a daemon may open, if this machine permits them.
const FILES: u64 = 100_000;
/// Packets of a call that take longer are late.
const LATE: Duration = Duration::from_millis(300);

/// The shares of lost or late packets of calls alone and next to the flows, and memory.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (flows, call) =
        effort.pick((10_000, Duration::from_secs(20)), (500, Duration::from_secs(2)));
    let permitted = getrlimit(Resource::RLIMIT_NOFILE)?.1;
    if permitted < FILES
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, FILES, FILES)
    {
        eprintln!("{permitted} open files instead of {FILES}: {error}");
    }
    // The cloud's share for datagrams is an eighth; a little is in use otherwise.
    let room = getrlimit(Resource::RLIMIT_NOFILE)?.1 / 8 * 99 / 100;
    for mode in ["quic", "tls"] {
        let link = Link::new(20.0, 40);
        let plan = Plan::new().carrier("alpha", link).carrier("beta", link);
        let plan = plan.gateway("mode", mode).cloud("mode", mode);
        let plan = plan.gateway("users.key", "address");
        let plan = plan.gateway("session.user_flows_max", i64::from(flows));
        let plan = plan.cloud("session.user_flows_max", i64::from(flows)).cloud("workers", 1);
        let world = World::start(&plan)?;
        let outcome =
            measure(&world, flows, call).inspect_err(|_| eprintln!("{}", world.tails()))?;
        let name = |what: &str| format!("udp_many_{mode}_{what}");
        let [alone, beside, new] = outcome.bad;
        report.result(&name("call_alone"), alone, "x", Goal::None, &[]);
        report.result(&name("call_beside"), beside, "x", Goal::None, &[]);
        let goal = effort.pick(Goal::AtMost(0.002), Goal::None);
        report.result(&name("call_more"), beside - alone, "x", goal, &[]);
        report.result(&name("new_call_more"), new - alone, "x", goal, &[]);
        let most = (room as f64).min(f64::from(flows));
        let goal = effort.pick(Goal::AtLeast(most), Goal::None);
        report.result(&name("sockets"), outcome.sockets as f64, "sockets", goal, &[]);
        for (side, (bindings, bytes)) in [Side::Gateway, Side::Cloud].iter().zip(outcome.cost) {
            let side = side.name();
            report.result(&name(&format!("flows_{side}")), bindings, "flows", Goal::None, &[]);
            report.result(&name(&format!("memory_{side}")), bytes, "bytes", Goal::None, &[]);
        }
    }
    Ok(())
}

struct Outcome {
    /// The share of bad packets of calls alone, that begin with the flows, and that begin next to
    /// all of them.
    bad: [f64; 3],
    /// The cloud's sockets for the flows and the calls.
    sockets: usize,
    /// Bindings of each daemon's session, and the memory of one.
    cost: [(f64, f64); 2],
}

fn measure(world: &World, flows: u16, length: Duration) -> Result<Outcome> {
    world.lab.add_users([CALLER, OTHER])?;
    serve_echo(&world.lab.server)?;
    let call = || -> Result<f64> {
        let socket = from(world, CALLER, 0)?;
        let call = Call::make(&socket, length)?;
        Ok(call.bad(LATE) as f64 / call.round_trips.len() as f64)
    };
    let alone = call()?;
    let before = [memory(world, Side::Gateway)?, memory(world, Side::Cloud)?];
    let files = usage::descriptors(world.cloud.id())?;
    let over = Arc::new(AtomicBool::new(false));
    let flood = {
        let over = over.clone();
        world.lab.passenger.run(|| std::thread::spawn(move || open(flows, &over)))?
    };
    let beside = || -> Result<Outcome> {
        let bad = [alone, call()?, call()?];
        let sockets = usage::descriptors(world.cloud.id())?.saturating_sub(files);
        let [at_gateway, at_cloud] =
            [bindings(world, Side::Gateway)?, bindings(world, Side::Cloud)?];
        let gateway = (memory(world, Side::Gateway)? - before[0]) / at_gateway;
        let cloud = (memory(world, Side::Cloud)? - before[1]) / at_cloud;
        Ok(Outcome { bad, sockets, cost: [(at_gateway, gateway), (at_cloud, cloud)] })
    };
    let outcome = beside();
    over.store(true, Ordering::Relaxed);
    flood.join().map_err(|_| anyhow!("the flows panicked"))??;
    outcome
}

/// The bindings of a daemon's session.
fn bindings(world: &World, side: Side) -> Result<f64> {
    let status = admin::get(&side.admin_socket(&world.lab), "/v1/status")?;
    status["sessions"][0]["bindings"].as_f64().context("bindings")
}

/// Sends one datagram from each port, again and again.
fn open(flows: u16, over: &AtomicBool) -> Result<()> {
    let (begin, mut sent) = (Instant::now(), 0_u32);
    loop {
        for port in FIRST_PORT..FIRST_PORT + flows {
            if over.load(Ordering::Relaxed) {
                return Ok(());
            }
            match UdpSocket::bind((addresses::user(OTHER), port)) {
                // A full queue loses it.
                Ok(socket) => drop(socket.send_to(&[0; 100], SERVER.at(Family::V4, ECHO_PORT))),
                // Another benchmark's child holds a copy of the last one until it is executed.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error.into()),
            }
            sent += 1;
            let due = begin + Duration::from_secs(1) * sent / PACE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}

/// A passenger's socket that is connected to the echo server.
fn from(world: &World, user: u8, port: u16) -> Result<UdpSocket> {
    let socket = world.lab.passenger.run(|| UdpSocket::bind((addresses::user(user), port)))??;
    let server: SocketAddr = SERVER.at(Family::V4, ECHO_PORT);
    world.lab.passenger.run(|| socket.connect(server))??;
    Ok(socket)
}

fn memory(world: &World, side: Side) -> Result<f64> {
    let process = match side {
        Side::Gateway => &world.gateway,
        Side::Cloud => &world.cloud,
    };
    Ok(usage::memory_bytes(process.id())? as f64)
}
