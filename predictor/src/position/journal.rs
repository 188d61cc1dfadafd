//! The positions of the last two minutes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::TrainPosition;

/// The last positions in their order, at most [`POSITIONS_MAX`]; the oldest are dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    /// Each with whether the train moved against its direction.
    entries: VecDeque<(TrainPosition, bool)>,
}

impl Journal {
    /// Adds a later position; of several within 200 ms it keeps the last.
    pub fn add(&mut self, position: TrainPosition, reverses: bool) {
        let close = |(last, _): &(TrainPosition, bool)| position.at < last.at + STEP;
        let before = self.entries.len().checked_sub(2).and_then(|at| self.entries.get(at));
        if before.is_some_and(close) {
            self.entries.pop_back();
        }
        if self.entries.len() >= POSITIONS_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back((position, reverses));
    }

    /// The position at a time: interpolated on one track, else extrapolated from the last one
    /// before, else from the first one after, if that is soon. None while the train reversed.
    pub fn at(&self, then: Instant) -> Option<TrainPosition> {
        let next = self.entries.partition_point(|(one, _)| one.at <= then);
        let before = next.checked_sub(1).and_then(|at| self.entries.get(at));
        let after = self.entries.get(next);
        if before.or(after)?.1 {
            return None;
        }
        match (before, after) {
            (Some((before, _)), Some((after, _))) if together(before, after) => {
                Some(between(before, after, then))
            }
            (Some((before, _)), _) => extrapolated(before, then),
            (None, Some((after, _))) => {
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

fn extrapolated(before: &TrainPosition, then: Instant) -> Option<TrainPosition> {
    let late = then.saturating_duration_since(before.at);
    let error = before.error + GROWTH * late.as_secs_f64();
    (late <= super::RECKONED_MAX).then_some(TrainPosition { error, ..before.advanced(then) })
}

/// Over two minutes at two readings per second.
const POSITIONS_MAX: usize = 256;
/// Two positions are at least this far apart, except the last one.
const STEP: Duration = Duration::from_millis(200);
/// How long before its first position a train is located.
const EARLY_MAX: Duration = Duration::from_secs(2);
/// Growth of the error without a reading, in metres per second.
const GROWTH: f64 = 2.0;
