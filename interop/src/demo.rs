//! The demonstration: one file, two carriers, one of which fails on the way.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::addresses::{Family, SERVER_NAME};
use crate::carrier::{self, Link};
use crate::download::Running;
use crate::lab::Side;
use crate::privilege;
use crate::web::WebFile;
use crate::world::{Plan, World};

const SIZE: u64 = 20_000_000;
/// The carrier that fails is dark between these shares of the download.
const DARK: std::ops::Range<f64> = 0.35..0.65;
/// How often the download's progress is checked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the progress of each carrier is printed.
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// Characters of a full progress bar.
const BAR: usize = 30;

/// One carrier's part in one download.
#[derive(Clone, Debug)]
struct Share {
    name: String,
    mode: String,
    bytes: u64,
    round_trip_ms: Option<f64>,
}

/// Runs the demonstration with both daemons in `mode`: `quic`, `tls` or `auto`.
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
    both_families(&mut world).inspect_err(|_| println!("\n{}", world.tails()))
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

/// Shows progress until curl has ended. Meanwhile one carrier fails and recovers.
fn watch(world: &World, mut running: Running, failing: usize, before: &[u64]) -> Result<Running> {
    let carrier = &world.carriers[failing];
    let (mut shown, mut last) = (Instant::now(), before.to_vec());
    let (mut failed, mut back) = (false, false);
    while !running.ended() {
        std::thread::sleep(LOOK_EVERY);
        let done = running.bytes() as f64 / SIZE as f64;
        if !failed && done >= DARK.start {
            carrier.darken(&world.lab)?;
            println!("  {} goes dark at {:.0} %", carrier.name(), done * 100.0);
            failed = true;
        }
        if failed && !back && done >= DARK.end {
            carrier.brighten(&world.lab)?;
            println!("  {} is back at {:.0} %", carrier.name(), done * 100.0);
            back = true;
        }
        if shown.elapsed() < SHOW_EVERY {
            continue;
        }
        for ((now, before), last) in
            carrier::counters(&world.lab)?.iter().zip(before).zip(&mut last)
        {
            let mbit_s = (now.down_bytes - *last) as f64 * 8.0 / s(shown) / 1e6;
            *last = now.down_bytes;
            let rate = if now.dark { "dark".into() } else { format!("{mbit_s:>6.1} Mbit/s") };
            println!("  {}  {rate}", bar(&now.carrier, now.down_bytes - before));
        }
        shown = Instant::now();
    }
    if failed && !back {
        carrier.brighten(&world.lab)?;
    }
    Ok(running)
}

/// The bytes that a carrier has carried, as a share of the file.
fn bar(carrier: &str, bytes: u64) -> String {
    let share = bytes as f64 / SIZE as f64;
    let filled = ((share * BAR as f64) as usize).min(BAR);
    let (done, left) = ("#".repeat(filled), ".".repeat(BAR - filled));
    format!("{carrier:<8} [{done}{left}] {:>3.0} %", share * 100.0)
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

/// Fails if a Debian program is missing. The error names the packages to install.
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
