//! Data that a carrier in mode `quic` retransmits after a blackout although the other carrier has
//! delivered it.
//!
//! The download stops when the blackout begins, and all data arrives over the other carrier. So any
//! data on the first carrier afterwards is a useless retransmission. The gateway's qlog of that
//! carrier counts it: bytes of STREAM frames on the cloud's data streams in packets received after
//! the blackout, over all connections. (The first unidirectional stream of each side is its control
//! stream.) The emulator counts the bytes in flight on the downlink when the blackout began.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::plan;
use super::worlds::Worlds;
use crate::bench::Effort;
use crate::bulk::{Bulk, Source};
use crate::carrier::{self, Link};
use crate::client::PATIENCE;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

/// The QUIC id of the cloud's control stream: the first unidirectional stream of a server (RFC
/// 9000, section 2.1).
const CONTROL_STREAM: u64 = 3;
/// The share of the blackout in which an older connection must be silent.
const SILENT_SHARE: f64 = 0.8;
/// A connection that has delivered this much carries the download.
const DOWNLOAD_BEGUN: u64 = 100_000;
/// The download has stopped if nothing arrives for this long.
const QUIET: Duration = Duration::from_millis(500);
/// How long the carrier is observed after the blackout.
const AFTERWARDS: Duration = Duration::from_secs(4);
/// How long the gateway may take to shut down.
const END_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (worlds, rounds, length) =
        effort.pick((4, 5, Duration::from_secs(5)), (1, 1, Duration::from_secs(2)));
    let link = Link::new(20.0, 40);
    let plan: Plan = plan("quic").carrier("alpha", link).carrier("beta", link).carrier_key(
        0,
        "qlog",
        QLOG_FOLDER,
    );
    let prepare = |world: &mut World, _| {
        std::fs::create_dir_all(folder(world))?;
        Source::start(world)
    };
    let measure = move |world: &mut World, source: &mut Source, _| blackout(world, source, length);
    let worlds = Worlds::start(&vec![plan; worlds], prepare, measure)?;
    let (mut shares, mut resent, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        for (again, inside) in worlds.together(round)? {
            shares.push(again as f64 / inside as f64);
            resent.push(again as f64);
            before.push(inside as f64);
        }
    }
    report.result("resent_quic_bytes", median(&resent), "bytes", Goal::None, &resent);
    report.result("resent_quic_in_flight", median(&before), "bytes", Goal::None, &before);
    report.result("resent_quic_share", median(&shares), "x", Goal::AtMost(0.05), &shares);
    Ok(())
}

/// Bytes of useless retransmissions, and bytes in flight when the blackout began.
fn blackout(world: &mut World, source: &Source, length: Duration) -> Result<(u64, u64)> {
    // A new gateway, because idle connections would have been silent before the blackout.
    for name in names(&folder(world))? {
        std::fs::remove_file(folder(world).join(name))?;
    }
    super::restart_gateway(world)?;
    source.set_flowing(true);
    let bulk = Bulk::start(world)?;
    bulk.wait_for(4_000_000, PATIENCE)?;
    let known = names(&folder(world))?;
    let inside = carrier::counters(&world.lab)?[0].down_inside_bytes;
    let began = Instant::now();
    world.carriers[0].darken(&world.lab)?;
    source.set_flowing(false);
    wait_until_quiet(&bulk)?;
    std::thread::sleep(length.saturating_sub(began.elapsed()));
    let dark = began.elapsed();
    world.carriers[0].brighten(&world.lab)?;
    std::thread::sleep(AFTERWARDS);
    drop(bulk);
    // The files are complete once the gateway has shut down.
    world.gateway.signal(Signal::SIGTERM)?;
    world.gateway.wait(END_LIMIT)?;
    let again = resent(&folder(world), &known, dark)?;
    ensure!(inside > 0, "nothing was in flight");
    Ok((again, inside))
}

