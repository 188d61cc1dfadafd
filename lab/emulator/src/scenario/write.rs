//! A scenario as the text of its file; parsing the text gives the same scenario.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::{End, LinkScenario, Scenario};
use crate::link::{Blackout, LinkSpec, Policing, Rate, Schedule};

impl Scenario {
    /// The text of its file. Recordings are written out as steps, and a blackout that never ends
    /// ends after a year.
    pub fn to_toml(&self) -> String {
        let mut text = format!("seed = {}\n", self.seed);
        if let Some(duration) = self.duration {
            line(&mut text, "duration", &time(duration));
        }
        if self.near.is_some() || self.far.is_some() {
            text.push_str("\n[namespaces]\n");
            path(&mut text, "near", self.near.as_deref());
            path(&mut text, "far", self.far.as_deref());
        }
        self.links.iter().for_each(|one| link(&mut text, one));
        text
    }
}

fn link(text: &mut String, link: &LinkScenario) {
    text.push_str("\n[[link]]\n");
    line(text, "name", &link.name);
    plain(text, "mtu", link.mtu);
    plain(text, "nat", link.nat);
    for (side, one) in [("near", &link.near), ("far", &link.far)] {
        plain(text, &format!("\n[link.{side}]\ninterface"), quoted(&one.interface));
        end(text, one);
    }
    for (side, spec) in [("up", &link.up), ("down", &link.down)] {
        let _ = writeln!(text, "\n[link.{side}]");
        direction(text, spec);
    }
    let (up, down) = (blackouts(&link.up), blackouts(&link.down));
    if up == down {
        dark(text, "both", &up);
    } else {
        dark(text, "up", &up);
        dark(text, "down", &down);
    }
}

fn end(text: &mut String, end: &End) {
    let addresses: Vec<String> =
        end.addresses.iter().map(|address| quoted(&address.to_string())).collect();
    if !addresses.is_empty() {
        plain(text, "addresses", format!("[{}]", addresses.join(", ")));
    }
    path(text, "namespace", end.namespace.as_deref());
}

fn direction(text: &mut String, spec: &LinkSpec) {
    schedule(text, "rate", &spec.rate, rate);
    schedule(text, "delay", &spec.delay, time);
    line(text, "queue", &format!("{} B", spec.queue.0));
    losses(text, spec);
    if let Some(burst) = spec.burst_loss {
        let [enter, leave, loss, good] =
            [burst.enter, burst.leave, burst.loss, burst.loss_good].map(|p| share(p.get()));
        let value =
            format!("{{ enter = {enter}, leave = {leave}, loss = {loss}, loss_good = {good} }}");
        plain(text, "burst_loss", value);
    }
    plain(text, "duplicate", share(spec.duplicate.get()));
    if let Some(reorder) = spec.reorder {
        let delay = quoted(&time(reorder.delay));
        let value = format!("{{ share = {}, delay = {delay} }}", share(reorder.share.get()));
        plain(text, "reorder", value);
    }
    let udp = match spec.udp {
        Policing::Free => "free".to_owned(),
        Policing::Blocked => "blocked".to_owned(),
        Policing::Limited(bits) => rate(Rate::Limited(bits)),
    };
    line(text, "udp", &udp);
    if let Some(mtu) = spec.mtu {
        plain(text, "mtu", mtu.bytes);
        plain(text, "mtu_silent", mtu.silent);
    }
}

fn schedule<T: Copy>(
    text: &mut String,
    key: &str,
    schedule: &Schedule<T>,
    write: impl Fn(T) -> String,
) {
    let mut steps = schedule.steps();
    if let Some((_, first)) = steps.next() {
        line(text, key, &write(first));
    }
    let steps: Vec<String> = steps
        .map(|(at, value)| {
            format!("    {{ at = {}, {key} = {} }},\n", quoted(&time(at)), quoted(&write(value)))
        })
        .collect();
    if !steps.is_empty() {
        let _ = writeln!(text, "{key}_steps = [\n{}]", steps.concat());
    }
    if let Some(period) = schedule.period() {
        line(text, &format!("{key}_repeat"), &time(period));
    }
}

fn losses(text: &mut String, spec: &LinkSpec) {
    let Some(losses) = &spec.loss_steps else {
        return plain(text, "loss", share(spec.loss.get()));
    };
    plain(text, "loss", share(losses.at(Duration::ZERO).value.get()));
    let _ = writeln!(text, "loss_steps = [");
    for (at, loss) in losses.steps().skip(1) {
        let _ =
            writeln!(text, "    {{ at = {}, loss = {} }},", quoted(&time(at)), share(loss.get()));
    }
    text.push_str("]\n");
    if let Some(period) = losses.period() {
        line(text, "loss_repeat", &time(period));
    }
}

/// Beginning, length and kind.
fn blackouts(spec: &LinkSpec) -> Vec<(Duration, Duration, Blackout)> {
    let steps: Vec<_> = spec.blackouts.steps().collect();
    let ends = steps.iter().skip(1).map(|step| step.0).chain(std::iter::once(FOR_EVER));
    let windows = steps.iter().zip(ends);
    windows
        .filter_map(|((start, kind), end)| kind.map(|kind| (*start, end - *start, kind)))
        .collect()
}

fn dark(text: &mut String, direction: &str, windows: &[(Duration, Duration, Blackout)]) {
    for (start, length, kind) in windows {
        text.push_str("\n[[link.blackout]]\n");
        line(text, "start", &time(*start));
        line(text, "length", &time(*length));
        line(text, "mode", if *kind == Blackout::Hold { "hold" } else { "drop" });
        line(text, "direction", direction);
    }
}

/// In the largest unit that is exact.
fn time(time: Duration) -> String {
    let ns = time.as_nanos();
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    let exact = units.into_iter().find(|(_, one)| ns.is_multiple_of(*one));
    let (unit, one) = exact.unwrap_or(("ns", 1));
    format!("{} {unit}", ns / one)
}

fn rate(rate: Rate) -> String {
    match rate {
        Rate::Unlimited => "unlimited".into(),
        Rate::Limited(rate) => format!("{} bit/s", rate.as_bps()),
    }
}

/// With a point, as TOML wants it.
fn share(value: f64) -> String {
    format!("{value:?}")
}

fn path(text: &mut String, key: &str, path: Option<&Path>) {
    if let Some(path) = path {
        line(text, key, &path.to_string_lossy());
    }
}

fn line(text: &mut String, key: &str, value: &str) {
    plain(text, key, quoted(value));
}

fn plain(text: &mut String, key: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{key} = {value}");
}

fn quoted(value: &str) -> String {
    toml::Value::from(value).to_string()
}

/// What the format takes for a time at most.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3_600);
