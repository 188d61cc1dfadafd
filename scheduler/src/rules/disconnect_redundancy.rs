//! `disconnect_redundancy`: while a path is about to fail, segments go over all others at once.
//!
//! Rule: POLYCORN 6.2. From the moment at which a handover's failure is nearer than round-trip time
//! and position error until the new cell, every segment is also copied to the other live paths.
//! Where the paper is open: not to those that are about to fail themselves, to backups, or where
//! copies cost; a copy whose path has no room is dropped.

use crate::params::{ParamError, Reader};
use crate::{Input, Kind, PathSets, PathView, Schedulerlet};

/// The selector of copies around failures.
#[derive(Clone, Copy, Debug)]
pub struct DisconnectRedundancy {
    permille: u16,
}

impl DisconnectRedundancy {
    /// `permille`: forecasts of failures rarer than this many of 1,000 do not count.
    ///
    /// # Errors
    /// A parameter is wrong.
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        Ok(Self { permille: params.count("permille", 0, 0..=1_000)? as u16 })
    }

    fn is_about_to_fail(&self, path: &PathView) -> bool {
        let counts = path.forecast.is_some_and(|forecast| forecast.permille >= self.permille);
        counts && path.is_about_to_fail()
    }
}

impl Schedulerlet for DisconnectRedundancy {
    fn name(&self) -> &'static str {
        "disconnect_redundancy"
    }

    fn kind(&self) -> Kind {
        Kind::SoftSelector
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let alarm = input.paths.iter().any(|path| self.is_about_to_fail(path));
        if !alarm || sets.selected().is_empty() {
            return;
        }
        for path in sets.candidates().without(input.segment.carried).iter() {
            let view = &input.paths[path];
            let fit = view.available() && !view.backup && view.spare;
            if fit && !self.is_about_to_fail(view) {
                sets.select(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::view::samples::{backup, base, full, path};
    use crate::{ChainSpec, Decision, Forecast, SegmentView};

    fn failing(path: PathView, fails_in_ms: u64) -> PathView {
        let (fails_in, uncertainty) =
            (Duration::from_millis(fails_in_ms), Duration::from_millis(200));
        PathView { forecast: Some(Forecast { fails_in, uncertainty, permille: 300 }), ..path }
    }

    fn on(rule: &str, paths: &[PathView]) -> Vec<usize> {
        let mut chain = ChainSpec::of(&["handover_rejection", "min_rtt", rule]).unwrap().build();
        let input = Input { paths, segment: SegmentView::default(), now: base() };
        match chain.decide(&input) {
            Decision::Send { primary, copies, .. } => {
                [primary].into_iter().chain(copies.iter()).collect()
            }
            Decision::Wait { .. } => Vec::new(),
        }
    }

    #[test]
    fn table() {
        let rule = "disconnect_redundancy";
        let (a, b, c) = (path(1, 40), path(2, 60), path(3, 80));
        assert_eq!(on(rule, &[a, b, c]), [0], "nothing fails");
        assert_eq!(on(rule, &[failing(a, 240), b, c]), [0], "not yet");
        assert_eq!(on(rule, &[failing(a, 239), b, c]), [1, 2], "not on the failing one");
        assert_eq!(on(rule, &[failing(a, 0), full(b), c]), [2]);
        assert_eq!(on(rule, &[failing(a, 0), b, backup(c)]), [1]);
        assert_eq!(on(rule, &[failing(a, 0), b, PathView { spare: false, ..c }]), [1]);
        assert_eq!(on(rule, &[failing(a, 0), failing(b, 10), c]), [2]);
        assert_eq!(on(rule, &[failing(a, 10), failing(b, 20)]), [1], "all fail: the farthest");
        let (fails_in, uncertainty) = (Duration::ZERO, Duration::MAX);
        let forecast = Some(Forecast { fails_in, uncertainty, permille: 300 });
        assert_eq!(on(rule, &[PathView { forecast, ..a }, b, c]), [1, 2], "without bound");
        assert_eq!(on("disconnect_redundancy(permille=301)", &[failing(a, 0), b, c]), [1]);
    }
}
