//! `handover_rejection`: sends no data on a path whose handover is about to fail.
//!
//! Rule: POLYCORN 4.3. A path is rejected if the position of the failure is nearer than its
//! round-trip time and the position error: `t_HOF < srtt + E_GPS / V`. The rejection ends with the
//! forecast, when the new cell is reported.
//!
//! Choices where the paper is open: past the position and still in the old cell, the path stays
//! rejected for at most [`BEYOND_MAX`]. Then it carries one segment per round trip as a probe, and
//! is accepted when one arrives. If all paths would be rejected, or the others are stalled or have
//! timed out since their last acknowledgement, the path with the farthest failure stays. With
//! `block = true` nothing is sent instead, until the first rejection ends.
//!
//! With `hazard = true` the rule is our own. An idle path costs its capacity, while a failure costs
//! the time until its segments are sent again over another path, which the session measures
//! (`recovery`). What counts is when the rest of the flow is delivered: `both` is the time with
//! both paths, `alone` that over the other one. If the path fails, that carries the rest, too, and
//! again a window that is lost, and not before `recovery` and its own delivery of a segment:
//! `failed`. With the probability `p` that the path fails before the segment is acknowledged, the
//! path is rejected exactly while `alone` is earlier than `(1 - p) both + p failed`. So a failure
//! that is unlikely until then rejects only for the end of a flow or where another path is as good.
//! A certain failure rejects always, but forecasts are seldom so exact: before a failure at an
//! uncertain place bulk data stays, and `queue_bound` shortens the path's queue. The path with the
//! least risk is never rejected.

use std::time::{Duration, Instant};

use polyrail_model::PathId;

use crate::params::{ParamError, Reader};
use crate::rules::path_rate::window;
use crate::rules::per_path::PerPath;
use crate::rules::polyrail::earliest_delivery::{bytes_s, delivery, seconds};
use crate::{Input, Kind, Note, PATHS_MAX, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Debug)]
pub struct HandoverRejection {
    block: bool,
    hazard: bool,
    paths: PerPath<Passage>,
}

/// A position that was passed in the old cell.
#[derive(Clone, Copy, Debug, Default)]
struct Passage {
    since: Option<Instant>,
    /// When a segment was last let through.
    probed_at: Option<Instant>,
    /// One has arrived.
    works: bool,
}

impl HandoverRejection {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let block = params.flag("block", false)?;
        let hazard = params.flag("hazard", false)?;
        Ok(Self { block, hazard, paths: PerPath::default() })
    }

    /// The probability that a path fails before a segment is acknowledged.
    fn risk(&mut self, path: &PathView, now: Instant) -> f64 {
        let Some(forecast) = path.forecast else {
            self.paths.forget(path.id);
            return 0.0;
        };
        let delivered = delivery(path, SEGMENT);
        let acked = seconds(delivered + path.rtt_min.as_secs_f64() / 2.0);
        if forecast.ends_in.is_zero() {
            let since = *self.paths.of(path.id).since.get_or_insert(now);
            if now.saturating_duration_since(since) >= BEYOND_MAX {
                return 0.0;
            }
        } else {
            self.paths.forget(path.id);
        }
        forecast.fails_within(acked)
    }

    /// Rejects the paths without which the rest of the flow is expected earlier, over another one
    /// that risks less.
    fn reject_by_hazard(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let candidates = sets.candidates();
        // The usual case, for every segment.
        if candidates.iter().all(|path| input.paths[path].forecast.is_none()) {
            return candidates.iter().for_each(|path| self.paths.forget(input.paths[path].id));
        }
        let recovery = input.segment.recovery.as_secs_f64();
        let rest = input.segment.remaining.0.max(SEGMENT);
        let mut risks = [0.0; PATHS_MAX];
        for path in candidates.iter() {
            risks[path] = self.risk(&input.paths[path], input.now);
        }
        for path in candidates.iter() {
            let view = &input.paths[path];
            let is_earlier = |other: usize| {
                let other_view = &input.paths[other];
                let usable = !other_view.stalled && other_view.timeouts == 0;
                let allowed = usable && (view.backup || !other_view.backup);
                let safer = risks[path] - risks[other];
                let alone = delivery(other_view, rest);
                let lost = window(view) as f64 / bytes_s(other_view);
                let failed = (alone + lost).max(recovery + delivery(other_view, SEGMENT));
                let gain = (alone - both(view, other_view, rest)) * (1.0 - risks[path]);
                allowed && safer > 0.0 && gain < safer * (failed - alone)
            };
            if risks[path] > 0.0 && candidates.iter().any(is_earlier) {
                sets.reject(path);
            }
        }
    }

    /// Until when the path is rejected, if it is and no new cell is reported before.
    fn rejected_until(&mut self, path: &PathView, now: Instant) -> Option<Instant> {
        let Some(forecast) = path.forecast.filter(|_| path.is_about_to_fail()) else {
            self.paths.forget(path.id);
            return None;
        };
        if !forecast.fails_in.is_zero() {
            return Some(now + forecast.fails_in.min(ASK_AGAIN_MAX) + BEYOND_MAX);
        }
        let passage = self.paths.of(path.id);
        let since = *passage.since.get_or_insert(now);
        if passage.works {
            return None;
        }
        let probe = passage.probed_at.map(|at| at + path.srtt);
        [Some(since + BEYOND_MAX), probe].into_iter().flatten().max().filter(|until| now < *until)
    }
}

