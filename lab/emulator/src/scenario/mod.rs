//! A scenario: the links of an emulated rail, read from a TOML file (`docs/emulation.md`).
//!
//! A scenario is complete and consistent after parsing: no driver checks it again.

mod file;
mod quantity;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

use crate::link::LinkSpec;

pub use quantity::{
    ParseQuantityError, parse_duration, parse_path_mtu, parse_policing, parse_rate,
};

/// The most links in one scenario.
pub const LINKS_MAX: usize = 64;

/// All links, and their common settings.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Decides all random faults. Default: 1.
    pub seed: u64,
    /// When to end; `None`: when told to.
    pub duration: Option<Duration>,
    /// The network namespace of the gateway's side, as a path.
    pub near: Option<PathBuf>,
    /// The network namespace of the cloud's side, as a path.
    pub far: Option<PathBuf>,
    /// At least one, at most [`LINKS_MAX`], with distinct names.
    pub links: Vec<LinkScenario>,
}

/// One link, that is two directions between two interfaces.
#[derive(Clone, Debug)]
pub struct LinkScenario {
    /// Its name, in the log, in reports and on the control socket.
    pub name: String,
    /// The largest IP packet, in bytes.
    pub mtu: u16,
    /// The interface on the gateway's side.
    pub near: End,
    /// The interface on the cloud's side.
    pub far: End,
    /// A NAT at the far end translates ports from the start.
    pub nat: bool,
    /// From near to far.
    pub up: LinkSpec,
    /// From far to near.
    pub down: LinkSpec,
}

/// One end of a link.
#[derive(Clone, Debug)]
pub struct End {
    /// The name of the interface.
    pub interface: String,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Another namespace than the one all links share on this side.
    pub namespace: Option<PathBuf>,
}

/// Why there is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The text is no scenario; the reason has the line.
    #[error("{}: {error}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The error and its line.
        error: ParseError,
    },
}

/// An error in the text of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, counted from 1, where one is to blame.
    pub line: Option<usize>,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(self.reason.trim_end())
    }
}

impl std::error::Error for ParseError {}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// The file cannot be read or is no scenario.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScenarioError::Read { path: path.to_owned(), error })?;
        file::parse(&text).map_err(|error| ScenarioError::Invalid { path: path.to_owned(), error })
    }

    /// Reads a scenario from its text.
    ///
    /// # Errors
    /// The text is no scenario; the message has the line and the reason.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        file::parse(text)
    }

    /// The seed of one direction: all directions draw differently.
    pub fn seed_of(&self, link: usize, down: bool) -> u64 {
        direction_seed(self.seed ^ (link as u64).wrapping_mul(LINK_SPREAD), down)
    }
}

/// The seed of one direction of a link that has one: both draw differently.
pub(crate) fn direction_seed(seed: u64, down: bool) -> u64 {
    seed ^ (u64::from(down) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Keeps the seeds of links apart.
const LINK_SPREAD: u64 = 0xd1b5_4a32_d192_ed03;
