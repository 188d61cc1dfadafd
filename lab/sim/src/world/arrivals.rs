//! The order of arrival on board: how long bytes wait for earlier bytes of their flow.
//!
//! It decodes frames before the session does, independently of the session's own state.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::FlowId;
use polyrail_session::wire::{Decoder, Frame};

/// The bytes that arrived, and their waiting times.
#[derive(Default)]
pub struct Arrivals {
    /// By connection.
    decoders: BTreeMap<usize, Decoder>,
    flows: BTreeMap<FlowId, Flow>,
    /// Waiting times, each with a number of bytes.
    waits: Vec<(Duration, u64)>,
}

/// The waiting times of all bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// The share of bytes that waited at all.
    pub late_share: f64,
    /// Their mean waiting time, in seconds.
    pub late_mean: f64,
    /// The 95th percentile over all bytes, in seconds.
    pub p95: f64,
}

#[derive(Default)]
struct Flow {
    /// All bytes below it have arrived.
    cumulative: u64,
    /// Bytes beyond a gap: from, to, and their arrival.
    early: BTreeMap<u64, (u64, Instant)>,
}

impl Arrivals {
    pub(super) fn see(&mut self, now: Instant, connection: usize, bytes: &[u8]) {
        let decoder = self.decoders.entry(connection).or_default();
        let (flows, waits) = (&mut self.flows, &mut self.waits);
        let fed = decoder.feed(bytes, |frame| {
            if let Frame::Data { flow, sequence, data, .. } = frame {
                let to = sequence + data.len() as u64;
                flows.entry(flow).or_default().arrive(now, sequence, to, waits);
            }
        });
        assert_eq!(fed, Ok(()), "invalid frames arrived");
    }

    /// The waiting times so far.
    pub fn waits(&self) -> Waits {
        let mut sorted = self.waits.clone();
        sorted.sort_unstable();
        let total: u64 = sorted.iter().map(|(_, bytes)| bytes).sum();
        let late = || sorted.iter().filter(|(wait, _)| !wait.is_zero());
        let late_bytes: u64 = late().map(|(_, bytes)| bytes).sum();
        let sum: f64 = late().map(|(wait, bytes)| wait.as_secs_f64() * *bytes as f64).sum();
        let mut passed = 0;
        let p95 = sorted.iter().find(|(_, bytes)| {
            passed += bytes;
            passed as f64 >= 0.95 * total as f64
        });
        Waits {
            late_share: late_bytes as f64 / total.max(1) as f64,
            late_mean: sum.abs() / late_bytes.max(1) as f64,
            p95: p95.map_or(0.0, |(wait, _)| wait.as_secs_f64()),
        }
    }
}

impl Flow {
    fn arrive(&mut self, now: Instant, from: u64, to: u64, waits: &mut Vec<(Duration, u64)>) {
        let mut cursor = from.max(self.cumulative);
        let mut new = Vec::new();
        for (&start, &(end, _)) in self.early.range(..to) {
            if start > cursor {
                new.push((cursor, start));
            }
            cursor = cursor.max(end);
        }
        if cursor < to {
            new.push((cursor, to));
        }
        self.early.extend(new.into_iter().map(|(from, to)| (from, (to, now))));
        while let Some(first) = self.early.first_entry().filter(|e| *e.key() == self.cumulative) {
            let (from, (to, at)) = first.remove_entry();
            self.cumulative = to;
            waits.push((now - at, to - from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_earlier_bytes() {
        let start = Instant::now();
        let (mut flow, mut waits) = (Flow::default(), Vec::new());
        let ms = Duration::from_millis;
        for (at, from, to) in [
            (0, 0, 100),
            // Two pieces arrive early, and one of them twice.
            (10, 200, 300),
            (20, 200, 350),
            (20, 50, 80),
            // The gap closes, with overlap on both sides.
            (50, 90, 210),
        ] {
            flow.arrive(start + ms(at), from, to, &mut waits);
        }
        let expected = [(0, 100), (0, 100), (40, 100), (30, 50)];
        assert_eq!(waits, expected.map(|(wait, bytes)| (ms(wait), bytes)));
        let arrivals = Arrivals { waits, ..Arrivals::default() };
        let seen = arrivals.waits();
        assert!((seen.late_share - 150.0 / 350.0).abs() < 1e-9, "{seen:?}");
        assert!((seen.late_mean - 5.5 / 150.0).abs() < 1e-9, "{seen:?}");
        assert_eq!(seen.p95, 0.04);
    }
}
