//! `datagram_redundancy`: copies real-time datagrams: a retransmission would be too late.
//!
//! Rule: our own. A datagram of a real-time flow (`SegmentView::realtime`; each flow's first ones
//! count as such) is also sent over the path of another carrier that delivers it first; also over
//! one that an earlier rule rejected, because its copy may be the first. Backups and metered paths
//! get none. The budget is `rate` bytes a second, with a burst of `burst` bytes.
//!
//! With `forecast = true` only datagrams are copied whose path may be dark: a failure is predicted
//! within `ahead`, or the path has been silent for longer than twice its round-trip time.

use std::time::{Duration, Instant};

use crate::params::{ParamError, Reader};
use crate::rules::budget::Budget;
use crate::rules::polyrail::earliest_delivery::delivery;
use crate::{Input, Kind, Note, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Clone, Debug)]
pub struct DatagramRedundancy {
    forecast: bool,
    ahead: Duration,
    budget: Budget,
}

impl DatagramRedundancy {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let forecast = params.flag("forecast", false)?;
        let times = Duration::ZERO..=Duration::from_secs(60);
        let ahead = params.time("ahead", Duration::from_secs(1), times)?;
        Ok(Self { forecast, ahead, budget: Budget::new(params, 65_536, 65_536)? })
    }

    /// Whether the path may be dark when the datagram is on it.
    fn is_in_doubt(&self, path: &PathView) -> bool {
        let near = path.forecast.is_some_and(|forecast| {
            forecast.fails_in.saturating_sub(forecast.uncertainty) < self.ahead
        });
        near || path.stalled || path.quiet > path.srtt * 2
    }
}

impl Schedulerlet for DatagramRedundancy {
    fn kind(&self) -> Kind {
        Kind::HardSelector
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let (segment, Some(primary)) = (&input.segment, sets.primary()) else { return };
        let first = &input.paths[primary];
        if !segment.realtime || (self.forecast && !self.is_in_doubt(first)) {
            return;
        }
        let fits = |path: &usize| {
            let view = &input.paths[*path];
            let is_free = !view.backup && !view.metered;
            view.available() && is_free && view.carrier != first.carrier
        };
        let others = sets.candidates().or(sets.unavailable());
        let all = others.iter().filter(fits).map(|i| (delivery(&input.paths[i], SEGMENT), i));
        if self.budget.left(input.now) >= segment.unsent.0 as f64
            && let Some((_, path)) = all.min_by(|a, b| a.0.total_cmp(&b.0))
        {
            sets.select(path);
        }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        self.budget.note(note);
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::{Bytes, FlowId, PathId};

    use super::*;
    use crate::samples::{backup, base, full, path};
    use crate::{Chain, ChainSpec, Decision, Forecast, SegmentView};

    fn chain(rule: &str) -> Chain {
        ChainSpec::of(&["flow_pinning", rule]).unwrap().build()
    }

    fn copies(chain: &mut Chain, realtime: bool, paths: &[PathView]) -> Vec<usize> {
        let segment = SegmentView { realtime, unsent: Bytes(200), ..SegmentView::default() };
        match chain.decide(&Input { paths, segment, now: base() }) {
            Decision::Send { copies, .. } => copies.iter().collect(),
            Decision::Wait { .. } => panic!("no path"),
        }
    }

    fn on(carrier: u32, view: PathView) -> PathView {
        PathView { carrier, ..view }
    }

    #[test]
    fn real_time_datagrams_are_copied_to_the_next_carrier() {
        let (one, two, three) = (on(1, path(1, 40)), on(2, path(2, 60)), on(3, path(3, 90)));
        let metered = |view| PathView { metered: true, ..view };
        for (realtime, paths, wanted) in [
            (true, [one, two, three], vec![1]),
            (false, [one, two, three], vec![]),
            (true, [one, full(two), three], vec![2]),
            (true, [one, backup(two), metered(three)], vec![]),
            (true, [one, on(1, path(2, 60)), metered(three)], vec![]),
        ] {
            let mut chain = chain("datagram_redundancy");
            assert_eq!(copies(&mut chain, realtime, &paths), wanted);
        }
    }

    #[test]
    fn copies_stay_within_their_budget() {
        let paths = [on(1, path(1, 40)), on(2, path(2, 60))];
        let mut chain = chain("datagram_redundancy(rate=0, burst=500)");
        let mut copied = 0;
        for _ in 0..10 {
            let found = copies(&mut chain, true, &paths).len();
            copied += found;
            for _ in 0..found {
                let (path, flow, offset) = (PathId(2), FlowId(1), 0);
                chain.note(&Note::Sent { path, flow, offset, bytes: 200, copy: true }, base());
            }
        }
        assert_eq!(copied, 2);
    }

    #[test]
    fn with_forecasts_only_a_path_in_doubt_is_doubled() {
        let in_ms = |ms| {
            let time = Duration::from_millis(ms);
            let uncertainty = Duration::from_millis(100);
            Some(Forecast { fails_in: time, ends_in: time, uncertainty, permille: 500 })
        };
        let two = on(2, path(2, 60));
        let one = on(1, path(1, 40));
        for (first, wanted) in [
            (one, 0),
            (PathView { forecast: in_ms(5_000), ..one }, 0),
            (PathView { forecast: in_ms(1_000), ..one }, 1),
            (PathView { quiet: Duration::from_millis(90), ..one }, 1),
        ] {
            let mut chain = chain("datagram_redundancy(forecast=true)");
            assert_eq!(copies(&mut chain, true, &[first, two]).len(), wanted);
        }
    }
}
