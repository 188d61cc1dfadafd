//! The peer's reports about a path, for the caller: of each kind at most one in
//! [`REPORT_APART`], the newest.

use std::time::Instant;

use polyrail_model::Bitrate;

use crate::event::PathReport;
use crate::limits::REPORT_APART;

#[derive(Debug, Default)]
pub(crate) struct Reports {
    stalled: bool,
    policed: Option<Bitrate>,
    /// When the next ones may be passed on.
    open_at: Option<Instant>,
}

impl Reports {
    /// The peer reports a problem.
    pub fn add(&mut self, report: PathReport) {
        match report {
            PathReport::Stalled => self.stalled = true,
            PathReport::Policed { rate } => self.policed = Some(rate),
        }
    }

    /// The reports to pass on now, once.
    pub fn take(&mut self, now: Instant) -> impl Iterator<Item = PathReport> + use<> {
        let open = self.open_at.is_none_or(|at| now >= at);
        let stalled = open && std::mem::take(&mut self.stalled);
        let policed = self.policed.take_if(|_| open);
        if stalled || policed.is_some() {
            self.open_at = Some(now + REPORT_APART);
        }
        let policed = policed.map(|rate| PathReport::Policed { rate });
        stalled.then_some(PathReport::Stalled).into_iter().chain(policed)
    }

    /// When [`Reports::take`] has reports.
    pub fn next_at(&self) -> Option<Instant> {
        self.open_at.filter(|_| self.stalled || self.policed.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_reports_the_newest_is_passed_on_in_time() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let now = Instant::now();
        let policed = |rate: u64| PathReport::Policed { rate: Bitrate::from_bps(rate) };
        let mut reports = Reports::default();
        reports.add(policed(1));
        assert_eq!(reports.take(now).collect::<Vec<_>>(), [policed(1)]);
        for rate in 2..100 {
            reports.add(policed(rate));
            reports.add(PathReport::Stalled);
            assert_eq!(reports.take(now).count(), 0);
        }
        let later = now + REPORT_APART;
        assert_eq!(reports.next_at(), Some(later));
        let both = [PathReport::Stalled, policed(99)];
        assert_eq!(reports.take(later).collect::<Vec<_>>(), both);
        assert_eq!((reports.take(later).count(), reports.next_at()), (0, None));
    }
}
