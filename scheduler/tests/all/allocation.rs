//! A decision allocates nothing, once a chain knows its paths and flows.

use std::hint::black_box;

use polyrail_scheduler::{ChainSpec, chain_names};

use crate::scene::{SCENES, Work};

#[test]
fn a_decision_allocates_nothing_in_any_chain() {
    for name in chain_names() {
        for (scene_name, scene) in SCENES {
            for paths in [2, 8] {
                let chain = ChainSpec::named(name).unwrap().build();
                let mut work = Work::new(chain, paths, scene, 64);
                for _ in 0..20_000 {
                    let decision = work.decide(None);
                    work.note(decision);
                }
                let counted = allocation_counter::measure(|| {
                    for _ in 0..20_000 {
                        let decision = black_box(work.decide(None));
                        work.note(decision);
                    }
                });
                let allocations = counted.count_total;
                assert_eq!(allocations, 0, "{name}, {paths} paths, {scene_name}");
            }
        }
    }
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(black_box(vec![0_u8; 100])));
    assert_eq!(counted.count_total, 1);
}
