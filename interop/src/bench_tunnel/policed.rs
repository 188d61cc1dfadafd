//! UDP policed to 1 Mbit/s on one of two carriers, in mode `auto`: how soon the carrier runs in
//! `tls`, and what the minute costs against a run that began there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::worlds::Worlds;
use crate::admin;
use crate::bench::Effort;
use crate::bulk::{Bulk, Source};
use crate::carrier::{self, Link};
use crate::client::PATIENCE;
use crate::operator;
use crate::report::{Goal, Report, median};
use crate::world::{Plan, Side, World};

/// Undisturbed, before the policer comes.
const BEFORE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// The figures of one run.
struct Run {
    verdict: Verdict,
    mbit_s: f64,
}

/// What the gateway said about the carrier at one moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    mode: Mode,
    demoted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Quic,
    Tls,
    /// No connection at that moment.
    Neither,
}

/// How the policed carrier came to `tls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    /// The begin of its first time in `tls` that was more than a trial: the gateway demoted the
    /// carrier in it, or it lasted until the end. The whole window when there was none.
    until_tls: Duration,
    /// How often it went from `tls` back to `quic`, by a trial that failed or to try QUIC again.
    relapses: u32,
}

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let (batches, pairs, window) =
        effort.pick((2, 3, Duration::from_secs(60)), (1, 1, Duration::from_secs(8)));
    let (mut times, mut ratios, mut relapses) = (Vec::new(), Vec::new(), Vec::new());
    let mut rates = [const { Vec::new() }; 2];
    for _ in 0..batches {
        // A carrier that was demoted once is treated otherwise: each run has a world of its own.
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

/// The carrier travels in `mode` when the policer comes.
fn police(world: &mut World, bulk: &Bulk, mode: &str, window: Duration) -> Result<Run> {
    std::thread::sleep(BEFORE);
    for name in ["alpha", "beta"] {
        world
            .wait_for_path(name, PATIENCE, |path| path["state"] == "up" && path["mode"] == mode)
            .with_context(|| format!("{name} does not travel by {mode} before the policer"))?;
    }
    let socket = operator::socket(&world.lab, Side::Gateway);
    carrier::command(&world.lab, "set alpha udp 1 Mbit/s")?;
    let (started, before) = (Instant::now(), bulk.bytes());
    let mut looks = Vec::new();
    while started.elapsed() < window {
        std::thread::sleep(POLL);
        let path = admin::path(&socket, "alpha")?;
        looks.push(Look::from_json(started.elapsed(), &path));
    }
    let mbit_s = (bulk.bytes() - before) as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e6;
    Ok(Run { verdict: judge(&looks, window), mbit_s })
}

impl Look {
    fn from_json(at: Duration, path: &Value) -> Look {
        let mode = match path["mode"].as_str() {
            Some("quic") => Mode::Quic,
            Some("tls") => Mode::Tls,
            _ => Mode::Neither,
        };
        Look { at, mode, demoted: !path["demotion"].is_null() }
    }
}

fn judge(looks: &[Look], window: Duration) -> Verdict {
    let (mut since, mut held, mut relapses) = (None, None, 0);
    for look in looks {
        match look.mode {
            Mode::Tls => {
                let begin = *since.get_or_insert(look.at);
                if look.demoted {
                    held = held.or(Some(begin));
                }
            }
            Mode::Quic => relapses += u32::from(since.take().is_some()),
            // On its way from one connection to another.
            Mode::Neither => {}
        }
    }
    Verdict { until_tls: held.or(since).unwrap_or(window), relapses }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look a second: `q` and `t` by mode, `T` demoted, `-` without a connection.
    fn judged(looks: &str) -> (u64, u32) {
        let look = |(at, mode)| Look {
            at: Duration::from_secs(at),
            mode: match mode {
                'q' => Mode::Quic,
                't' | 'T' => Mode::Tls,
                _ => Mode::Neither,
            },
            demoted: mode == 'T',
        };
        let looks: Vec<Look> = (0..).zip(looks.chars()).map(look).collect();
        let verdict = judge(&looks, Duration::from_secs(60));
        (verdict.until_tls.as_secs(), verdict.relapses)
    }

    #[test]
    fn a_trial_that_fails_is_no_demotion() {
        assert_eq!(judged("qqq"), (60, 0));
        assert_eq!(judged("qttq"), (60, 1));
        assert_eq!(judged("qttqqtTT"), (5, 1));
        assert_eq!(judged("qttqqttt"), (5, 1));
    }

    #[test]
    fn a_demotion_counts_from_its_trials_begin_and_quic_tried_again_is_a_relapse() {
        assert_eq!(judged("qttTTT"), (1, 0));
        assert_eq!(judged("qt-TTTqqtTT"), (1, 1));
    }

    #[test]
    fn a_path_is_read() {
        let path = serde_json::json!({"mode": "tls", "demotion": {"reason": "policed"}});
        let look = Look::from_json(Duration::ZERO, &path);
        assert_eq!((look.mode, look.demoted), (Mode::Tls, true));
        let path = serde_json::json!({"mode": null, "demotion": null});
        let look = Look::from_json(Duration::ZERO, &path);
        assert_eq!((look.mode, look.demoted), (Mode::Neither, false));
    }
}
