//! Either daemon is killed and started again: when do new flows work, and does an old one hang?

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::probe::{Way, connect, once};
use super::{OTHERS, add_passengers, address, links};
use crate::addresses::{Family, SERVER};
use crate::bench::{Effort, in_world};
use crate::report::{Goal, Report, median};
use crate::services::serve_echo;
use crate::world::World;

/// Kills the cloud and the gateway in turns.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let rounds = effort.pick(20, 1);
    let rounds = in_world(&links(20.0), move |world| {
        add_passengers(world)?;
        serve_echo(&world.lab.server, SERVER.at(Family::V4, ECHO))?;
        (0..rounds)
            .map(|_| Ok([kill(world, Killed::Cloud)?, kill(world, Killed::Gateway)?]))
            .collect::<Result<Vec<_>>>()
    })?;
    for (side, name) in ["cloud", "gateway"].into_iter().enumerate() {
        let times: Vec<f64> = rounds.iter().map(|round| round[side].0).collect();
        let hung: Vec<f64> = rounds.iter().map(|round| round[side].1).collect();
        let of = |figure: &str| format!("attack_restart_{name}_{figure}");
        report.result(&of("new_flow"), median(&times), "s", Goal::AtMost(2.0), &times);
        report.result(&of("hung"), hung.iter().sum(), "flows", Goal::AtMost(0.0), &hung);
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Killed {
    Cloud,
    Gateway,
}

/// Seconds from the start of the new process until a new flow works, and the old flows that have
/// not ended [`END_LIMIT`] later.
fn kill(world: &mut World, which: Killed) -> Result<(f64, f64)> {
    let (way, server) = (Way::From(address(OTHERS[0])), SERVER.at(Family::V4, ECHO));
    let open = || (0..FLOWS).map(|_| connect(way, server)).collect::<Result<Vec<_>>>();
    let flows: Vec<TcpStream> = world.lab.passenger.run(open)?.context("old flows")?;
    world.lab.passenger.run(|| once(way, server))?.context("a flow before")?;
    match which {
        Killed::Cloud => world.restart_cloud()?,
        Killed::Gateway => world.restart_gateway()?,
    }
    let started = Instant::now();
    while world.lab.passenger.run(|| once(way, server))?.is_err() {
        ensure!(started.elapsed() < NEW_LIMIT, "no new flow works\n{}", world.tails());
        std::thread::sleep(Duration::from_millis(10));
    }
    let new = started.elapsed().as_secs_f64();
    let deadline = Instant::now() + END_LIMIT;
    let hung = flows.into_iter().filter(|flow| !ends(flow, deadline)).count();
    Ok((new, hung as f64))
}

/// Whether a flow ends or is reset by then.
fn ends(mut flow: &TcpStream, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let timeout = flow.set_read_timeout(Some(left));
    let late = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    timeout.is_ok() && !flow.read(&mut [0]).is_err_and(|error| late(&error))
}

const ECHO: u16 = 7007;
/// Old flows.
const FLOWS: usize = 10;
const NEW_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(10);
