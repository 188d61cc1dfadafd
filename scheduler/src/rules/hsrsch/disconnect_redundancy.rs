//! `disconnect_redundancy`: copies segments to all other paths while a path is about to fail.
//!
//! Rule: POLYCORN 6.2. From the moment at which a predicted failure is nearer than the round-trip
//! time plus the position error until the new cell, every segment is also copied to the other live
//! paths.
//!
//! Choices where the paper is open: paths that are about to fail and backups get no copies, and a
//! copy whose path has no room is dropped. Past the position and still in the old cell, copies
//! continue for at most [`BEYOND_MAX`], as in `handover_rejection`, because a slow train may stay
//! in that cell.

use std::time::Instant;

use crate::rules::hsrsch::handover_rejection::BEYOND_MAX;
use crate::rules::per_path::PerPath;
use crate::{Input, Note, PATHS_MAX, PathSet, PathSets, PathView, Schedulerlet};

#[derive(Debug, Default)]
pub struct DisconnectRedundancy {
    /// When a position was passed in the old cell.
    passed: PerPath<Option<Instant>>,
}

impl DisconnectRedundancy {
    /// Whether the path is about to fail, or may be failing.
    fn alarms(&mut self, path: &PathView, now: Instant) -> bool {
        let Some(forecast) = path.forecast.filter(|_| path.is_about_to_fail()) else {
            self.passed.forget(path.id);
            return false;
        };
        if !forecast.fails_in.is_zero() {
            return true;
        }
        let since = *self.passed.of(path.id).get_or_insert(now);
        now.saturating_duration_since(since) < BEYOND_MAX
    }
}

impl Schedulerlet for DisconnectRedundancy {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let mut failing = PathSet::EMPTY;
        for (path, view) in input.paths.iter().enumerate().take(PATHS_MAX) {
            if self.alarms(view, input.now) {
                failing.insert(path);
            }
        }
        if failing.is_empty() || sets.selected().is_empty() {
            return;
        }
        let others = sets.candidates().without(input.segment.carried).without(failing);
        for path in others.iter() {
            let view = &input.paths[path];
            if view.available() && !view.backup {
                sets.select(path);
            }
        }
    }

    fn note(&mut self, note: &Note, _: Instant) {
        if let Note::Gone { path } = *note {
            self.passed.forget(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::samples::{backup, base, full, path, targets};
    use crate::{ChainSpec, Forecast, SegmentView};

    fn failing(path: PathView, fails_in_ms: u64) -> PathView {
        let (fails_in, uncertainty) =
            (Duration::from_millis(fails_in_ms), Duration::from_millis(200));
        PathView {
            forecast: Some(Forecast { fails_in, ends_in: fails_in, uncertainty, permille: 300 }),
            ..path
        }
    }

    fn on(rule: &str, paths: &[PathView]) -> Vec<usize> {
        let mut chain = ChainSpec::of(&["handover_rejection", "min_rtt", rule]).unwrap().build();
        let input = Input { paths, segment: SegmentView::default(), now: base() };
        targets(chain.decide(&input))
    }

    #[test]
    fn table() {
        let rule = "disconnect_redundancy";
        let (a, b, c) = (path(1, 40), path(2, 60), path(3, 80));
        assert_eq!(on(rule, &[a, b, c]), [0], "nothing fails");
        assert_eq!(on(rule, &[failing(a, 240), b, c]), [0], "not yet");
        assert_eq!(on(rule, &[failing(a, 239), b, c]), [1, 2], "not on the failing one");
        assert_eq!(on(rule, &[failing(a, 0), full(b), c]), [2]);
        assert_eq!(on(rule, &[failing(a, 0), b, backup(c)]), [1]);
        assert_eq!(on(rule, &[failing(a, 0), b, backup(c)]), [1]);
        assert_eq!(on(rule, &[failing(a, 0), failing(b, 10), c]), [2]);
        assert_eq!(on(rule, &[failing(a, 10), failing(b, 20)]), [1], "all fail: the farthest");
        let (fails_in, uncertainty) = (Duration::ZERO, Duration::MAX);
        let forecast = Some(Forecast { fails_in, ends_in: fails_in, uncertainty, permille: 300 });
        assert_eq!(on(rule, &[PathView { forecast, ..a }, b, c]), [1, 2], "without bound");
    }
    /// A slow train is past the place and stays in the old cell.
    #[test]
    fn copies_end_with_the_rejection() {
        let rules = ["handover_rejection", "min_rtt", "disconnect_redundancy"];
        let mut chain = ChainSpec::of(&rules).unwrap().build();
        let paths = |fails_in| [failing(path(1, 40), fails_in), path(2, 60), path(3, 80)];
        let mut on = |at: u64, paths: &[PathView]| -> Vec<usize> {
            let now = base() + Duration::from_millis(at);
            targets(chain.decide(&Input { paths, segment: SegmentView::default(), now }))
        };
        assert_eq!(on(0, &paths(200)), [1, 2]);
        assert_eq!(on(200, &paths(0)), [1, 2], "here");
        assert_eq!(on(2_699, &paths(0)), [1, 2]);
        assert_eq!(on(2_700, &paths(0)), [0], "it is in use again, and nothing goes twice");
        assert_eq!(on(20_000, &paths(0)), [0]);
        assert_eq!(on(20_100, &paths(900)), [0], "another forecast");
        assert_eq!(on(20_900, &paths(0)), [1, 2]);
    }
}
