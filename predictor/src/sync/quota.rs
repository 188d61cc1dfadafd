//! How much a node takes: entries of each writer, and messages of each session.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::Bucket;

use crate::store::{ENTRIES_A_DAY, LOGS_MAX};

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
