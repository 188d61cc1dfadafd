//! A gateway with a valid certificate floods the cloud with frames.
//!
//! It sends no more than a train's uplink could, so that it competes for the cloud and not for the
//! processors of this machine.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_emulator::namespace::Namespace;
use rand::Rng as _;

use super::links;
use crate::addresses::{CLOUD_INSIDE, CLOUD_PORT, Family, SERVER, WEB_PORT};
use crate::bench::{Effort, in_world};
use crate::download::Download;
use crate::intruder::{ALPN, Intruder, dial, frame, put};
use crate::report::{Goal, Report, median};
use crate::usage;
use crate::web::WebFile;
use crate::world::World;

/// Each flood next to downloads over another gateway.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let pairs = effort.pick(5, 1);
    for (name, flood, flows) in FLOODS {
        let plan = links(50.0).cloud("session.memory", "16 MiB").cloud("log.level", "info");
        let seen = in_world(&plan, move |world| measure(world, flood, pairs))?;
        let of = |figure: &str| format!("attack_gateway_{name}_{figure}");
        let rates = &seen.rates;
        report.result(&of("throughput"), median(rates), "x", Goal::AtLeast(0.95), rates);
        let most = GROWTH_MIB + f64::from(flows) * FLOW_MIB;
        report.result(&of("memory"), seen.growth, "MiB", Goal::AtMost(most), &[]);
        report.result(&of("log_lines"), seen.log_lines, "1/s", Goal::AtMost(10.0), &[]);
        report.result(&of("sent"), seen.sent, "MB", Goal::None, &[]);
        report.result(&of("tunnels"), seen.tunnels, "tunnels", Goal::None, &[]);
    }
    Ok(())
}

/// The next unit of a flood; the number counts them from 0.
pub(crate) type Flood = fn(u64) -> Vec<u8>;

/// The floods, and the flows that the cloud keeps because of each.
pub(crate) const FLOODS: [(&str, Flood, u32); 4] = [
    ("resets", resets, 0),
    ("embryos", embryos, 1_024),
    ("holes", holes, 0),
    ("notices", notices, 0),
];

/// RESETs of flows that never existed, with a last number beyond the session's credit.
fn resets(number: u64) -> Vec<u8> {
    resets_of(number, 1 << 40, 0)
}

/// RESETs of flows that never existed, within the session's credit. The cloud keeps such a flow,
/// because data before the reset may be on its way.
fn embryos(number: u64) -> Vec<u8> {
    resets_of(number, 2, 2)
}

fn resets_of(number: u64, last: u64, after: u64) -> Vec<u8> {
    let reset = |flow: u64| {
        let mut payload = Vec::new();
        put(&mut payload, flow);
        payload.push(0);
        [1, last, after].into_iter().for_each(|field| put(&mut payload, field));
        frame(0x09, &payload)
    };
    let first = 1 + number * PER_UNIT;
    (first..first + PER_UNIT).flat_map(reset).collect()
}

/// Single bytes at every second number of a flow; a flow has [`HOLES`] of them.
fn holes(number: u64) -> Vec<u8> {
    let (flow, part) = (1 + number * PER_UNIT / HOLES, number * PER_UNIT % HOLES);
    let mut unit = Vec::new();
    if part == 0 {
        let mut open = Vec::new();
        [flow, 1, 65_536, 0].into_iter().for_each(|field| put(&mut open, field));
        open.push(0);
        if let IpAddr::V4(server) = SERVER.of(Family::V4) {
            open.push(4);
            open.extend_from_slice(&server.octets());
        }
        open.extend_from_slice(&WEB_PORT.to_be_bytes());
        unit.extend(frame(0x05, &open));
    }
    for hole in part..part + PER_UNIT {
        let mut data = Vec::new();
        [flow, 2 + 2 * hole, 0].into_iter().for_each(|field| put(&mut data, field));
        data.extend([0, b'x']);
        unit.extend(frame(0x06, &data));
    }
    unit
}

/// Notices about the intruder's own path, and GOAWAY.
fn notices(number: u64) -> Vec<u8> {
    let notice = |serial: u64| {
        let mut payload = Vec::new();
        [1, serial, 1].into_iter().for_each(|field| put(&mut payload, field));
        let mut reason = Vec::new();
        put(&mut reason, 2);
        reason.extend_from_slice(b"no");
        [frame(0x0e, &payload), frame(0x0f, &reason)].concat()
    };
    let first = 1 + number * PER_UNIT;
    (first..first + PER_UNIT).flat_map(notice).collect()
}

/// The effects of a flood.
struct Seen {
    /// The other gateway's goodput over that without the flood, by pair.
    rates: Vec<f64>,
    /// The most by which the cloud's memory grew during the flood, MiB.
    growth: f64,
    log_lines: f64,
    /// Sent by the intruder, MB.
    sent: f64,
    /// The intruder's tunnels: the cloud closes them for violations.
    tunnels: f64,
}

