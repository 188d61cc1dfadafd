//! Handles the events of connections: answered, path, refused, closed.

use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

use super::attempt::{Attempt, AttemptId, Stage};
use super::search::lane;
use super::{Cause, Decision, Ending, EndingKind, Notice, PATHS_MAX, Policy};

impl Policy {
    /// The session sends early data over the connection.
    pub(crate) fn on_early(&mut self, id: AttemptId) {
        let attempt = self.attempts.get_mut(id);
        if let Some(attempt) = attempt.filter(|attempt| attempt.stage == Stage::Dialing) {
            attempt.stage = Stage::Early;
            attempt.early = true;
        }
    }

    /// The handshake finished: the cloud answered.
    pub(crate) fn on_up(&mut self, now: Instant, id: AttemptId) {
        let Some(attempt) = self.attempts.get_mut(id) else { return };
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
        let before = self.attempts.current().and_then(Attempt::path);
        let attempt = self.attempts.get_mut(id).filter(|attempt| !attempt.closing);
        let Some(attempt) = attempt else { return };
        attempt.stage = Stage::Path(number);
        attempt.up_at.get_or_insert(now);
        let (mode, address) = (attempt.mode, attempt.address);
        self.book.worked(address);
        self.begin_afresh();
        let probed = self.attempts.probe.take_if(|probe| *probe == id).is_some();
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
        let Some(attempt) = self.attempts.get_mut(id) else { return };
        let was = std::mem::replace(&mut attempt.stage, Stage::Dismissed);
        attempt.closing = true;
        let mode = attempt.mode;
        if self.attempts.probe == Some(id) {
            self.drop_probe(now);
        }
        if self.attempts.current().is_some() {
            return;
        }
        if matches!(was, Stage::Path(_)) {
            return self.note_loss(now, reason, Cause::Gone);
        }
        self.backoffs[lane(mode)].refused(now);
        self.tell(Notice::Failed { reason: reason.to_owned() });
    }

    /// A connection was closed, or could not be started.
    pub(crate) fn on_closed(&mut self, now: Instant, id: AttemptId, ending: &Ending) {
        let Some(attempt) = self.attempts.remove(id) else { return };
        let was_path = matches!(attempt.stage, Stage::Path(_));
        if attempt.up_at.is_none() {
            match attempt.mode {
                TunnelMode::Quic => self.counters.quic_attempts_unanswered += 1,
                TunnelMode::Tls => self.counters.tls_attempts_unanswered += 1,
            }
        }
        if attempt.closing || was_path {
            let by_peer = matches!(ending.kind, EndingKind::Refused | EndingKind::Rejected);
            let cause = if by_peer { Cause::Gone } else { Cause::Lost };
            return self.note_loss(now, &ending.reason, cause);
        }
        let refused = ending.kind != EndingKind::Silent;
        self.book.failed(attempt.address, refused);
        if self.attempts.probe.take_if(|probe| *probe == id).is_some() {
            let verdict = self.choice.on_probe_failed(now, ending.kind);
            return self.obey(now, verdict);
        }
        if refused {
            self.backoffs[lane(attempt.mode)].refused(now);
            if let Some(search) = &mut self.search {
                search.hurried_at.get_or_insert(now);
            }
        }
        if self.attempts.current().is_none() && self.is_usable() {
            self.tell(Notice::Failed { reason: ending.reason.clone() });
        }
    }

    /// The mode of the last path.
    pub(super) fn travelled(&self) -> Option<TunnelMode> {
        self.decision.as_ref().map(|decision| decision.mode)
    }

    /// Records why the carrier uses this mode.
    pub(super) fn decide(&mut self, now: Instant, mode: TunnelMode) {
        let from = self.travelled();
        let reason = self.choice.reason(mode, from);
        let same = |known: &Decision| known.mode == mode && known.reason == reason;
        if self.decision.as_ref().is_some_and(same) {
            return;
        }
        self.decision = Some(Decision { mode, reason: reason.clone(), at: now });
        if from != Some(mode) {
            self.counters.mode_changes += u64::from(from.is_some());
            self.tell(Notice::ModeChanged { from, to: mode, reason });
        }
    }

    /// Ends the search if the new path satisfies it, and reports that.
    fn settle_search(&mut self, now: Instant, id: AttemptId, mode: TunnelMode, was_down: bool) {
        let outdated = self.attempts.get(id).is_some_and(|path| self.is_outdated(path));
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
        self.close_unready("another connection carries", |policy, attempt| {
            if attempt.mode != mode {
                // A demoted carrier continues with TLS at once.
                return match mode {
                    TunnelMode::Quic => policy.choice.demotion().is_none(),
                    TunnelMode::Tls => !policy.choice.prefers_quic(),
                };
            }
            attempt.id < id || !attempt.has_greeted()
        });
        let path = |attempt: &Attempt| attempt.path().map(|number| (number, attempt.id));
        let mut paths: Vec<_> = self.attempts.list.iter().filter_map(path).collect();
        paths.sort_unstable();
        let excess = paths.len().saturating_sub(PATHS_MAX);
        for (_, id) in paths.into_iter().take(excess) {
            self.close(id, "newer connections carry");
        }
    }

    /// Reports the end of the last path, and starts a search for another.
    pub(super) fn note_loss(&mut self, now: Instant, reason: &str, cause: Cause) {
        if !self.carrying || self.attempts.current().is_some() {
            return;
        }
        self.carrying = false;
        self.choice.on_disturbed();
        self.tell(Notice::Down { reason: reason.to_owned() });
        if !self.is_usable() {
            return;
        }
        // A running race continues with its connections.
        match &mut self.search {
            Some(search) if search.cause.is_urgent() => search.cause = cause,
            _ => self.begin_search(now, cause),
        }
        if cause == Cause::Gone {
            self.backoffs[0].spread(now, GONE_SPREAD);
            self.backoffs[1].until = self.backoffs[0].until;
        }
    }

    /// A search that shares the cloud with those of all gateways becomes a usual race if it takes
    /// long: the carrier may have failed, too.
    pub(super) fn watch_gone(&mut self, now: Instant) {
        let search = self.search.as_mut().filter(|search| search.cause == Cause::Gone);
        if let Some(search) = search.filter(|search| search.age(now) >= GONE_FOR) {
            search.cause = Cause::Lost;
        }
    }
}

/// The bounds of the pause that the first answer of a search causes: one round trip.
const HOLD_MIN: Duration = Duration::from_millis(50);
const HOLD_MAX: Duration = Duration::from_secs(2);
/// When a cloud ends the connections of all its gateways, their first attempts spread over this
/// time: 300 trains with three carriers are then 180 handshakes in 100 ms, which one core answers.
const GONE_SPREAD: Duration = Duration::from_millis(500);
/// How long such a search has one connection at a time.
const GONE_FOR: Duration = Duration::from_secs(5);
