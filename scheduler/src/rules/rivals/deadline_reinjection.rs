//! `deadline_reinjection`: duplicates late data over another path.
//!
//! Rule: XLINK (Zheng and others, SIGCOMM 2021) as in `alibaba/xquic`,
//! `src/transport/reinjection_control`: `xqc_reinj_default.c` and `xqc_reinj_deadline.c`, together.
//! Unacknowledged data is duplicated once the send queue is empty, else after `max(min(1.1 x least
//! srtt, 500 ms), 20 ms)`, the least of all live paths. Each run is duplicated once, and never over
//! a path that has carried it.
//!
//! Choices: the session asks handlers only for flows without new data. The queue counts as empty if
//! the receive window does not hold the flow back and the path for the duplicate has sent all its
//! data. That path is the fastest with room that is not a backup. `eager = false` leaves only the
//! deadline.

use std::time::{Duration, Instant};

use crate::params::{ParamError, Reader};
use crate::{Again, Handler, OutView, PathView};

#[derive(Clone, Copy, Debug)]
pub struct DeadlineReinjection {
    eager: bool,
    factor: f64,
    least: Duration,
    most: Duration,
}

impl DeadlineReinjection {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let bounds = Duration::ZERO..=Duration::from_secs(60);
        Ok(Self {
            eager: params.flag("eager", true)?,
            factor: params.number("factor", 1.1, 0.0..=100.0)?,
            least: params.time("least", Duration::from_millis(20), bounds.clone())?,
            most: params.time("most", Duration::from_millis(500), bounds)?,
        })
    }

    fn deadline(&self, paths: &[PathView]) -> Duration {
        let srtt = paths.iter().filter(|path| !path.stalled).map(|path| path.srtt).min();
        srtt.map_or(self.most, |srtt| srtt.mul_f64(self.factor).min(self.most)).max(self.least)
    }
}

impl Handler for DeadlineReinjection {
    fn again(&mut self, out: &OutView, paths: &[PathView], now: Instant) -> Again {
        if out.carried.len() > 1 {
            return Again::No;
        }
        let due = out.sent_at + self.deadline(paths);
        let Some(path) = other(out, paths, |_| true) else {
            return if now < due { Again::At(due) } else { Again::No };
        };
        if now >= due {
            return Again::On(path);
        }
        let eager = self.eager && !out.blocked;
        match other(out, paths, |path| eager && path.unsent.0 == 0) {
            Some(path) => Again::On(path),
            None => Again::At(due),
        }
    }
}

/// The fastest path for a run that is out, of those for which `fit` holds: it has not carried it,
/// has room, is no backup, and copies cost nothing there.
pub(crate) fn other(
    out: &OutView,
    paths: &[PathView],
    fit: impl Fn(&PathView) -> bool,
) -> Option<usize> {
    let paths = paths.iter().enumerate().filter(|(place, path)| {
        !out.carried.contains(*place) && path.available() && !path.backup && fit(path)
    });
    paths.min_by_key(|(_, path)| path.srtt).map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;

    use super::*;
    use crate::ChainSpec;
    use crate::samples::{backup, base, full, ms, path, run, stalled};

    fn blocked(out: OutView) -> OutView {
        OutView { blocked: true, ..out }
    }

    fn again(rule: &str, out: &OutView, paths: &[PathView], after_us: u64) -> Again {
        let mut chain = ChainSpec::of(&["min_rtt", rule]).unwrap().build();
        chain.again(out, paths, base() + Duration::from_micros(after_us))
    }

    #[test]
    fn the_deadline() {
        let due = |srtts: &[u64]| {
            let mut paths: Vec<PathView> = srtts.iter().map(|&srtt| path(1, srtt)).collect();
            paths.push(path(9, 9_000));
            match again("deadline_reinjection", &blocked(run(&[0])), &paths, 0) {
                Again::At(at) => at - base(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(due(&[100, 200]), ms(110));
        assert_eq!(due(&[200, 100]), ms(110), "the least of all");
        assert_eq!(due(&[454, 900]), Duration::from_micros(499_400));
        assert_eq!(due(&[600, 700]), ms(500));
        assert_eq!(due(&[10, 200]), ms(20));
    }

    #[test]
    fn table() {
        let rule = "deadline_reinjection";
        let (a, b, c) = (path(1, 100), path(2, 200), path(3, 150));
        let (out, late) = (run(&[0]), blocked(run(&[0])));
        let due = Again::At(base() + ms(110));
        assert_eq!(again(rule, &out, &[a, b, c], 0), Again::On(2), "nothing else to send");
        assert_eq!(again("deadline_reinjection(eager=false)", &out, &[a, b, c], 0), due);
        assert_eq!(again(rule, &late, &[a, b, c], 109_999), due);
        assert_eq!(again(rule, &late, &[a, b, c], 110_000), Again::On(2));
        let busy = |path| PathView { unsent: Bytes(1), ..path };
        assert_eq!(again(rule, &out, &[a, b, busy(c)], 0), Again::On(1), "it has sent all");
        assert_eq!(again(rule, &out, &[a, busy(b), busy(c)], 0), due, "none has");
        assert_eq!(again(rule, &out, &[a, busy(b), busy(c)], 110_000), Again::On(2));
        assert_eq!(again(rule, &run(&[0, 1]), &[a, b, c], 200_000), Again::No, "once");
        for other in [full(b), stalled(b), backup(b)] {
            assert_eq!(again(rule, &out, &[a, other], 200_000), Again::No);
            assert_eq!(again(rule, &out, &[a, other], 0), due);
        }
        assert_eq!(again(rule, &out, &[a], 200_000), Again::No);
    }
}
