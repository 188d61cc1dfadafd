//! The goodput of paths that silently drop packets of more than 1,280 bytes.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::bench::{Effort, in_world};
use crate::carrier;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

/// What happens to the path MTU of both carriers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    /// The interfaces have an MTU of 1,280 bytes.
    Known,
    /// A silent limit of 1,280 bytes from before the start.
    Before,
    /// The same from the middle of the download.
    Amid,
}

/// Each mode in each case, interleaved.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    for mode in ["quic", "tls"] {
        let (mut before, mut amid) = (Vec::new(), Vec::new());
        for _ in 0..effort.pick(5, 1) {
            let known = goodput(mode, Case::Known, effort)?;
            before.push(goodput(mode, Case::Before, effort)? / known);
            amid.push(goodput(mode, Case::Amid, effort)? / known);
        }
        let goal = if effort == Effort::Full { Goal::AtLeast(0.7) } else { Goal::None };
        for (name, ratios) in [("before", before), ("amid", amid)] {
            let name = format!("silent_mtu_{name}_{mode}");
            report.result(&name, median(&ratios), "ratio", goal, &ratios);
        }
    }
    Ok(())
}

/// Bytes a second of a download. With a limit from before the start they count from the download's
/// start, else after its first 4 MB.
fn goodput(mode: &str, case: Case, effort: Effort) -> Result<f64> {
    let plan = Plan::twins().gateway("mode", mode).cloud("mode", mode);
    let limits = ["set alpha mtu 1280 silent", "set beta mtu 1280 silent"];
    let plan = match case {
        Case::Before => limits.iter().fold(plan, |plan, line| plan.command(line)),
        Case::Known | Case::Amid => plan,
    };
    let time = Duration::from_secs(effort.pick(10, 3));
    in_world(&plan, move |world| {
        if case == Case::Known {
            for index in 0..2 {
                world.lab.gateway.ip(&format!("link set wan{index} mtu 1280"))?;
                world.lab.cloud.ip(&format!("link set car{index} mtu 1280"))?;
            }
            // Paths that know the MTU from their start.
            world.restart_cloud()?;
            world.restart_gateway()?;
            world.wait_for_carriers()?;
        }
        measure(world, case, &limits, time)
    })
}

fn measure(world: &mut World, case: Case, limits: &[&str], time: Duration) -> Result<f64> {
    let file = world.web.add(60_000_000, 5)?;
    let mut running = world.download(&file).start(&world.lab.passenger)?;
    if case != Case::Before {
        running.wait_for_bytes(4_000_000)?;
    }
    for line in limits.iter().filter(|_| case == Case::Amid) {
        carrier::command(&world.lab, line)?;
    }
    let (begin, before) = (Instant::now(), running.bytes());
    std::thread::sleep(time);
    let bytes = running.bytes() - before;
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}
