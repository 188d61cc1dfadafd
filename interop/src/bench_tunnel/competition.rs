//! One download through a tunnel next to a download of a kernel on the same link: what each gets
//! of its fair share.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::SockRef;

use super::worlds::Worlds;
use crate::addresses::{CLOUD, Family};
use crate::bench::Effort;
use crate::bulk::{Bulk, Source};
use crate::carrier::Link;
use crate::client::{self, PATIENCE};
use crate::report::{Goal, Report, median};
use crate::services;
use crate::world::{Plan, World};

const MBIT_S: f64 = 20.0;
/// One and ten bandwidth-delay products of 20 Mbit/s and 50 ms.
const QUEUES: [(&str, u32); 2] = [("1_bdp", 122), ("10_bdp", 1_220)];
/// The tunnel's congestion controls in mode `quic`.
const OWN: [&str; 2] = ["bbr", "rail"];
/// The kernel's, and the goals at each queue: the least of what each side gets.
const RIVALS: [(&str, [f64; 2]); 2] = [("cubic", [0.5, 0.25]), ("bbr", [0.5, 0.5])];
const PORT: u16 = 6201;

/// Each congestion control next to each of the kernel's, at each queue.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (rounds, time) = effort.pick((3, Duration::from_secs(20)), (1, Duration::from_secs(2)));
    for (place, (queue, kib)) in QUEUES.into_iter().enumerate() {
        let cases =
            OWN.into_iter().flat_map(|own| RIVALS.map(|(rival, goals)| (own, rival, goals)));
        let cases: Vec<_> = cases.collect();
        let plans: Vec<Plan> = cases.iter().map(|(own, ..)| plan(own, kib)).collect();
        let rivals: Vec<_> = cases.iter().map(|(_, rival, _)| *rival).collect();
        let prepare = move |world: &mut World, number: usize| {
            let rival = rivals[number];
            let address = CLOUD.at(Family::V4, PORT);
            services::serve(&world.lab.cloud, address, move |stream, _| {
                // Fails when the client closes.
                let _ = pour(stream, rival);
            })?;
            Source::start(world)
        };
        let measure = move |world: &mut World, _: &mut Source, _| {
            let own = Bulk::start(world)?;
            own.wait_for(1_000_000, PATIENCE)?;
            let address = CLOUD.at(Family::V4, PORT);
            let rival = Bulk::read(client::connect(&world.lab.gateway, address)?)?;
            std::thread::sleep(time / 4);
            let before = [own.bytes(), rival.bytes()];
            std::thread::sleep(time);
            let fair = MBIT_S * 1e6 / 8.0 * time.as_secs_f64() / 2.0;
            let shares = [own.bytes() - before[0], rival.bytes() - before[1]];
            Ok(shares.map(|bytes| bytes as f64 / fair))
        };
        let worlds = Worlds::start(&plans, prepare, measure)?;
        let mut outcomes = vec![[const { Vec::new() }; 2]; cases.len()];
        for round in 0..rounds {
            for (lists, shares) in outcomes.iter_mut().zip(worlds.together(round)?) {
                lists.iter_mut().zip(shares).for_each(|(list, share)| list.push(share));
            }
        }
        for ((own, rival, goals), [ours, theirs]) in cases.into_iter().zip(&outcomes) {
            let goal = effort.pick(Goal::AtLeast(goals[place]), Goal::None);
            let name = format!("competition_{queue}_{own}_next_to_{rival}");
            report.result(&format!("{name}_own"), median(ours), "x", goal, ours);
            report.result(&format!("{name}_rival"), median(theirs), "x", goal, theirs);
        }
    }
    Ok(())
}

fn plan(congestion: &str, queue_kib: u32) -> Plan {
    super::plan("quic")
        .carrier("alpha", Link::new(MBIT_S, 50).queue_kib(queue_kib))
        .cloud("congestion", congestion)
}

/// Writes with this congestion control until the client closes.
fn pour(mut stream: TcpStream, congestion: &str) -> Result<()> {
    SockRef::from(&stream)
        .set_tcp_congestion(congestion.as_bytes())
        .context(congestion.to_owned())?;
    let chunk = [0x5a; 64 * 1024];
    loop {
        stream.write_all(&chunk)?;
    }
}
