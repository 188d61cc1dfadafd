//! Head-of-line blocking between users: the latency of small messages next to a bulk download, on
//! one lossy carrier and on two without faults.
//!
//! The server sends a message of 200 bytes about every 100 ms to each of twenty users, each with an
//! address and a connection. Server and passenger use the same clock. The rate of the download is
//! measured too, because a slower download would shorten the latency.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_emulator::statistics::quantile;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::{congestion, worlds::Worlds};
use crate::addresses::{self, Family, SERVER};
use crate::bench::{Effort, fresh_seed};
use crate::bulk::{Bulk, Source};
use crate::carrier::{self, Link};
use crate::client::{self, PATIENCE};
use crate::report::{Goal, Report, median};
use crate::services;
use crate::world::{Plan, World};

const USERS: std::ops::Range<u8> = 10..30;
const MESSAGE: usize = 200;
const EVERY_MS: std::ops::Range<u64> = 80..120;
const PORT: u16 = 6210;
const MODES: [&str; 2] = ["quic", "tls"];
/// The congestion control of the cloud's tunnels.
const CONGESTION: &str = "bbr";
/// Messages in this time at the start do not count.
const SETTLE: Duration = Duration::from_secs(1);

/// The epoch of the timestamps in messages.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (rounds, time) = effort.pick((6, Duration::from_secs(12)), (1, Duration::from_secs(3)));
    let seed = fresh_seed("blocking");
    let plans = MODES.map(plan);
    let prepare = |world: &mut World, number: usize| {
        start_users(world)?;
        let bulk = start_bulk(world)?;
        if MODES[number] == "tls" {
            congestion::must_run(world, CONGESTION)?;
        }
        Ok(bulk)
    };
    let measure = move |world: &mut World, bulk: &mut Bulk, round: usize| {
        carrier::command(
            &world.lab,
            &format!("set alpha seed {}", seed.wrapping_add(round as u64)),
        )?;
        let (started, before) = (Instant::now(), bulk.bytes());
        let delays = deliveries(world, time)?;
        let bits = (bulk.bytes() - before) as f64 * 8.0;
        Ok((delays, bits / started.elapsed().as_secs_f64() / 1e6))
    };
    let worlds = Worlds::start(&plans, prepare, measure)?;
    let (mut ratios, mut bulk_ratios) = (Vec::new(), Vec::new());
    let mut quantiles = [const { Vec::new() }; 4];
    let mut rates = [const { Vec::new() }; 2];
    for round in 0..rounds {
        let both = worlds.together(round)?;
        let [p95, p99] = [0.95, 0.99].map(|q| [0, 1].map(|mode| quantile(&both[mode].0, q)));
        ratios.push(p95[0] / p95[1]);
        for (list, value) in quantiles.iter_mut().zip([p95[0], p95[1], p99[0], p99[1]]) {
            list.push(value);
        }
        bulk_ratios.push(both[0].1 / both[1].1);
        for (list, (_, mbit_s)) in rates.iter_mut().zip(&both) {
            list.push(*mbit_s);
        }
    }
    for (mode, rates) in MODES.iter().zip(&rates) {
        let name = format!("blocking_bulk_{mode}");
        report.result(&name, median(rates), "Mbit/s", Goal::None, rates);
    }
    let bulk_goal = Goal::AtLeast(0.8);
    report.result("blocking_bulk_ratio", median(&bulk_ratios), "x", bulk_goal, &bulk_ratios);
    let names = ["p95_quic", "p95_tls", "p99_quic", "p99_tls"];
    for (name, values) in names.iter().zip(&quantiles) {
        report.result(&format!("message_{name}"), median(values), "ms", Goal::None, values);
    }
    report.result("message_p95_ratio", median(&ratios), "x", Goal::AtMost(0.5), &ratios);
    Ok(())
}

