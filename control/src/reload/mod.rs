//! What differs between two configurations, and whether a running daemon can take it.
//!
//! Every key of a configuration is either live (it has a [`Change`]) or needs a restart (it is
//! named in [`RestartNeeded`]). A new configuration is taken whole or not at all.

mod cloud;
mod gateway;
mod shown;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::{self, Debug};

use serde::{Deserialize, Serialize};

pub use cloud::diff_cloud;
pub use gateway::diff_gateway;

use polyrail_config::{CarrierName, LinkDbConfig, LogConfig, SessionConfig};
use shown::Shown;

/// One part of a configuration that differs and can be taken by a running daemon. The new values
/// stand in the new configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `mode`: of carriers without a mode of their own (gateway).
    Mode,
    /// `log.level`, `log.format` or `log.file`; control applies it.
    Log,
    /// A path of `[tls]`, or what is in one of its files.
    Certificates,
    /// `session.linger`.
    Linger,
    /// `session.flows_max`.
    FlowsMax,
    /// `scheduler.chain`.
    Chain,
    /// `cloud.addresses`: of carriers without addresses of their own (gateway).
    CloudAddresses,
    /// A `[[carrier]]` that was not there (gateway).
    CarrierAdded(CarrierName),
    /// A `[[carrier]]` that is no longer there (gateway).
    CarrierRemoved(CarrierName),
    /// A `[[carrier]]` with other values (gateway).
    CarrierChanged(CarrierName, BTreeSet<CarrierKey>),
    /// The carriers stand in another order (gateway).
    CarrierOrder,
    /// A key of `[restart]` (gateway).
    Restart,
    /// `dns.resolver` (gateway).
    Resolver,
    /// `socks5.reply` (gateway).
    SocksReply,
    /// A key of `[telemetry]` (gateway); control applies it.
    Telemetry,
    /// A key of `[linkdb]` but its path.
    LinkDb,
    /// `congestion` or `carrier_congestion` (cloud).
    Congestion,
    /// A key of `[access]` (cloud).
    Access,
    /// A key of `[dial]` (cloud).
    Dial,
}

/// A key of a `[[carrier]]` that can change while the carrier is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CarrierKey {
    /// `interface`.
    Interface,
    /// `source`.
    Source,
    /// `addresses`.
    Addresses,
    /// `congestion`.
    Congestion,
    /// `mode`.
    Mode,
    /// `metered`.
    Metered,
    /// `qlog`.
    Qlog,
    /// `modem`; control applies it.
    Modem,
    /// `role`.
    Role,
    /// `enabled`.
    Enabled,
}

/// One difference as operators read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeLine {
    /// The key with its tables; a carrier stands under its name, as `carrier.a.mode`.
    pub key: String,
    /// What it was; `None` when it was not there.
    pub from: Option<String>,
    /// What it is; `None` when it is no longer there.
    pub to: Option<String>,
}

/// Keys that differ and that a running daemon cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing was changed: these keys need a restart of the daemon: {}", keys.join(", "))]
pub struct RestartNeeded {
    /// Their names with their tables; at least one.
    pub keys: Vec<String>,
}

/// How two configurations differ: for the data plane and for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// What the data plane acts on.
    pub changes: Vec<Change>,
    /// What operators read.
    pub lines: Vec<ChangeLine>,
}

impl fmt::Display for ChangeLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, "{}: {from} -> {to}", self.key),
            (Some(from), None) => write!(f, "{}: removed, was {from}", self.key),
            (None, Some(to)) => write!(f, "{}: set to {to}", self.key),
            (None, None) => write!(f, "{}: read again", self.key),
        }
    }
}

/// Collects differences while two configurations are walked.
#[derive(Debug, Default)]
struct Walk {
    found: Difference,
    restart: Vec<String>,
}

impl Walk {
    /// A live key: on record when its values differ. True then.
    fn live<T: PartialEq + Shown>(&mut self, key: &str, old: &T, new: &T) -> bool {
        if old == new {
            return false;
        }
        let line = ChangeLine { key: key.to_owned(), from: old.shown(), to: new.shown() };
        self.found.lines.push(line);
        true
    }

    /// A key that a running daemon cannot change.
    fn fixed<T: PartialEq>(&mut self, key: &str, old: &T, new: &T) {
        if old != new {
            self.restart.push(key.to_owned());
        }
    }

    fn change(&mut self, differs: bool, change: Change) {
        if differs {
            self.found.changes.push(change);
        }
    }

    fn log(&mut self, old: &LogConfig, new: &LogConfig) {
        let level = self.live("log.level", &old.level, &new.level);
        let format = self.live("log.format", &old.format, &new.format);
        let file = self.live("log.file", &old.file, &new.file);
        self.change(level || format || file, Change::Log);
    }

    fn session(&mut self, old: &SessionConfig, new: &SessionConfig) {
        let linger = self.live("session.linger", &old.linger, &new.linger);
        self.change(linger, Change::Linger);
        let flows = self.live("session.flows_max", &old.flows_max, &new.flows_max);
        self.change(flows, Change::FlowsMax);
        self.fixed("session.memory", &old.memory, &new.memory);
    }

    /// True when it differs in what is live.
    fn linkdb(&mut self, old: &LinkDbConfig, new: &LinkDbConfig) -> bool {
        let LinkDbConfig { path, events_max, retention_days, forecast, guard } = old;
        self.fixed("linkdb.path", path, &new.path);
        let mut differs = self.live("linkdb.events_max", events_max, &new.events_max);
        differs |= self.live("linkdb.retention_days", retention_days, &new.retention_days);
        differs |= self.live("linkdb.forecast", forecast, &new.forecast);
        differs | self.live("linkdb.guard", guard, &new.guard)
    }

    fn finish(self) -> Result<Difference, RestartNeeded> {
        match self.restart.is_empty() {
            true => Ok(self.found),
            false => Err(RestartNeeded { keys: self.restart }),
        }
    }
}
