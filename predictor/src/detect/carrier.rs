//! The state of one carrier's modem and path.
//!
//! ```text
//! unknown --cell--> camped --other cell--> joined --settled, or 20 s of silence--> camped
//! camped --no cell--> lost --cell--> joined
//! lost --20 s--> unknown
//! camped, lost --no report for too long--> unknown
//! joined --other cell, no cell, during a silence--> joined, lost (the same change)
//! joined --other cell, no cell--> concluded; joined, lost (another change)
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::{CellId, Reported, Rsrp, Serving, Silence};

use super::Detected;
use super::outcome::{PendingHandover, Span};

#[derive(Clone, Debug, Default)]
pub(super) struct CarrierDetector {
    name: String,
    /// The last report.
    last: Option<Seen>,
    /// How often in a row the modem has repeated its cell in time.
    repeated: u32,
    /// The modem repeats its cell while it stays the same.
    repeats: bool,
    change: Option<PendingHandover>,
    /// The last silences, oldest first; only the last may still last.
    spans: VecDeque<Span>,
    /// The last times of progress on the path, in order.
    heard: VecDeque<Instant>,
    /// The modem has reported the loss of a cell, or how a handover ended.
    reports_losses: bool,
    /// The modem's report of a handover that has not been seen yet.
    verdict: Option<Reported>,
    /// When the last concluded change joined its cell.
    concluded_at: Option<Instant>,
    pub(super) detected: Vec<Detected>,
    /// See [`Unrecorded`](super::Unrecorded).
    pub(super) gaps: u64,
    /// See [`Unrecorded`](super::Unrecorded).
    pub(super) untold: u64,
}

/// A report of a modem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub at: Instant,
    pub cell: Option<CellId>,
    pub rsrp: Option<Rsrp>,
}

impl CarrierDetector {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub fn current(&self, now: Instant) -> Option<Seen> {
        self.last.filter(|seen| now.saturating_duration_since(seen.at) <= STALE)
    }

    pub fn serving(&mut self, serving: &Serving) {
        let Serving { at, cell, rsrp, .. } = *serving;
        if self.last.is_some_and(|last| at < last.at) {
            return;
        }
        self.reports_losses |= cell.is_none();
        if let Some(change) = self.change.as_mut().filter(|change| change.joined.is_some()) {
            change.followed = change.followed.or(Some(at));
        }
        self.advance(at);
        self.drop_outdated(at);
        self.note_repeat(at, cell);
        let before = self.last.replace(Seen { at, cell, rsrp });
        let joined = self.change.as_ref().map(|change| change.joined.map(|(to, _)| to));
        match (joined, cell) {
            (None, _) => self.begin(before, at, cell),
            (Some(None), _) => self.continue_change(at, cell),
            (Some(Some(to)), cell) if cell == Some(to) => {}
            (Some(Some(_)), _) if self.is_silent(at) => self.continue_change(at, cell),
            (Some(Some(_)), _) => {
                self.conclude(at);
                self.begin(before, at, cell);
            }
        }
        self.advance(at);
    }

    /// Whether the last report is too old: the modem or its source was down for a while. A modem
    /// that repeats its cell is noticed soon. One that reports only changes may be silent for as
    /// long as the train is in a cell.
    fn is_outdated(&self, last: Seen, at: Instant) -> bool {
        let silent = at.saturating_duration_since(last.at);
        silent > if self.repeats { STALE } else { UNTOLD_MAX }
    }

    /// Drops an outdated report, because the train may have passed other cells since. Whether the
    /// modem repeats its cell must show again: it may report only changes, and some of them twice.
    fn drop_outdated(&mut self, at: Instant) {
        if self.last.is_some_and(|last| self.is_outdated(last, at)) {
            let last = self.last.take();
            (self.repeats, self.repeated) = (false, 0);
            self.gaps += u64::from(last.is_some_and(|last| last.cell.is_some()));
        }
    }

    fn note_repeat(&mut self, at: Instant, cell: Option<CellId>) {
        let same = self.last.filter(|last| cell.is_some() && last.cell == cell);
        match same.map(|last| at.saturating_duration_since(last.at)) {
            // Several reports of one change.
            Some(apart) if apart < AT_ONCE => {}
            Some(apart) if apart <= STALE => self.repeated = self.repeated.saturating_add(1),
            _ => self.repeated = 0,
        }
        self.repeats |= self.repeated >= AGAIN;
    }

