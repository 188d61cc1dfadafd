//! Connections: when a search or a probe starts one, in which mode, and when it is abandoned.
//!
//! `search.rs` chooses the next connection, `pace.rs` its lifetime.

use std::time::{Duration, Instant};

use polyrail_config::Mode;
use polyrail_model::TunnelMode;

use super::attempt::{Attempt, AttemptId, Stage};
use super::backoff::Backoff;
use super::notice::{Action, Cause, EndingKind, Start};
use super::search::{Lanes, Mark, Plan, Search, Sight};
use super::{Policy, pace};

impl Policy {
    pub(super) fn begin_search(&mut self, now: Instant, cause: Cause) {
        self.drop_probe(now);
        let current = self.attempts.current();
        let mark = current.map(|path| Mark { attempt: path.id, acked: path.reading.acked });
        // Consecutive searches share one pace; an operator's request starts at once.
        let paced = cause.is_urgent() && cause != Cause::Operator;
        let last_start = self.last_start.filter(|_| paced);
        self.search = Some(Search::new(now, cause, mark, last_start));
    }

    /// The modes that the search may use.
    pub(super) fn lanes(&self, search: &Search) -> Lanes {
        let (quic, tls) = (TunnelMode::Quic, TunnelMode::Tls);
        let alone = |first| Lanes { first, second: None };
        match (search.cause, self.choice.wish()) {
            (_, Mode::Tls) => alone(tls),
            (_, Mode::Quic) => alone(quic),
            (Cause::Mode, Mode::Auto) => {
                alone(if self.choice.demotion().is_some() { tls } else { quic })
            }
            (_, Mode::Auto) if self.choice.demotion().is_some() => {
                Lanes { first: tls, second: Some((quic, search.begun + DEMOTED_JOIN)) }
            }
            (_, Mode::Auto) => {
                // TLS won the last race, so QUIC may not work here.
                let doubtful = self.travelled() == Some(tls);
                let delay = if doubtful { Duration::ZERO } else { pace::join_delay(self.rtt) };
                let join = search.begun + delay;
                let join = search.hurried_at.map_or(join, |at| join.min(at));
                Lanes { first: quic, second: Some((tls, join)) }
            }
        }
    }

    pub(super) fn plan(&self) -> Option<Plan> {
        let search = self.search.as_ref()?;
        let sight = Sight {
            pace: &self.pace,
            rtt: self.rtt,
            attempts: &self.attempts.list,
            not_before: self.backoffs.each_ref().map(|backoff| backoff.until),
        };
        search.plan(self.lanes(search), sight)
    }

    pub(super) fn run_search(&mut self, now: Instant) {
        for _ in 0..STARTS_MAX {
            let Some(plan) = self.plan().filter(|plan| plan.at <= now) else { return };
            if let Some(replaced) = plan.replaces {
                self.give_up(now, replaced);
            }
            let search = self.search.as_mut();
            let patience = search.map_or(1, |search| search.on_start(now, &plan));
            self.last_start = Some(now);
            if self.start(now, plan.mode, patience).is_none() {
                return;
            }
        }
    }

    pub(super) fn begin_probe(&mut self, now: Instant) {
        self.attempts.probe = self.start(now, TunnelMode::Quic, 1);
        if self.attempts.probe.is_none() {
            self.choice.on_probe_dropped(now);
        }
    }

    pub(super) fn start(
        &mut self,
        now: Instant,
        mode: TunnelMode,
        patience: u32,
    ) -> Option<AttemptId> {
        let link = &self.link;
        let address = self.book.draw(|address| link.reaches(address))?;
        let racer = self.attempts.list.iter().any(|attempt| !attempt.closing);
        let id = self.attempts.add(now, mode, address, patience);
        self.counters.attempts += 1;
        match mode {
            TunnelMode::Quic => self.counters.quic_attempts += 1,
            TunnelMode::Tls => self.counters.tls_attempts += 1,
        }
        let early = self.pace.restart.early_data;
        let rtt = self.rtt.map(|rtt| rtt.smoothed);
        let start = Start { attempt: id, mode, address, early, racer, rtt };
        self.actions.push_back(Action::Start(start));
        Some(id)
    }

