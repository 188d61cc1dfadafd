//! How two configurations differ: the lines for operators, and the keys that need a restart.
//!
//! This decides nothing about the data plane: each part of a daemon compares its own section with
//! the one in use.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use polyrail_config::{Config, Tables};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// One changed key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeLine {
    /// The key with its tables; a carrier is under its name, as in `carrier.a.mode`.
    pub key: String,
    /// The old value; `None` when the key is new.
    pub from: Option<String>,
    /// The new value; `None` when the key was removed.
    pub to: Option<String>,
}

/// Changed keys that a running daemon cannot apply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing was changed: these keys need a restart of the daemon: {}", keys.join(", "))]
pub struct RestartNeeded {
    /// Their names with their tables; at least one.
    pub keys: Vec<String>,
}

/// The keys that differ between two configurations, in order of their names.
///
/// # Errors
/// Some of them need a restart ([`Tables::NEEDS_RESTART`]).
pub fn changes<C: Tables>(
    old: &Config<C>,
    new: &Config<C>,
) -> Result<Vec<ChangeLine>, RestartNeeded> {
    let (old, new) = (flat(old), flat(new));
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let line = |key: &String| ChangeLine {
        key: key.clone(),
        from: old.get(key).cloned(),
        to: new.get(key).cloned(),
    };
    let lines: Vec<_> = keys.into_iter().map(line).filter(|line| line.from != line.to).collect();
    let needs_restart = |key: &str| {
        let covers = |fixed: &&str| {
            key.strip_prefix(fixed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        C::NEEDS_RESTART.iter().any(covers)
    };
    let keys = lines.iter().map(|line| line.key.clone());
    let keys: Vec<_> = keys.filter(|key| needs_restart(key)).collect();
    if keys.is_empty() { Ok(lines) } else { Err(RestartNeeded { keys }) }
}

/// Each key with its value as operators write it.
fn flat(config: &impl Serialize) -> BTreeMap<String, String> {
    let table = Table::try_from(config);
    let table = table.expect("a configuration came from TOML, so it can be written as TOML");
    let mut keys = BTreeMap::new();
    for (key, value) in &table {
        add(&mut keys, key.clone(), value);
    }
    keys
}

fn add(keys: &mut BTreeMap<String, String>, path: String, value: &Value) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                add(keys, format!("{path}.{key}"), value);
            }
        }
        // Carriers: their names in order, and each one's keys under its name.
        Value::Array(list) if list.iter().any(Value::is_table) => {
            let name = |entry: &Value| entry.get("name").map(shown).unwrap_or_default();
            let names: Vec<_> = list.iter().map(name).collect();
            for (name, entry) in names.iter().zip(list) {
                add(keys, format!("{path}.{name}"), entry);
            }
            keys.insert(path, names.join(", "));
        }
        value => {
            keys.insert(path, shown(value));
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let more = if list.len() > LISTED_MAX { ", ..." } else { "" };
            let items: Vec<_> = list.iter().take(LISTED_MAX).map(shown).collect();
            format!("[{}{more}]", items.join(", "))
        }
        value => value.to_string(),
    }
}

impl fmt::Display for ChangeLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, "{}: {from} -> {to}", self.key),
            (Some(from), None) => write!(f, "{}: removed, was {from}", self.key),
            (None, Some(to)) => write!(f, "{}: set to {to}", self.key),
            (None, None) => write!(f, "{}: the file has new contents", self.key),
        }
    }
}

/// The most entries of a list that are shown.
const LISTED_MAX: usize = 16;
