//! A user's call next to another one's QUIC download over links that do not change, and the same
//! without Polyrail over each carrier alone.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_emulator::rail::Call;

use super::unlike::{self, MODES};
use crate::addresses::{self, Family, SERVER};
use crate::bench::Effort;
use crate::bench_tunnel::worlds::Worlds;
use crate::carrier::{self, Link};
use crate::datagrams::connected;
use crate::rail::call::Calling;
use crate::rail::flow::{Content, Faults, Kind, Progress, Request, unless_broken};
use crate::rail::{quic, speech};
use crate::report::{Goal, Report};
use crate::world::{Plan, World};

/// The user who calls.
const CALLER: u8 = 100;
/// The download begins so long before the call.
const AHEAD: Duration = Duration::from_secs(2);
const SINGLES: [&str; 2] = ["near", "far"];

/// Lost and late packets in both modes and over each carrier alone.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (packets, rounds) = effort.pick((1_000, 3), (100, 1));
    let plan = |system: &str| {
        let plan = Plan::new().gateway("users.key", "address");
        let plan = plan.carrier("near", Link::new(10.0, 40)).carrier("far", Link::new(10.0, 60));
        if SINGLES.contains(&system) {
            plan.gateway("intercept.udp", format!("direct:{system}"))
        } else {
            plan.gateway("mode", system).cloud("mode", system)
        }
    };
    let systems: Vec<&str> = SINGLES.into_iter().chain(MODES).collect();
    let plans: Vec<Plan> = systems.iter().map(|system| plan(system)).collect();
    let prepare = |world: &mut World, _| {
        world.lab.add_users([CALLER])?;
        unlike::serve(world, quic::BROWSER)
    };
    let measure = move |world: &mut World, state: &mut _, _| play(world, state, packets);
    let worlds = Worlds::start(&plans, prepare, measure)?;
    let mut played = vec![Played::default(); plans.len()];
    for round in 0..rounds {
        played.iter_mut().zip(worlds.in_turns(round)?).for_each(|(all, one)| all.add(&one));
    }
    let single = played[..SINGLES.len()].iter().map(Played::bad).fold(f64::INFINITY, f64::min);
    for (system, played) in systems.iter().zip(&played) {
        let name = |what: &str| format!("udp_call_{system}_{what}");
        report.result(&name("bad"), played.bad(), "x", Goal::None, &[]);
        let rate = played.received as f64 * 8e-6 / played.seconds;
        report.result(&name("download"), rate, "Mbit/s", Goal::None, &[]);
        let good = played.good as f64 / played.windows as f64;
        if SINGLES.contains(system) {
            report.result(&name("windows_good"), good, "x", Goal::None, &[]);
            continue;
        }
        let goal = |goal| effort.pick(goal, Goal::None);
        report.result(&name("windows_good"), good, "x", goal(Goal::AtLeast(0.95)), &[]);
        let over = played.bad() / single;
        report.result(&name("over_single"), over, "x", goal(Goal::AtMost(0.3)), &[]);
        let copies = played.copied / played.carried as f64;
        report.result(&name("copies"), copies, "x", goal(Goal::AtMost(0.1)), &[]);
    }
    Ok(())
}

/// Sums over rounds.
#[derive(Clone, Debug, Default)]
struct Played {
    packets: usize,
    bad: usize,
    /// Windows of 10 s in one direction, or shorter ones in a short call.
    windows: usize,
    good: usize,
    /// Bytes of copies, and all that the carriers delivered.
    copied: f64,
    carried: u64,
    /// Bytes of the download.
    received: u64,
    seconds: f64,
}

impl Played {
    fn add(&mut self, one: &Played) {
        self.packets += one.packets;
        self.bad += one.bad;
        self.windows += one.windows;
        self.good += one.good;
        self.copied += one.copied;
        self.carried += one.carried;
        self.received += one.received;
        self.seconds += one.seconds;
    }

    /// The share of lost and late packets.
    fn bad(&self) -> f64 {
        self.bad as f64 / self.packets as f64
    }
}

/// One download with a call.
fn play(world: &World, state: &(Arc<Content>, Faults), packets: u32) -> Result<Played> {
    let server = world.lab.server.run(|| UdpSocket::bind(SERVER.at(Family::V4, 0)))??;
    let at = server.local_addr()?;
    let socket = world.lab.passenger.run(|| UdpSocket::bind((addresses::user(CALLER), 0)))??;
    socket.connect(at)?;
    let download = connected(&world.lab.passenger, SERVER.at(Family::V4, unlike::PORT))?;
    let (content, progress) = (&state.0, Progress::new());
    let before = [world.copies()?.iter().sum(), carried(world)?];
    let begin = Instant::now();
    let call = Call { at: AHEAD, packets };
    let end = begin + call.sent_at(packets);
    let request = Request { kind: Kind::Download, number: 0, bytes: u64::MAX };
    let calling = Calling::between(begin, call, socket, server)?;
    quic::download(&download, quic::BROWSER, &request, end, content, &progress)
        .or_else(unless_broken)?;
    let (received, seconds) = (progress.received().bytes, begin.elapsed().as_secs_f64());
    ensure!(Instant::now() >= end, "the download ended before the call, after {received} bytes");
    let heard = calling.finish()?;
    state.1.check()?;
    let carried = carried(world)? - before[1];
    let copies = world.copies()?.iter().sum::<u64>() - before[0];
    let copied = copies as f64 * (Call::PACKET + speech::HEADERS) as f64;
    let mut played = Played { copied, carried, received, seconds, ..Played::default() };
    for way in [&heard.up, &heard.down] {
        played.packets += way.len();
        played.bad += speech::bad(way);
        for window in way.chunks(speech::WINDOW) {
            let share = speech::bad(window) as f64 / window.len() as f64;
            played.windows += 1;
            played.good += usize::from(speech::rating(share) >= speech::GOOD);
        }
    }
    Ok(played)
}

/// The bytes that the carriers have delivered.
fn carried(world: &World) -> Result<u64> {
    let counters = carrier::counters(&world.lab)?;
    Ok(counters.iter().map(|one| one.up_bytes + one.down_bytes).sum())
}
