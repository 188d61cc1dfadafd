//! Twenty passengers pause a video each, one after the other: nobody attacks, but their readers
//! withhold the bytes that were in flight.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{OTHERS, add_passengers, links};
use crate::addresses::{Family, SERVER, WEB_PORT, user};
use crate::admin;
use crate::bench::stalled::{connect_from, wait_until_quiet};
use crate::bench::{Effort, in_world};
use crate::lab::Side;
use crate::report::{Goal, Report, median};
use crate::web::WebFile;
use crate::world::World;

/// The time of another passenger's small download and the rate of a large one, in pairs.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (pairs, modes) = effort.pick((3, &["quic", "tls"][..]), (1, &["tls"]));
    for &mode in modes {
        let plan = links(20.0).gateway("mode", mode).cloud("mode", mode);
        let pairs = in_world(&plan, move |world| measure(world, pairs))?;
        let small: Vec<f64> = pairs.iter().map(|[quiet, next]| next.small / quiet.small).collect();
        let rates: Vec<f64> = pairs.iter().map(|[quiet, next]| next.rate / quiet.rate).collect();
        let name = format!("attack_paused_{mode}");
        report.result(&format!("{name}_small"), median(&small), "x", Goal::AtMost(2.2), &small);
        report.result(&format!("{name}_rate"), median(&rates), "x", Goal::AtLeast(0.9), &rates);
    }
    Ok(())
}

/// Downloads of one passenger.
#[derive(Clone, Copy)]
struct Measured {
    /// Seconds for 64 KB.
    small: f64,
    /// Mbit/s of 10 MB.
    rate: f64,
}

fn measure(world: &mut World, pairs: usize) -> Result<Vec<[Measured; 2]>> {
    add_passengers(world)?;
    world.lab.add_users(WATCHERS)?;
    let video = world.web.add(60_000_000, 4)?;
    let files = [world.web.add(65_536, 5)?, world.web.add(10_000_000, 6)?];
    let mut measured = Vec::new();
    for pair in 0..pairs {
        let quiet = download(world, &files)?;
        let paused = WATCHERS.map(|number| watch(world, &video, number));
        let paused: Vec<TcpStream> = paused.collect::<Result<_>>()?;
        let status = admin::get(&Side::Gateway.admin_socket(&world.lab), "/v1/status")?;
        ensure_contested(&status)?;
        std::thread::sleep(TWO_LOOKS);
        let next = download(world, &files)?;
        drop(paused);
        println!(
            "pair {pair}: {:.3} and {:.3} s, {:.1} and {:.1} Mbit/s",
            quiet.small, next.small, quiet.rate, next.rate
        );
        measured.push([quiet, next]);
        wait_until_quiet(world)?;
    }
    Ok(measured)
}

fn download(world: &mut World, [small, large]: &[WebFile; 2]) -> Result<Measured> {
    let mut get = |file: &WebFile| {
        let download = world.download_from(&SERVER.host(Family::V4), file);
        let download = download.interface(&user(OTHERS[0]).to_string());
        download.verify(&world.lab.passenger, file)
    };
    let mut times = Vec::new();
    for _ in 0..5 {
        times.push(get(small)?.total_s);
    }
    Ok(Measured { small: median(&times), rate: get(large)?.mbit_s() })
}

/// The gateway holds about half of its memory unread: else the videos show nothing.
fn ensure_contested(status: &Value) -> Result<()> {
    let held = status["sessions"][0]["memory_received_bytes"].as_u64().unwrap_or(0);
    ensure!(held >= 6 << 20, "the videos withhold only {held} bytes");
    Ok(())
}

/// A passenger reads the first part of a video, and then nothing.
fn watch(world: &World, video: &WebFile, number: u8) -> Result<TcpStream> {
    let request = format!("GET /{} HTTP/1.1\r\nHost: paused\r\n\r\n", video.name);
    let to = SERVER.at(Family::V4, WEB_PORT);
    let read = || -> Result<TcpStream> {
        let mut stream = connect_from(user(number), to)?;
        stream.write_all(request.as_bytes())?;
        let (mut left, until) = (WATCHED, Instant::now() + WATCH_LIMIT);
        let mut buffer = vec![0; 65_536];
        while left > 0 && Instant::now() < until {
            let read = stream.read(&mut buffer)?;
            ensure!(read > 0, "the video of user {number} ends early");
            left = left.saturating_sub(read);
        }
        ensure!(left == 0, "the video of user {number} is too slow");
        Ok(stream)
    };
    world.lab.passenger.run(read)?.context("a video")
}

const WATCHERS: std::ops::Range<u8> = 10..30;
/// The bytes that each reads.
const WATCHED: usize = 4_000_000;
const WATCH_LIMIT: Duration = Duration::from_secs(30);
/// Twice the session's `STOPPED_LOOK`, and a little more.
const TWO_LOOKS: Duration = Duration::from_secs(22);
