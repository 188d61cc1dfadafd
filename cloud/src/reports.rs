//! The latest report of each gateway, for the metrics.
//!
//! A session has at most one. It is forgotten with its session, and not shown once it is older than
//! [`STALE`]: six reports are missing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_admin::metrics::{GatewayReport, ReceivedReport};
use polyrail_model::SessionKey;

/// The latest reports.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    of: BTreeMap<SessionKey, (Instant, GatewayReport)>,
    ignored: u64,
}

impl Reports {
    /// Takes a gateway's report, at most one in [`APART`].
    pub(crate) fn take(&mut self, now: Instant, session: SessionKey, payload: &[u8]) {
        let last = self.of.get(&session).map(|(at, _)| *at);
        if last.is_some_and(|at| now.saturating_duration_since(at) < APART) {
            self.ignored += 1;
            return;
        }
        match GatewayReport::decode(payload) {
            Ok(Some(report)) => drop(self.of.insert(session, (now, report))),
            // A later version sends another form.
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(session = session.0, %error, "discarded an invalid report");
                self.ignored += 1;
            }
        }
    }

    /// The session has ended.
    pub(crate) fn forget(&mut self, session: SessionKey) {
        self.of.remove(&session);
    }

    /// The reports that are not too old. `name` is the gateway of a session.
    pub(crate) fn received<'a>(
        &self,
        now: Instant,
        name: impl Fn(SessionKey) -> Option<&'a str>,
    ) -> Vec<ReceivedReport> {
        let one = |(session, (at, report)): (&SessionKey, &(Instant, GatewayReport))| {
            let age = now.saturating_duration_since(*at);
            let gateway = name(*session).filter(|_| age < STALE)?.to_owned();
            Some(ReceivedReport { gateway, age, report: report.clone() })
        };
        self.of.iter().filter_map(one).collect()
    }

    /// The number of reports that were invalid or came too fast.
    pub(crate) fn ignored(&self) -> u64 {
        self.ignored
    }
}

/// A gateway reports every 10 s; late reports may follow each other closely.
const APART: Duration = Duration::from_secs(1);
/// The age from which a report is not shown.
const STALE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_report_is_shown_until_it_is_old_or_its_session_ends() {
        let (start, mut reports) = (Instant::now(), Reports::default());
        let at = |s: u64| start + Duration::from_secs(s);
        let report = |flows| GatewayReport { flows, ..GatewayReport::default() };
        let flows = |reports: &Reports, now| {
            let names = |session: SessionKey| (session.0 < 3).then_some("train-7");
            let received = reports.received(now, names);
            received.iter().map(|one| (one.report.flows, one.age.as_secs())).collect::<Vec<_>>()
        };
        reports.take(at(0), SessionKey(1), &report(4).encode());
        reports.take(at(0), SessionKey(3), &report(9).encode());
        assert_eq!(flows(&reports, at(2)), [(4, 2)], "a session without a name is not shown");
        reports.take(at(0), SessionKey(1), &report(5).encode());
        reports.take(at(10), SessionKey(1), b"\x01nonsense");
        assert_eq!((flows(&reports, at(10)), reports.ignored()), (vec![(4, 10)], 2));
        reports.take(at(10), SessionKey(1), b"\x02of a later version");
        reports.take(at(10), SessionKey(1), &report(6).encode());
        assert_eq!((flows(&reports, at(69)), reports.ignored()), (vec![(6, 59)], 2));
        assert_eq!(flows(&reports, at(70)), []);
        reports.forget(SessionKey(1));
        assert_eq!(flows(&reports, at(10)), []);
    }
}
