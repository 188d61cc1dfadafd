//! `[linkdb]`: the database of handovers and its forecasts.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Broken;
use crate::values::{count, path, some_path, yes};

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
    /// Cloud only: `[linkdb.shared]`, the database that it shares with other clouds.
    pub shared: Option<SharedConfig>,
}

/// `[linkdb.shared]`: a database in PostgreSQL that several clouds share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedConfig {
    /// `postgres://USER@HOST:PORT/DATABASE`, without password and parameters.
    pub url: String,
    /// A file with the user's password.
    #[serde(default, deserialize_with = "some_path")]
    pub password_file: Option<PathBuf>,
    /// The authority of the server's certificate, PEM. Required unless the server is local.
    #[serde(default, deserialize_with = "some_path")]
    pub ca: Option<PathBuf>,
}

impl SharedConfig {
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.password_file.iter_mut().chain(&mut self.ca)
    }

    pub(crate) fn rules(&self) -> Result<(), Broken> {
        let refuse = |key: &str, reason: &str| {
            Err(Broken::new(format!("linkdb.shared.{key}"), reason.to_owned()))
        };
        let rest = self.url.strip_prefix("postgres://");
        let Some(rest) = rest.or_else(|| self.url.strip_prefix("postgresql://")) else {
            return refuse("url", "it is not of the form postgres://USER@HOST/DATABASE");
        };
        if rest.contains('?') {
            return refuse("url", "it has parameters: other keys replace them");
        }
        let (server, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = server.split_once('@').unwrap_or(("", server));
        if user.contains(':') {
            return refuse("url", "it has a password: put it into password_file");
        }
        let hosts: Option<Vec<&str>> = hosts.split(',').map(host).collect();
        let Some(hosts) = hosts.filter(|_| !database.contains('@')) else {
            return refuse("url", "it is not of the form postgres://USER@HOST:PORT/DATABASE");
        };
        if self.ca.is_none() && !hosts.into_iter().all(is_local) {
            return refuse("ca", "missing: the server is not on this machine, so it needs TLS");
        }
        Ok(())
    }
}

/// The host in `HOST`, `HOST:PORT`, `[IPv6]` or `[IPv6]:PORT`; none if that is invalid.
fn host(part: &str) -> Option<&str> {
    let (host, port) = match part.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => part.split_once(':').map_or((part, None), |(host, port)| (host, Some(port))),
    };
    let is_valid = |c: char| !c.is_whitespace() && !"@/[]".contains(c);
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    (is_port && !host.is_empty() && host.chars().all(is_valid)).then_some(host)
}

/// Whether a host is a loopback address, `localhost`, or the folder of a Unix socket.
fn is_local(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    let is_folder = host.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case("%2f"));
    address.map_or(is_folder || host == "localhost", |address| address.is_loopback())
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
