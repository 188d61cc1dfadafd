//! How many round trips a path needs until it can send users' data.
//!
//! The only carrier has 400 ms. It is disabled over the admin socket, the passenger writes a
//! message into an open flow, and the carrier is enabled. The time from then to the arrival at the
//! server is the time until the message was sent and half a round trip.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::plan;
use super::worlds::Worlds;
use crate::addresses::{Family, SERVER};
use crate::admin;
use crate::bench::Effort;
use crate::carrier::Link;
use crate::client::{self, PATIENCE};
use crate::report::{Goal, Report, median};
use crate::services;
use crate::world::{Plan, World};

const PORT: u16 = 6220;
const ROUND_TRIP_MS: u32 = 400;
/// What processing may add to whole round trips: 40 ms.
const ALLOWANCE: f64 = 0.1;
/// Until the path has received its tickets, a round trip after its handshake. The next path needs
/// them.
const TICKETS: Duration = Duration::from_secs(1);
/// Until both ends have closed the path.
const GONE: Duration = Duration::from_millis(1500);
/// Until the gateway has received the message.
const TAKEN: Duration = Duration::from_millis(100);
const MESSAGE: [u8; 100] = [0x6d; 100];

/// A mode, whether it uses early data, and the round trips that it needs.
const CASES: [(&str, bool, f64); 4] =
    [("quic", false, 1.0), ("quic", true, 0.0), ("tls", false, 2.0), ("tls", true, 1.0)];

/// The state of a world: the flow, and the arrival times of its messages.
struct Kept {
    flow: TcpStream,
    arrivals: Receiver<Instant>,
}

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let rounds = effort.pick(9, 1);
    let plans: Vec<Plan> = CASES
        .iter()
        .map(|(mode, early_data, _)| {
            plan(mode)
                .carrier("alpha", Link::new(20.0, ROUND_TRIP_MS))
                .gateway("admin.socket", SOCKET)
                .gateway("restart.early_data", *early_data)
        })
        .collect();
    let worlds =
        Worlds::start(&plans, |world, _| prepare(world), |world, kept, _| once(world, kept))?;
    let mut all = vec![Vec::new(); plans.len()];
    for round in 0..rounds {
        for (list, trips) in all.iter_mut().zip(worlds.together(round)?) {
            list.push(trips);
        }
    }
    for ((mode, early_data, wanted), trips) in CASES.iter().zip(&all) {
        let word = if *early_data { "_early_data" } else { "" };
        let goal = Goal::AtMost(wanted + ALLOWANCE);
        report.result(&format!("establish_{mode}{word}"), median(trips), "RTT", goal, trips);
    }
    Ok(())
}

fn prepare(world: &mut World) -> Result<Kept> {
    let (to, arrivals) = channel();
    let to = Mutex::new(to);
    services::serve(&world.lab.server, SERVER.at(Family::V4, PORT), move |mut stream, _| {
        let to = to.lock().map(|to| to.clone());
        while stream.read_exact(&mut [0; MESSAGE.len()]).is_ok() {
            // Fails once the measurement is over.
            let _ = to.as_ref().map(|to| to.send(Instant::now()));
        }
    })?;
    let mut flow = client::connect(&world.lab.passenger, SERVER.at(Family::V4, PORT))?;
    flow.write_all(&MESSAGE)?;
    arrivals.recv_timeout(PATIENCE).context("the first message")?;
    Ok(Kept { flow, arrivals })
}

/// The round trips until the message was sent.
fn once(world: &mut World, kept: &mut Kept) -> Result<f64> {
    let socket = world.lab.folder().join(SOCKET);
    std::thread::sleep(TICKETS);
    admin::enable(&socket, "alpha", false)?;
    std::thread::sleep(GONE);
    kept.flow.write_all(&MESSAGE)?;
    std::thread::sleep(TAKEN);
    ensure!(kept.arrivals.try_recv().is_err(), "the message arrived over a carrier that is off");
    let begun = Instant::now();
    admin::enable(&socket, "alpha", true)?;
    let arrived = kept.arrivals.recv_timeout(PATIENCE).context("the message")?;
    let round_trip = f64::from(ROUND_TRIP_MS) / 1000.0;
    Ok(arrived.duration_since(begun).as_secs_f64() / round_trip - 0.5)
}

/// Relative to the folder of the configuration file.
const SOCKET: &str = "gateway.sock";
