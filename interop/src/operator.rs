//! The operator's command `polyrail` at a running daemon's admin socket.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::admin;
use crate::lab::Lab;
use crate::world::{Side, World};

/// What the command said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its exit code was 0.
    pub good: bool,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub errors: String,
}

/// How a daemon's reloads have gone since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloads {
    /// Taken.
    pub taken: u64,
    /// Refused.
    pub refused: u64,
}

/// Where a daemon of the lab has its admin socket.
pub fn socket(lab: &Lab, side: Side) -> PathBuf {
    lab.folder().join(format!("{}.sock", side.name()))
}

impl World {
    /// Runs `polyrail ARGUMENTS` at a daemon; the arguments are split at white space.
    ///
    /// # Errors
    /// When the command cannot be run.
    pub fn operate(&self, side: Side, arguments: &str) -> Result<Answer> {
        let output = Command::new(self.programs.path("polyrail"))
            .args(arguments.split_whitespace())
            .arg("--socket")
            .arg(socket(&self.lab, side))
            .output()
            .context("the command polyrail")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        Ok(Answer {
            good: output.status.success(),
            output: text(&output.stdout),
            errors: text(&output.stderr),
        })
    }

    /// As [`World::operate`], and it must succeed.
    ///
    /// # Errors
    /// With the command's words.
    pub fn ask(&self, side: Side, arguments: &str) -> Result<String> {
        let answer = self.operate(side, arguments)?;
        if !answer.good {
            bail!("polyrail {arguments}: {}", answer.errors);
        }
        Ok(answer.output)
    }

    /// As [`World::ask`], as JSON.
    ///
    /// # Errors
    /// With the command's words.
    pub fn ask_json(&self, side: Side, arguments: &str) -> Result<Value> {
        let text = self.ask(side, &format!("{arguments} --json"))?;
        serde_json::from_str(&text).with_context(|| format!("polyrail {arguments}: {text}"))
    }

    /// How the reloads of a daemon have gone.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn reloads(&self, side: Side) -> Result<Reloads> {
        let status = self.ask_json(side, "status")?;
        let count = |key| status.pointer(&format!("/config/{key}")).and_then(Value::as_u64);
        Ok(Reloads {
            taken: count("reloads").context("no config.reloads")?,
            refused: count("reloads_refused").context("no config.reloads_refused")?,
        })
    }

    /// The paths of a daemon: `GET /v1/paths`.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn paths(&self, side: Side) -> Result<Vec<Value>> {
        admin::paths(&socket(&self.lab, side))
    }

    /// The events of a daemon that it still remembers, those behind the number `since`.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn events(&self, side: Side, since: u64) -> Result<Vec<Value>> {
        let text = self.ask(side, &format!("events --since {since} --json"))?;
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).context("an event")).collect()
    }

    /// Waits until a path of the gateway, as `GET /v1/paths` tells it, is as wanted.
    ///
    /// # Errors
    /// When it is not within `limit`, with the path's state.
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
}
