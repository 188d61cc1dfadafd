//! The suite of operation: clouds that die, hang and drain, a tunnel under a mountain, data caps,
//! and the load of trains.

mod cap;
mod load;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::admin;
use crate::bench::{Effort, Suite};
use crate::fleet::{Fleet, GATEWAYS, answer_within, echo, echo_within};
use crate::lab::{Side, in_thread};
use crate::report::{Goal, Report, median};

/// The figures of `make bench-operate`.
pub const SUITE: Suite = Suite {
    file: "operate",
    check: || Ok(()),
    benchmarks: &[
        ("failover", failover),
        ("hang", hang),
        ("drain", drain),
        ("mountain", mountain),
        ("cap", cap::run),
        ("load", load::run),
    ],
};

/// How long new flows may fail after any fault.
const SERVE_LIMIT: Duration = Duration::from_secs(30);

/// The first cloud is killed: the time until a new flow of each of three gateways works.
fn failover(report: &mut Report, effort: Effort) -> Result<()> {
    let rounds = effort.pick(10, 1);
    let times = in_fleet(move |fleet| {
        let mut times = Vec::new();
        for round in 0..rounds {
            if round > 0 {
                fleet.restart_cloud(0)?;
                fleet.restart_gateways()?;
            }
            let flows = fleet.open_each()?;
            fleet.clouds[0].kill();
            times.push(fleet.slowest_to_serve(SERVE_LIMIT)?.as_secs_f64());
            drop(flows);
        }
        Ok(times)
    })?;
    report.result("cloud_killed_new_flow", median(&times), "s", Goal::AtMost(5.0), &times);
    Ok(())
}

/// The first cloud hangs: it receives, and answers nothing. The old flows resume with it.
fn hang(report: &mut Report, effort: Effort) -> Result<()> {
    let rounds = effort.pick(5, 1);
    let (times, resumed) = in_fleet(move |fleet| {
        let (mut times, mut resumed) = (Vec::new(), 0);
        for round in 0..rounds {
            if round > 0 {
                fleet.restart_gateways()?;
            }
            let mut flows = fleet.open_each()?;
            fleet.clouds[0].signal(Signal::SIGSTOP)?;
            times.push(fleet.slowest_to_serve(SERVE_LIMIT)?.as_secs_f64());
            fleet.clouds[0].signal(Signal::SIGCONT)?;
            for flow in &mut flows {
                resumed += usize::from(echo_within(flow, SERVE_LIMIT).is_ok());
            }
        }
        Ok((times, resumed))
    })?;
    report.result("cloud_hung_new_flow", median(&times), "s", Goal::AtMost(5.0), &times);
    let share = resumed as f64 / (rounds * GATEWAYS) as f64 * 100.0;
    report.result("cloud_hung_flows_resumed", share, "%", Goal::AtLeast(100.0), &[share]);
    Ok(())
}

/// The first cloud drains under flows that end within the limit.
fn drain(report: &mut Report, effort: Effort) -> Result<()> {
    let time = Duration::from_secs(effort.pick(30, 3));
    let (lost, moved, ended) = in_fleet(move |fleet| {
        let mut flows = Vec::new();
        for _ in 0..10 {
            flows.extend(fleet.open_each()?);
        }
        let begun = Instant::now();
        admin::post(&fleet.socket(Side::Cloud, 0), "/v1/drain", "{\"limit_s\": 120}")?;
        fleet.slowest_to_serve(SERVE_LIMIT)?;
        fleet.wait_for_cloud(1, SERVE_LIMIT)?;
        let moved = begun.elapsed().as_secs_f64();
        let mut lost = 0;
        while begun.elapsed() < time {
            flows.retain_mut(|flow| {
                let works = echo(flow).is_ok();
                lost += usize::from(!works);
                works
            });
            std::thread::sleep(Duration::from_millis(200));
        }
        ensure!(fleet.clouds[0].exit()?.is_none(), "the cloud has ended before its flows");
        drop(flows);
        let finished = Instant::now();
        let status = fleet.clouds[0].wait(Duration::from_secs(20))?;
        ensure!(status.success(), "the drained cloud ended with {status}");
        Ok((lost, moved, finished.elapsed().as_secs_f64()))
    })?;
    report.result("drain_flows_lost", lost as f64, "flows", Goal::AtMost(0.0), &[]);
    report.result("drain_gateways_moved", moved, "s", Goal::AtMost(5.0), &[moved]);
    report.result("drain_end_after_last_flow", ended, "s", Goal::None, &[ended]);
    Ok(())
}

/// All carriers are dark for 60 s: no flow is lost, and none goes to the other cloud.
fn mountain(report: &mut Report, effort: Effort) -> Result<()> {
    let night = Duration::from_secs(effort.pick(60, 4));
    let (changes, lost, back) = in_fleet(move |fleet| {
        let mut flows = fleet.open_each()?;
        let before: usize = (0..GATEWAYS).map(|gateway| fleet.changes(gateway)).sum();
        darken(fleet, &mut flows, night)?;
        let returned = Instant::now();
        let mut lost = 0;
        for flow in &mut flows {
            lost += usize::from(answer_within(flow, SERVE_LIMIT).is_err());
        }
        let back = returned.elapsed().as_secs_f64();
        // A late change would be one, too.
        std::thread::sleep(Duration::from_secs(effort.pick(10, 3)));
        let after: usize = (0..GATEWAYS).map(|gateway| fleet.changes(gateway)).sum();
        Ok((after - before, lost, back))
    })?;
    report.result("mountain_cloud_changes", changes as f64, "changes", Goal::AtMost(0.0), &[]);
    report.result("mountain_flows_lost", lost as f64, "flows", Goal::AtMost(0.0), &[]);
    report.result("mountain_every_flow_back", back, "s", Goal::None, &[back]);
    Ok(())
}

/// Darkens all carriers for this long, in which each flow sends a byte. Its echo is not read.
pub fn darken(fleet: &Fleet, flows: &mut [TcpStream], time: Duration) -> Result<()> {
    fleet.carriers.iter().try_for_each(|carrier| carrier.darken(&fleet.lab))?;
    for flow in flows {
        flow.write_all(b"x").context("sending in the dark")?;
    }
    std::thread::sleep(time);
    fleet.carriers.iter().try_for_each(|carrier| carrier.brighten(&fleet.lab))
}

/// Measures in a fleet on a thread of its own.
fn in_fleet<T, F>(measure: F) -> Result<T>
where
    T: Send,
    F: FnOnce(&mut Fleet) -> Result<T> + Send,
{
    in_thread(move || {
        let mut fleet = Fleet::start().context("setting up")?;
        measure(&mut fleet).inspect_err(|_| eprintln!("{}", fleet.tails()))
    })
}
