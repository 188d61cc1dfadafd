//! How many entries a node takes from each writer.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::store::{ENTRIES_A_DAY, LOGS_MAX};

/// A token bucket for each writer: [`ENTRIES_A_DAY`], and as many at once. At most [`LOGS_MAX`]
/// buckets are kept; of more, the fullest is dropped.
#[derive(Debug, Default)]
pub struct Quotas {
    buckets: BTreeMap<String, (f64, Instant)>,
}

impl Quotas {
    /// Takes tokens of a writer; false if it has too few.
    pub fn take(&mut self, now: Instant, writer: &str, entries: usize) -> bool {
        let fill = |(tokens, at): (f64, Instant)| {
            let earned = now.saturating_duration_since(at).as_secs_f64() * A_DAY / 86_400.0;
            (tokens + earned).min(A_DAY)
        };
        let known = self.buckets.get(writer).copied();
        let tokens = known.map_or(A_DAY, fill);
        if known.is_none() && self.buckets.len() >= LOGS_MAX {
            let most =
                self.buckets.iter().max_by(|one, other| fill(*one.1).total_cmp(&fill(*other.1)));
            if let Some(most) = most.map(|(name, _)| name.clone()) {
                self.buckets.remove(&most);
            }
        }
        let cost = entries as f64;
        let has = tokens >= cost;
        let left = if has { tokens - cost } else { tokens };
        self.buckets.insert(writer.to_owned(), (left, now));
        has
    }
}

const A_DAY: f64 = ENTRIES_A_DAY as f64;
