//! The deadlines of sessions, or tunnels, soonest first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// At most one deadline per key.
#[derive(Debug)]
pub(super) struct Deadlines<K> {
    at: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self { at: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Ord + Copy> Deadlines<K> {
    /// Replaces a key's deadline.
    pub fn set(&mut self, key: K, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.at.insert(key, at),
            None => self.at.remove(&key),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, key));
        }
        if let Some(at) = at {
            self.order.insert((at, key));
        }
    }

    /// The soonest deadline.
    pub fn first(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// The keys whose deadline is due.
    pub fn due(&self, now: Instant) -> Vec<K> {
        self.order.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| *key).collect()
    }
}
