//! When each session wants to be woken, soonest first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::SessionKey;

/// One deadline a session at most.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    at: BTreeMap<SessionKey, Instant>,
    order: BTreeSet<(Instant, SessionKey)>,
}

impl Deadlines {
    /// Replaces a session's deadline.
    pub fn set(&mut self, key: SessionKey, at: Option<Instant>) {
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

    /// The soonest.
    pub fn first(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// The sessions whose deadline has come.
    pub fn due(&self, now: Instant) -> Vec<SessionKey> {
        self.order.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| *key).collect()
    }
}
