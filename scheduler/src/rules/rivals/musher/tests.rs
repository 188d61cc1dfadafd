//! `musher` against worked examples of its ratio and its search.

use polyrail_model::{Bytes, FlowId};

use super::*;
use crate::samples::{base, full, ms, path};
use crate::{ChainSpec, Decision, Kind, PathView, SegmentView};

/// A rule that is fed with samples.
struct Scene {
    rule: Musher,
    now: Instant,
}

impl Scene {
    fn new(rule: Musher) -> Self {
        let mut scene = Self { rule, now: base() };
        scene.decide(0);
        scene
    }

    fn decide(&mut self, out: u64) {
        let paths = [PathView { outstanding: Bytes(out), ..path(1, 40) }, path(2, 60)];
        let mut sets = PathSets::all_candidates(2);
        sets.begin(Kind::SoftSelector);
        let segment = SegmentView::default();
        self.rule.apply(&mut sets, &Input { paths: &paths, segment, now: self.now });
    }

    /// A sample of this rate and so much out; answers with r.
    fn sample(&mut self, mbps: u64, out: u64) -> u64 {
        let searching = matches!(self.rule.task, Task::Search { .. });
        let millis = if searching { 200 } else { 100 };
        self.now += ms(millis);
        let (path, flow, bytes) = (PathId(1), FlowId(0), mbps * 125 * millis);
        let note = Note::Acked { path, sure: true, flow, offset: 0, bytes, cumulative: 0 };
        self.rule.note(&note, self.now);
        self.decide(out);
        self.rule.ratio
    }

    fn samples(&mut self, samples: &[u64]) -> Vec<u64> {
        samples.iter().map(|&mbps| self.sample(mbps, 100_000)).collect()
    }

    /// Five of a reference, and five beyond the trigger.
    fn trigger(mut self) -> Self {
        assert_eq!(self.samples(&[1_000; 5]), [50; 5]);
        assert_eq!(self.samples(&[700; 5]), [50; 5]);
        assert!(matches!(self.rule.task, Task::Search { .. }));
        self
    }
}

#[test]
fn of_each_hundred_r_go_to_the_first() {
    let paths = [path(1, 40), path(2, 60)];
    for (ratio, count) in [(50, 50), (20, 20)] {
        let mut rule = Musher::new(false);
        (rule.ratio, rule.ratio_now) = (ratio, ratio);
        let mut sent = Vec::new();
        while sent.len() < 200 {
            let mut sets = PathSets::all_candidates(2);
            sets.begin(Kind::SoftSelector);
            let segment = SegmentView::default();
            rule.apply(&mut sets, &Input { paths: &paths, segment, now: base() });
            let primary = sets.primary().unwrap();
            let run = (sets.run_max() / SEGMENT).min(11);
            let (path, flow) = (paths[primary].id, FlowId(0));
            let bytes = run * SEGMENT;
            rule.note(&Note::Sent { path, flow, offset: 0, bytes, copy: false }, base());
            sent.extend((0..run).map(|_| primary));
        }
        for hundred in sent.chunks(100) {
            assert_eq!(hundred.iter().filter(|path| **path == 0).count(), count);
            assert!(hundred.is_sorted());
        }
    }
}

#[test]
fn the_ratio_is_kept_when_a_path_is_full() {
    let choice = |paths: &[PathView]| {
        let mut chain = ChainSpec::named("musher").unwrap().build();
        let mut at = |now| {
            let decision = chain.decide(&Input { paths, segment: SegmentView::default(), now });
            match decision {
                Decision::Send { primary, .. } => Ok(primary),
                Decision::Wait { until } => Err(until.unwrap() - base()),
            }
        };
        (at(base()), at(base() + ms(40)))
    };
    assert_eq!(choice(&[full(path(1, 40)), path(2, 60)]), (Err(ms(40)), Ok(1)), "a round trip");
}

#[test]
fn a_search_climbs_and_steps_back() {
    let mut scene = Scene::new(Musher::new(false)).trigger();
    // 700 at 50; 706 at 55 gains; 706 at 60 is no loss; 705 at 65 is one: back to 60.
    assert_eq!(scene.samples(&[700, 706, 706, 705]), [55, 60, 65, 60]);
    assert!(matches!(scene.rule.task, Task::Reference(0, _)));
}

