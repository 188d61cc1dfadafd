//! A user's QUIC downloads over two carriers, and over the better one alone.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::addresses::{Family, SERVER};
use crate::bench::Effort;
use crate::bench_tunnel::worlds::Worlds;
use crate::carrier::Link;
use crate::datagrams::connected;
use crate::rail::flow::{Content, Faults, Kind, Progress, Request, unless_broken};
use crate::rail::quic;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

pub(super) const MODES: [&str; 2] = ["quic", "tls"];

/// Endless downloads over two unlike carriers, with each length of packets. Alone means without the
/// other carrier.
pub(super) fn endless(report: &mut Report, effort: Effort) -> Result<()> {
    let time = effort.pick(Duration::from_secs(10), Duration::from_secs(2));
    for (load, packet) in [("browser", quic::BROWSER), ("vpn", quic::VPN)] {
        let near_alone = |plan: Plan| plan.carrier("near", Link::new(20.0, 20));
        let both = |plan| near_alone(plan).carrier("far", Link::new(5.0, 120));
        let (name, goal) = (format!("udp_unlike_{load}"), Goal::AtLeast(0.95));
        let figure = Figure { name: &name, packet, bytes: u64::MAX, time, rounds: 5, goal };
        figure.measure(report, effort, near_alone, both)?;
    }
    Ok(())
}

/// Downloads of 4 MB over two carriers. Alone means without Polyrail, directly over the better
/// carrier.
pub(super) fn downloads(report: &mut Report, effort: Effort) -> Result<()> {
    let both =
        |plan: Plan| plan.carrier("near", Link::new(10.0, 40)).carrier("far", Link::new(10.0, 60));
    let direct = |plan| both(plan).gateway("intercept.udp", "direct:near");
    let figure = Figure {
        name: "udp_download",
        packet: quic::BROWSER,
        bytes: effort.pick(4_000_000, 400_000),
        time: Duration::from_secs(30),
        rounds: 10,
        goal: Goal::AtLeast(1.1),
    };
    figure.measure(report, effort, direct, both)
}

struct Figure<'a> {
    name: &'a str,
    /// Bytes of a packet.
    packet: usize,
    /// Bytes of a download; it takes at most `time`.
    bytes: u64,
    time: Duration,
    rounds: usize,
    goal: Goal,
}

impl Figure<'_> {
    /// Mbit/s in worlds with one carrier and with both, in both modes, and the ratios of pairs.
    fn measure(
        &self,
        report: &mut Report,
        effort: Effort,
        alone: impl Fn(Plan) -> Plan,
        both: impl Fn(Plan) -> Plan,
    ) -> Result<()> {
        let &Figure { name, packet, bytes, time, rounds, goal } = self;
        let (rounds, goal) = effort.pick((rounds, goal), (1, Goal::None));
        let in_mode = |mode: &str| Plan::new().gateway("mode", mode).cloud("mode", mode);
        let plans: Vec<Plan> =
            MODES.iter().flat_map(|mode| [alone(in_mode(mode)), both(in_mode(mode))]).collect();
        let prepare = move |world: &mut World, _| serve(world, packet);
        let measure = move |world: &mut World, state: &mut (Arc<Content>, Faults), _| {
            let socket = connected(&world.lab.passenger, SERVER.at(Family::V4, PORT))?;
            let request = Request { kind: Kind::Download, number: 0, bytes };
            let (progress, begin) = (Progress::new(), Instant::now());
            quic::download(&socket, packet, &request, begin + time, &state.0, &progress)
                .or_else(unless_broken)?;
            state.1.check()?;
            let (received, took) = (progress.received().bytes, begin.elapsed());
            let is_whole = received == bytes || (bytes == u64::MAX && took >= time);
            ensure!(is_whole, "the download ended after {received} bytes and {took:?}");
            Ok(received as f64 * 8e-6 / took.as_secs_f64())
        };
        let worlds = Worlds::start(&plans, prepare, measure)?;
        let mut rates = vec![Vec::new(); plans.len()];
        for round in 0..rounds {
            for (list, rate) in rates.iter_mut().zip(worlds.in_turns(round)?) {
                list.push(rate);
            }
        }
        for (mode, pair) in MODES.iter().zip(rates.chunks(2)) {
            let name = format!("{name}_{mode}");
            let [alone, bonded] = [&pair[0], &pair[1]];
            let ratios: Vec<f64> = bonded.iter().zip(alone).map(|(a, b)| a / b).collect();
            report.result(&format!("{name}_alone"), median(alone), "Mbit/s", Goal::None, alone);
            report.result(&name, median(bonded), "Mbit/s", Goal::None, bonded);
            report.result(&format!("{name}_over_alone"), median(&ratios), "x", goal, &ratios);
        }
        Ok(())
    }
}

/// Starts the server, for packets of this length.
pub(super) fn serve(world: &World, packet: usize) -> Result<(Arc<Content>, Faults)> {
    let (content, faults) = (Arc::new(Content::new()), Faults::default());
    let socket = world.lab.server.run(|| UdpSocket::bind(SERVER.at(Family::V4, PORT)))??;
    quic::serve(socket, world.lab.folder(), packet, &content, &faults)?;
    Ok((content, faults))
}

pub(super) const PORT: u16 = 6_310;
