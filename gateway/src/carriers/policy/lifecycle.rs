//! Handles the events of connections: answered, path, refused, closed.

use std::time::{Duration, Instant};

use polyrail_config::Mode;
use polyrail_model::TunnelMode;

use super::attempt::{Attempt, AttemptId, Stage};
use super::search::lane;
use super::{Cause, Decision, Ending, EndingKind, Notice, PATHS_MAX, Policy};

impl Policy {
    /// The session sends early data over the connection.
    pub(crate) fn on_early(&mut self, id: AttemptId) {
        if let Some(attempt) = self.find(id).filter(|attempt| attempt.stage == Stage::Dialing) {
            attempt.stage = Stage::Early;
            attempt.early = true;
        }
    }

    /// The handshake finished: the cloud answered.
    pub(crate) fn on_up(&mut self, now: Instant, id: AttemptId) {
        let Some(attempt) = self.find(id) else { return };
        attempt.up_at = Some(now);
        if matches!(attempt.stage, Stage::Dialing | Stage::Early) {
            attempt.stage = Stage::Greeting;
        }
        let trip = now.saturating_duration_since(attempt.started);
        let trip = self.rtt.map_or(trip, |rtt| rtt.smoothed).clamp(HOLD_MIN, HOLD_MAX);
        if let Some(search) = &mut self.search {
            // Only once, because the greeting may be lost and the answer does not become a path.
            search.hold_until.get_or_insert(now + trip);
        }
    }

    /// The session uses the connection as the path of this number.
    pub(crate) fn on_path(&mut self, now: Instant, id: AttemptId, number: u64) {
        let before = self.current().and_then(Attempt::path);
        let Some(attempt) = self.find(id).filter(|attempt| !attempt.closing) else { return };
        attempt.stage = Stage::Path(number);
        attempt.up_at.get_or_insert(now);
        let (mode, address) = (attempt.mode, attempt.address);
        self.book.worked(address);
        self.begin_afresh();
        let probed = self.probe.take_if(|probe| *probe == id).is_some();
        if before > Some(number) {
            // A newer connection is a path already: the session closes this one.
            return;
        }
        match mode {
            TunnelMode::Quic => self.choice.on_quic_path(now, probed),
            TunnelMode::Tls => self.choice.on_tls_path(now),
        }
        let was_down = !std::mem::replace(&mut self.carrying, true);
        self.settle_search(now, id, mode, was_down);
        self.decide(now, mode);
        self.close_losers(id, mode);
    }

    /// The session closes the connection.
    pub(crate) fn on_refused(&mut self, now: Instant, id: AttemptId, reason: &str) {
        let Some(attempt) = self.find(id) else { return };
        let was = std::mem::replace(&mut attempt.stage, Stage::Dismissed);
        attempt.closing = true;
        let mode = attempt.mode;
        if self.probe == Some(id) {
            self.drop_probe(now);
        }
        if self.current().is_some() {
            return;
        }
        if matches!(was, Stage::Path(_)) {
            return self.note_loss(now, reason);
        }
        self.back_off(now, mode);
        self.tell(Notice::Failed { reason: reason.to_owned() });
    }

    /// A connection was closed, or could not be started.
    pub(crate) fn on_closed(&mut self, now: Instant, id: AttemptId, ending: &Ending) {
        let Some(index) = self.attempts.iter().position(|attempt| attempt.id == id) else {
            return;
        };
        let attempt = self.attempts.remove(index);
        let was_path = matches!(attempt.stage, Stage::Path(_));
        if attempt.up_at.is_none() {
            match attempt.mode {
                TunnelMode::Quic => self.counters.quic_attempts_unanswered += 1,
                TunnelMode::Tls => self.counters.tls_attempts_unanswered += 1,
            }
        }
        if attempt.closing || was_path {
            return self.note_loss(now, &ending.reason);
        }
        let refused = ending.kind != EndingKind::Silent;
        self.book.failed(attempt.address, refused);
        if self.probe == Some(id) {
            self.probe = None;
            let verdict = self.choice.on_probe_failed(now, ending.kind);
            return self.obey(now, verdict);
        }
        if refused {
            self.back_off(now, attempt.mode);
            if let Some(search) = &mut self.search {
                search.hurried_at.get_or_insert(now);
            }
        }
        if self.current().is_none() && self.is_usable() {
            self.tell(Notice::Failed { reason: ending.reason.clone() });
        }
    }

