//! When a line of a recording is due.

use std::time::{Duration, Instant};

/// Maps the recording's seconds to the clock.
///
/// Seconds count from the start of a file, or from the first line with a time in a stream. After a
/// step backwards or of more than [`STEP_MAX`], the recording continues immediately. A live line is
/// delayed by at most [`AHEAD_MAX`], because a line further ahead shows that its producer's clock
/// was set.
#[derive(Debug)]
pub(super) struct Pace {
    /// An instant and its second of the recording.
    joined: Option<(Instant, f64)>,
    /// When the last line was due, and its second.
    last: Option<(Instant, f64)>,
    /// Lines arrive as they happen, so a late line shows a clock of another rate.
    live: bool,
}

/// The longest step that is replayed in real time.
const STEP_MAX: Duration = Duration::from_secs(600);

/// How late a live line may be before the mapping is reset.
const LATE_MAX: Duration = Duration::from_secs(10);

/// How far ahead a live line may be before the mapping is reset.
const AHEAD_MAX: Duration = Duration::from_secs(1);

impl Pace {
    /// For a file played from `start`.
    pub(super) fn file(start: Instant) -> Self {
        Self { joined: Some((start, 0.0)), last: None, live: false }
    }

    /// For lines that arrive as they happen.
    pub(super) fn live() -> Self {
        Self { joined: None, last: None, live: true }
    }

    /// When a line with time `second`, if any, is due that is read at `now`.
    pub(super) fn due(&mut self, second: Option<f64>, now: Instant) -> Instant {
        let Some(second) = second else {
            return match self.last {
                // In a file it belongs to the previous line.
                Some((last, _)) if !self.live => last,
                _ => now,
            };
        };
        let (begun, first) = *self.joined.get_or_insert((now, second));
        let mut due = begun + seconds(second - first);
        let (before, after) = match (self.last, self.live) {
            (Some((before, after)), _) => (before, after),
            (None, false) => (begun, 0.0),
            (None, true) => (due, second),
        };
        let steps = second < after || seconds(second - after) > STEP_MAX;
        let late = self.live && now.saturating_duration_since(due) > LATE_MAX;
        let ahead = self.live && due.saturating_duration_since(now) > AHEAD_MAX;
        if steps || late || ahead {
            due = if self.live { now } else { before };
            self.joined = Some((due, second));
        }
        self.last = Some((due, second));
        due
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(STEP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When lines are due, in seconds from the start; each is read at the moment beside it.
    fn due(mut pace: Pace, start: Instant, lines: &[(Option<f64>, f64)]) -> Vec<f64> {
        let at = |read: f64| start + Duration::from_secs_f64(read);
        let due = lines.iter().map(|(second, read)| pace.due(*second, at(*read)));
        due.map(|due| (due - start).as_secs_f64()).collect()
    }

    #[test]
    fn file_is_played_from_its_start() {
        let start = Instant::now();
        let lines = [(Some(0.0), 0.1), (Some(1.5), 0.1), (None, 1.5), (Some(60.0), 99.0)];
        assert_eq!(due(Pace::file(start), start, &lines), [0.0, 1.5, 1.5, 60.0]);
        // Large steps and restarts are not replayed in real time.
        let lines = [(Some(9e6), 0.0), (Some(9e6 + 1.0), 0.0), (Some(5.0), 1.0), (Some(6.0), 1.0)];
        assert_eq!(due(Pace::file(start), start, &lines), [0.0, 1.0, 1.0, 2.0]);
    }

    #[test]
    fn stream_starts_with_its_first_line() {
        let start = Instant::now();
        let lines = [(None, 3.0), (Some(70.0), 4.0), (Some(71.0), 5.5), (Some(72.5), 6.0)];
        assert_eq!(due(Pace::live(), start, &lines), [3.0, 4.0, 5.0, 6.5]);
        // Late by more than a little, backwards, far ahead: mapping reset each time.
        let lines = [
            (Some(0.0), 0.0),
            (Some(1.0), 12.0),
            (Some(2.0), 13.0),
            (Some(1.0), 14.0),
            (Some(700.0), 15.0),
            (Some(701.0), 16.0),
        ];
        assert_eq!(due(Pace::live(), start, &lines), [0.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
    }

    /// Its producer's clock is set ahead by a minute, later back, and a second ahead twice.
    #[test]
    fn live_line_is_not_delayed_after_a_clock_step() {
        let start = Instant::now();
        let steps = |read: u32| match read {
            0..5 => 0.0,
            5..10 => 60.0,
            10..15 => 0.0,
            15..20 => 0.75,
            20.. => 1.5,
        };
        let lines = (0..25).map(|read| (Some(f64::from(read) + steps(read)), f64::from(read)));
        let lines: Vec<_> = lines.collect();
        for ((_, read), due) in lines.iter().zip(due(Pace::live(), start, &lines)) {
            let late = if (15.0..20.0).contains(read) { 0.75 } else { 0.0 };
            assert_eq!(due, read + late, "read at {read}");
        }
        // Lines written at once are still reported second by second.
        let lines = [(Some(0.0), 0.0), (Some(1.0), 0.0), (Some(2.0), 1.0), (Some(3.0), 2.0)];
        assert_eq!(due(Pace::live(), start, &lines), [0.0, 1.0, 2.0, 3.0]);
    }
}
