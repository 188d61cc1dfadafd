//! What the daemons run with, as their admin sockets tell it, against what their files say.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polyrail_interop::configuration::Configuration;
use polyrail_interop::world::{Side, World};
use serde_json::{Value, json};

use super::SOON;

const POLL: Duration = Duration::from_millis(20);

/// What a daemon runs with when its file says nothing.
pub(super) struct Running {
    /// The schedulerlets of gateway and cloud.
    chains: [Value; 2],
}

impl Running {
    /// As the daemons run with their first files.
    pub(super) fn with(world: &World) -> Result<Running> {
        let chains = [chain(world, Side::Gateway)?, chain(world, Side::Cloud)?];
        let running = Running { chains };
        running.must_be(world, &world.configurations)?;
        Ok(running)
    }

    /// Both daemons run with what their files say.
    pub(super) fn must_be(&self, world: &World, files: &[Configuration; 2]) -> Result<()> {
        for (index, side) in [Side::Gateway, Side::Cloud].into_iter().enumerate() {
            let chain = chain(world, side)?;
            let expected = match files[index].get("scheduler.chain").and_then(toml::Value::as_str) {
                None => self.chains[index].clone(),
                Some("round_robin") => json!(["round_robin"]),
                Some("redundant") => json!(["min_rtt", "redundancy"]),
                Some(other) => bail!("no test knows the chain {other}"),
            };
            ensure!(chain == expected, "the {} schedules by {chain}: not {expected}", side.name());
        }
        let wanted = carriers(&files[0])?;
        let paths = world.paths(Side::Gateway)?;
        let told: Vec<Value> = paths.iter().map(configured).collect();
        let expected: Vec<Value> = wanted.iter().map(|carrier| carrier.told.clone()).collect();
        ensure!(told == expected, "the gateway has {told:#?}: not {expected:#?}");
        for carrier in &wanted {
            let name = carrier.told["name"].as_str().unwrap_or_default();
            world
                .wait_for_path(name, SOON, |path| carrier.works(path))
                .with_context(|| format!("{name} is not as {}", carrier.told))?;
        }
        Ok(())
    }
}

/// The schedulerlets that a daemon sends by.
fn chain(world: &World, side: Side) -> Result<Value> {
    Ok(world.ask_json(side, "status")?["scheduler"].clone())
}

/// A carrier of the gateway's file.
struct Carrier {
    /// What the admin socket says of its configuration.
    told: Value,
    /// The cloud's addresses over it.
    addresses: Vec<String>,
}

impl Carrier {
    /// Its connection is as its configuration has it.
    fn works(&self, path: &Value) -> bool {
        if self.told["enabled"] == false {
            return path["state"] == "disabled";
        }
        let mode = &self.told["configured_mode"];
        let peer = path["peer_address"].as_str().unwrap_or_default();
        path["state"] == "up"
            && (mode == "auto" || path["mode"] == *mode)
            && self.addresses.iter().any(|address| address == peer)
    }
}

/// The part of a path that comes from the configuration.
fn configured(path: &Value) -> Value {
    let keys = ["name", "interface", "enabled", "role", "configured_mode"];
    keys.into_iter().map(|key| (key.to_owned(), path[key].clone())).collect()
}

fn carriers(file: &Configuration) -> Result<Vec<Carrier>> {
    let text = |value: Option<&toml::Value>| value.and_then(|v| v.as_str()).map(str::to_owned);
    let common = text(file.get("mode")).unwrap_or("auto".into());
    let list = file.get("carrier").and_then(toml::Value::as_array).context("no carriers")?;
    let carrier = |carrier: &toml::Value| {
        let told = json!({
            "name": text(carrier.get("name")),
            "interface": text(carrier.get("interface")),
            "enabled": carrier.get("enabled").and_then(toml::Value::as_bool).unwrap_or(true),
            "role": text(carrier.get("role")).unwrap_or("primary".into()),
            "configured_mode": text(carrier.get("mode")).unwrap_or(common.clone()),
        });
        let addresses = carrier.get("addresses").or(file.get("cloud.addresses"));
        let addresses = addresses.and_then(toml::Value::as_array).context("no addresses")?;
        let addresses = addresses.iter().filter_map(|address| text(Some(address))).collect();
        Ok(Carrier { told, addresses })
    };
    list.iter().map(carrier).collect()
}

/// When the daemon took the configuration that it runs with.
pub(super) fn taken_at(world: &World, side: Side) -> Result<String> {
    let status = world.ask_json(side, "status")?;
    let at = status.pointer("/config/loaded_at").and_then(Value::as_str);
    Ok(at.context("no config.loaded_at")?.to_owned())
}

/// The number of the daemon's last event.
pub(super) fn last_event(world: &World, side: Side) -> Result<u64> {
    let events = world.events(side, 0)?;
    Ok(events.last().and_then(|event| event["seq"].as_u64()).unwrap_or(0))
}

/// The event in which the daemon tells of the reload after that number.
pub(super) fn event_of_reload(world: &World, side: Side, since: u64) -> Result<Value> {
    let started = Instant::now();
    loop {
        let events = world.events(side, since)?;
        let wanted = ["reloaded", "reload_refused"];
        if let Some(event) =
            events.into_iter().find(|event| wanted.iter().any(|w| event["event"] == *w))
        {
            return Ok(event);
        }
        ensure!(started.elapsed() < SOON, "the {} tells of no reload", side.name());
        std::thread::sleep(POLL);
    }
}
