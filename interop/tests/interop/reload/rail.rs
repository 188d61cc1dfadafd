//! Reloads of what is known of the rail: databases of handovers and sources of telemetry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyrail_interop::rail;
use polyrail_interop::world::{Side, World};
use serde_json::{Value, json};

use super::kinds::{Edit, Outcome, Reload, cloud, gateway, refused, showing};
use super::shows::soon;

/// Nobody listens there.
const NO_GPSD: &str = "127.0.0.1:2948";
const NO_BUS: &str = "unix:path=/nonexistent";
/// Beside the configuration files.
const REPLAYED: &str = "replayed.ndjson";

/// Every kind of change, each on top of those before it.
pub(super) fn all() -> Vec<Reload> {
    let path = Edit::Set("linkdb.path", "elsewhere.redb".into());
    let bus = vec![
        ("telemetry.modem_manager", true.into()),
        ("telemetry.modem_manager_bus", NO_BUS.into()),
    ];
    vec![
        showing(gateway(Edit::Set("linkdb.forecast", false.into())), |world| {
            is_told(world, Side::Gateway, "/forecast", &false.into())
        }),
        showing(cloud(Edit::Set("linkdb.forecast", false.into())), |world| {
            is_told(world, Side::Cloud, "/forecast", &false.into())
        }),
        showing(gateway(Edit::Set("linkdb.guard", true.into())), |world| {
            is_told(world, Side::Gateway, "/guard", &true.into())
        }),
        showing(cloud(Edit::Set("linkdb.guard", true.into())), |world| {
            is_told(world, Side::Cloud, "/guard", &true.into())
        }),
        showing(gateway(Edit::Set("linkdb.events_max", 1_000.into())), |world| {
            is_told(world, Side::Gateway, "/store/open", &true.into())
        }),
        refused(Side::Gateway, path.clone(), Outcome::Restart("linkdb.path")),
        refused(Side::Cloud, path, Outcome::Restart("linkdb.path")),
        cloud(Edit::Set("linkdb.retention_days", 7.into())),
        cloud(Edit::Set("linkdb.share", false.into())),
        showing(gateway(Edit::Replayed(REPLAYED)), |world| {
            let file = world.lab.folder().join(REPLAYED);
            observes(world, "replay", &file.display().to_string(), "ended")
        }),
        showing(gateway(Edit::Set("telemetry.gpsd", NO_GPSD.into())), |world| {
            has_source(world, "gpsd", NO_GPSD, "waiting")
        }),
        showing(gateway(Edit::Several(bus)), |world| {
            has_source(world, "modem_manager", NO_BUS, "waiting")
        }),
        gateway(Edit::Carrier(0, "modem", "1a2b".into())),
        showing(gateway(Edit::AsAtFirst), |world| {
            is_told(world, Side::Gateway, "/forecast", &true.into())?;
            is_told(world, Side::Gateway, "/guard", &false.into())?;
            let socket = rail::socket(&world.lab);
            observes(world, "replay", &socket.display().to_string(), "connected")?;
            let sources = world.linkdb(Side::Gateway)?["sources"].clone();
            let count = sources.as_array().map(Vec::len);
            ensure!(count == Some(1), "not as at first: {sources}");
            Ok(())
        }),
        showing(cloud(Edit::AsAtFirst), |world| {
            is_told(world, Side::Cloud, "/forecast", &true.into())
        }),
    ]
}

/// A train that says where it is until it is dropped.
pub(super) struct Train {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Train {
    pub(super) fn start(world: &World) -> Result<Train> {
        let announcer = world.train.clone().context("no train")?;
        let over = Arc::<AtomicBool>::default();
        let told = over.clone();
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            while !told.load(Ordering::Relaxed) {
                announcer.say(&line(number));
                number += 1;
                std::thread::sleep(Duration::from_millis(250));
            }
        });
        Ok(Train { over, thread: Some(thread) })
    }
}

impl Drop for Train {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // It says nothing worth hearing when it panics.
        self.thread.take().map(JoinHandle::join);
    }
}

/// What the train says; every third time alpha has another cell.
pub(super) fn line(number: u32) -> String {
    let line = json!({
        "metres": f64::from(number) * 20.0,
        "metres_per_second": 80.0,
        "carriers": [{ "carrier": "alpha", "cell": number / 3 }],
    });
    line.to_string()
}

fn is_told(world: &World, side: Side, pointer: &str, wanted: &Value) -> Result<()> {
    soon(|| {
        let state = world.linkdb(side)?;
        ensure!(state.pointer(pointer) == Some(wanted), "{pointer} is not {wanted}: {state}");
        Ok(())
    })
}

/// The gateway has a source of this kind at this place, in this state.
fn has_source(world: &World, kind: &str, target: &str, wanted: &str) -> Result<()> {
    soon(|| source(world, kind, target, wanted).map(drop))
}

/// As [`has_source`], and something was observed through it.
fn observes(world: &World, kind: &str, target: &str, wanted: &str) -> Result<()> {
    soon(|| {
        let source = source(world, kind, target, wanted)?;
        ensure!(source["observations"].as_u64() > Some(0), "nothing was observed: {source}");
        Ok(())
    })
}

fn source(world: &World, kind: &str, target: &str, wanted: &str) -> Result<Value> {
    let state = world.linkdb(Side::Gateway)?;
    let sources = state["sources"].as_array().context("no sources")?;
    let is_it = |one: &&Value| one["source"] == kind && one["target"] == target;
    let source = sources.iter().find(is_it).with_context(|| format!("no {kind}: {state}"))?;
    ensure!(source["state"] == wanted, "not {wanted}: {source}");
    Ok(source.clone())
}
