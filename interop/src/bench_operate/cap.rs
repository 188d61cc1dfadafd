//! A data cap reached in the middle of a download, under each of its rules.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use toml::{Table, Value};

use crate::bench::{Effort, in_world};
use crate::carrier;
use crate::lab::Side;
use crate::report::{Goal, Report};
use crate::world::{Plan, World};

const MB: u64 = 1_000_000;
/// The rate of the rule that limits.
const LIMIT_BYTES_PER_S: f64 = 1e6 / 8.0;
const SOON: Duration = Duration::from_secs(30);
/// The data in flight when the cap is reached arrives within this time.
const SETTLED: Duration = Duration::from_secs(1);
/// The most that a carrier sends to stay connected: PINGs and control messages.
const IDLE_BYTES: f64 = 40e3;

/// What happened at a cap.
struct Capped {
    /// Whether the download was complete and correct.
    whole: bool,
    /// Bytes of both directions over the capped carrier from [`SETTLED`] after the cap on.
    beyond: u64,
    /// The time of that.
    time: Duration,
    /// The bytes that the cap counts in the end, beyond the cap.
    over: i64,
}

/// Two carriers of 20 Mbit/s; the first one has a cap.
pub(super) fn run(report: &mut Report, effort: Effort) -> Result<()> {
    let sizes = effort.pick((5 * MB, 40 * MB), (2 * MB, 20 * MB));
    for (rule, at) in [("stop", "stop"), ("backup", "backup"), ("limit", "limit:1 Mbit/s")] {
        let capped = in_world(&plan(sizes.0, at), move |world| measure(world, sizes))
            .with_context(|| format!("cap with the rule {at}"))?;
        let failed = f64::from(u8::from(!capped.whole));
        let name = |what: &str| format!("cap_{rule}_{what}");
        report.result(&name("failed"), failed, "downloads", Goal::AtMost(0.0), &[]);
        let allowed = match rule {
            "stop" => 0.0,
            "backup" => IDLE_BYTES,
            _ => LIMIT_BYTES_PER_S * 2.0 * 1.1 * capped.time.as_secs_f64(),
        };
        let beyond = capped.beyond as f64 / 1e3;
        report.result(&name("beyond"), beyond, "kB", Goal::AtMost(allowed / 1e3), &[]);
        let over = capped.over as f64 / 1e3;
        report.result(&name("over"), over, "kB", Goal::None, &[]);
    }
    Ok(())
}

fn plan(bytes: u64, at: &str) -> Plan {
    let bytes = format!("{} MB", bytes / MB);
    let cap = [("bytes", bytes.as_str()), ("at", at)];
    let cap: Table = cap.map(|(key, value)| (key.to_owned(), value.into())).into_iter().collect();
    Plan::twins().gateway("usage.path", "usage.json").carrier_key(0, "cap", Value::Table(cap))
}

fn measure(world: &mut World, (cap, size): (u64, u64)) -> Result<Capped> {
    let file = world.web.add(size, size)?;
    let running = world.download(&file).start(&world.lab.passenger)?;
    world.wait_for_path("alpha", SOON, |path| path["cap"]["level"] == "reached")?;
    std::thread::sleep(SETTLED);
    let (before, began) = (on_alpha(world)?, Instant::now());
    let received = running.bytes();
    ensure!(received < size / 4 * 3, "{received} of {size} bytes were there: not in the middle");
    let outcome = running.verify(&file);
    let (time, beyond) = (began.elapsed(), on_alpha(world)? - before);
    if let Err(error) = &outcome {
        eprintln!("{error:#}");
    }
    let paths = world.paths(Side::Gateway)?;
    let alpha = paths.iter().find(|path| path["name"] == "alpha").context("alpha")?;
    let over = alpha["cap"]["used_bytes"].as_i64().context("used_bytes")? - i64::try_from(cap)?;
    Ok(Capped { whole: outcome.is_ok(), beyond, time, over })
}

/// Bytes of both directions on the first carrier so far.
fn on_alpha(world: &World) -> Result<u64> {
    let counters = carrier::counters(&world.lab)?;
    let alpha = counters.iter().find(|counter| counter.carrier == "alpha").context("alpha")?;
    Ok(alpha.up_bytes + alpha.down_bytes)
}
