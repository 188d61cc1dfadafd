//! A schedulerlet from outside the crate: the example of `docs/scheduler.md`.

use std::time::{Duration, Instant};

use crate::scene;
use polyrail_scheduler::{
    Chain, ChainSpec, Decision, Input, Kind, PathSets, Schedulerlet, SegmentView,
};

/// Rejects paths whose round-trip time exceeds a limit.
struct RttLimit {
    limit: Duration,
}

impl Schedulerlet for RttLimit {
    fn kind(&self) -> Kind {
        Kind::CandidateFilter
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        for path in sets.candidates().iter() {
            if input.paths[path].srtt > self.limit {
                sets.reject(path);
            }
        }
    }
}

/// Selects the candidate with the lowest index.
struct First;

impl Schedulerlet for First {
    fn apply(&mut self, sets: &mut PathSets, _input: &Input<'_>) {
        if let Some(path) = sets.candidates().iter().next() {
            sets.select(path);
        }
    }
}

#[test]
fn custom_chain_applies_its_own_rules() {
    let limit = Duration::from_millis(100);
    let spec = ChainSpec::custom("rtt_limit", move || {
        Chain::new(vec![Box::new(RttLimit { limit }), Box::new(First)])
    });
    assert_eq!(spec.names(), ["rtt_limit"]);
    let mut chain = spec.build();
    let mut paths = scene::paths(2);
    for (srtts, expected) in
        [([40, 50], Some(0)), ([140, 50], Some(1)), ([100, 50], Some(0)), ([140, 150], None)]
    {
        for (path, srtt) in paths.iter_mut().zip(srtts) {
            path.srtt = Duration::from_millis(srtt);
        }
        let (segment, now) = (SegmentView::default(), Instant::now());
        let found = match chain.decide(&Input { paths: &paths, segment, now }) {
            Decision::Send { primary, .. } => Some(primary),
            Decision::Wait { .. } => None,
        };
        assert_eq!(found, expected, "{srtts:?}");
    }
}
