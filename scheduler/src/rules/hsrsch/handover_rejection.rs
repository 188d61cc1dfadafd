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
//! `block = true` nothing is sent instead, until the first rejection ends. `permille` ignores
//! unlikely failures, because an idle path costs its capacity while a failure costs little if
//! reinjection is quick.

use std::time::{Duration, Instant};

use polyrail_model::PathId;

use crate::params::{ParamError, Reader};
use crate::rules::per_path::PerPath;
use crate::{Forecast, Input, Kind, Note, PathSets, PathView, Schedulerlet};

#[derive(Debug)]
pub struct HandoverRejection {
    block: bool,
    permille: u16,
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
        let permille = params.count("permille", 0, 0..=1_000)? as u16;
        Ok(Self { block, permille, paths: PerPath::default() })
    }

    /// Until when the path is rejected, if it is and no new cell is reported before.
    fn rejected_until(&mut self, path: &PathView, now: Instant) -> Option<Instant> {
        let likely = |forecast: &Forecast| forecast.permille >= self.permille;
        let Some(forecast) = path.forecast.filter(likely).filter(|_| path.is_about_to_fail())
        else {
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

impl Schedulerlet for HandoverRejection {
    fn kind(&self) -> Kind {
        Kind::CandidateFilter
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
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
            Note::Sent { path, .. } => {
                passed(&mut self.paths, path, |passage, now| passage.probed_at = Some(now));
            }
            Note::Acked { path, sure: true, .. } => {
                passed(&mut self.paths, path, |passage, now| {
                    let beyond = |since| now.saturating_duration_since(since) >= BEYOND_MAX;
                    passage.works |= passage.since.is_some_and(beyond);
                })
            }
            Note::Gone { path } => self.paths.forget(path),
            Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

/// How long a passed position keeps a path out of use.
pub(in crate::rules) const BEYOND_MAX: Duration = Duration::from_millis(2_500);

/// A failure that is farther away is looked at again before: forecasts change.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
