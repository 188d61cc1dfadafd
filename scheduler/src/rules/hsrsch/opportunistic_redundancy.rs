//! `opportunistic_redundancy`: copies segments to idle paths in order to measure them.
//!
//! Rule: POLYCORN 4.6. A path is idle if it carried nothing for `idle` (alpha, 1 s), or while
//! `bytes` (beta, 8 KB) went over other paths. The next `segments` (tau, 16) segments are copied to
//! every idle path, even if a filter deselected it (4.2: a hard selector over C and U).
//!
//! Choices where the paper is open: a path that is about to fail, stalled, a backup, full, or has
//! carried the segment gets no copy. A path stays idle until its last copy. A copied run counts as
//! its segments, and is no longer than the copies that the path still needs.

use std::time::{Duration, Instant};

use polyrail_model::PathId;

use crate::params::{ParamError, Reader};
use crate::rules::per_path::PerPath;
use crate::{Input, Kind, Note, PathSets, SEGMENT, Schedulerlet};

#[derive(Debug)]
pub struct OpportunisticRedundancy {
    idle: Duration,
    bytes: u64,
    segments: u64,
    paths: PerPath<Use>,
}

/// How a path is used.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// When something was last scheduled on it that was no copy, or a series of copies ended.
    used_at: Option<Instant>,
    /// Bytes that went over others since.
    elsewhere: u64,
    /// Segments that are still to be copied to it.
    copies: u64,
}

impl OpportunisticRedundancy {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(3_600));
        Ok(Self {
            idle: params.time("idle", Duration::from_secs(1), least..=most)?,
            bytes: params.count("bytes", 8_192, 1..=1 << 30)?,
            segments: params.count("segments", 16, 1..=1 << 20)?,
            paths: PerPath::default(),
        })
    }

    /// How many segments are to be copied to the path: none while it is not idle.
    fn left(&mut self, path: PathId, now: Instant) -> u64 {
        let (idle, bytes, segments) = (self.idle, self.bytes, self.segments);
        let used = self.paths.of(path);
        let since = *used.used_at.get_or_insert(now);
        if used.copies == 0
            && (now.saturating_duration_since(since) >= idle || used.elsewhere >= bytes)
        {
            used.copies = segments;
        }
        used.copies
    }

    fn sent(&mut self, path: PathId, bytes: u64, copy: bool, now: Instant) {
        if !copy {
            for (_, other) in self.paths.iter_mut().filter(|(id, _)| *id != path) {
                other.elsewhere = other.elsewhere.saturating_add(bytes);
            }
        }
        let used = self.paths.of(path);
        if copy {
            used.copies = used.copies.saturating_sub(bytes.div_ceil(SEGMENT).max(1));
        } else {
            used.copies = 0;
        }
        if used.copies == 0 {
            *used = Use { used_at: Some(now), elsewhere: 0, copies: 0 };
        }
    }
}

impl Schedulerlet for OpportunisticRedundancy {
    fn kind(&self) -> Kind {
        Kind::HardSelector
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        if sets.selected().is_empty() {
            return;
        }
        let mut least: Option<u64> = None;
        let others = sets.candidates().or(sets.unavailable());
        for path in others.without(input.segment.carried).iter() {
            let view = &input.paths[path];
            let fit = view.available() && !view.backup && !view.is_about_to_fail();
            let left = if fit { self.left(view.id, input.now) } else { 0 };
            if left > 0 && sets.select(path) {
                least = Some(least.map_or(left, |least| least.min(left)));
            }
        }
        if let Some(left) = least {
            // No path gets more than its copies with a longer run.
            sets.limit_run(left.saturating_mul(SEGMENT));
        }
    }

    fn note(&mut self, note: &Note, now: Instant) {
        match *note {
            Note::Sent { path, bytes, copy, .. } => self.sent(path, bytes, copy, now),
            Note::Gone { path } => self.paths.forget(path),
            Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
