//! Many gateways on one cloud of two workers, and the cloud's restarts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::START_LIMIT;
use super::herd::{Herd, Return, TURNS};
use crate::bench::Effort;
use crate::carrier::Medium;
use crate::lab::in_thread;
use crate::metrics::Scrape;
use crate::report::{Goal, Report};
use crate::usage;

/// One flow in this many echoes a byte now and then; the others are idle.
const ECHO_EVERY: usize = 5;
/// How long all gateways are idle before a restart: none of them waits for the cloud then. An idle
/// path is pinged every 20 s.
const SILENCE: Duration = Duration::from_secs(20);

/// What many gateways cost a cloud, and how long they are away when it restarts.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (gateways, flows, seconds) = effort.pick((200, 50, 30), (4, 5, 2));
    let (memory, turn, idle_mb, returns) = in_thread(move || {
        let mut herd = Herd::start(2, gateways, &Medium::Wire, START_LIMIT)?;
        let empty = usage::memory_bytes(herd.cloud.id())?;
        let (echoes, idle) = open(&mut herd, gateways, flows)?;
        let turn = exchange(&herd, echoes, Duration::from_secs(seconds))?;
        let full = usage::memory_bytes(herd.cloud.id())?;
        println!("{gateways} gateways: {empty} bytes without flows, {full} with {flows} each");
        let idle_mb = idle_mb_a_day(&herd, effort.pick(SILENCE, Duration::from_millis(500)))?;
        let killed = herd.restart_cloud(Signal::SIGKILL, START_LIMIT)?;
        drop(idle);
        herd.wait_for_all(START_LIMIT)?;
        std::thread::sleep(effort.pick(SILENCE, Duration::from_millis(500)));
        let stopped = herd.restart_cloud(Signal::SIGTERM, START_LIMIT)?;
        let memory = full as f64 / gateways as f64 / 1024.0;
        Ok((memory, turn, idle_mb, [("kill", killed), ("stop", stopped)]))
    })?;
    report.result("workers_memory_per_gateway", memory, "KiB", Goal::None, &[memory]);
    report.result("workers_turn_p99", turn, "ms", Goal::AtMost(5.0), &[turn]);
    report.result("workers_idle_gateway", idle_mb, "MB/day", Goal::None, &[idle_mb]);
    for (how, Return { after, at_once, turn_ms }) in returns {
        let name = |figure: &str| format!("workers_{how}_{figure}");
        let all = after.last().copied().context("no paths")?;
        report.result(&name("all_back"), all, "s", Goal::AtMost(10.0), &after);
        report.result(&name("most_in_100_ms"), at_once as f64, "paths", Goal::None, &[]);
        report.result(&name("turn_p99"), turn_ms, "ms", Goal::None, &[]);
    }
    Ok(())
}

/// Opens flows of each gateway. The ends of idle ones are in another process, because a process may
/// have at most 20,000 descriptors here.
fn open(
    herd: &mut Herd,
    gateways: usize,
    flows: usize,
) -> Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let echoing = flows / ECHO_EVERY;
    herd.start_holder(gateways * (flows - echoing))?;
    let (mut echoes, mut idle) = (Vec::new(), Vec::new());
    for gateway in 0..gateways {
        for number in 0..flows {
            if number < echoing {
                echoes.push(herd.echo(gateway)?);
            } else {
                idle.push(herd.idle(gateway)?);
            }
        }
    }
    herd.wait_for_holder(START_LIMIT)?;
    Ok((echoes, idle))
}

/// Echoes bytes for a time. Returns the 99th percentile of the cloud's turns, ms.
fn exchange(herd: &Herd, mut flows: Vec<TcpStream>, time: Duration) -> Result<f64> {
    let first = Scrape::of(&herd.lab.cloud)?;
    let begun = Instant::now();
    while begun.elapsed() < time {
        for flow in &mut flows {
            flow.write_all(b"x").context("sending")?;
            flow.read_exact(&mut [0]).context("no echo")?;
        }
    }
    let turn = Scrape::of(&herd.lab.cloud)?.quantile_since(&first, TURNS, 0.99);
    // One after another: thousands at once would stall all carriers, because gateways, cloud and
    // program share the processors.
    for flow in flows {
        drop(flow);
        std::thread::sleep(CLOSE_EVERY);
    }
    Ok(turn.context("no turns")? * 1e3)
}

/// What an idle gateway sends and receives over both carriers, with Ethernet headers.
fn idle_mb_a_day(herd: &Herd, time: Duration) -> Result<f64> {
    let before = herd.carried_bytes()?;
    std::thread::sleep(time);
    let bytes = (herd.carried_bytes()? - before) as f64 / herd.gateways.len() as f64;
    Ok(bytes / 1e6 * 86_400.0 / time.as_secs_f64())
}

/// The pause between two flows that close.
const CLOSE_EVERY: Duration = Duration::from_millis(5);
