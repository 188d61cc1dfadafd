//! `message_redundancy`: copies messages of one or two packets to every path.
//!
//! Rule: our own. A message takes one round trip, the quickest path is known only afterwards, and a
//! lost message waits for a timeout. Copies of messages cost little. So if a flow has at most
//! `bytes` unsent, the segment is also copied to every other live path with room that is not a
//! backup. A path with a forecast that `handover_rejection` rejects gets a copy, too: it may be the
//! first, and if it fails, the other path has the message.
//!
//! The budget is `rate` bytes a second, with a burst of `burst` bytes, because a slow stream looks
//! like messages and would otherwise be copied completely.

use std::time::Instant;

use crate::params::{ParamError, Reader};
use crate::rules::budget::Budget;
use crate::{Input, Kind, Note, PathSets, Schedulerlet};

#[derive(Clone, Debug)]
pub struct MessageRedundancy {
    bytes: u64,
    budget: Budget,
}

impl MessageRedundancy {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let bytes = params.count("bytes", 2_800, 0..=16_384)?;
        Ok(Self { bytes, budget: Budget::new(params, 16_384, 65_536)? })
    }
}

impl Schedulerlet for MessageRedundancy {
    fn kind(&self) -> Kind {
        Kind::HardSelector
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let segment = &input.segment;
        let message = segment.unsent.0 <= self.bytes && !segment.reinjected;
        if sets.selected().is_empty() || !message {
            return;
        }
        let left = self.budget.left(input.now);
        let mut price = segment.unsent.0 as f64;
        let foreseen = sets.unavailable().filter(|path| input.paths[path].forecast.is_some());
        let others = sets.candidates().or(foreseen);
        for path in others.without(segment.carried).iter() {
            let view = &input.paths[path];
            let fit = view.available() && !view.backup;
            if fit && price <= left && sets.select(path) {
                price += segment.unsent.0 as f64;
            }
        }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        self.budget.note(note);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::{Bytes, PathId};

    use super::*;
    use crate::samples::{backup, base, full, path, send, stalled};
    use crate::{Chain, ChainSpec, Forecast, PathView, SegmentView};

    fn chain(rule: &str) -> Chain {
        ChainSpec::of(&["min_rtt", rule]).unwrap().build()
    }

    fn on(chain: &mut Chain, paths: &[PathView], segment: SegmentView, ms: u64) -> Vec<usize> {
        let now = base() + Duration::from_millis(ms);
        send(chain, paths, segment, segment.unsent.0, now)
    }

    fn unsent(bytes: u64) -> SegmentView {
        SegmentView { unsent: Bytes(bytes), ..SegmentView::default() }
    }

    #[test]
    fn table() {
        let rule = "message_redundancy";
        let (a, b, c) = (path(1, 40), path(2, 60), path(3, 80));
        let fresh = |paths: &[PathView], segment| on(&mut chain(rule), paths, segment, 0);
        assert_eq!(fresh(&[a, b, c], unsent(100)), [0, 1, 2]);
        assert_eq!(fresh(&[a, b, c], unsent(2_800)), [0, 1, 2]);
        assert_eq!(fresh(&[a, b, c], unsent(2_801)), [0], "no message");
        assert_eq!(fresh(&[a, full(b), c], unsent(100)), [0, 2]);
        assert_eq!(fresh(&[a, stalled(b), backup(c)], unsent(100)), [0]);
        let again = SegmentView { reinjected: true, ..unsent(100) };
        assert_eq!(fresh(&[a, b], again), [0], "others care for that");
        assert_eq!(fresh(&[full(a), full(b)], unsent(100)), [0; 0]);
    }

    #[test]
    fn rejected_path_gets_a_copy() {
        let rules = ["handover_rejection(hazard=true)", "earliest_delivery", "message_redundancy"];
        let now = Duration::ZERO;
        let failing = Forecast { fails_in: now, ends_in: now, uncertainty: now, permille: 900 };
        let paths = [PathView { forecast: Some(failing), ..path(1, 40) }, path(2, 60)];
        let on = |bytes| {
            let segment = SegmentView { recovery: Duration::from_secs(1), ..unsent(bytes) };
            on(&mut ChainSpec::of(&rules).unwrap().build(), &paths, segment, 0)
        };
        assert_eq!(on(100), [1, 0]);
        assert_eq!(on(2_801), [1], "no message");
    }

    #[test]
    fn slow_stream_is_copied_within_the_budget() {
        let mut chain = chain("message_redundancy(rate=1000, burst=2500)");
        let paths = [path(1, 40), path(2, 60)];
        assert_eq!(on(&mut chain, &paths, unsent(1_000), 0), [0, 1]);
        assert_eq!(on(&mut chain, &paths, unsent(1_000), 0), [0, 1]);
        assert_eq!(on(&mut chain, &paths, unsent(1_000), 0), [0], "500 are left");
        assert_eq!(on(&mut chain, &paths, unsent(1_000), 499), [0], "999");
        assert_eq!(on(&mut chain, &paths, unsent(1_000), 500), [0, 1], "1,000");
        assert_eq!(on(&mut chain, &paths, unsent(2_500), 60_000), [0, 1], "not more than 2,500");
        assert_eq!(on(&mut chain, &paths, unsent(100), 60_000), [0]);
        chain.note(&Note::Gone { path: PathId(2) }, base());
    }
}
