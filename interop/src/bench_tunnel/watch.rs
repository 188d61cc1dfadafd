//! A daemon's own view of its carriers, as fresh as a measurement in milliseconds needs it.
//!
//! On SIGUSR1 a daemon writes its status file at its next turn; a look waits for that. It takes a
//! millisecond or two.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::process::Process;
use crate::world::{Side, World};

/// How long a daemon may take to write its status.
const FRESH_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_micros(500);

/// The place of a daemon's status file.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    side: Side,
    file: PathBuf,
}

/// One carrier in the daemon's eyes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its name.
    pub(super) name: String,
    /// Users' bytes received over it, copies included.
    pub(super) received_bytes: u64,
}

impl Watch {
    /// Of one daemon of the world.
    pub(super) fn of(world: &World, side: Side) -> Watch {
        let name = if side == Side::Gateway { "gateway" } else { "cloud" };
        Watch { side, file: world.lab.folder().join(format!("{name}-status.json")) }
    }

    /// All carriers as they are now.
    pub(super) fn look(&self, world: &World) -> Result<Vec<Seen>> {
        let status = self.fresh(world)?;
        let carriers = status.get("carriers").and_then(Value::as_array).context("no carriers")?;
        carriers.iter().map(Seen::from_json).collect()
    }

    fn fresh(&self, world: &World) -> Result<Value> {
        let daemon = self.daemon(world);
        let before = self.read().map(|status| status.get("uptime_s").cloned()).unwrap_or_default();
        daemon.signal(Signal::SIGUSR1)?;
        let asked = Instant::now();
        while asked.elapsed() < FRESH_LIMIT {
            std::thread::sleep(POLL);
            if let Ok(status) = self.read()
                && status.get("uptime_s").cloned() != before
            {
                return Ok(status);
            }
        }
        bail!("no fresh status of the {} within {FRESH_LIMIT:?}", daemon.name())
    }

    fn read(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(&self.file)?)?)
    }

    fn daemon<'w>(&self, world: &'w World) -> &'w Process {
        match self.side {
            Side::Gateway => &world.gateway,
            Side::Cloud => &world.cloud,
        }
    }
}

impl Seen {
    fn from_json(carrier: &Value) -> Result<Seen> {
        let name = carrier.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
        let received = carrier.get("received_bytes").and_then(Value::as_u64);
        Ok(Seen { name, received_bytes: received.context("received_bytes")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carrier_is_read() {
        let text = r#"{"name":"a","mode":"tls","state":"up","received_bytes":7}"#;
        let seen = Seen::from_json(&serde_json::from_str(text).unwrap()).unwrap();
        let wanted = Seen { name: "a".into(), received_bytes: 7 };
        assert_eq!(seen, wanted);
        assert!(Seen::from_json(&serde_json::from_str("{}").unwrap()).is_err());
    }
}
