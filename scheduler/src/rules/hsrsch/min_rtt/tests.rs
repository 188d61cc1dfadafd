//! Tests of `min_rtt`.

use super::*;
use crate::samples::{backup, base, full, path, stalled};
use crate::{Chain, ChainSpec, Decision, SegmentView};

fn choice(paths: &[PathView], carried: &[usize]) -> Option<usize> {
    let mask = carried.iter().copied().collect();
    let segment = SegmentView { carried: mask, ..SegmentView::default() };
    let input = Input { paths, segment, now: base() };
    match Chain::new(vec![Box::new(MinRtt)]).decide(&input) {
        Decision::Send { primary, copies, .. } => {
            assert!(copies.is_empty());
            Some(primary)
        }
        Decision::Wait { .. } => None,
    }
}

#[test]
fn table() {
    let (a, b) = (path(1, 40), path(2, 60));
    assert_eq!(choice(&[], &[]), None, "no path");
    assert_eq!(choice(&[a, b], &[]), Some(0), "the faster");
    assert_eq!(choice(&[b, a], &[]), Some(1), "whatever the order");
    assert_eq!(choice(&[full(a), b], &[]), Some(1), "the faster is full");
    assert_eq!(choice(&[full(a), full(b)], &[]), None, "all full");
    assert_eq!(choice(&[stalled(a), b], &[]), Some(1), "the faster is stalled");
    assert_eq!(choice(&[stalled(a), stalled(b)], &[]), None, "all stalled");
    assert_eq!(choice(&[a, b], &[0]), Some(1), "the faster had it");
    assert_eq!(choice(&[a, full(b)], &[0]), None, "wait for the one that had it not");
    assert_eq!(choice(&[a, b], &[0, 1]), Some(0), "a full mask is cleared");
    assert_eq!(choice(&[a, stalled(b)], &[0]), Some(0), "stalled paths do not keep the mask");
    assert_eq!(choice(&[backup(a), b], &[]), Some(1), "backups last");
    assert_eq!(choice(&[backup(a), full(b)], &[]), None, "a backup does not help a full path");
    assert_eq!(choice(&[backup(a), stalled(b)], &[]), Some(0), "backup when nothing else lives");
    assert_eq!(choice(&[backup(a), b], &[1]), Some(0), "backup when the others had it");
}

/// The path after a timeout, with something out.
fn lost(path: PathView) -> PathView {
    PathView { timeouts: 1, outstanding: Bytes(1), ..path }
}

#[test]
fn path_in_loss_state_counts_as_full() {
    let (a, b) = (path(1, 40), path(2, 60));
    assert_eq!(choice(&[lost(a), b], &[]), Some(1), "the other");
    assert_eq!(choice(&[lost(a), full(b)], &[]), None);
    assert_eq!(choice(&[lost(a)], &[]), None, "alone");
    assert_eq!(choice(&[lost(a), lost(b)], &[]), None, "all");
    assert_eq!(choice(&[lost(a), b], &[1]), None, "wait for the one that had it not");
    assert_eq!(choice(&[lost(a), backup(b)], &[]), None, "a backup does not help");
    let idle = PathView { outstanding: Bytes::ZERO, ..lost(a) };
    assert_eq!(choice(&[idle, b], &[]), Some(0), "nothing is out: no acknowledgement comes");
    let progress = PathView { timeouts: 0, ..lost(a) };
    assert_eq!(choice(&[progress, b], &[]), Some(0), "something has arrived");
}

#[test]
fn all_rules_after_mptcp_respect_the_loss_state() {
    let (a, b) = (path(1, 40), path(2, 60));
    for name in [
        "min_rtt",
        "hsrsch",
        "mptcp",
        "blest",
        "ecf",
        "redundant",
        "round_robin",
        "daps",
        "otias",
        "stms",
        "musher",
        "musher_scaled",
        "raven",
    ] {
        let on = |paths: &[PathView]| {
            let mut chain = ChainSpec::named(name).unwrap().build();
            let segment = SegmentView::default();
            let mut now = base();
            for _ in 0..2 {
                match chain.decide(&Input { paths, segment, now }) {
                    Decision::Send { primary, copies, .. } => {
                        return [primary].into_iter().chain(copies.iter()).collect();
                    }
                    // A wait for the better path has an end.
                    Decision::Wait { until: Some(until) } => now = until,
                    Decision::Wait { until: None } => break,
                }
            }
            Vec::new()
        };
        assert_eq!(on(&[lost(a), b]), [1], "{name}: the other");
        assert!(on(&[lost(a), lost(b)]).is_empty(), "{name}: all");
        let idle = PathView { outstanding: Bytes::ZERO, ..lost(a) };
        assert_eq!(on(&[idle, full(b)]), [0], "{name}: nothing is out");
    }
}
