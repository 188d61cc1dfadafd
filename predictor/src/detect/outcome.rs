//! When a handover began, how long nothing passed, and how it ended.

use std::time::{Duration, Instant};

use polyrail_model::{CellId, HandoverOutcome, Reported, Rsrp};

/// A change of cell that is not over.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub from: CellId,
    pub rsrp: Option<Rsrp>,
    /// When the cell that is left was last reported.
    pub last_seen: Instant,
    /// When it was first reported that it is left.
    pub noticed: Instant,
    /// When a report said that there is no cell.
    pub lost: Option<Instant>,
    /// The cell that is joined, and when that was reported.
    pub joined: Option<(CellId, Instant)>,
    /// The first report after that.
    pub followed: Option<Instant>,
    /// The last report without a cell.
    pub dark_seen: Option<Instant>,
    pub verdict: Option<Reported>,
}

/// A time in which nothing was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub since: Instant,
    /// None while it lasts.
    pub until: Option<Instant>,
    pub kept: Option<bool>,
    /// A handover has had it.
    pub used: bool,
}

/// What is told of a handover in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub at: Instant,
    pub dark: Duration,
    pub outcome: HandoverOutcome,
}

impl Change {
    /// Whether a silence may be this handover's.
    pub fn overlaps(&self, span: &Span, now: Instant) -> bool {
        let from = self.earliest().checked_sub(SLACK).unwrap_or(self.earliest());
        let joined = self.joined.map_or(now, |(_, at)| at);
        !span.used && span.since <= joined + SLACK && span.until.is_none_or(|until| until >= from)
    }

    /// Whether a silence that overlaps began so long before that it has another cause.
    pub fn is_foreign(&self, span: &Span) -> bool {
        span.since + FOREIGN < self.noticed
    }

    /// The earliest moment at which the cell may have been left.
    pub fn earliest(&self) -> Instant {
        let bound = self.noticed.checked_sub(UNSEEN_MAX).unwrap_or(self.last_seen);
        self.last_seen.max(bound)
    }

    /// Whether the modem's reports came so close together that it would have told a loss.
    pub fn is_closely_reported(&self) -> bool {
        let Some((_, joined)) = self.joined else { return false };
        let close =
            |from: Instant, to: Instant| to.saturating_duration_since(from) <= REPORTS_APART;
        close(self.last_seen, self.noticed) && self.followed.is_some_and(|at| close(joined, at))
    }

    /// What is told, with the silence that overlaps, if there is one.
    pub fn told(&self, span: Option<&Span>, now: Instant) -> Told {
        let middle = middle(self.last_seen, self.noticed);
        let at = match span {
            Some(span) if span.since <= self.noticed => span.since,
            _ => middle,
        };
        let verdict = self.verdict.as_ref();
        let joined = self.joined.map_or(now, |(_, at)| at);
        let end = match (span, self.dark_seen) {
            (Some(span), _) => span.until.unwrap_or(now),
            // Nothing was sent: without a cell nothing would have passed.
            (None, Some(dark)) => self::middle(dark, joined),
            (None, None) => at,
        };
        let seen = end.saturating_duration_since(at);
        let dark = verdict.and_then(|verdict| verdict.dark).unwrap_or(seen).min(DARK_MAX);
        let told = verdict.and_then(|verdict| verdict.at.checked_sub(verdict.dark?));
        let at = told.unwrap_or(at);
        let kept = span.and_then(|span| span.kept);
        let outcome = match verdict {
            Some(verdict) => verdict.outcome,
            None => self.outcome(kept, dark),
        };
        Told { at, dark, outcome }
    }

    fn outcome(&self, kept: Option<bool>, dark: Duration) -> HandoverOutcome {
        let lost = self.lost.is_some();
        if self.joined.is_some_and(|(to, _)| to == self.from) {
            return HandoverOutcome::TypeI;
        }
        match kept {
            _ if dark < SUCCESS_MAX && !lost => HandoverOutcome::Success,
            Some(true) => HandoverOutcome::TypeII,
            Some(false) => HandoverOutcome::TypeIII,
            None if dark < FAILURE_MIN && !lost => HandoverOutcome::TypeI,
            None if dark < TYPE_III => HandoverOutcome::TypeII,
            None => HandoverOutcome::TypeIII,
        }
    }
}

/// The middle of the time between two reports, at most half a second before the later.
fn middle(earlier: Instant, later: Instant) -> Instant {
    let half = later.saturating_duration_since(earlier) / 2;
    later.checked_sub(half.min(POLL_HALF)).unwrap_or(later)
}

/// A handover of less disruption succeeded (POLYCORN 2.3).
pub(super) const SUCCESS_MAX: Duration = Duration::from_millis(100);
/// Failures of types II and III last a second and more (POLYCORN 2.3: 1 to 10 s).
const FAILURE_MIN: Duration = Duration::from_secs(1);
/// Above, type III is likelier than type II: a quarter of type II lasts more than 2 s, a quarter of
/// type III more than 5 s (Wang et al. 5.2).
const TYPE_III: Duration = Duration::from_millis(3_500);
/// Half of the second between two polls of a modem.
const POLL_HALF: Duration = Duration::from_millis(500);
/// What a modem's reports and a path's silence may be apart.
const SLACK: Duration = Duration::from_millis(500);
/// Before a report of the next cell the last one may have been left for so long.
const UNSEEN_MAX: Duration = Duration::from_secs(3);
/// Reports that are farther apart may miss a loss of the cell.
const REPORTS_APART: Duration = Duration::from_millis(1_500);
/// A silence that began so long before the change has another cause.
const FOREIGN: Duration = Duration::from_secs(10);
/// What a modem tells that is longer is cut.
const DARK_MAX: Duration = Duration::from_secs(60);
