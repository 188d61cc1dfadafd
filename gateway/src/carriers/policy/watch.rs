//! What the path in use shows, and what follows from it: stalls, the rules of the modes, wishes
//! that nobody needs any more.
//!
//! What is not here: how a search goes on (`connections.rs`), and what becomes of connections
//! (`outcome.rs`).

use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

use super::attempt::Reading;
use super::choice::{self, Current, Verdict};
use super::demotion::Why;
use super::notice::{Cause, Notice, TrialResult};
use super::search::Search;
use super::{Policy, pace};

impl Policy {
    /// The newest path as the mode's rules see it, while no search hides it from them.
    pub(super) fn judged(&self, now: Instant) -> Option<Current> {
        let calm = |search: &Search| search.cause == Cause::Trial;
        let current = self.current().filter(|_| self.search.as_ref().is_none_or(calm))?;
        let srtt = current.reading.rtt.or(self.rtt).map(|rtt| rtt.smoothed).unwrap_or_default();
        let rates = current.meter.rates(now, choice::MEASURE);
        Some(Current { mode: current.mode, srtt, total: current.meter.total(), rates })
    }

    /// Begins and ends what the path's progress asks for.
    pub(super) fn watch_path(&mut self, now: Instant) {
        if self.stall_at(now).is_some_and(|at| at <= now) {
            return self.stall(now, Cause::Stall);
        }
        if self.wish_over_at().is_some_and(|at| at <= now) {
            return self.give_up_wish(now);
        }
        let Some(search) = &self.search else { return };
        if search.cause.ends_with_progress() && self.has_recovered(now, search) {
            let after = search.age(now);
            self.search = None;
            self.choice.defer_retry(now);
            self.tell(Notice::Recovered { after });
            self.close_unready("the old connection carries again", |_, attempt| {
                !attempt.has_greeted()
            });
        }
    }

    /// Ends a restart that nobody needs.
    pub(super) fn give_up_wish(&mut self, now: Instant) {
        let cause = self.search.take().map(|search| search.cause);
        self.close_unready("the old connection carries", |_, attempt| !attempt.has_greeted());
        let on_quic = self.current().is_some_and(|path| path.mode == TunnelMode::Quic);
        if cause == Some(Cause::Mode) && on_quic && self.choice.lift_demotion(now) {
            self.tell(Notice::Lifted);
            self.decide(now, TunnelMode::Quic, Cause::Mode);
        }
    }

    /// Whether the path that is doubted makes progress: what is sent arrives. That something comes
    /// says nothing about that.
    pub(super) fn has_recovered(&self, now: Instant, search: &Search) -> bool {
        let Some(mark) = search.mark else { return false };
        let path = self.attempts.iter().find(|attempt| attempt.id == mark.attempt);
        let Some(Reading { rtt, waiting_since, stalled, acked, received, .. }) =
            path.map(|path| path.reading)
        else {
            return false;
        };
        let patience = pace::stall_patience(rtt.or(self.rtt));
        let waits = waiting_since.is_some_and(|since| since + patience <= now);
        let answered = search.cause == Cause::Stall && waiting_since.is_none();
        let moved = acked > mark.acked || (answered && received > mark.received);
        moved && !waits && !stalled
    }

    pub(super) fn stall(&mut self, now: Instant, cause: Cause) {
        self.counters.stalls += 1;
        self.choice.on_disturbed();
        self.tell(Notice::Stalled { cause });
        self.begin_search(now, cause);
    }

    /// When the path counts as stalled; `None` while a search for that is on, or not wanted.
    pub(super) fn stall_at(&self, now: Instant) -> Option<Instant> {
        let reading = &self.doubtable()?.reading;
        if reading.stalled {
            return Some(now);
        }
        Some(reading.waiting_since? + pace::stall_patience(reading.rtt.or(self.rtt)))
    }

    /// When a restart that nobody needs is given up.
    pub(super) fn wish_over_at(&self) -> Option<Instant> {
        let search = self.search.as_ref()?;
        let wished = match search.cause {
            Cause::Cell
            | Cause::Address
            | Cause::Interface
            | Cause::Slow
            | Cause::Operator
            | Cause::Back => true,
            Cause::Mode => self.current().is_some_and(|path| self.choice.allows(path.mode)),
            _ => false,
        };
        let over = search.begun + WISHED_FOR;
        let healthy = self.current().is_some_and(|path| {
            let Reading { rtt, waiting_since, stalled, local, .. } = path.reading;
            let patience = pace::stall_patience(rtt.or(self.rtt));
            waiting_since.is_none_or(|since| since + patience > over)
                && !stalled
                && local.is_none_or(|own| self.link.has(own))
        });
        (wished && healthy).then_some(over)
    }

    pub(super) fn watch_mode(&mut self, now: Instant) {
        let Some(current) = self.judged(now) else { return };
        // A demotion may have been decided on a QUIC path, and its search been cut short.
        let demoted = current.mode == TunnelMode::Quic && self.choice.demotion().is_some();
        if !self.choice.allows(current.mode) || demoted {
            return self.begin_search(now, Cause::Mode);
        }
        let verdict = self.choice.turn(now, current);
        self.obey(now, verdict);
    }

    /// A path that is not made as connections are made now is replaced, however long that takes.
    pub(super) fn watch_spec(&mut self, now: Instant) {
        let outdated = self.current().is_some_and(|path| self.is_outdated(path));
        if outdated && self.search.is_none() {
            self.begin_search(now, Cause::Config);
        }
    }

    /// Carries out what the mode's rules say.
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
                if !again {
                    self.counters.demotions += 1;
                    if let Why::Policed { rate, tls, .. } = demotion.why {
                        self.tell(Notice::TrialOver { rate, result: TrialResult::Faster(tls) });
                    }
                }
                let retry_in = demotion.retry_at.saturating_duration_since(now);
                let reason = demotion.why.to_string();
                self.tell(Notice::Demoted { reason, retry_in, again });
                match self.current().map(|current| current.mode) {
                    Some(TunnelMode::Quic) => self.begin_search(now, Cause::Mode),
                    Some(current) => self.decide(now, current, Cause::Mode),
                    None => {}
                }
            }
            Some(Verdict::Back { pinned, tls }) => {
                let result = TrialResult::NoFaster(tls);
                self.tell(Notice::TrialOver { rate: pinned, result });
                self.begin_search(now, Cause::Back);
            }
            Some(Verdict::TrialFailed { pinned }) => {
                self.search = None;
                self.close_unready("the trial is over", |_, _| true);
                let result = TrialResult::Unknown;
                self.tell(Notice::TrialOver { rate: pinned, result });
            }
        }
    }

    /// A trial that is on ends without a result.
    pub(super) fn end_trial(&mut self, now: Instant) {
        if let Some(rate) = self.choice.drop_trial(now) {
            self.tell(Notice::TrialOver { rate, result: TrialResult::Unknown });
        }
    }
}

/// How long a restart without need goes on while the old path carries.
const WISHED_FOR: Duration = Duration::from_secs(10);