    pub fn reported(&mut self, reported: &Reported) {
        self.reports_losses = true;
        let late = |until: Instant| reported.at <= until + VERDICT;
        if self.change.is_none() && self.concluded_at.is_some_and(late) {
            return;
        }
        if self.verdict.is_some() {
            self.conclude_unseen();
        }
        self.verdict = Some(reported.clone());
        self.advance(reported.at);
    }

    pub fn silence(&mut self, silence: &Silence) {
        let at = silence.at;
        if let Some(span) = self.spans.back_mut().filter(|span| span.until.is_none()) {
            match silence.since {
                // The same silence.
                Some(since) if since <= span.since + SAME => return,
                // Data must have been acknowledged in between.
                Some(since) => span.until = Some(since),
                None => {
                    span.until = Some(at.max(span.since));
                    span.kept = silence.kept;
                }
            }
        }
        if silence.since.is_none() {
            self.note_heard(at);
        }
        if let Some(since) = silence.since {
            if self.spans.len() >= SPANS_MAX {
                self.spans.pop_front();
            }
            let span = Span { since: since.min(at), until: None, kept: None, used: false };
            self.spans.push_back(span);
        }
        self.advance(at);
    }

    pub fn heard(&mut self, at: Instant) {
        self.note_heard(at);
        self.advance(at);
    }

    fn note_heard(&mut self, at: Instant) {
        if self.heard.back().is_some_and(|last| at <= *last) {
            return;
        }
        if self.heard.len() >= HEARD_MAX {
            self.heard.pop_front();
        }
        self.heard.push_back(at);
    }

    pub fn advance(&mut self, now: Instant) {
        if let Some(span) = self.spans.back_mut().filter(|span| span.until.is_none())
            && now.saturating_duration_since(span.since) > SILENCE_MAX
        {
            // Its end was not reported.
            span.until = Some(now);
            span.used = true;
        }
        self.match_verdict(now);
        let Some(change) = &self.change else { return };
        let since = |then: Instant| now.saturating_duration_since(then);
        match change.joined {
            None if since(change.noticed) > GAP => self.give_up(),
            None => {}
            Some((_, joined)) => {
                let verdict = change.verdict.as_ref();
                if verdict.is_some_and(|verdict| verdict.dark.is_some()) {
                    self.conclude(now);
                } else if self.is_silent(now) {
                    if since(joined) > GAP {
                        self.give_up();
                    }
                } else if verdict.is_some() || since(joined) >= SETTLED {
                    self.conclude(now);
                }
            }
        }
    }

    /// Begins a change from the last cell to another one, or to none.
    fn begin(&mut self, before: Option<Seen>, at: Instant, cell: Option<CellId>) {
        let Some((from, before)) = before.and_then(|seen| Some((seen.cell?, seen))) else { return };
        if cell == Some(from) {
            return;
        }
        let lost = cell.is_none().then_some(at);
        self.change = Some(PendingHandover {
            from,
            rsrp: before.rsrp,
            last_seen: before.at,
            noticed: at,
            lost,
            joined: cell.map(|cell| (cell, at)),
            followed: None,
            dark_seen: lost,
            verdict: None,
        });
    }

    /// Continues a change without a new cell, or during a silence.
    fn continue_change(&mut self, at: Instant, cell: Option<CellId>) {
        let Some(change) = &mut self.change else { return };
        (change.joined, change.followed) = (cell.map(|cell| (cell, at)), None);
        if cell.is_none() {
            change.lost = change.lost.or(Some(at));
            change.dark_seen = Some(at);
        }
    }

    /// Whether a silence of the change lasts.
    fn is_silent(&self, now: Instant) -> bool {
        let Some(change) = &self.change else { return false };
        let last = self.spans.back().filter(|span| span.until.is_none());
        last.is_some_and(|span| change.overlaps(span, now) && !change.is_unrelated(span))
    }

    fn conclude(&mut self, now: Instant) {
        let Some(change) = self.change.take() else { return };
        self.concluded_at = change.joined.map(|(_, at)| at);
        let length = |span: &&Span| span.until.unwrap_or(now).saturating_duration_since(span.since);
        let overlapping = self.spans.iter().filter(|span| change.overlaps(span, now));
        let span = overlapping.max_by_key(length).copied();
        if change.verdict.is_none() && span.is_some_and(|span| change.is_unrelated(&span)) {
            self.untold += 1;
            return;
        }
        for other in self.spans.iter_mut() {
            other.used |= change.overlaps(other, now);
        }
        let detected = change.conclude(&self.name, span.as_ref(), now);
        let sure = change.verdict.is_some() || span.is_some() || detected.outcome.is_failure();
        // Evidence that the change cost no more than a successful handover.
        let is_seen = self.reports_losses && change.is_closely_reported();
        if sure || is_seen || self.is_heard_around(&change) {
            self.detected.push(detected);
        } else {
            self.untold += 1;
        }
    }