fn measure(world: &mut World, flood: Flood, pairs: usize) -> Result<Seen> {
    world.keys.reissue(NAME, "gateway")?;
    let file = world.web.add(20_000_000, 6)?;
    download(world, &file).verify(&world.lab.passenger, &file)?;
    let mut seen = Seen { rates: Vec::new(), growth: 0.0, log_lines: 0.0, sent: 0.0, tunnels: 0.0 };
    let memory = usage::memory_bytes(world.cloud.id())?;
    for _ in 0..pairs {
        let quiet = download(world, &file).verify(&world.lab.passenger, &file)?.mbit_s();
        let next = download(world, &file);
        let lines = world.cloud.log().lines().count();
        let (stop, started) = (AtomicBool::new(false), Instant::now());
        let (next, sent, peak) = std::thread::scope(|scope| {
            let (server, keys) = (&world.lab.server, world.keys.folder());
            let intruder = scope.spawn(|| flood_until(server, (keys, NAME), &stop, flood));
            std::thread::sleep(BEFORE);
            let peak = scope.spawn(|| peak_until(world, &stop));
            let next = next.verify(&world.lab.passenger, &file);
            std::thread::sleep(LENGTH.saturating_sub(started.elapsed()));
            stop.store(true, Ordering::Relaxed);
            let peak = peak.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let sent = intruder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (next, sent, peak)
        });
        let (bytes, tunnels) = sent?;
        seen.rates.push(next?.mbit_s() / quiet);
        let growth = peak?.saturating_sub(memory);
        seen.growth = seen.growth.max(growth as f64 / 1_048_576.0);
        let new = world.cloud.log().lines().count() - lines;
        seen.log_lines = seen.log_lines.max(new as f64 / started.elapsed().as_secs_f64());
        seen.sent += bytes as f64 / 1e6;
        seen.tunnels += f64::from(tunnels);
    }
    Ok(seen)
}

/// The most memory of the cloud until the flood stops, bytes.
fn peak_until(world: &World, stop: &AtomicBool) -> Result<u64> {
    let mut peak = 0;
    while !stop.load(Ordering::Relaxed) {
        peak = peak.max(usage::memory_bytes(world.cloud.id())?);
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(peak)
}

/// A download over the other gateway.
fn download(world: &mut World, file: &WebFile) -> Download {
    world.download_from(&SERVER.host(Family::V4), file)
}

/// Sends units at [`BYTES_PER_S`], over a new tunnel whenever the cloud has closed one. `identity`
/// is a folder and the name of a certificate in it. Returns the bytes and the number of tunnels.
pub(crate) fn flood_until(
    server: &Namespace,
    identity: (&Path, &str),
    stop: &AtomicBool,
    flood: Flood,
) -> Result<(u64, u32)> {
    let keys = identity.0;
    let cloud = CLOUD_INSIDE.at(Family::V4, CLOUD_PORT);
    let (mut bytes, mut tunnels) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let tls = dial(server, cloud, keys, Some(identity), ALPN, PATIENCE);
        let mut instance = [0; 16];
        rand::rng().fill_bytes(&mut instance);
        let Ok(mut intruder) = tls.and_then(|tls| Intruder::greet(tls, instance)) else {
            std::thread::sleep(AGAIN);
            continue;
        };
        (tunnels, bytes) = (tunnels + 1, bytes + send_until(stop, &mut intruder, flood));
        std::thread::sleep(AGAIN);
    }
    ensure!(tunnels > 0, "the cloud never welcomed the intruder");
    Ok((bytes, tunnels))
}

/// Floods over one tunnel until the cloud closes it. Returns the bytes.
fn send_until(stop: &AtomicBool, intruder: &mut Intruder, flood: Flood) -> u64 {
    let (mut bytes, started) = (0, Instant::now());
    for number in 0.. {
        let due = Duration::from_secs_f64(bytes as f64 / BYTES_PER_S);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        let unit = flood(number);
        if stop.load(Ordering::Relaxed) || intruder.send(&unit).is_err() {
            break;
        }
        bytes += unit.len() as u64;
    }
    bytes
}

/// The name in the intruder's certificate.
const NAME: &str = "train-2";
/// Frames per unit, which has at most 16,384 bytes.
const PER_UNIT: u64 = 500;
/// Bytes of a flow that arrive with holes: its window is at least 65,536.
const HOLES: u64 = 30_000;
/// The rate of a good uplink.
const BYTES_PER_S: f64 = 2e6;
/// How long the flood lasts before the download, and at least in all.
const BEFORE: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(50);
/// 1.2 times `session.memory`, and 4 MiB for sessions, tunnels and their buffers.
const GROWTH_MIB: f64 = 1.2 * 16.0 + 4.0;
/// The state of a flow, as `docs/limits.md` states it.
const FLOW_MIB: f64 = 4.0 / 1_024.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_floods_are_frames_within_a_unit() {
        for (name, flood, _) in FLOODS {
            for number in [0, 1, 59, 60, 1_000_000] {
                let unit = flood(number);
                assert!(unit.len() <= 16_384, "{name}: {}", unit.len());
                let (mut rest, mut frames) = (&unit[..], 0);
                while let [1, _, high, low, payload @ ..] = rest {
                    rest = &payload[usize::from(u16::from_be_bytes([*high, *low]))..];
                    frames += 1;
                }
                assert!(rest.is_empty() && frames >= PER_UNIT, "{name}: {frames} frames");
            }
        }
    }
}
