//! One passenger holds 20,000 idle connections.

use std::time::Duration;

use anyhow::{Context, Result};

use super::probe::{Way, probe};
use super::{ATTACKER, OTHERS, add_passengers, ensure_held, wires};
use crate::addresses::{Family, RESOLVER, SERVER, SERVER_NAME, user};
use crate::bench::{Effort, in_world};
use crate::dns;
use crate::process::{Process, Program};
use crate::report::{Goal, Report};
use crate::services::serve_echo;
use crate::usage;
use crate::world::World;

/// New connections and DNS of the others, and the daemons' memory, next to the idle connections.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (count, length) = (effort.pick(20_000, 2_000), Duration::from_secs(effort.pick(10, 2)));
    let plan = wires().gateway("session.memory", "16 MiB").cloud("session.memory", "16 MiB");
    in_world(&plan, |world| {
        add_passengers(world)?;
        serve_echo(&world.lab.server, SERVER.at(Family::V4, ECHO))?;
        let others = OTHERS.map(|number| Way::From(user(number)));
        let server = SERVER.at(Family::V4, ECHO);
        let quiet = probe(&world.lab.passenger, &others, server, PROBES, length)?;
        let before = memory(world)?;
        let _held = hold(world, count)?;
        ensure_held(world, count.min(FLOWS_MAX))?;
        let attacked = probe(&world.lab.passenger, &others, server, PROBES, length)?;
        let after = memory(world)?;
        if let Some(reason) = &attacked.reason {
            println!("{} failed, the first one: {reason}", attacked.failed);
        }
        let success = attacked.success();
        report.result("attack_idle_success", success, "x", Goal::AtLeast(0.99), &[]);
        report.result("attack_idle_quiet_p95", quiet.p95_ms(), "ms", Goal::None, &[]);
        report.result("attack_idle_p95", attacked.p95_ms(), "ms", Goal::None, &[]);
        let answered = ask(world)?;
        report.result("attack_idle_dns", answered, "x", Goal::AtLeast(1.0), &[]);
        for (side, name) in ["gateway", "cloud"].into_iter().enumerate() {
            let growth = (after[side] - before[side]) / MIB;
            let name = format!("attack_idle_memory_{name}");
            report.result(&name, growth, "MiB", Goal::AtMost(GROWTH_MIB), &[]);
        }
        Ok(())
    })
}

/// Starts the servers and the attacker's processes, and waits until each has tried all.
fn hold(world: &World, count: usize) -> Result<Vec<Process>> {
    let program = std::env::current_exe()?;
    let mut processes = Vec::new();
    for part in 0..PARTS {
        let server = SERVER.at(Family::V4, HOLDERS + part);
        let each = count / usize::from(PARTS);
        let name = format!("server{part}");
        let mut holder = Program::new(&name, &program, world.lab.log(&name))
            .arg("hold")
            .arg(format!("{server}={each}"))
            .start(&world.lab.server)?;
        holder.wait_for_log("listening", Duration::from_secs(5))?;
        let name = format!("attacker{part}");
        let attacker = Program::new(&name, &program, world.lab.log(&name))
            .arg("hold-open")
            .arg(format!("{}>{server}={each}", user(ATTACKER)))
            .start(&world.lab.passenger)?;
        processes.extend([holder, attacker]);
    }
    for process in processes.iter_mut().filter(|one| one.name().starts_with("attacker")) {
        process.wait_for_log("attempted", HOLD_LIMIT)?;
        println!("{}: {}", process.name(), process.log().trim());
    }
    Ok(processes)
}

/// The share of questions to the forwarder that have an answer.
fn ask(world: &World) -> Result<f64> {
    let resolver = RESOLVER.at(Family::V4, 53);
    let answered = world.lab.passenger.run(|| {
        let ask = |_: &u32| dns::ask_udp(resolver, SERVER_NAME, Family::V4).is_ok();
        (0..QUESTIONS).filter(ask).count()
    })?;
    Ok(answered as f64 / f64::from(QUESTIONS))
}

fn memory(world: &World) -> Result<[f64; 2]> {
    let of = |process: &Process| {
        Ok::<f64, anyhow::Error>(usage::memory_bytes(process.id()).context("memory")? as f64)
    };
    Ok([of(&world.gateway)?, of(&world.cloud)?])
}

const ECHO: u16 = 7007;
/// The first port of the servers that hold connections.
const HOLDERS: u16 = 6000;
/// Processes on each side.
const PARTS: u16 = 2;
const HOLD_LIMIT: Duration = Duration::from_secs(120);
const PROBES: u32 = 20;
const QUESTIONS: u32 = 10;
const MIB: f64 = 1_048_576.0;
/// The attacker's connections that stay: `session.user_flows_max`.
const FLOWS_MAX: usize = 1_024;
/// 1.2 times `session.memory`, and 8 KiB for each of 1,024 flows.
const GROWTH_MIB: f64 = 1.2 * 16.0 + 8.0;
