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
mod tests {
    use super::*;
    use crate::samples::{base, chosen, full, ms, path, sent, stalled};
    use crate::{Chain, ChainSpec, Decision, SegmentView};

    fn failing(path: PathView, fails_in: u64) -> PathView {
        let forecast = Forecast { fails_in: ms(fails_in), uncertainty: ms(200), permille: 300 };
        PathView { forecast: Some(forecast), ..path }
    }

    fn timed_out(path: PathView) -> PathView {
        PathView { timeouts: 1, ..path }
    }

    /// A train that stands still.
    fn unsure(path: PathView) -> PathView {
        let (fails_in, uncertainty) = (ms(3_600_000), Duration::MAX);
        PathView { forecast: Some(Forecast { fails_in, uncertainty, permille: 300 }), ..path }
    }

    fn choice(chain: &mut Chain, now: Instant, paths: &[PathView]) -> Option<usize> {
        chosen(chain.decide(&Input { paths, segment: SegmentView::default(), now }))
    }

    #[test]
    fn table() {
        let (a, b) = (path(1, 40), path(2, 60));
        for (name, paths, wanted) in [
            ("no forecast", [a, b], Some(0)),
            ("far away", [failing(a, 240), b], Some(0)),
            ("nearer than round trip and error", [failing(a, 239), b], Some(1)),
            ("here", [failing(a, 0), b], Some(1)),
            ("an error without bound", [unsure(a), b], Some(1)),
            ("all fail: the farthest stays", [failing(a, 100), failing(b, 101)], Some(1)),
            ("the other is dead", [failing(a, 100), stalled(b)], Some(0)),
            ("the other hears nothing any more", [failing(a, 100), timed_out(b)], Some(0)),
            (
                "the other is dead and fails later",
                [failing(a, 100), failing(stalled(b), 200)],
                Some(0),
            ),
        ] {
            let mut chain = ChainSpec::of(&["handover_rejection", "min_rtt"]).unwrap().build();
            assert_eq!(choice(&mut chain, base(), &paths), wanted, "{name}");
        }
        let spec = ChainSpec::of(&["handover_rejection(block=true)", "min_rtt"]).unwrap();
        assert_eq!(choice(&mut spec.build(), base(), &[failing(a, 9), failing(b, 9)]), None);
    }

    #[test]
    fn unlikely_failure_rejects_no_path() {
        let likely = |permille| {
            let mut a = failing(path(1, 40), 0);
            a.forecast = a.forecast.map(|forecast| Forecast { permille, ..forecast });
            [a, path(2, 60)]
        };
        let rules = ["handover_rejection(permille=350)", "min_rtt"];
        let mut chain = ChainSpec::of(&rules).unwrap().build();
        assert_eq!(choice(&mut chain, base(), &likely(349)), Some(0));
        assert_eq!(choice(&mut chain, base(), &likely(350)), Some(1));
        // The probability may change on the way.
        assert_eq!(choice(&mut chain, base() + ms(10), &likely(349)), Some(0));
        assert!(ChainSpec::of(&["handover_rejection(permille=1001)", "min_rtt"]).is_err());
        let default = |permille| {
            let remaining = polyrail_model::Bytes::from_mib(1);
            let segment = SegmentView { remaining, ..SegmentView::default() };
            let paths = likely(permille);
            match ChainSpec::default().build().decide(&Input {
                paths: &paths,
                segment,
                now: base(),
            }) {
                Decision::Send { primary, copies, .. } => (primary, copies.iter().collect()),
                Decision::Wait { .. } => (usize::MAX, Vec::new()),
            }
        };
        assert_eq!(default(349), (0, vec![1]), "the default chain uses it, and copies");
        assert_eq!(default(350), (1, vec![]), "the default chain turns it away");
    }

