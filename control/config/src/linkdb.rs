//! `[linkdb]`: the database of handovers and its forecasts.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::values::{count, path, yes};

/// `[linkdb]`: where handovers are recorded, and their forecasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkDbConfig {
    /// The database's file.
    #[serde(deserialize_with = "path")]
    pub path: PathBuf,
    /// How many single handovers are kept at most; default 1,000,000, [`EVENTS_MAX`]. The oldest
    /// trips are evicted; the statistics of their cells stay.
    #[serde(
        default = "default_events",
        deserialize_with = "count::<_, _, EVENTS_MIN, EVENTS_CAP>"
    )]
    pub events_max: u64,
    /// For how many days single handovers are kept; default 365, 1 to 36,500.
    #[serde(default = "default_days", deserialize_with = "days")]
    pub retention_days: NonZeroU32,
    /// Whether the scheduler receives forecasts; default true. Without them, handovers are
    /// recorded all the same.
    #[serde(default = "yes")]
    pub forecast: bool,
    /// Cloud only: whether gateways receive each other's records; default true.
    pub share: Option<bool>,
}

impl LinkDbConfig {
    /// Whether gateways receive each other's records (cloud).
    pub fn shares(&self) -> bool {
        self.share.unwrap_or(true)
    }
}

fn days<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let days: u32 = count::<D, u32, 1, 36_500>(deserializer)?;
    Ok(NonZeroU32::new(days).unwrap_or(DAYS))
}

fn default_events() -> u64 {
    1_000_000
}

fn default_days() -> NonZeroU32 {
    DAYS
}

/// How many single handovers may be kept: the range of `linkdb.events_max`.
pub const EVENTS_MAX: RangeInclusive<u64> = EVENTS_MIN..=EVENTS_CAP;
const EVENTS_MIN: u64 = 1_000;
const EVENTS_CAP: u64 = 100_000_000;
/// The default retention.
const DAYS: NonZeroU32 = NonZeroU32::new(365).unwrap();