#[test]
fn a_search_goes_the_other_way_without_gain() {
    let mut scene = Scene::new(Musher::new(false)).trigger();
    // 705 is not more than 5 more; again at 55, then 45 and on.
    assert_eq!(scene.samples(&[700, 705, 700, 706, 710, 709]), [55, 55, 45, 40, 35, 40]);
    let mut scene = Scene::new(Musher::new(false)).trigger();
    assert_eq!(scene.samples(&[700, 700, 700, 700]), [55, 55, 45, 50], "where it began");
}

#[test]
fn the_bounds_of_the_ratio() {
    let at = |ratio, samples: &[u64]| {
        let mut scene = Scene::new(Musher::new(false)).trigger();
        scene.rule.ratio = ratio;
        scene.rule.task = Task::Search { step: Step::TryMore, from: ratio, before: 0.0 };
        let seen = scene.samples(samples);
        (seen, matches!(scene.rule.task, Task::Search { .. }))
    };
    assert_eq!(at(95, &[700, 700, 700]), (vec![95, 90, 95], false));
    assert_eq!(at(5, &[700, 700, 700]), (vec![10, 10, 5], false));
    assert_eq!(at(85, &[700, 800, 900]), (vec![90, 95, 95], false));
}

#[test]
fn triggers() {
    let searches = |scaled: bool, usual: (u64, u64), then: &[(u64, u64)]| {
        let mut scene = Scene::new(Musher::new(scaled));
        for (mbps, out) in [usual; 5].iter().chain(then) {
            scene.sample(*mbps, *out);
        }
        matches!(scene.rule.task, Task::Search { .. })
    };
    let (published, scaled) = (false, true);
    let kb = 1_000;
    assert!(searches(published, (1_000, 0), &[(1_201, 0); 5]));
    assert!(searches(published, (1_000, 0), &[(799, 0); 5]));
    assert!(!searches(published, (1_000, 0), &[(1_200, 0); 9]));
    assert!(!searches(published, (1_000, 0), &[(1_300, 0); 4]));
    let broken = [[(1_300, 0); 4].as_slice(), &[(1_000, 0)], &[(1_300, 0); 4]].concat();
    assert!(!searches(published, (1_000, 0), &broken), "in a row");
    assert!(searches(published, (10, 200 * kb), &[(10, 124 * kb); 5]));
    assert!(!searches(published, (10, 200 * kb), &[(10, 126 * kb); 5]));
    assert!(!searches(published, (20, 0), &[(1, 0); 9]), "slow paths never trigger");
    assert!(searches(scaled, (20, 0), &[(15, 0); 5]));
    assert!(!searches(scaled, (20, 0), &[(16, 0); 5]));
    assert!(searches(scaled, (20, 100 * kb), &[(20, 79 * kb); 5]));
    assert!(!searches(scaled, (20, 100 * kb), &[(20, 81 * kb); 5]));
}

#[test]
fn searches_are_three_seconds_apart() {
    let mut scene = Scene::new(Musher::new(false)).trigger();
    // The search began at 1.0 s and is over at 1.8; the next trigger is at 2.8 s.
    assert_eq!(scene.samples(&[700; 4]), [55, 55, 45, 50]);
    scene.samples(&[700; 5]);
    scene.samples(&[300; 5]);
    assert!(matches!(scene.rule.task, Task::Reference(0, _)), "too soon");
    scene.samples(&[300; 5]);
    scene.samples(&[700; 5]);
    assert_eq!(scene.now - base(), ms(3_800));
    assert!(matches!(scene.rule.task, Task::Reference(0, _)), "2.8 s after the first");
    scene.samples(&[700; 5]);
    scene.samples(&[300; 5]);
    assert!(matches!(scene.rule.task, Task::Search { .. }));
}

#[test]
fn the_scaled_gain_is_two_percent() {
    let after = |mbps| {
        let mut scene = Scene::new(Musher::new(true)).trigger();
        scene.samples(&[500, mbps])[1]
    };
    assert_eq!((after(510), after(511)), (55, 60));
}
