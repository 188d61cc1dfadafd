//! A schedulerlet and a handler that are not of the crate: what `docs/scheduler.md` shows.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a test, with a base for its clock

use std::time::{Duration, Instant};

use polyrail_model::{Bytes, FlowId, PathId};
use polyrail_scheduler::{
    Again, ChainSpec, Decision, Handler, Input, Kind, Made, OutView, PathSet, PathSets, PathView,
    SEGMENT, Schedulerlet, SegmentView,
};

#[path = "../benches/scene/mod.rs"]
mod scene;

/// Nothing goes over paths whose round-trip time is above a bound.
struct Patience {
    most: Duration,
}

impl Schedulerlet for Patience {
    fn name(&self) -> &'static str {
        "patience"
    }

    fn kind(&self) -> Kind {
        Kind::CandidateFilter
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        for path in sets.candidates().iter() {
            if input.paths[path].srtt > self.most {
                sets.reject(path);
            }
        }
    }
}

/// Everything goes once more over the first path that has not carried it, after a second.
struct Impatience;

impl Handler for Impatience {
    fn name(&self) -> &'static str {
        "impatience"
    }

    fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        let due = out.sent_at + Duration::from_secs(1);
        let fits = |path: &usize| paths[*path].available() && !out.carried.contains(*path);
        match (0..paths.len()).find(fits) {
            Some(path) if now >= due => Again::On(path),
            Some(_) => Again::At(due),
            None => Again::No,
        }
    }
}

#[test]
fn a_rule_from_outside_stands_in_a_chain() {
    let most = Duration::from_millis(100);
    let spec = ChainSpec::made("patience", move || Made::Link(Box::new(Patience { most })))
        .then(ChainSpec::of(&["min_rtt", "redundancy"]).unwrap())
        .and("impatience", || Made::Handler(Box::new(Impatience)));
    assert_eq!(spec.names(), ["patience", "min_rtt", "redundancy", "impatience"]);

    let mut chain = spec.build();
    let now = Instant::now();
    let mut paths = scene::paths(2);
    let mut decide = |srtts: [u64; 2]| {
        for (path, srtt) in paths.iter_mut().zip(srtts) {
            path.srtt = Duration::from_millis(srtt);
        }
        chain.decide(&Input { paths: &paths, segment: SegmentView::default(), now })
    };
    for (name, srtts, wanted) in [
        ("both", [40, 50], Some((0, PathSet::only(1)))),
        ("one is too slow", [140, 50], Some((1, PathSet::EMPTY))),
        ("the bound", [100, 50], Some((1, PathSet::only(0)))),
        ("both are too slow", [140, 150], None),
    ] {
        let found = match decide(srtts) {
            Decision::Send { primary, copies, .. } => Some((primary, copies)),
            Decision::Wait { .. } => None,
        };
        assert_eq!(found, wanted, "{name}");
    }

    let out = OutView {
        flow: FlowId(1),
        offset: 0,
        length: Bytes(SEGMENT),
        ahead: Bytes::ZERO,
        sent_at: now,
        carried: PathSet::only(0),
        expected: PathSet::only(0),
        tail: false,
        blocked: false,
    };
    let second = Duration::from_secs(1);
    assert_eq!(chain.again(&out, &paths, now), Again::At(now + second));
    assert_eq!(chain.again(&out, &paths, now + second), Again::On(1));
    assert_eq!(chain.cap(PathId(1)), None);
}