/// Two carriers without faults, and each mode over the same messages without a download.
pub(super) fn static_links(report: &mut Report, effort: Effort) -> Result<()> {
    let (rounds, time) = effort.pick((6, Duration::from_secs(12)), (1, Duration::from_secs(3)));
    let plans = MODES.map(|mode| {
        let plan = super::plan(mode).carrier("alpha", Link::new(20.0, 40));
        plan.carrier("beta", Link::new(10.0, 60)).gateway("users.key", "address")
    });
    let prepare = |world: &mut World, _: usize| {
        start_users(world)?;
        Ok(None)
    };
    // The downloads begin after the first half of the rounds.
    let measure = move |world: &mut World, bulk: &mut Option<Bulk>, round: usize| {
        if round == rounds {
            *bulk = Some(start_bulk(world)?);
        }
        Ok(quantile(&deliveries(world, time)?, 0.95))
    };
    let worlds = Worlds::start(&plans, prepare, measure)?;
    let (mut idle, mut beside) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    for round in 0..2 * rounds {
        let lists = if round < rounds { &mut idle } else { &mut beside };
        for (list, p95) in lists.iter_mut().zip(worlds.together(round)?) {
            list.push(p95);
        }
    }
    for (place, mode) in MODES.iter().enumerate() {
        let result = |report: &mut Report, part, value, unit, goal, samples: &[f64]| {
            report.result(&format!("static_message_{part}_{mode}"), value, unit, goal, samples);
        };
        let [alone, p95] = [&idle, &beside].map(|lists| median(&lists[place]));
        result(report, "p95_idle", alone, "ms", Goal::None, &idle[place]);
        result(report, "p95", p95, "ms", Goal::None, &beside[place]);
        let most = 1.5 * alone + 30.0;
        result(report, "of_limit", p95 / most, "x", Goal::AtMost(1.0), &[]);
    }
    Ok(())
}

/// The users' addresses, and the server's messages.
fn start_users(world: &mut World) -> Result<()> {
    world.lab.add_users(USERS)?;
    services::serve(&world.lab.server, SERVER.at(Family::V4, PORT), |stream, peer| {
        // Fails when the client disconnects.
        let _ = talk(stream, u64::from(peer.port()));
    })
}

/// A download that fills the carriers.
fn start_bulk(world: &mut World) -> Result<Bulk> {
    Source::start(world)?;
    let bulk = Bulk::start(world)?;
    bulk.wait_for(2_000_000, PATIENCE)?;
    Ok(bulk)
}

fn plan(mode: &str) -> Plan {
    super::plan(mode)
        .carrier("alpha", Link::new(20.0, 40).loss_percent(2.0))
        .gateway("users.key", "address")
        .cloud("congestion", CONGESTION)
}

/// The latency of each message, ms.
fn deliveries(world: &World, time: Duration) -> Result<Vec<f64>> {
    let to = SERVER.at(Family::V4, PORT);
    let from = Instant::now() + SETTLE;
    let listeners = world.lab.passenger.run(|| -> Result<Vec<_>> {
        let listen = |user| {
            let stream = client::connect_from(addresses::user(user), to, PATIENCE)?;
            Ok(std::thread::spawn(move || listen(stream, from, from + time)))
        };
        USERS.map(listen).collect()
    })??;
    let mut all = Vec::new();
    for listener in listeners {
        let delays = listener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(!delays.is_empty(), "a user got no message at all");
        all.extend(delays);
    }
    Ok(all)
}

/// The server's part: messages with their time of sending.
fn talk(mut stream: TcpStream, seed: u64) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut generator = Pcg64::seed_from_u64(seed);
    loop {
        let mut message = [0x6d; MESSAGE];
        message[..8].copy_from_slice(&clock_ns().to_be_bytes());
        stream.write_all(&message)?;
        std::thread::sleep(Duration::from_millis(generator.random_range(EVERY_MS)));
    }
}

/// The user's part: the latency of messages that arrive between two instants.
fn listen(mut stream: TcpStream, from: Instant, to: Instant) -> Result<Vec<f64>> {
    let mut delays = Vec::new();
    while Instant::now() < to {
        let mut message = [0; MESSAGE];
        stream.read_exact(&mut message).context("a message")?;
        let arrived = clock_ns();
        let sent = message.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        if Instant::now() >= from {
            delays.push((arrived - sent) as f64 / 1e6);
        }
    }
    Ok(delays)
}

fn clock_ns() -> u64 {
    u64::try_from(EPOCH.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
