//! The beginning of a handover, its outage and its outcome.

use std::time::{Duration, Instant};

use polyrail_model::{CellId, HandoverOutcome, Reported, Rsrp};

use super::Detected;

/// A change of cell that is not concluded.
#[derive(Clone, Debug)]
pub(super) struct PendingHandover {
    pub from: CellId,
    pub rsrp: Option<Rsrp>,
    /// The last report of the old cell.
    pub last_seen: Instant,
    /// The first report without the old cell.
    pub noticed: Instant,
    /// The first report of no cell.
    pub lost: Option<Instant>,
    /// The new cell, and when it was reported.
    pub joined: Option<(CellId, Instant)>,
    /// The first report after that.
    pub followed: Option<Instant>,
    /// The last report of no cell.
    pub dark_seen: Option<Instant>,
    pub verdict: Option<Reported>,
}

/// A time without an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub since: Instant,
    /// None while it lasts.
    pub until: Option<Instant>,
    pub kept: Option<bool>,
    /// It belongs to a concluded handover.
    pub used: bool,
}

impl PendingHandover {
    /// Whether a silence may belong to this handover.
    pub fn overlaps(&self, span: &Span, now: Instant) -> bool {
        let from = self.earliest().checked_sub(SLACK).unwrap_or(self.earliest());
        let joined = self.joined.map_or(now, |(_, at)| at);
        !span.used && span.since <= joined + SLACK && span.until.is_none_or(|until| until >= from)
    }

    /// Whether an overlapping silence began so early that it has another cause.
    pub fn is_unrelated(&self, span: &Span) -> bool {
        span.since + UNRELATED < self.noticed
    }

    /// The earliest moment at which the train may have left the cell.
    pub fn earliest(&self) -> Instant {
        let bound = self.noticed.checked_sub(UNSEEN_MAX).unwrap_or(self.last_seen);
        self.last_seen.max(bound)
    }

    /// Whether the reports were so close together that they would show the loss of a cell.
    pub fn is_closely_reported(&self) -> bool {
        let Some((_, joined)) = self.joined else { return false };
        let close =
            |from: Instant, to: Instant| to.saturating_duration_since(from) <= REPORTS_APART;
        close(self.last_seen, self.noticed) && self.followed.is_some_and(|at| close(joined, at))
    }

    /// The conclusion from the reports and the overlapping silence, if any.
    pub fn conclude(&self, carrier: &str, span: Option<&Span>, now: Instant) -> Detected {
        let middle = middle(self.last_seen, self.noticed);
        let at = match span {
            Some(span) if span.since <= self.noticed => span.since,
            _ => middle,
        };
        let verdict = self.verdict.as_ref();
        let joined = self.joined.map_or(now, |(_, at)| at);
        let end = match (span, self.dark_seen) {
            (Some(span), _) => span.until.unwrap_or(now),
            // No data was in flight, but without a cell none would have passed.
            (None, Some(dark)) => self::middle(dark, joined),
            (None, None) => at,
        };
        let seen = end.saturating_duration_since(at);
        let dark = verdict.and_then(|verdict| verdict.dark).unwrap_or(seen).min(DARK_MAX);
        let reported = verdict.and_then(|verdict| verdict.at.checked_sub(verdict.dark?));
        let at = reported.unwrap_or(at);
        let kept = span.and_then(|span| span.kept);
        let outcome = match verdict {
            Some(verdict) => verdict.outcome,
            None => self.outcome(kept, dark),
        };
        let (carrier, to) = (carrier.to_owned(), self.joined.map(|(to, _)| to));
        Detected { at, carrier, from: self.from, to, rsrp: self.rsrp, outcome, dark }
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

/// The middle between two reports, at most half a second before the later one.
fn middle(earlier: Instant, later: Instant) -> Instant {
    let half = later.saturating_duration_since(earlier) / 2;
    later.checked_sub(half.min(POLL_HALF)).unwrap_or(later)
}

/// A handover with a shorter outage succeeded (POLYCORN 2.3).
const SUCCESS_MAX: Duration = Duration::from_millis(100);
/// Failures of types II and III last a second and more (POLYCORN 2.3: 1 to 10 s).
const FAILURE_MIN: Duration = Duration::from_secs(1);
/// From here on type III is likelier than type II: a quarter of type II lasts more than 2 s, a
/// quarter of type III more than 5 s (Wang et al. 5.2).
const TYPE_III: Duration = Duration::from_millis(3_500);
/// Half of the second between two polls of a modem.
const POLL_HALF: Duration = Duration::from_millis(500);
/// The largest distance of a modem's reports from a path's silence.
const SLACK: Duration = Duration::from_millis(500);
/// How long before the report of the next cell the train may have left the last one.
const UNSEEN_MAX: Duration = Duration::from_secs(3);
/// Reports farther apart may miss the loss of a cell.
const REPORTS_APART: Duration = Duration::from_millis(1_500);
/// A silence that began this long before the change has another cause.
const UNRELATED: Duration = Duration::from_secs(10);
/// Longer outages reported by a modem are truncated.
const DARK_MAX: Duration = Duration::from_secs(60);
