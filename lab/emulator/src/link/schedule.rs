//! A value that changes at given times and may repeat its changes forever.

use std::time::Duration;

/// The most changes one schedule holds.
pub const STEPS_MAX: usize = 100_000;

/// A piecewise constant value over the time since the link's epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule<T> {
    /// Strictly increasing, the first at zero.
    steps: Vec<(Duration, T)>,
    /// Longer than the last step's time.
    period: Option<Duration>,
}

/// The value at some time, and when the piece it belongs to ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<T> {
    /// The value now.
    pub value: T,
    /// The time at which the next piece begins; `None`: never.
    pub until: Option<Duration>,
}

/// The reason why a list of changes is no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A step is not later than the one before it.
    #[error("steps must have strictly rising times after 0")]
    Order,
    /// The period is not longer than the last step's time.
    #[error("the repeat period must be longer than the last step's time")]
    Period,
    /// More than [`STEPS_MAX`].
    #[error("more than {STEPS_MAX} steps")]
    TooMany,
}

impl<T: Copy> Schedule<T> {
    /// A constant value.
    pub fn constant(value: T) -> Self {
        Self { steps: vec![(Duration::ZERO, value)], period: None }
    }

    /// `first`, then each step's value from its time on; with `period`, all over again.
    ///
    /// # Errors
    /// Times that do not rise, a period that cuts a step off, or too many steps.
    pub fn new(
        first: T,
        steps: impl IntoIterator<Item = (Duration, T)>,
        period: Option<Duration>,
    ) -> Result<Self, ScheduleError> {
        let mut all = vec![(Duration::ZERO, first)];
        for step in steps {
            if all.last().is_some_and(|last| last.0 >= step.0) {
                return Err(ScheduleError::Order);
            }
            if all.len() > STEPS_MAX {
                return Err(ScheduleError::TooMany);
            }
            all.push(step);
        }
        if period.zip(all.last()).is_some_and(|(period, last)| period <= last.0) {
            return Err(ScheduleError::Period);
        }
        Ok(Self { steps: all, period })
    }

    /// The piece that holds at `offset` after the epoch.
    pub fn at(&self, offset: Duration) -> Step<T> {
        if self.steps.len() == 1 {
            return Step { value: self.steps[0].1, until: None };
        }
        let (round, place) = match self.period {
            Some(period) => split(offset, period),
            None => (Duration::ZERO, offset),
        };
        let next = self.steps.partition_point(|step| step.0 <= place);
        let end = self.steps.get(next).map(|step| step.0).or(self.period);
        Step { value: self.steps[next - 1].1, until: end.map(|end| round + end) }
    }

    /// All values with the times from which they hold, the first at zero.
    pub fn steps(&self) -> impl Iterator<Item = (Duration, T)> + '_ {
        self.steps.iter().copied()
    }

    /// It repeats after this time.
    pub fn period(&self) -> Option<Duration> {
        self.period
    }

    /// The mean over time of a figure of the values: over one round, or the last value without a
    /// period.
    pub fn mean_of(&self, figure: impl Fn(T) -> f64) -> f64 {
        let Some(period) = self.period else {
            return figure(self.steps[self.steps.len() - 1].1);
        };
        let ends = self.steps.iter().skip(1).map(|step| step.0).chain([period]);
        let parts = self.steps.iter().zip(ends);
        let sum: f64 = parts.map(|((at, value), end)| figure(*value) * secs(end - *at)).sum();
        sum / secs(period)
    }

    /// The part from `from` on, of this length, repeated.
    ///
    /// # Errors
    /// There are more changes than a schedule holds.
    pub fn part(&self, from: Duration, length: Duration) -> Result<Self, ScheduleError> {
        let mut piece = self.at(from);
        let first = piece.value;
        let mut steps = Vec::new();
        while let Some(until) = piece.until.filter(|until| *until < from + length) {
            piece = self.at(until);
            steps.push((until - from, piece.value));
            if steps.len() > STEPS_MAX {
                return Err(ScheduleError::TooMany);
            }
        }
        Self::new(first, steps, Some(length))
    }

    /// Other values at the same times.
    pub fn map<U: Copy>(&self, value: impl Fn(T) -> U) -> Schedule<U> {
        let steps = self.steps.iter().map(|step| (step.0, value(step.1)));
        Schedule { steps: steps.collect(), period: self.period }
    }

    /// All values it ever takes.
    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.steps.iter().map(|step| step.1)
    }
}

fn secs(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// The start of the round that `offset` falls into, and the place in it.
fn split(offset: Duration, period: Duration) -> (Duration, Duration) {
    let place = offset.as_nanos() % period.as_nanos();
    let place = Duration::from_nanos(u64::try_from(place).unwrap_or(u64::MAX));
    (offset.saturating_sub(place), place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn values_hold_from_their_time_on() {
        let plain = Schedule::new(1, [(s(2), 2), (s(5), 3)], None).unwrap();
        let round = Schedule::new(1, [(s(2), 2), (s(5), 3)], Some(s(6))).unwrap();
        for (schedule, at, value, until) in [
            (&plain, 0, 1, Some(2)),
            (&plain, 2, 2, Some(5)),
            (&plain, 5, 3, None),
            (&plain, 99, 3, None),
            (&round, 5, 3, Some(6)),
            (&round, 6, 1, Some(8)),
            (&round, 14, 2, Some(17)),
        ] {
            assert_eq!(schedule.at(s(at)), Step { value, until: until.map(s) }, "at {at} s");
        }
    }

    #[test]
    fn a_mean_is_over_a_round_or_of_what_stays() {
        let plain = Schedule::new(1.0, [(s(2), 2.0), (s(5), 4.0)], None).unwrap();
        let round = Schedule::new(1.0, [(s(2), 2.0), (s(5), 4.0)], Some(s(8))).unwrap();
        assert!((plain.mean_of(|value| value) - 4.0_f64).abs() < 1e-12);
        // 2 s of 1, 3 s of 2, 3 s of 4.
        assert!((round.mean_of(|value| value) - 2.5_f64).abs() < 1e-12);
    }

    #[test]
    fn a_part_has_its_own_beginning() {
        let round = Schedule::new(1, [(s(2), 2), (s(5), 3)], Some(s(6))).unwrap();
        let part = round.part(s(4), s(5)).unwrap();
        let steps: Vec<_> = part.steps().collect();
        assert_eq!(steps, [(s(0), 2), (s(1), 3), (s(2), 1), (s(4), 2)]);
        assert_eq!((part.period(), part.at(s(5)).value), (Some(s(5)), 2));
        assert_eq!(Schedule::constant(7).part(s(4), s(5)).unwrap().at(s(9)).value, 7);
        assert_eq!(round.map(|value| 10 * value).at(s(8)).value, 20);
    }

    #[test]
    fn invalid_schedule_is_rejected() {
        for (steps, period, error) in [
            (vec![(s(0), 1)], None, ScheduleError::Order),
            (vec![(s(2), 1), (s(2), 1)], None, ScheduleError::Order),
            (vec![(s(2), 1)], Some(s(2)), ScheduleError::Period),
            (vec![], Some(s(0)), ScheduleError::Period),
        ] {
            assert_eq!(Schedule::new(0, steps, period), Err(error));
        }
        let many = (1..=STEPS_MAX as u64 + 1).map(|at| (Duration::from_millis(at), 0));
        assert_eq!(Schedule::new(0, many, None), Err(ScheduleError::TooMany));
    }
}
