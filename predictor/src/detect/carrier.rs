//! One carrier's modem and path.
//!
//! ```text
//! unknown --cell--> camped --other cell--> joined --settled, 20 s silent--> camped
//! camped --no cell--> lost --cell--> joined
//! lost --20 s--> unknown
//! camped, lost --unheard for too long--> unknown
//! joined --other cell, no cell, while silent--> joined, lost (the same change)
//! joined --other cell, no cell--> told; joined, lost (another change)
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::{CellId, Reported, Rsrp, Serving, Silence};

use super::Detected;
use super::outcome::{Change, Span};

#[derive(Clone, Debug, Default)]
pub(super) struct Carrier {
    /// The last report.
    last: Option<Seen>,
    /// How often the last report's cell was told again, each time in good time.
    again: u32,
    /// The modem tells its cell again while that stays the same.
    tells_again: bool,
    change: Option<Change>,
    /// The last silences, the oldest first; only the last may still last.
    spans: VecDeque<Span>,
    /// When the path was heard, in order, the last times.
    heard: VecDeque<Instant>,
    /// The modem has told a loss of the cell, or how a handover ended.
    tells_losses: bool,
    /// What the modem has said of a handover that has not been seen.
    verdict: Option<Reported>,
    /// When the cell of the last change was joined.
    told_until: Option<Instant>,
    detected: Vec<Detected>,
    gaps: u64,
    untold: u64,
}

/// A report of a modem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub at: Instant,
    pub cell: Option<CellId>,
    pub rsrp: Option<Rsrp>,
}

impl Carrier {
    pub fn current(&self, now: Instant) -> Option<Seen> {
        self.last.filter(|seen| now.saturating_duration_since(seen.at) <= STALE)
    }

    pub fn take(&mut self) -> Vec<Detected> {
        std::mem::take(&mut self.detected)
    }

