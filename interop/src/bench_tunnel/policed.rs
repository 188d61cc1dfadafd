//! UDP policed to 1 Mbit/s on one of two carriers, in mode `auto`: how soon the carrier uses `tls`,
//! and the goodput compared with a run that started in `tls`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::worlds::Worlds;
use crate::admin;
use crate::bench::Effort;
use crate::bulk::{Bulk, Source};
use crate::carrier::{self, Link};
use crate::client::PATIENCE;
use crate::lab::Side;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, World};

/// How long the download runs before the policer starts.
const BEFORE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// The figures of one run.
struct Run {
    verdict: Verdict,
    mbit_s: f64,
}

/// When the policed carrier began to use `tls`, and how often it returned to `quic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    /// Until its first connection in `tls`; the whole window without one.
    until_tls: Duration,
    /// How often it returned from `tls` to `quic`.
    relapses: u32,
}

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (batches, pairs, window) =
        effort.pick((2, 3, Duration::from_secs(60)), (1, 1, Duration::from_secs(8)));
    let (mut times, mut ratios, mut relapses) = (Vec::new(), Vec::new(), Vec::new());
    let mut rates = [const { Vec::new() }; 2];
    for _ in 0..batches {
        // Each run has a world of its own, because a demotion influences later ones.
        let plans: Vec<Plan> = (0..pairs).flat_map(|_| ["auto", "tls"].map(plan)).collect();
        let prepare = |world: &mut World, number: usize| {
            Source::start(world)?;
            let bulk = Bulk::start(world)?;
            bulk.wait_for(2_000_000, PATIENCE)?;
            Ok((bulk, ["quic", "tls"][number % 2]))
        };
        let measure = move |world: &mut World, (bulk, mode): &mut (Bulk, &str), _| {
            police(world, bulk, mode, window)
        };
        let runs = Worlds::start(&plans, prepare, measure)?.together(0)?;
        for pair in runs.chunks(2) {
            times.push(pair[0].verdict.until_tls.as_secs_f64());
            relapses.push(f64::from(pair[0].verdict.relapses));
            ratios.push(pair[0].mbit_s / pair[1].mbit_s);
            rates[0].push(pair[0].mbit_s);
            rates[1].push(pair[1].mbit_s);
        }
    }
    let worst = times.iter().copied().fold(0.0, f64::max);
    report.result("policed_until_tls", median(&times), "s", Goal::AtMost(5.0), &times);
    report.result("policed_until_tls_max", worst, "s", Goal::AtMost(5.0), &times);
    let all: f64 = relapses.iter().sum();
    report.result("policed_relapses", all, "in all runs", Goal::None, &relapses);
    report.result("policed_rate_auto", median(&rates[0]), "Mbit/s", Goal::None, &rates[0]);
    report.result("policed_rate_tls", median(&rates[1]), "Mbit/s", Goal::None, &rates[1]);
    report.result("policed_rate_ratio", median(&ratios), "x", Goal::AtLeast(0.9), &ratios);
    Ok(())
}

fn plan(mode: &str) -> Plan {
    let link = Link::new(10.0, 40);
    super::plan(mode).carrier("alpha", link).carrier("beta", link)
}

/// Both carriers use `mode` when the policer starts.
fn police(world: &mut World, bulk: &Bulk, mode: &str, window: Duration) -> Result<Run> {
    std::thread::sleep(BEFORE);
    for name in ["alpha", "beta"] {
        world
            .wait_for_path(name, PATIENCE, |path| path["state"] == "up" && path["mode"] == mode)
            .with_context(|| format!("{name} does not use {mode} before the policer"))?;
    }
    let socket = Side::Gateway.admin_socket(&world.lab);
    carrier::command(&world.lab, "set alpha udp 1 Mbit/s")?;
    let (started, before) = (Instant::now(), bulk.bytes());
    let mut modes = Vec::new();
    while started.elapsed() < window {
        std::thread::sleep(POLL);
        let path = admin::path(&socket, "alpha")?;
        modes.push((started.elapsed(), path["mode"].as_str().map(str::to_owned)));
    }
    let mbit_s = (bulk.bytes() - before) as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e6;
    Ok(Run { verdict: judge(&modes, window), mbit_s })
}

/// Judges the modes of a carrier over time; `None` is a moment without a connection.
fn judge(modes: &[(Duration, Option<String>)], window: Duration) -> Verdict {
    let known: Vec<(Duration, &str)> =
        modes.iter().filter_map(|(at, mode)| Some((*at, mode.as_deref()?))).collect();
    let first = known.iter().find(|(_, mode)| *mode == "tls");
    let relapses = known.windows(2).filter(|pair| pair[0].1 == "tls" && pair[1].1 == "quic");
    let relapses = u32::try_from(relapses.count()).unwrap_or(u32::MAX);
    Verdict { until_tls: first.map_or(window, |(at, _)| *at), relapses }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_until_tls_and_returns_to_quic_are_counted() {
        // One mode a second: `q`, `t`, and `-` without a connection.
        for (modes, until_s, relapses) in
            [("qqq", 60, 0), ("qqttt", 2, 0), ("qt-qqtt", 1, 1), ("qt-tq-tq", 1, 2)]
        {
            let mode = |letter| match letter {
                'q' => Some("quic".to_owned()),
                't' => Some("tls".to_owned()),
                _ => None,
            };
            let modes: Vec<_> =
                (0..).map(Duration::from_secs).zip(modes.chars().map(mode)).collect();
            let until_tls = Duration::from_secs(until_s);
            let judged = judge(&modes, Duration::from_secs(60));
            assert_eq!(judged, Verdict { until_tls, relapses }, "{modes:?}");
        }
    }
}
