//! The gateway's status file, as far as the harness shows it.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// What the gateway reports about once a second.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// Its carriers, in the order of the configuration.
    pub carriers: Vec<CarrierStatus>,
}

/// One carrier in the gateway's eyes.
#[derive(Clone, Debug, Deserialize)]
pub struct CarrierStatus {
    /// The operator's name for it.
    pub name: String,
    /// `up` while its tunnel stands.
    pub state: String,
    /// `quic` or `tls`, that of its newest tunnel; empty before the first.
    #[serde(default)]
    pub mode: String,
    /// Users' bytes sent over it.
    pub sent_bytes: u64,
    /// Users' bytes received over it.
    pub received_bytes: u64,
    /// Smoothed round-trip time, microseconds.
    pub srtt_us: Option<u64>,
}

impl Status {
    /// Reads the file.
    ///
    /// # Errors
    /// When it is not there yet or not of the expected shape.
    pub fn read(path: &Path) -> Result<Status> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        serde_json::from_str(&text).context("status of the gateway")
    }

    /// True when every carrier's tunnel stands.
    pub fn all_up(&self) -> bool {
        !self.carriers.is_empty() && self.carriers.iter().all(|carrier| carrier.state == "up")
    }
}