/// When so many bytes would be there over both paths, in seconds from now: not before the first one
/// delivers a segment.
fn both(path: &PathView, other: &PathView, bytes: u64) -> f64 {
    let queued = path.outstanding.0.saturating_add(other.outstanding.0).saturating_add(bytes);
    let drained = queued as f64 / (bytes_s(path) + bytes_s(other));
    let half_round = path.rtt_min.min(other.rtt_min).as_secs_f64() / 2.0;
    (drained - half_round).max(delivery(path, SEGMENT))
}

impl Schedulerlet for HandoverRejection {
    fn kind(&self) -> Kind {
        Kind::CandidateFilter
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        if self.hazard {
            return self.reject_by_hazard(sets, input);
        }
        let candidates = sets.candidates();
        let mut rejected = crate::PathSet::EMPTY;
        let mut again: Option<Instant> = None;
        for path in candidates.iter() {
            if let Some(until) = self.rejected_until(&input.paths[path], input.now) {
                rejected.insert(path);
                again = Some(again.map_or(until, |known| known.min(until)));
            }
        }
        let usable = |path: usize| !input.paths[path].stalled;
        let left = candidates.without(rejected);
        // A path that has timed out is no alternative to one that may continue.
        let none_left = !left.iter().any(|path| usable(path) && input.paths[path].timeouts == 0);
        if none_left
            && self.block
            && let Some(again) = again
        {
            // No other event may come before.
            sets.wake_at(again);
        }
        if none_left && !self.block {
            // Among paths past their position, the one that passed it last.
            let far = |path: &usize| {
                let view = &input.paths[*path];
                let since = self.paths.get(view.id).and_then(|passage| passage.since);
                (view.forecast.map(|forecast| forecast.fails_in), since)
            };
            if let Some(last) = rejected.iter().filter(|path| usable(*path)).max_by_key(far) {
                rejected.remove(last);
            }
        }
        for path in rejected.iter() {
            sets.reject(path);
        }
    }

    fn note(&mut self, note: &Note, now: Instant) {
        let passed =
            |paths: &mut PerPath<Passage>, path: PathId, change: fn(&mut Passage, Instant)| {
                for (_, passage) in paths.iter_mut().filter(|(id, _)| *id == path) {
                    change(passage, now);
                }
            };
        match *note {
            // A copy is no probe: its acknowledgement does not tell which path delivered it.
            Note::Sent { path, copy: false, .. } => {
                passed(&mut self.paths, path, |passage, now| passage.probed_at = Some(now));
            }
            Note::Acked { path, sure: true, .. } => {
                passed(&mut self.paths, path, |passage, now| {
                    let beyond = |since| now.saturating_duration_since(since) >= BEYOND_MAX;
                    passage.works |= passage.since.is_some_and(beyond);
                })
            }
            Note::Gone { path } => self.paths.forget(path),
            Note::Sent { .. } | Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

/// How long a passed position keeps a path out of use.
pub(in crate::rules) const BEYOND_MAX: Duration = Duration::from_millis(2_500);

/// A failure that is farther away is looked at again before: forecasts change.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
