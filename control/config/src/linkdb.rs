//! `[linkdb]`: the database of handovers, from which forecasts are made.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::common::path;
use super::reader::Section;
use super::values::{boolean, integer};

/// `[linkdb]`: where handovers are remembered and what is made of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDbConfig {
    /// The database's file.
    pub path: PathBuf,
    /// The most handovers that are kept one by one; default 1,000,000, 1,000 to 100,000,000. The
    /// oldest trips fall out; what was learned of their cells stays.
    pub events_max: u64,
    /// For how many days single handovers are kept; default 365, 1 to 36,500.
    pub retention_days: NonZeroU32,
    /// Whether the scheduler is told what is expected of each carrier; default true. Without it,
    /// handovers are recorded all the same.
    pub forecast: bool,
    /// Whether cells whose history cannot tell failures from successes are left out of forecasts;
    /// default false.
    pub guard: bool,
}

/// `[linkdb]` of a cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudLinkDb {
    /// What both daemons know.
    pub common: LinkDbConfig,
    /// Whether what one gateway learned is given to the others; default true.
    pub share: bool,
}

/// Reads a gateway's table.
pub(super) fn read_gateway(mut section: Section<'_, '_>) -> Option<LinkDbConfig> {
    let common = read(&mut section);
    section.finish();
    common
}

/// Reads a cloud's table.
pub(super) fn read_cloud(mut section: Section<'_, '_>) -> Option<CloudLinkDb> {
    let common = read(&mut section);
    let share = section.get("share", boolean).unwrap_or(true);
    section.finish();
    Some(CloudLinkDb { common: common?, share })
}

fn read(section: &mut Section<'_, '_>) -> Option<LinkDbConfig> {
    let path = path(section, "path", true);
    let events_max = section.get("events_max", integer(EVENTS_MAX));
    let days = section.get("retention_days", integer(1..=36_500));
    let forecast = section.get("forecast", boolean).unwrap_or(true);
    let guard = section.get("guard", boolean).unwrap_or(false);
    let retention_days =
        days.and_then(|days| u32::try_from(days).ok()).and_then(NonZeroU32::new).or(DAYS)?;
    let events_max = events_max.unwrap_or(1_000_000);
    Some(LinkDbConfig { path: path?, events_max, retention_days, forecast, guard })
}

/// How many handovers may be kept one by one, at most: what `linkdb.events_max` may be.
pub const EVENTS_MAX: RangeInclusive<u64> = 1_000..=100_000_000;
/// The usual retention.
const DAYS: Option<NonZeroU32> = NonZeroU32::new(365);