fn wait_until_quiet(bulk: &Bulk) -> Result<()> {
    let started = Instant::now();
    let (mut last, mut since) = (bulk.bytes(), Instant::now());
    while since.elapsed() < QUIET {
        ensure!(started.elapsed() < PATIENCE, "the download does not become quiet");
        std::thread::sleep(Duration::from_millis(5));
        let now = bulk.bytes();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Data received after the blackout according to the qlogs of the carrier's connections.
fn resent(folder: &Path, known: &BTreeSet<OsString>, dark: Duration) -> Result<u64> {
    let (mut sum, mut download) = (0, 0);
    for name in names(folder)? {
        let text = std::fs::read_to_string(folder.join(&name))?;
        let received = received(&text).with_context(|| name.to_string_lossy().into_owned())?;
        if known.contains(&name) {
            download = download.max(received.iter().map(|(_, bytes)| bytes).sum());
        }
        let silence = known.contains(&name).then_some(dark.as_secs_f64() * SILENT_SHARE);
        sum += after(&received, silence);
    }
    ensure!(download >= DOWNLOAD_BEGUN, "by the qlogs alpha brought {download} bytes only");
    Ok(sum)
}

/// Bytes after the first silence of at least `silence_s` during the download; none without such a
/// silence. Without `silence_s`, all bytes. Silences before the download and after the
/// retransmissions do not count.
fn after(received: &[(f64, u64)], silence_s: Option<f64>) -> u64 {
    let begin = match silence_s {
        None => Some(0),
        Some(least) => {
            let mut came = 0;
            let is_dark = |pair: &[(f64, u64)]| {
                came += pair[0].1;
                came >= DOWNLOAD_BEGUN && pair[1].0 - pair[0].0 >= least * 1000.0
            };
            received.windows(2).position(is_dark).map(|place| place + 1)
        }
    };
    begin.map_or(0, |begin| received[begin..].iter().map(|(_, bytes)| bytes).sum())
}

/// Each received packet: ms since the start of the connection, and bytes on data streams.
fn received(qlog: &str) -> Result<Vec<(f64, u64)>> {
    let mut packets = Vec::new();
    for record in qlog.split('\u{1e}').map(str::trim).filter(|record| !record.is_empty()) {
        // The last record may be truncated.
        let Ok(event) = serde_json::from_str::<Value>(record) else { continue };
        let name = event.get("name").and_then(Value::as_str).unwrap_or("");
        if !name.ends_with(":packet_received") {
            continue;
        }
        let time = event.get("time").and_then(Value::as_f64).context("an event without a time")?;
        let frames = event.pointer("/data/frames").and_then(Value::as_array);
        packets.push((time, frames.into_iter().flatten().map(data_bytes).sum()));
    }
    Ok(packets)
}

/// The bytes of a frame on a data stream of the cloud.
fn data_bytes(frame: &Value) -> u64 {
    let number = |path: &str| frame.pointer(path).and_then(Value::as_u64);
    let is_stream = frame.get("frame_type").and_then(Value::as_str) == Some("stream");
    let is_data = number("/stream_id").is_some_and(|id| id % 4 == 3 && id != CONTROL_STREAM);
    if is_stream && is_data { number("/raw/payload_length").unwrap_or(0) } else { 0 }
}

fn names(folder: &Path) -> Result<BTreeSet<OsString>> {
    let files = std::fs::read_dir(folder)?;
    files.map(|file| Ok(file?.file_name())).collect()
}

fn folder(world: &World) -> PathBuf {
    world.lab.folder().join(QLOG_FOLDER)
}

/// Relative to the folder of the configuration file.
const QLOG_FOLDER: &str = "qlog";

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(time: f64, stream: u64, bytes: u64) -> String {
        format!(
            "\u{1e}{{\"time\":{time},\"name\":\"quic:packet_received\",\"data\":{{\"frames\":[\
             {{\"frame_type\":\"ack\"}},{{\"frame_type\":\"stream\",\"stream_id\":{stream},\
             \"offset\":0,\"raw\":{{\"payload_length\":{bytes}}}}}]}}}}\n"
        )
    }

    #[test]
    fn data_on_the_clouds_data_streams_is_counted() {
        let log = "\u{1e}{\"qlog_version\":\"0.3\"}\n".to_owned()
            + &packet(1.0, CONTROL_STREAM, 5)
            + &packet(2.5, 7, 100)
            + &packet(3.0, 2, 9)
            + "\u{1e}{\"time\":4,\"name\":\"quic:packet_sent\",\"data\":{}}\n\u{1e}{\"ti";
        assert_eq!(received(&log).unwrap(), [(1.0, 0), (2.5, 100), (3.0, 0)]);
        assert_eq!(received("").unwrap(), [], "an attempt in the dark");
    }

    #[test]
    fn only_what_comes_after_the_blackout_counts() {
        let packets = [(0.0, 1), (5.0, DOWNLOAD_BEGUN), (10.0, 2), (5010.0, 4), (5020.0, 8)];
        assert_eq!(after(&packets, Some(4.0)), 12);
        let quiet_later = [packets.as_slice(), &[(9500.0, 16)]].concat();
        assert_eq!(after(&quiet_later, Some(4.0)), 28, "silent again when all was sent");
        let idle_before = [&[(-9000.0, 32)], packets.as_slice()].concat();
        assert_eq!(after(&idle_before, Some(4.0)), 12, "silent before the download");
        assert_eq!(after(&packets, Some(6.0)), 0, "never silent: no bytes after it");
        let all = 15 + DOWNLOAD_BEGUN;
        assert_eq!(after(&packets, None), all, "a connection that is newer than the blackout");
    }
}
