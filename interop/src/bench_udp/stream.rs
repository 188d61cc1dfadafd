//! A flow of datagrams as a VPN sends them: offered at most of the rate of a fast carrier, and
//! offered far too fast next to another user's TCP.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::addresses::{self, Family, SERVER};
use crate::bench::Effort;
use crate::bulk::{self, Bulk, Source};
use crate::carrier::Link;
use crate::client::{self, PATIENCE};
use crate::report::{Goal, Report};
use crate::world::{Plan, World};

const MODES: [&str; 2] = ["quic", "tls"];
/// The length of a datagram over WireGuard in tunnels of QUIC.
const LENGTH: usize = 1_372;
const PORT: u16 = 6_320;
const TICK: Duration = Duration::from_millis(1);
/// The receiver's patience.
const SILENCE: Duration = Duration::from_millis(500);
/// Users with addresses of their own.
const WITH_UDP: u8 = 66;
const WITH_TCP: u8 = 100;

/// Mbit/s of one flow that arrive over one carrier, each way in each mode.
pub(super) fn fast(report: &mut Report, effort: Effort) -> Result<()> {
    let time = effort.pick(Duration::from_secs(10), Duration::from_secs(1));
    let (link, offered) = (Link::new(200.0, 30).queue_kib(1_024), 150.0);
    for mode in MODES {
        let world = World::start(&plan(mode, &[link]))?;
        let [passenger, server] = ends(&world)?;
        for (way, from, to) in [("up", &passenger, &server), ("down", &server, &passenger)] {
            let seen = AtomicU64::new(0);
            stream(from, to, offered, time, &seen, || ())?;
            let arrived = mbit_s(seen.into_inner(), time);
            let goal = effort.pick(Goal::AtLeast(0.9 * offered), Goal::None);
            report.result(&format!("udp_fast_{mode}_{way}"), arrived, "Mbit/s", goal, &[]);
        }
    }
    Ok(())
}

/// The shares of a flow of three times the rate of both carriers and of another user's download.
pub(super) fn fair(report: &mut Report, effort: Effort) -> Result<()> {
    let time = effort.pick(Duration::from_secs(10), Duration::from_secs(1));
    for mode in MODES {
        let plan = plan(mode, &[Link::new(10.0, 40); 2]).gateway("users.key", "address");
        let world = World::start(&plan)?;
        let [passenger, server] = ends(&world)?;
        Source::start(&world)?;
        let source = SERVER.at(Family::V4, bulk::PORT);
        let connect = || client::connect_from(addresses::user(WITH_TCP), source, PATIENCE);
        let download = Bulk::read(world.lab.passenger.run(connect)??)?;
        download.wait_for(2_000_000, PATIENCE)?;
        let seen = AtomicU64::new(0);
        let both = || [seen.load(Ordering::Relaxed), download.bytes()];
        let (before, mut after) = (both(), [0; 2]);
        stream(&server, &passenger, 60.0, time, &seen, || after = both())?;
        let rates = [0, 1].map(|kind| mbit_s(after[kind] - before[kind], time));
        let goal = effort.pick(Goal::AtLeast(0.4), Goal::None);
        for (kind, rate) in ["udp", "tcp"].into_iter().zip(rates) {
            let name = format!("udp_fair_{mode}_{kind}");
            report.result(&name, rate, "Mbit/s", Goal::None, &[]);
            let share = rate / (rates[0] + rates[1]);
            report.result(&format!("{name}_share"), share, "x", goal, &[]);
        }
    }
    Ok(())
}

fn plan(mode: &str, links: &[Link]) -> Plan {
    let plan = Plan::new().gateway("mode", mode).cloud("mode", mode);
    let named = ["alpha", "beta"].into_iter().zip(links);
    named.fold(plan, |plan, (name, link)| plan.carrier(name, *link))
}

/// The sockets of a passenger and a server that know each other.
fn ends(world: &World) -> Result<[UdpSocket; 2]> {
    world.lab.add_users([WITH_UDP, WITH_TCP])?;
    let at = SERVER.at(Family::V4, PORT);
    let server = world.lab.server.run(|| UdpSocket::bind(at))??;
    let passenger =
        world.lab.passenger.run(|| UdpSocket::bind((addresses::user(WITH_UDP), 0)))??;
    passenger.connect(at)?;
    passenger.send(&[0; LENGTH])?;
    server.set_read_timeout(Some(PATIENCE))?;
    let (_, from) = server.recv_from(&mut [0; LENGTH]).context("the first datagram")?;
    server.connect(from)?;
    Ok([passenger, server])
}

/// Sends for so long, counts the bytes that arrive, and calls `ends` when it has sent all.
fn stream(
    from: &UdpSocket,
    to: &UdpSocket,
    offered: f64,
    time: Duration,
    seen: &AtomicU64,
    ends: impl FnOnce(),
) -> Result<()> {
    to.set_read_timeout(Some(SILENCE))?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; LENGTH];
            while let Ok(length) = to.recv(&mut buffer) {
                seen.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        let (begin, mut sent) = (Instant::now(), 0.0);
        while begin.elapsed() < time {
            let due = begin.elapsed().as_secs_f64() * offered * 125e3 / LENGTH as f64;
            while sent < due {
                // A full queue loses it.
                let _ = from.send(&[0; LENGTH]);
                sent += 1.0;
            }
            std::thread::sleep(TICK);
        }
        ends();
    });
    Ok(())
}

fn mbit_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8e-6 / time.as_secs_f64()
}
