//! A scenario as the text of its file; parsing the text gives the same scenario. Times longer than
//! 97 days may differ by nanoseconds.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::{End, LinkScenario, Scenario};
use crate::link::{LinkSpec, Policing, Rate, Schedule};

impl Scenario {
    /// The text of its file. A blackout that never ends is written with a length of a year.
    ///
    /// # Errors
    /// A value that TOML cannot express; no scenario has one.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let mut file = json!({
            "seed": self.seed,
            "duration": self.duration.map(time),
            "namespaces": { "near": path(&self.near), "far": path(&self.far) },
            "link": self.links.iter().map(link).collect::<Vec<_>>(),
        });
        remove_nulls(&mut file);
        toml::to_string(&file)
    }
}

fn link(link: &LinkScenario) -> Value {
    let blackouts = [blackouts("up", &link.up), blackouts("down", &link.down)].concat();
    json!({
        "name": link.name,
        "mtu": link.mtu,
        "nat": link.nat,
        "near": end(&link.near),
        "far": end(&link.far),
        "up": direction(&link.up),
        "down": direction(&link.down),
        "blackout": blackouts,
    })
}

fn end(end: &End) -> Value {
    let namespace = path(&end.namespace);
    json!({ "interface": end.interface, "addresses": end.addresses, "namespace": namespace })
}

fn direction(spec: &LinkSpec) -> Value {
    let udp = match spec.udp {
        Policing::Free => "free".to_owned(),
        Policing::Blocked => "blocked".to_owned(),
        Policing::Limited(bits) => rate(Rate::Limited(bits)),
    };
    let mut table = json!({
        "queue": format!("{} B", spec.queue.0),
        "burst_loss": spec.burst_loss,
        "duplicate": spec.duplicate,
        "reorder": spec.reorder.map(|it| json!({ "share": it.share, "delay": time(it.delay) })),
        "udp": udp,
        "mtu": spec.mtu.map(|mtu| mtu.bytes),
        "mtu_silent": spec.mtu.map(|mtu| mtu.silent),
    });
    schedule(&mut table, "rate", &spec.rate, rate);
    schedule(&mut table, "delay", &spec.delay, time);
    let losses = spec.loss_steps.clone().unwrap_or_else(|| Schedule::constant(spec.loss));
    schedule(&mut table, "loss", &losses, |loss| loss);
    table
}

fn schedule<T: Copy, V: Serialize>(
    table: &mut Value,
    key: &str,
    schedule: &Schedule<T>,
    write: impl Fn(T) -> V,
) {
    table[key] = json!(write(schedule.at(Duration::ZERO).value));
    let steps = schedule.steps().skip(1);
    table[format!("{key}_steps")] =
        steps.map(|(at, value)| json!({ "at": time(at), key: write(value) })).collect();
    table[format!("{key}_repeat")] = json!(schedule.period().map(time));
}

fn blackouts(side: &str, spec: &LinkSpec) -> Vec<Value> {
    let steps: Vec<_> = spec.blackouts.steps().collect();
    let ends = steps.iter().skip(1).map(|step| step.0).chain([FOR_EVER]);
    let windows = steps.iter().zip(ends).filter_map(|((start, mode), end)| {
        let length = time(end - *start);
        let start = time(*start);
        mode.map(|it| json!({ "start": start, "length": length, "mode": it, "direction": side }))
    });
    windows.collect()
}

fn time(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

fn rate(rate: Rate) -> String {
    match rate {
        Rate::Unlimited => "unlimited".into(),
        Rate::Limited(rate) => format!("{} bit/s", rate.as_bps()),
    }
}

fn path(path: &Option<PathBuf>) -> Option<String> {
    path.as_ref().map(|path| path.to_string_lossy().into_owned())
}

/// TOML has no null: a missing key stands for it.
fn remove_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(remove_nulls);
    } else if let Value::Array(values) = value {
        values.iter_mut().for_each(remove_nulls);
    }
}

/// What the format takes for a time at most.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3_600);
