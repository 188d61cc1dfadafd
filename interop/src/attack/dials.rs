//! One passenger connects 2,000 times a second to an address that never answers.

use std::time::Duration;

use anyhow::{Context, Result};

use super::flood::Flood;
use super::probe::{Probed, Way, probe};
use super::train::OtherTrain;
use super::{ATTACKER, OTHERS, add_passengers, wires};
use crate::addresses::{Family, SERVER, user};
use crate::bench::{Effort, in_world};
use crate::report::{Goal, Report};
use crate::services::serve_echo;
use crate::world::World;

/// New connections of the others and of another gateway, quiet and next to the flood.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let length = Duration::from_secs(effort.pick(20, 3));
    let [quiet, attacked] = in_world(&wires(), move |world| measure(world, length))?;
    for (name, quiet, attacked) in [
        ("others", &quiet.passengers, &attacked.passengers),
        ("other_gateway", &quiet.train, &attacked.train),
    ] {
        let of_attack = format!("attack_dials_{name}");
        let (before, after) = (quiet.p95_ms(), attacked.p95_ms());
        if let Some(reason) = &attacked.reason {
            println!("{of_attack}: {} failed, the first one: {reason}", attacked.failed);
        }
        let success = attacked.success();
        report.result(&format!("{of_attack}_quiet_p95"), before, "ms", Goal::None, &[]);
        report.result(&format!("{of_attack}_success"), success, "x", Goal::AtLeast(0.99), &[]);
        let goal = Goal::AtMost(1.5 * before + 20.0);
        report.result(&format!("{of_attack}_p95"), after, "ms", goal, &[]);
    }
    let enough = Goal::AtLeast(0.9 * f64::from(RATE));
    report.result("attack_dials_rate", attacked.rate as f64, "1/s", enough, &[]);
    report.result("attack_dials_log_lines", attacked.log_lines, "1/s", Goal::AtMost(10.0), &[]);
    Ok(())
}

/// What one part of the measurement saw.
struct Seen {
    passengers: Probed,
    train: Probed,
    /// The attacker's attempts a second.
    rate: u64,
    /// Lines of both daemons' logs at INFO or above, a second.
    log_lines: f64,
}

fn measure(world: &mut World, length: Duration) -> Result<[Seen; 2]> {
    add_passengers(world)?;
    serve_echo(&world.lab.server, SERVER.at(Family::V4, ECHO))?;
    silence(world)?;
    let train = OtherTrain::start(world, 2, None)?;
    let quiet = both(world, &train, length, None)?;
    let target = SERVER.at(Family::V4, SILENT);
    let flood = Flood::start(&world.lab.passenger, user(ATTACKER), target, RATE)?;
    std::thread::sleep(length / 10);
    let attacked = both(world, &train, length, Some(flood))?;
    Ok([quiet, attacked])
}

fn both(world: &World, train: &OtherTrain, length: Duration, flood: Option<Flood>) -> Result<Seen> {
    let before = lines(world);
    let server = SERVER.at(Family::V4, ECHO);
    let passenger = &world.lab.passenger;
    let others = OTHERS.map(|number| Way::From(user(number)));
    let (passengers, train) = std::thread::scope(|scope| {
        let train = scope.spawn(|| probe(passenger, &[train.way], server, PROBES, length));
        let passengers = probe(passenger, &others, server, PROBES, length);
        let train = train.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (passengers, train)
    });
    let log_lines = (lines(world) - before) as f64 / length.as_secs_f64();
    let rate = flood.map_or(Ok(0), Flood::end)?;
    Ok(Seen { passengers: passengers?, train: train?, rate, log_lines })
}

/// The lines of both logs that an operator sees by default.
fn lines(world: &World) -> usize {
    let shown = |line: &&str| ["INFO", "WARN", "ERROR"].iter().any(|level| line.contains(level));
    let logs = [world.gateway.log(), world.cloud.log()];
    logs.iter().map(|log| log.lines().filter(shown).count()).sum()
}

/// Makes the server ignore connections to [`SILENT`].
fn silence(world: &World) -> Result<()> {
    let server = &world.lab.server;
    for line in [
        "add table inet silent",
        "add chain inet silent input { type filter hook input priority 0; }",
    ] {
        server.tool("nft", line).context("nft")?;
    }
    let rule = format!("add rule inet silent input tcp dport {SILENT} drop");
    server.tool("nft", &rule).context("nft")?;
    Ok(())
}

/// The port of the echo server, and one that never answers.
const ECHO: u16 = 7007;
const SILENT: u16 = 7009;
/// The attacker's connections a second.
const RATE: u32 = 2_000;
/// The others' connections a second.
const PROBES: u32 = 20;