    pub fn take_counts(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.gaps), std::mem::take(&mut self.untold))
    }

    pub fn serving(&mut self, serving: &Serving) {
        let Serving { at, cell, rsrp, .. } = *serving;
        if self.last.is_some_and(|last| at < last.at) {
            return;
        }
        self.tells_losses |= cell.is_none();
        if let Some(change) = self.change.as_mut().filter(|change| change.joined.is_some()) {
            change.followed = change.followed.or(Some(at));
        }
        self.advance(at);
        self.lose_track(at);
        self.note_again(at, cell);
        let before = self.last.replace(Seen { at, cell, rsrp });
        let joined = self.change.as_ref().map(|change| change.joined.map(|(to, _)| to));
        match (joined, cell) {
            (None, _) => self.begin(before, at, cell),
            (Some(None), _) => self.continue_change(at, cell),
            (Some(Some(to)), cell) if cell == Some(to) => {}
            (Some(Some(_)), _) if self.is_silent(at) => self.continue_change(at, cell),
            (Some(Some(_)), _) => {
                self.tell(at);
                self.begin(before, at, cell);
            }
        }
        self.advance(at);
    }

    /// Whether what was reported last may be of long ago: the modem or its source was gone for a
    /// while. Who tells a cell again and again is noticed soon; who tells changes alone may be
    /// silent for as long as a cell is long.
    fn is_outdated(&self, last: Seen, at: Instant) -> bool {
        let silent = at.saturating_duration_since(last.at);
        silent > if self.tells_again { STALE } else { UNTOLD_MAX }
    }

    /// Where the train has been since an outdated report nobody knows. That the modem tells a cell
    /// again is shown anew: it may tell changes alone, and have told some twice.
    fn lose_track(&mut self, at: Instant) {
        if self.last.is_some_and(|last| self.is_outdated(last, at)) {
            let last = self.last.take();
            (self.tells_again, self.again) = (false, 0);
            self.gaps += u64::from(last.is_some_and(|last| last.cell.is_some()));
        }
    }

    fn note_again(&mut self, at: Instant, cell: Option<CellId>) {
        let same = self.last.filter(|last| cell.is_some() && last.cell == cell);
        match same.map(|last| at.saturating_duration_since(last.at)) {
            // Several words on one change.
            Some(apart) if apart < AT_ONCE => {}
            Some(apart) if apart <= STALE => self.again = self.again.saturating_add(1),
            _ => self.again = 0,
        }
        self.tells_again |= self.again >= AGAIN;
    }

    pub fn reported(&mut self, reported: &Reported) {
        self.tells_losses = true;
        let late = |until: Instant| reported.at <= until + VERDICT;
        if self.change.is_none() && self.told_until.is_some_and(late) {
            return;
        }
        if self.verdict.is_some() {
            self.tell_unseen();
        }
        self.verdict = Some(reported.clone());
        self.advance(reported.at);
    }

    pub fn silence(&mut self, silence: &Silence) {
        let at = silence.at;
        if let Some(span) = self.spans.back_mut().filter(|span| span.until.is_none()) {
            match silence.since {
                // What is noticed again is not new.
                Some(since) if since <= span.since + SAME => return,
                // Something must have been acknowledged in between.
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
            // Its end was not told.
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
                let told = change.verdict.as_ref();
                if told.is_some_and(|verdict| verdict.dark.is_some()) {
                    self.tell(now);
                } else if self.is_silent(now) {
                    if since(joined) > GAP {
                        self.give_up();
                    }
                } else if told.is_some() || since(joined) >= SETTLED {
                    self.tell(now);
                }
            }
        }
    }

    /// The last cell is left for another one, or for none.
    fn begin(&mut self, before: Option<Seen>, at: Instant, cell: Option<CellId>) {
        let Some((from, before)) = before.and_then(|seen| Some((seen.cell?, seen))) else { return };
        if cell == Some(from) {
            return;
        }
        let lost = cell.is_none().then_some(at);
        self.change = Some(Change {
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

    /// No cell was found so far, or nothing passes yet and the cell changes again.
    fn continue_change(&mut self, at: Instant, cell: Option<CellId>) {
        let Some(change) = &mut self.change else { return };
        (change.joined, change.followed) = (cell.map(|cell| (cell, at)), None);
        if cell.is_none() {
            change.lost = change.lost.or(Some(at));
            change.dark_seen = Some(at);
        }
    }

    /// Whether a silence lasts that is the change's.
    fn is_silent(&self, now: Instant) -> bool {
        let Some(change) = &self.change else { return false };
        let last = self.spans.back().filter(|span| span.until.is_none());
        last.is_some_and(|span| change.overlaps(span, now) && !change.is_foreign(span))
    }

    fn tell(&mut self, now: Instant) {
        let Some(change) = self.change.take() else { return };
        self.told_until = change.joined.map(|(_, at)| at);
        let length = |span: &&Span| span.until.unwrap_or(now).saturating_duration_since(span.since);
        let overlapping = self.spans.iter().filter(|span| change.overlaps(span, now));
        let span = overlapping.max_by_key(length).copied();
        if change.verdict.is_none() && span.is_some_and(|span| change.is_foreign(&span)) {
            self.untold += 1;
            return;
        }
        for other in self.spans.iter_mut() {
            other.used |= change.overlaps(other, now);
        }
        let told = change.told(span.as_ref(), now);
        let sure = change.verdict.is_some() || span.is_some() || told.outcome.is_failure();
        if !sure && !self.has_gone_well(&change) {
            self.untold += 1;
            return;
        }
        self.detected.push(Detected {
            at: told.at,
            carrier: String::new(),
            from: change.from,
            to: change.joined.map(|(to, _)| to),
            rsrp: change.rsrp,
            outcome: told.outcome,
            dark: told.dark,
        });
    }

    /// Whether something shows that no more was lost in a change than a handover costs.
    fn has_gone_well(&self, change: &Change) -> bool {
        (self.tells_losses && change.is_closely_reported()) || self.is_heard_around(change)
    }

    /// Whether the path was heard while the cell changed and soon after, and not silent between.
    fn is_heard_around(&self, change: &Change) -> bool {
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

    /// Gives what the modem has said to the change that it belongs to; what belongs to none for
    /// long was a failure in the same cell, or nothing.
    fn match_verdict(&mut self, now: Instant) {
        let Some(verdict) = &self.verdict else { return };
        if let Some(change) = &mut self.change {
            let began = change.last_seen.checked_sub(VERDICT).unwrap_or(change.last_seen);
            let ended = change.joined.map_or(now, |(_, at)| at) + VERDICT;
            if change.verdict.is_none() && (began..=ended).contains(&verdict.at) {
                change.verdict = self.verdict.take();
            }
        } else if now.saturating_duration_since(verdict.at) > VERDICT {
            self.tell_unseen();
        }
    }

    fn tell_unseen(&mut self) {
        let Some(verdict) = self.verdict.take().filter(|one| one.outcome.is_failure()) else {
            return;
        };
        let last = self.last.filter(|last| !self.is_outdated(*last, verdict.at));
        let Some((last, from)) = last.and_then(|last| Some((last, last.cell?))) else { return };
        if self.change.is_some() {
            return;
        }
        let at = verdict.at;
        self.change = Some(Change {
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
        self.tell(at);
    }
}

/// A path may fall silent so long after its cell has changed, or its silence be noticed.
const SETTLED: Duration = Duration::from_secs(2);
/// A modem's word on a handover comes so long before or after its cell is polled, at most.
const VERDICT: Duration = Duration::from_secs(2);
/// Longer than the longest failure (POLYCORN 2.3: 10 s), twice.
const GAP: Duration = Duration::from_secs(20);
/// The end of a longer silence was not told.
const SILENCE_MAX: Duration = Duration::from_secs(600);
const SAME: Duration = Duration::from_millis(10);
const STALE: Duration = Duration::from_secs(30);
/// A modem that has told one cell again so often in a row does so always.
const AGAIN: u32 = 2;
/// Reports that follow each other so soon are one.
const AT_ONCE: Duration = Duration::from_millis(50);
/// No cell takes a train longer to pass: 50 km at 300 km/h. One that stands in it for longer and
/// is told no cell again loses a handover from which nothing is learned.
const UNTOLD_MAX: Duration = Duration::from_secs(600);
/// A path that is in use was heard so long before a report at most: what is heard is told every
/// 250 ms, and a path may be pinged every 200 ms.
const HEARD_BEFORE: Duration = Duration::from_millis(500);
/// And again so soon after it.
const HEARD_AFTER: Duration = Duration::from_secs(1);
/// Times that a path was heard that are remembered, 16 s; the oldest fall out.
const HEARD_MAX: usize = 64;
/// Silences that are remembered; the oldest fall out.
const SPANS_MAX: usize = 8;
