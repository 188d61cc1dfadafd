//! A user's QUIC download over two unlike carriers, and over the better one alone.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::addresses::{Family, SERVER};
use crate::bench::Effort;
use crate::bench_tunnel::worlds::Worlds;
use crate::carrier::Link;
use crate::datagrams::connected;
use crate::rail::flow::{Content, Faults, Kind, Progress, Request, unless_broken};
use crate::rail::quic;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

const MODES: [&str; 2] = ["quic", "tls"];

/// Mbit/s of an endless download of each length of packets, and the ratios of pairs.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (rounds, time) = effort.pick((5, Duration::from_secs(10)), (1, Duration::from_secs(2)));
    for (load, packet) in [("browser", quic::BROWSER), ("vpn", quic::VPN)] {
        let plans: Vec<Plan> =
            MODES.iter().flat_map(|mode| [plan(mode, false), plan(mode, true)]).collect();
        let prepare = move |world: &mut World, _| serve(world, packet);
        let measure = move |world: &mut World, state: &mut (Arc<Content>, Faults), _| {
            let socket = connected(&world.lab.passenger, SERVER.at(Family::V4, PORT))?;
            let (progress, request) = (Progress::new(), ENDLESS);
            let deadline = Instant::now() + time;
            quic::download(&socket, packet, &request, deadline, &state.0, &progress)
                .or_else(unless_broken)?;
            state.1.check()?;
            Ok(progress.received().bytes as f64 * 8e-6 / time.as_secs_f64())
        };
        let worlds = Worlds::start(&plans, prepare, measure)?;
        let mut rates = vec![Vec::new(); plans.len()];
        for round in 0..rounds {
            for (list, rate) in rates.iter_mut().zip(worlds.in_turns(round)?) {
                list.push(rate);
            }
        }
        for (mode, both) in MODES.iter().zip(rates.chunks(2)) {
            let name = format!("udp_unlike_{load}_{mode}");
            let [alone, bonded] = [&both[0], &both[1]];
            let ratios: Vec<f64> = bonded.iter().zip(alone).map(|(a, b)| a / b).collect();
            let goal = effort.pick(Goal::AtLeast(0.95), Goal::None);
            report.result(&format!("{name}_alone"), median(alone), "Mbit/s", Goal::None, alone);
            report.result(&name, median(bonded), "Mbit/s", Goal::None, bonded);
            report.result(&format!("{name}_over_alone"), median(&ratios), "x", goal, &ratios);
        }
    }
    Ok(())
}

/// The better carrier, and the other one.
fn plan(mode: &str, has_both: bool) -> Plan {
    let plan = Plan::new().gateway("mode", mode).cloud("mode", mode);
    let plan = plan.carrier("near", Link::new(20.0, 20));
    if has_both { plan.carrier("far", Link::new(5.0, 120)) } else { plan }
}

fn serve(world: &World, packet: usize) -> Result<(Arc<Content>, Faults)> {
    let (content, faults) = (Arc::new(Content::new()), Faults::default());
    let socket = world.lab.server.run(|| UdpSocket::bind(SERVER.at(Family::V4, PORT)))??;
    quic::serve(socket, world.lab.folder(), packet, &content, &faults)?;
    Ok((content, faults))
}

const PORT: u16 = 6_310;
const ENDLESS: Request = Request { kind: Kind::Download, number: 0, bytes: u64::MAX };