    /// Whether the path made progress while the cell changed and soon after, without a silence
    /// between.
    fn is_heard_around(&self, change: &PendingHandover) -> bool {
        let close = change.noticed.checked_sub(HEARD_BEFORE).unwrap_or(change.noticed);
        let from = change.earliest().min(close);
        let after = self.heard.partition_point(|at| *at <= change.noticed);
        let before = after.checked_sub(1).and_then(|place| self.heard.get(place));
        let (Some(before), Some(after)) = (before, self.heard.get(after)) else { return false };
        let silent =
            |span: &Span| span.since < *after && span.until.is_none_or(|until| until > *before);
        *before >= from
            && after.saturating_duration_since(change.noticed) <= HEARD_AFTER
            && !self.spans.iter().any(silent)
    }

    fn give_up(&mut self) {
        let Some(change) = self.change.take() else { return };
        self.gaps += 1;
        self.verdict = None;
        if change.joined.is_none() {
            self.last = self.last.map(|last| Seen { cell: None, ..last });
        }
    }

    /// Assigns the modem's report to its change. A report without a change within [`VERDICT`] was
    /// of a failure within the cell, or is discarded.
    fn match_verdict(&mut self, now: Instant) {
        let Some(verdict) = &self.verdict else { return };
        if let Some(change) = &mut self.change {
            let began = change.last_seen.checked_sub(VERDICT).unwrap_or(change.last_seen);
            let ended = change.joined.map_or(now, |(_, at)| at) + VERDICT;
            if change.verdict.is_none() && (began..=ended).contains(&verdict.at) {
                change.verdict = self.verdict.take();
            }
        } else if now.saturating_duration_since(verdict.at) > VERDICT {
            self.conclude_unseen();
        }
    }

    fn conclude_unseen(&mut self) {
        let Some(verdict) = self.verdict.take().filter(|one| one.outcome.is_failure()) else {
            return;
        };
        let last = self.last.filter(|last| !self.is_outdated(*last, verdict.at));
        let Some((last, from)) = last.and_then(|last| Some((last, last.cell?))) else { return };
        if self.change.is_some() {
            return;
        }
        let at = verdict.at;
        self.change = Some(PendingHandover {
            from,
            rsrp: last.rsrp,
            last_seen: at,
            noticed: at,
            lost: Some(at),
            joined: Some((from, at)),
            followed: None,
            dark_seen: None,
            verdict: Some(verdict),
        });
        self.conclude(at);
    }
}

/// How long after a change of cell the path may stall, or its stall be noticed.
const SETTLED: Duration = Duration::from_secs(2);
/// A modem reports a handover at most this long before or after its cell is polled.
const VERDICT: Duration = Duration::from_secs(2);
/// Twice the longest failure (POLYCORN 2.3: 10 s).
const GAP: Duration = Duration::from_secs(20);
/// The end of a longer silence was not reported.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// Silences that begin closer together are the same.
const SAME: Duration = Duration::from_millis(10);
/// The age at which a report of a modem that repeats its cell is outdated.
const STALE: Duration = Duration::from_secs(30);
/// Repetitions in a row that show that a modem repeats its cell.
const AGAIN: u32 = 2;
/// Reports that follow each other sooner are one.
const AT_ONCE: Duration = Duration::from_millis(50);
/// The age at which a report of a modem that reports only changes is outdated: no cell is longer,
/// 50 km at 300 km/h. A train that stands longer in a cell loses a handover from which LinkDB would
/// not learn.
const UNTOLD_MAX: Duration = Duration::from_secs(600);
/// A path in use made progress at most this long before a report: progress is reported every
/// 250 ms, and a path may be pinged every 200 ms.
const HEARD_BEFORE: Duration = Duration::from_millis(500);
/// And again this soon after it.
const HEARD_AFTER: Duration = Duration::from_secs(1);
/// Times of progress, 16 s; the oldest are dropped.
const HEARD_MAX: usize = 64;
/// Silences; the oldest are dropped.
const SPANS_MAX: usize = 8;
