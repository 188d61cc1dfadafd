//! Watches the path in use: starts restarts after a stall, applies the rules of the modes, and ends
//! restarts that are no longer needed.
//!
//! The session decides what a stall is. `connections.rs` runs searches, `lifecycle.rs` handles the
//! connections' events.

use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

use super::Policy;
use super::attempt::{Attempt, AttemptId};
use super::choice::Verdict;
use super::notice::{Cause, Notice};
use super::search::Search;

impl Policy {
    /// The session reports that a path stalled, or recovered.
    pub(crate) fn set_stalled(&mut self, id: AttemptId, stalled: bool) {
        if let Some(attempt) = self.attempts.get_mut(id) {
            attempt.stalled = stalled;
        }
    }

    /// The cloud reports that its data on this path makes no progress.
    pub(crate) fn on_peer_stall(&mut self, now: Instant, id: AttemptId) {
        let concerned = self.watched().is_some_and(|current| current.id == id);
        if concerned && self.is_usable() {
            self.stall(now, Cause::PeerStall);
        }
    }

    /// The mode of the newest path, unless a search is about to change it.
    pub(super) fn settled_mode(&self) -> Option<TunnelMode> {
        self.attempts.current().filter(|_| self.search.is_none()).map(|path| path.mode)
    }

    /// The newest path, if a stall of it starts a restart.
    fn watched(&self) -> Option<&Attempt> {
        let urgent = self.search.as_ref().is_some_and(|search| search.cause.is_urgent());
        self.attempts.current().filter(|_| !urgent && self.pace.restart.enabled)
    }

    /// Whether a stall should start a restart.
    pub(super) fn is_stall_due(&self) -> bool {
        self.watched().is_some_and(|path| path.stalled)
    }

    /// Starts or ends restarts by the path's progress.
    pub(super) fn watch_path(&mut self, now: Instant) {
        if self.is_stall_due() {
            return self.stall(now, Cause::Stall);
        }
        if self.wish_over_at().is_some_and(|at| at <= now) {
            return self.give_up_wish(now);
        }
        let Some(search) = self.search.as_ref().filter(|search| self.has_recovered(search)) else {
            return;
        };
        let after = search.age(now);
        self.search = None;
        self.tell(Notice::Recovered { after });
        self.close_unready("the old connection carries again", |_, attempt| !attempt.has_greeted());
    }

    /// Ends a restart that is no longer needed.
    fn give_up_wish(&mut self, now: Instant) {
        let cause = self.search.take().map(|search| search.cause);
        self.close_unready("the old connection carries", |_, attempt| !attempt.has_greeted());
        let on_quic = self.attempts.current().is_some_and(|path| path.mode == TunnelMode::Quic);
        if cause == Some(Cause::Mode) && on_quic && self.choice.lift_demotion(now) {
            self.tell(Notice::Lifted);
            self.decide(now, TunnelMode::Quic);
        }
    }

    /// Whether the stall that caused a search is over. After the cloud's report this requires an
    /// acknowledgement, because received data says nothing about the other direction.
    fn has_recovered(&self, search: &Search) -> bool {
        let Some(mark) = search.mark.filter(|_| search.cause.ends_with_progress()) else {
            return false;
        };
        self.attempts.get(mark.attempt).is_some_and(|path| {
            !path.stalled && (search.cause == Cause::Stall || path.reading.acked > mark.acked)
        })
    }

    fn stall(&mut self, now: Instant, cause: Cause) {
        self.counters.stalls += 1;
        self.choice.on_disturbed();
        self.tell(Notice::Stalled { cause });
        self.begin_search(now, cause);
    }

    /// When a restart is abandoned because the old path works.
    pub(super) fn wish_over_at(&self) -> Option<Instant> {
        let (search, path) = (self.search.as_ref()?, self.attempts.current()?);
        let wished = match search.cause {
            Cause::Cell | Cause::Address | Cause::Interface | Cause::Slow | Cause::Operator => true,
            Cause::Mode => self.choice.allows(path.mode),
            _ => false,
        };
        let healthy = !path.stalled && path.reading.local.is_none_or(|own| self.link.has(own));
        (wished && healthy).then_some(search.begun + WISHED_FOR)
    }

    pub(super) fn watch_mode(&mut self, now: Instant) {
        let Some(mode) = self.settled_mode() else { return };
        // A demotion may have been decided on a QUIC path, and its search been cut short.
        let demoted = mode == TunnelMode::Quic && self.choice.demotion().is_some();
        if !self.choice.allows(mode) || demoted {
            return self.begin_search(now, Cause::Mode);
        }
        let verdict = self.choice.turn(now, mode);
        self.obey(now, verdict);
    }

    /// Replaces a path with outdated settings.
    pub(super) fn watch_spec(&mut self, now: Instant) {
        let outdated = self.attempts.current().is_some_and(|path| self.is_outdated(path));
        if outdated && self.search.is_none() {
            self.begin_search(now, Cause::Config);
        }
    }

    /// Carries out a verdict of the mode's rules.
    pub(super) fn obey(&mut self, now: Instant, verdict: Option<Verdict>) {
        match verdict {
            None => {}
            Some(Verdict::Probe { retry }) => {
                if retry {
                    self.tell(Notice::Retry);
                }
                self.begin_probe(now);
            }
            Some(Verdict::Demoted(demotion)) => {
                let again = demotion.since != now;
                self.counters.demotions += u64::from(!again);
                let retry_in = demotion.retry_at.saturating_duration_since(now);
                let reason = demotion.why.to_string();
                self.tell(Notice::Demoted { reason, retry_in, again });
                match self.attempts.current().map(|current| current.mode) {
                    Some(TunnelMode::Quic) => self.begin_search(now, Cause::Mode),
                    Some(current) => self.decide(now, current),
                    None => {}
                }
            }
            // A fresh connection starts with a new rate and a new packet size.
            Some(Verdict::Renew) => self.renew(now, Cause::Slow),
        }
    }
}

/// How long an optional restart continues while the old path works.
const WISHED_FOR: Duration = Duration::from_secs(10);