    /// Closes a connection that was not answered in time.
    pub(super) fn give_up(&mut self, now: Instant, id: AttemptId) {
        let Some(attempt) = self.attempts.get(id) else { return };
        if attempt.up_at.is_none() {
            self.book.failed(attempt.address, false);
        }
        if self.attempts.probe.take_if(|probe| *probe == id).is_some() {
            let verdict = self.choice.on_probe_failed(now, EndingKind::Silent);
            self.obey(now, verdict);
        }
        self.close(id, UNANSWERED);
    }

    /// Closes expired connections that no search counts.
    pub(super) fn expire(&mut self, now: Instant) {
        let due = |attempt: &&Attempt| self.expires_at(attempt).is_some_and(|at| at <= now);
        let over: Vec<AttemptId> = self.attempts.unready().filter(due).map(|a| a.id).collect();
        for id in over {
            self.give_up(now, id);
        }
    }

    pub(super) fn expires_at(&self, attempt: &Attempt) -> Option<Instant> {
        if attempt.up_at.is_some() {
            return None;
        }
        if self.attempts.probe == Some(attempt.id) {
            let srtt = self.rtt.map(|rtt| rtt.smoothed).unwrap_or_default();
            return Some(attempt.started + (srtt * 3 + PROBE_LIFE).max(PROBE_LIFE_MIN));
        }
        self.search.is_none().then(|| attempt.started + LEFTOVER_LIFE)
    }

    pub(super) fn drop_probe(&mut self, now: Instant) {
        if self.attempts.probe.take().is_some() {
            self.choice.on_probe_dropped(now);
        }
    }

    /// Resets the backoff after refusals, because something changed.
    pub(super) fn begin_afresh(&mut self) {
        self.backoffs.iter_mut().for_each(Backoff::reset);
    }

    pub(super) fn end_all(&mut self, now: Instant, reason: &'static str) {
        self.drop_probe(now);
        self.search = None;
        let all: Vec<_> = self.attempts.list.iter().map(|attempt| attempt.id).collect();
        all.into_iter().for_each(|id| self.close(id, reason));
        self.note_loss(now, reason, Cause::Lost);
    }

    pub(super) fn close_unready(
        &mut self,
        reason: &'static str,
        unwanted: impl Fn(&Self, &Attempt) -> bool,
    ) {
        let probe = self.attempts.probe;
        let over = |attempt: &&Attempt| Some(attempt.id) != probe && unwanted(self, attempt);
        let over: Vec<AttemptId> = self.attempts.unready().filter(over).map(|a| a.id).collect();
        over.into_iter().for_each(|id| self.close(id, reason));
    }

    pub(super) fn close(&mut self, id: AttemptId, reason: &'static str) {
        let attempt = self.attempts.get_mut(id);
        if let Some(attempt) = attempt.filter(|attempt| !attempt.closing) {
            attempt.closing = true;
            // The cloud may already use a connection that sent its greeting.
            let unheard = attempt.stage == Stage::Dialing
                || (attempt.stage == Stage::Early && reason == UNANSWERED);
            self.actions.push_back(Action::Close { attempt: id, unheard, reason });
        }
    }
}

/// The reason of most closed connections of a race.
const UNANSWERED: &str = "it was not answered in time";
/// The maximum number of connections that one turn starts.
const STARTS_MAX: usize = 4;
/// How long connections of an ended search may still become paths.
const LEFTOVER_LIFE: Duration = Duration::from_secs(3);
/// How long a probe waits for an answer, in addition to three round trips.
const PROBE_LIFE: Duration = Duration::from_millis(500);
const PROBE_LIFE_MIN: Duration = Duration::from_secs(1);
/// When QUIC joins a search of a demoted carrier: TCP may be blocked instead.
const DEMOTED_JOIN: Duration = Duration::from_secs(3);