    #[test]
    fn block_waits_until_the_first_rejection_ends() {
        let (a, b) = (path(1, 40), path(2, 60));
        let spec = ChainSpec::of(&["handover_rejection(block=true)", "min_rtt"]).unwrap();
        let wakes = |chain: &mut Chain, at: u64, paths: &[PathView]| {
            let now = base() + ms(at);
            match chain.decide(&Input { paths, segment: SegmentView::default(), now }) {
                Decision::Wait { until } => Ok(until.map(|until| until - base())),
                Decision::Send { primary, .. } => Err(primary),
            }
        };
        let mut chain = spec.build();
        let ahead = [failing(a, 100), failing(b, 50)];
        assert_eq!(wakes(&mut chain, 0, &ahead), Ok(Some(ms(2_550))), "50 ms and 2.5 s");
        assert_eq!(wakes(&mut chain, 0, &[unsure(a)]), Ok(Some(ms(3_500))), "a second at most");
        let here = [failing(a, 0), failing(b, 50)];
        assert_eq!(wakes(&mut chain, 100, &here), Ok(Some(ms(2_600))), "since it was passed");
        assert_eq!(wakes(&mut chain, 2_000, &here), Ok(Some(ms(2_600))));
        assert_eq!(wakes(&mut chain, 2_600, &here), Err(0), "a probe");
        chain.note(&sent(a.id, 1), base() + ms(2_600));
        assert_eq!(wakes(&mut chain, 2_610, &here), Ok(Some(ms(2_640))), "a round trip");
        let other = [failing(a, 100), full(b)];
        assert_eq!(wakes(&mut spec.build(), 0, &other), Ok(None), "room wakes it");
    }

    #[test]
    fn if_all_paths_passed_their_position_the_latest_is_used() {
        let paths = |a, b| [failing(path(1, 40), a), failing(path(2, 60), b)];
        let mut chain = ChainSpec::of(&["handover_rejection", "min_rtt"]).unwrap().build();
        let at = |millis| base() + ms(millis);
        assert_eq!(choice(&mut chain, at(0), &paths(100, 0)), Some(0), "the last to fail");
        assert_eq!(choice(&mut chain, at(100), &paths(0, 0)), Some(0), "the last that passed");
        assert_eq!(choice(&mut chain, at(2_499), &paths(0, 0)), Some(0));
    }

    #[test]
    fn passed_position_is_probed_and_accepted() {
        let (a, b) = (failing(path(1, 40), 0), path(2, 60));
        let mut chain = ChainSpec::of(&["handover_rejection", "min_rtt"]).unwrap().build();
        let (path, flow) = (a.id, polyrail_model::FlowId(1));
        let acked = |sure| Note::Acked { path, sure, flow, offset: 0, bytes: 1, cumulative: 1 };
        let at = |millis| base() + ms(millis);
        assert_eq!(choice(&mut chain, at(0), &[a, b]), Some(1));
        chain.note(&acked(true), at(100));
        assert_eq!(
            choice(&mut chain, at(2_499), &[a, b]),
            Some(1),
            "an old segment proves nothing"
        );
        assert_eq!(choice(&mut chain, at(2_500), &[a, b]), Some(0), "a probe");
        chain.note(&sent(path, 1), at(2_500));
        // The acknowledgement may belong to its copy on another path.
        chain.note(&acked(false), at(2_501));
        assert_eq!(choice(&mut chain, at(2_539), &[a, b]), Some(1), "one a round trip");
        assert_eq!(choice(&mut chain, at(2_540), &[a, b]), Some(0), "the next");
        chain.note(&acked(true), at(2_545));
        assert_eq!(choice(&mut chain, at(2_546), &[a, b]), Some(0), "it works");
        assert_eq!(
            choice(&mut chain, at(2_547), &[failing(a, 100), b]),
            Some(1),
            "the next position"
        );
        assert_eq!(choice(&mut chain, at(2_548), &[failing(a, 999), b]), Some(0));
        assert_eq!(choice(&mut chain, at(2_549), &[a, b]), Some(1), "a new passage");
    }
}
