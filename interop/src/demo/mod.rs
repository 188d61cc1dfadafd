//! The demonstration: one file, two carriers, one of which fails on the way.

mod screen;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::addresses::{Family, SERVER_NAME};
use crate::carrier::{self, Link};
use crate::download::Running;
use crate::privilege;
use crate::web::WebFile;
use crate::world::{Plan, Side, World};

use screen::{Row, Screen};

const SIZE: u64 = 20_000_000;
/// The carrier that fails is dark between these shares of the download.
const DARK: std::ops::Range<f64> = 0.35..0.65;
/// How often the carriers are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// One carrier's part in one download.
#[derive(Clone, Debug)]
struct Share {
    name: String,
    mode: String,
    bytes: u64,
    round_trip_ms: Option<f64>,
}

/// Runs the demonstration from the first namespace to the last table, both daemons in `mode`:
/// `quic`, `tls` or `auto`.
///
/// # Errors
/// When something does not come up, or a download differs from the served file.
pub fn run(mode: &str) -> Result<()> {
    check_tools()?;
    privilege::become_root()?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            println!("\ninterrupted: nothing is left behind");
            // Children and namespaces end with this process.
            std::process::exit(128 + signal);
        }
    });
    show(mode)
}

fn show(mode: &str) -> Result<()> {
    let links = [("alpha", Link::new(20.0, 40)), ("beta", Link::new(15.0, 60))];
    println!("Polyrail: a download crosses two carriers, mode {mode}\n");
    println!("  passenger --- gateway ==={{ alpha, beta }}=== cloud --- web server (nginx)\n");
    let mut plan = Plan::new().gateway("mode", mode).cloud("mode", mode);
    for (name, link) in links {
        println!(
            "  {name:<6} emulated carrier, {} Mbit/s, {} ms round trip",
            link.mbit_s, link.round_trip_ms
        );
        plan = plan.carrier(name, link);
    }
    let started = Instant::now();
    let mut world = World::start(&plan)?;
    println!("  namespaces, carriers, nginx, cloud and gateway are up after {:.1} s", s(started));
    let outcome = both_families(&mut world);
    if outcome.is_err() {
        println!("\n{}", world.tails());
    }
    outcome
}

fn both_families(world: &mut World) -> Result<()> {
    let file = world.web.add(SIZE, 1)?;
    for (family, failing) in [(Family::V4, 1), (Family::V6, 0)] {
        let name = world.carriers[failing].name().to_string();
        println!(
            "\ncurl -{} http://{SERVER_NAME}/{}  (intercepted, {} MB; {name} fails on the way)",
            family.digit(),
            file.name,
            SIZE / 1_000_000
        );
        one_download(world, &file, family, failing)?;
    }
    println!("\nBoth files are whole: SHA-256 {}", file.sha256);
    Ok(())
}

fn one_download(world: &mut World, file: &WebFile, family: Family, failing: usize) -> Result<()> {
    let before = world.carried()?;
    let running = world.download(file).family(family).start(&world.lab.passenger)?;
    let running = watch(world, running, failing, &before)?;
    let report = running.verify(file).context("the download")?;
    let shares = shares(world, &before)?;
    let sum: u64 = shares.iter().map(|share| share.bytes).sum();
    println!("  whole, right SHA-256, {:.1} s, {:.1} Mbit/s", report.total_s, report.mbit_s());
    println!("\n  carrier   mode        bytes   share      RTT");
    for share in &shares {
        let percent = share.bytes as f64 * 100.0 / sum.max(1) as f64;
        let round_trip = share.round_trip_ms.map_or("-".into(), |ms| format!("{ms:.0} ms"));
        println!(
            "  {:<8}  {:<4}  {:>11}  {percent:>4.0} %  {round_trip:>7}",
            share.name, share.mode, share.bytes
        );
    }
    Ok(())
}

/// Shows progress until curl has ended, and has one carrier fail and come back meanwhile.
fn watch(world: &World, mut running: Running, failing: usize, before: &[u64]) -> Result<Running> {
    let carrier = &world.carriers[failing];
    let mut screen = Screen::new();
    let mut last: Vec<u64> = before.to_vec();
    let mut looked = Instant::now();
    let (mut failed, mut back) = (false, false);
    while !running.ended() {
        std::thread::sleep(LOOK_EVERY);
        let done = running.bytes() as f64 / SIZE as f64;
        if !failed && done >= DARK.start {
            carrier.darken(&world.lab)?;
            screen.say(&format!("{} goes dark at {:.0} %", carrier.name(), done * 100.0));
            failed = true;
        }
        if failed && !back && done >= DARK.end {
            carrier.brighten(&world.lab)?;
            screen.say(&format!("{} is back at {:.0} %", carrier.name(), done * 100.0));
            back = true;
        }
        let counters = carrier::counters(&world.lab)?;
        let elapsed = looked.elapsed().as_secs_f64();
        looked = Instant::now();
        let rows: Vec<Row> = counters
            .iter()
            .zip(before.iter().zip(&mut last))
            .map(|(now, (before, last))| {
                let mbit_s = (now.down_bytes - *last) as f64 * 8.0 / elapsed / 1e6;
                *last = now.down_bytes;
                let share = (now.down_bytes - before) as f64 / SIZE as f64;
                Row { name: now.carrier.clone(), share, mbit_s, dark: now.dark }
            })
            .collect();
        screen.show(&rows);
    }
    if failed && !back {
        carrier.brighten(&world.lab)?;
    }
    screen.finish();
    Ok(running)
}

fn shares(world: &World, before: &[u64]) -> Result<Vec<Share>> {
    let paths = world.paths(Side::Gateway)?;
    let counters = carrier::counters(&world.lab)?;
    let shares = counters.iter().zip(before).map(|(now, before)| {
        let path = paths.iter().find(|path| path["name"] == now.carrier);
        let round_trip_us = path.and_then(|path| path["link"]["srtt_us"].as_u64());
        Share {
            name: now.carrier.clone(),
            mode: path.and_then(|path| path["mode"].as_str()).unwrap_or("-").to_owned(),
            bytes: now.down_bytes - before,
            round_trip_ms: round_trip_us.map(|us| us as f64 / 1000.0),
        }
    });
    Ok(shares.collect())
}

fn s(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// Fails if a program of Debian is missing, with the packages to install.
fn check_tools() -> Result<()> {
    let tools =
        [("nginx", "nginx-light"), ("curl", "curl"), ("nft", "nftables"), ("ip", "iproute2")];
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let missing: Vec<&str> = tools
        .iter()
        .filter(|(program, _)| !folders.iter().any(|f| Path::new(f).join(program).exists()))
        .map(|(_, package)| *package)
        .collect();
    anyhow::ensure!(
        missing.is_empty(),
        "missing programs: apt-get install --no-install-recommends {}",
        missing.join(" ")
    );
    Ok(())
}
