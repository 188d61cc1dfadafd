//! `earliest_delivery`: the path that would deliver the segment first, by what it delivers at
//! present.
//!
//! Rule: our own, in the manner of `edpf`. A path that delivers `rate` and has `out` bytes under way
//! delivers a segment after `(out + segment) / rate - least round trip / 2`, and not before its
//! one-way delay; the least wins, among those that have room. The rate is [`present_rate`]: what a
//! path delivered lately while it had a queue, whatever it could do some seconds ago.

use super::figures::{delay, present_rate};
use super::min_rtt::{among, group};
use crate::{Input, Kind, PathSets, PathView, SEGMENT, Schedulerlet};

/// The soft selector of the earliest delivery.
#[derive(Clone, Copy, Debug, Default)]
pub struct EarliestDelivery;

/// When so many bytes more would be there over this path, in seconds from now.
pub(crate) fn delivery(path: &PathView, bytes: u64) -> f64 {
    let rate = present_rate(path).as_bps() as f64 / 8.0;
    let drained = (path.outstanding.0 + bytes) as f64 / rate.max(1.0);
    (drained - path.rtt_min.as_secs_f64() / 2.0).max(delay(path).as_secs_f64())
}

impl Schedulerlet for EarliestDelivery {
    fn name(&self) -> &'static str {
        "earliest_delivery"
    }

    fn kind(&self) -> Kind {
        Kind::SoftSelector
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        let available = among(group, |i| input.paths[i].available());
        let mut best: Option<(f64, usize)> = None;
        for path in available.iter() {
            let at = delivery(&input.paths[path], SEGMENT);
            if best.is_none_or(|(known, _)| at < known) {
                best = Some((at, path));
            }
        }
        if let Some((_, path)) = best {
            sets.select(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::{Bitrate, Bytes};

    use super::*;
    use crate::view::samples::{base, full, path, stalled};
    use crate::{Chain, Decision, SegmentView};

    fn at(id: u64, rtt_ms: u64, mbps: f64, out_kb: u64) -> PathView {
        PathView {
            rate: Some(Bitrate::from_mbps(mbps)),
            outstanding: Bytes(out_kb * 1_000),
            ..path(id, rtt_ms)
        }
    }

    fn choice(paths: &[PathView]) -> Option<usize> {
        let input = Input { paths, segment: SegmentView::default(), now: base() };
        match Chain::new(vec![Box::new(EarliestDelivery)]).decide(&input) {
            Decision::Send { primary, .. } => Some(primary),
            Decision::Wait { .. } => None,
        }
    }

    #[test]
    fn table() {
        let ms = Duration::from_millis;
        let (near, far) = (at(1, 40, 8.0, 0), at(2, 60, 8.0, 0));
        assert_eq!(choice(&[]), None, "no path");
        assert_eq!(choice(&[far, near]), Some(1), "20 against 30 ms");
        // 51.4 KB at 1 KB a millisecond, less 20: 31 ms.
        assert_eq!(choice(&[at(1, 40, 8.0, 50), far]), Some(1));
        assert_eq!(choice(&[at(1, 40, 8.0, 47), far]), Some(0));
        // Twice as fast: 5.7 ms, so 20.
        assert_eq!(choice(&[at(1, 40, 16.0, 50), far]), Some(0));
        assert_eq!(choice(&[full(near), far]), Some(1), "the nearer is full");
        assert_eq!(choice(&[stalled(near), far]), Some(1), "the nearer is dead");
        assert_eq!(choice(&[full(near), full(far)]), None, "all full");
        // A queue, and a rate that has fallen to a tenth: 10 KB take 100 ms.
        let fallen =
            PathView { srtt: ms(90), flowing: Some(Bitrate::from_mbps(0.8)), ..at(1, 40, 8.0, 10) };
        let fallen = PathView { rtt_min: ms(40), ..fallen };
        assert_eq!(choice(&[fallen, far]), Some(1));
        let idle = PathView { srtt: ms(40), ..fallen };
        assert_eq!(choice(&[idle, far]), Some(0), "without a queue it may be what was offered");
        let long_ago = PathView { flowing_age: ms(400), ..fallen };
        assert_eq!(choice(&[long_ago, far]), Some(0));
        // Known 8 s ago: a sixteenth. 10 KB at 0.5 Mbit/s take 160 ms.
        let old = PathView { rate_age: Duration::from_secs(8), ..at(1, 40, 8.0, 10) };
        assert_eq!(choice(&[old, far]), Some(1));
    }
}
