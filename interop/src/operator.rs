//! The operator's command `polyrail`, connected to a daemon's admin socket.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::admin;
use crate::lab::Side;
use crate::world::World;

/// The result of a command.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its exit code was 0.
    pub good: bool,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub errors: String,
}

/// The numbers of reloads since the start of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloads {
    /// Accepted.
    pub taken: u64,
    /// Refused.
    pub refused: u64,
}

/// A failure that a daemon predicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedFailure {
    /// Seconds until the failure; negative if the place was passed.
    pub fails_in_s: f64,
    /// Its probability in permille.
    pub permille: u64,
}

impl World {
    /// Runs `polyrail ARGUMENTS` for a daemon; arguments are separated by white space.
    pub fn operate(&self, side: Side, arguments: &str) -> Result<Answer> {
        let output = Command::new(self.programs.path("polyrail"))
            .args(arguments.split_whitespace())
            .arg("--socket")
            .arg(side.admin_socket(&self.lab))
            .output()
            .context("the command polyrail")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        Ok(Answer {
            good: output.status.success(),
            output: text(&output.stdout),
            errors: text(&output.stderr),
        })
    }

    /// As [`World::operate`], but the command must succeed.
    pub fn ask(&self, side: Side, arguments: &str) -> Result<String> {
        let answer = self.operate(side, arguments)?;
        if !answer.good {
            bail!("polyrail {arguments}: {}", answer.errors);
        }
        Ok(answer.output)
    }

    /// As [`World::ask`], with JSON output.
    pub fn ask_json(&self, side: Side, arguments: &str) -> Result<Value> {
        let text = self.ask(side, &format!("{arguments} --json"))?;
        serde_json::from_str(&text).with_context(|| format!("polyrail {arguments}: {text}"))
    }

    /// The numbers of reloads of a daemon.
    pub fn reloads(&self, side: Side) -> Result<Reloads> {
        let status = self.ask_json(side, "status")?;
        let count = |key| status.pointer(&format!("/config/{key}")).and_then(Value::as_u64);
        Ok(Reloads {
            taken: count("reloads").context("no config.reloads")?,
            refused: count("reloads_refused").context("no config.reloads_refused")?,
        })
    }

    /// The paths of a daemon: `GET /v1/paths`.
    pub fn paths(&self, side: Side) -> Result<Vec<Value>> {
        admin::paths(&side.admin_socket(&self.lab))
    }

    /// The events that a daemon still has, after the number `since`.
    pub fn events(&self, side: Side, since: u64) -> Result<Vec<Value>> {
        let text = self.ask(side, &format!("events --since {since} --json"))?;
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).context("an event")).collect()
    }

    /// Waits until a path of the gateway in `GET /v1/paths` is as wanted.
    pub fn wait_for_path(
        &self,
        name: &str,
        limit: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let paths = self.paths(Side::Gateway)?;
            let path = paths.iter().find(|path| path["name"] == name);
            if path.is_some_and(&wanted) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("after {limit:?} the path is {}", path.unwrap_or(&Value::Null));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The state of a daemon's LinkDB: `GET /v1/linkdb`.
    pub fn linkdb(&self, side: Side) -> Result<Value> {
        self.ask_json(side, "linkdb status")
    }

    /// The failure that a daemon predicts for a carrier.
    pub fn predicted_failure(&self, side: Side, carrier: &str) -> Result<Option<PredictedFailure>> {
        let state = self.linkdb(side)?;
        let trips = state.get("trips").and_then(Value::as_array).context("no trips")?;
        let carriers = trips.iter().filter_map(|trip| trip.get("carriers")?.as_array()).flatten();
        let mut own = carriers.filter(|one| one["carrier"] == carrier);
        Ok(own.find_map(|one| {
            let permille = one["permille"].as_u64()?;
            Some(PredictedFailure { fails_in_s: one["fails_in_s"].as_f64()?, permille })
        }))
    }
}