    /// Records why the carrier uses this mode.
    pub(super) fn decide(&mut self, now: Instant, mode: TunnelMode) {
        let from = self.travelled.replace(mode);
        let reason = self.reason(mode, from);
        if from != Some(mode) {
            if from.is_some() {
                self.counters.mode_changes += 1;
            }
            self.tell(Notice::ModeChanged { from, to: mode, reason: reason.clone() });
        }
        let same = |known: &Decision| known.mode == mode && known.reason == reason;
        if !self.decision.as_ref().is_some_and(same) {
            self.decision = Some(Decision { mode, reason, at: now });
        }
    }

    fn reason(&self, mode: TunnelMode, from: Option<TunnelMode>) -> String {
        let wish = self.choice.wish();
        if wish != Mode::Auto {
            return format!("mode {wish} is set");
        }
        let demotion = self.choice.demotion();
        if let Some(demotion) = demotion.filter(|_| mode == TunnelMode::Tls) {
            return demotion.why.to_string();
        }
        let text = match mode {
            TunnelMode::Quic if demotion.is_some() => "QUIC was answered before TLS",
            TunnelMode::Tls => "TLS was answered before QUIC",
            TunnelMode::Quic if from == Some(TunnelMode::Tls) => "QUIC is answered again",
            TunnelMode::Quic => "QUIC was answered",
        };
        text.to_owned()
    }

    /// Ends the search if the new path satisfies it, and reports that.
    fn settle_search(&mut self, now: Instant, id: AttemptId, mode: TunnelMode, was_down: bool) {
        let path = self.attempts.iter().find(|attempt| attempt.id == id);
        let outdated = path.is_some_and(|path| self.is_outdated(path));
        let search = self.search.take_if(|search| search.cause != Cause::Config || !outdated);
        if was_down {
            self.tell(Notice::Up { attempt: id, mode });
        }
        let Some(search) = search else { return };
        let restarted = search.cause.is_urgent() || search.cause == Cause::Config;
        if !was_down && restarted {
            self.counters.restarts += 1;
            self.tell(Notice::Restarted {
                attempt: id,
                mode,
                cause: search.cause,
                attempts: search.started,
                took: search.age(now),
            });
        }
    }

    /// Closes connections that the new path makes unnecessary. Younger connections that sent their
    /// greeting stay, because the cloud may already send over them.
    fn close_losers(&mut self, id: AttemptId, mode: TunnelMode) {
        let begun = self.attempts.iter().find(|attempt| attempt.id == id).map(|path| path.id);
        self.close_unready("another connection carries", |policy, attempt| {
            if attempt.mode != mode {
                // A demoted carrier continues with TLS at once.
                return match mode {
                    TunnelMode::Quic => policy.choice.demotion().is_none(),
                    TunnelMode::Tls => !policy.choice.prefers_quic(),
                };
            }
            Some(attempt.id) < begun || !attempt.has_greeted()
        });
        let mut paths: Vec<(u64, AttemptId)> = self
            .attempts
            .iter()
            .filter_map(|attempt| attempt.path().map(|number| (number, attempt.id)))
            .collect();
        paths.sort_unstable();
        let excess = paths.len().saturating_sub(PATHS_MAX);
        for (_, id) in paths.into_iter().take(excess) {
            self.close(id, "newer connections carry");
        }
    }

    /// Reports the end of the last path, and starts a search for another.
    pub(super) fn note_loss(&mut self, now: Instant, reason: &str) {
        if !self.carrying || self.current().is_some() {
            return;
        }
        self.carrying = false;
        self.choice.on_disturbed();
        self.tell(Notice::Down { reason: reason.to_owned() });
        if self.is_usable() {
            // A running race continues with its connections.
            match &mut self.search {
                Some(search) if search.cause.is_urgent() => search.cause = Cause::Lost,
                _ => self.begin_search(now, Cause::Lost),
            }
        }
    }

    fn back_off(&mut self, now: Instant, mode: TunnelMode) {
        let lane = lane(mode);
        self.not_before[lane] = Some(now + self.backoffs[lane].next_wait());
    }

    pub(super) fn find(&mut self, id: AttemptId) -> Option<&mut Attempt> {
        self.attempts.iter_mut().find(|attempt| attempt.id == id)
    }
}

/// The bounds of the pause that the first answer of a search causes: one round trip.
const HOLD_MIN: Duration = Duration::from_millis(50);
const HOLD_MAX: Duration = Duration::from_secs(2);
