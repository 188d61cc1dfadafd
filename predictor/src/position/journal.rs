//! Where a train was in the last minutes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::TrainPosition;

/// The last placements in their order, at most [`PLACEMENTS_MAX`]; the oldest fall out.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    entries: VecDeque<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    placement: TrainPosition,
    /// The train went back, against the direction of the placement.
    reverses: bool,
}

impl Journal {
    /// Adds one, later than those before it; of several within a tenth of a second, the last.
    pub fn add(&mut self, placement: TrainPosition, reverses: bool) {
        let close = |last: &Entry| placement.at < last.placement.at + STEP;
        let before = self.entries.len().checked_sub(2).and_then(|at| self.entries.get(at));
        if before.is_some_and(close) {
            self.entries.pop_back();
        }
        if self.entries.len() >= PLACEMENTS_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { placement, reverses });
    }

    /// Where it was: between two placements of one track in proportion, else from the nearest
    /// before, else from the first one, if that is little later; none where the train went back.
    pub fn at(&self, then: Instant) -> Option<TrainPosition> {
        let next = self.entries.partition_point(|one| one.placement.at <= then);
        let before = next.checked_sub(1).and_then(|at| self.entries.get(at));
        let after = self.entries.get(next);
        if before.or(after)?.reverses {
            return None;
        }
        let placement = |entry: &'_ Entry| entry.placement;
        match (before.map(placement).as_ref(), after.map(placement).as_ref()) {
            (Some(before), Some(after)) if together(before, after) => {
                Some(between(before, after, then))
            }
            (Some(before), _) => reckoned(before, then),
            (None, Some(after)) => {
                let early = after.at.saturating_duration_since(then);
                let way = after.direction.sign() * after.speed * early.as_secs_f64();
                let back = TrainPosition { at: then, metres: after.metres - way, ..*after };
                (early <= EARLY_MAX).then_some(back)
            }
            (None, None) => None,
        }
    }
}

fn together(before: &TrainPosition, after: &TrainPosition) -> bool {
    before.route == after.route
        && before.direction == after.direction
        && after.at.saturating_duration_since(before.at) <= super::RECKONED_MAX
}

fn between(before: &TrainPosition, after: &TrainPosition, then: Instant) -> TrainPosition {
    let whole = after.at.saturating_duration_since(before.at).as_secs_f64();
    let share = then.saturating_duration_since(before.at).as_secs_f64() / whole.max(1e-9);
    let mix = |one: f64, other: f64| one + share * (other - one);
    TrainPosition {
        at: then,
        metres: mix(before.metres, after.metres),
        speed: mix(before.speed, after.speed),
        error: before.error.max(after.error),
        ..*before
    }
}

fn reckoned(before: &TrainPosition, then: Instant) -> Option<TrainPosition> {
    let late = then.saturating_duration_since(before.at);
    let way = before.direction.sign() * before.speed * late.as_secs_f64();
    let error = before.error + GROWTH * late.as_secs_f64();
    let metres = before.metres + way;
    (late <= super::RECKONED_MAX).then_some(TrainPosition { at: then, metres, error, ..*before })
}

/// Over two minutes at two readings a second.
const PLACEMENTS_MAX: usize = 256;
const STEP: Duration = Duration::from_millis(200);
const EARLY_MAX: Duration = Duration::from_secs(2);
/// Metres of error for each second without a reading.
const GROWTH: f64 = 2.0;
