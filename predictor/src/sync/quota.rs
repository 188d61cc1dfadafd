//! How much a node takes: entries of each writer, and messages of each session.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::store::{ENTRIES_A_DAY, LOGS_MAX};

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Tokens a second.
    rate: f64,
    /// The most tokens.
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(now: Instant, rate: f64, burst: f64) -> Self {
        Self { rate, burst, tokens: burst, at: now }
    }

    fn level(&self, now: Instant) -> f64 {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.rate;
        (self.tokens + earned).min(self.burst)
    }

    /// Whether it has the most tokens.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.level(now) >= self.burst
    }

    /// Takes tokens; false if there are too few.
    pub(crate) fn take(&mut self, now: Instant, cost: usize) -> bool {
        let (level, cost) = (self.level(now), cost as f64);
        let has = level >= cost;
        (self.tokens, self.at) = (if has { level - cost } else { level }, now);
        has
    }
}

/// A token bucket for each writer: [`ENTRIES_A_DAY`], and as many at once. At most [`LOGS_MAX`]
/// buckets are kept; of more, the fullest is dropped.
#[derive(Debug, Default)]
pub struct Quotas {
    buckets: BTreeMap<String, Bucket>,
}

impl Quotas {
    /// Takes tokens of a writer; false if it has too few.
    pub fn take(&mut self, now: Instant, writer: &str, cost: usize) -> bool {
        if let Some(bucket) = self.buckets.get_mut(writer) {
            return bucket.take(now, cost);
        }
        if self.buckets.len() >= LOGS_MAX {
            let level = |bucket: &Bucket| bucket.level(now);
            let most = self
                .buckets
                .iter()
                .max_by(|(_, one), (_, other)| level(one).total_cmp(&level(other)));
            if let Some(most) = most.map(|(name, _)| name.clone()) {
                self.buckets.remove(&most);
            }
        }
        let mut bucket = Bucket::new(now, A_DAY / 86_400.0, A_DAY);
        let has = bucket.take(now, cost);
        self.buckets.insert(writer.to_owned(), bucket);
        has
    }
}

const A_DAY: f64 = ENTRIES_A_DAY as f64;
