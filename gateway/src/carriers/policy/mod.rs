//! The policy of one carrier: when it connects, in which mode, and when it restarts.
//!
//! It has no sockets and no clock: the driver reports events and the state of its connections at
//! `now`, and carries out the actions of [`Policy::poll`]. After each input it calls
//! [`Policy::turn`], then `poll` until `None`, then [`Policy::next_timeout`].
//!
//! ```text
//!   NoInterface / Disabled ──usable──> Searching ──path up──> Settled
//!            ^                          ^   ^                  │ │
//!            ├──────── unusable ────────┼───┼──────────────────┘ │
//!            └──────── unusable ────────┘   └── stall, new cell, new address, operator,
//!                                               mode; the old path stays meanwhile
//! ```
//!
//! Invariants: in addition to at most [`PATHS_MAX`] paths, at most [`Pace::alive_max`] connections
//! and one probe are alive. An old path closes only after a newer one is up (the session closes it
//! when the newer one carries data), if the operator disables the carrier, if the interface is
//! lost, or if its transport fails. `docs/carriers.md` explains all rules and constants for
//! operators.

mod addresses;
mod attempt;
mod backoff;
mod choice;
mod connections;
mod demotion;
mod lifecycle;
mod notice;
mod pace;
mod search;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use polyrail_admin::{PathCounters, PathPhase};
use polyrail_config::{Mode, Restart};
use polyrail_model::{Bitrate, TunnelMode};

pub(crate) use self::attempt::{AttemptId, Reading, Rtt};
pub(crate) use self::demotion::Demotion;
pub(crate) use self::notice::{Action, Cause, Decision, Ending, EndingKind, Link, Notice, Start};
pub(crate) use self::pace::Pace;

use self::addresses::AddressBook;
use self::attempt::{Attempt, Attempts};
use self::backoff::Backoff;
use self::choice::Choice;
use self::search::Search;

/// The policy of one carrier.
#[derive(Debug)]
pub(crate) struct Policy {
    pace: Pace,
    enabled: bool,
    link: Link,
    attempts: Attempts,
    search: Option<Search>,
    choice: Choice,
    book: AddressBook,
    /// Of each mode; QUIC first.
    backoffs: [Backoff; 2],
    /// When a search last started a connection.
    last_start: Option<Instant>,
    /// The last round-trip time of this carrier.
    rtt: Option<Rtt>,
    /// A path was reported to the operator, but not its end.
    carrying: bool,
    /// The mode of the last path, and why.
    decision: Option<Decision>,
    /// Since the start; without the bytes.
    counters: PathCounters,
    phase: Option<(PathPhase, Instant)>,
    actions: VecDeque<Action>,
}

/// The maximum number of paths, while the session has not closed the older ones.
const PATHS_MAX: usize = 3;

impl Policy {
    /// A carrier that connects at its first turn, if it is enabled.
    pub(crate) fn new(
        pace: Pace,
        enabled: bool,
        mode: Mode,
        addresses: Vec<SocketAddr>,
        seed: u64,
    ) -> Self {
        Self {
            pace,
            enabled,
            link: Link::Unknown,
            attempts: Attempts::default(),
            search: None,
            choice: Choice::new(mode),
            book: AddressBook::new(addresses),
            backoffs: [seed, seed.wrapping_add(1)].map(Backoff::new),
            last_start: None,
            rtt: None,
            carrying: false,
            decision: None,
            counters: PathCounters::default(),
            phase: None,
            actions: VecDeque::new(),
        }
    }

    /// The carrier is bound to another interface or address, whose state is unknown. The old path
    /// stays until a fresh one is up.
    pub(crate) fn rebind(&mut self, now: Instant) {
        self.link = Link::Unknown;
        self.respec(now);
    }

    /// The socket options changed: pending attempts are abandoned, and the path is replaced. It
    /// stays until a fresh one is up.
    pub(crate) fn respec(&mut self, now: Instant) {
        self.attempts.generation += 1;
        self.give_up_outdated(now);
        self.renew(now, Cause::Config);
    }

    fn give_up_outdated(&mut self, now: Instant) {
        let probe = self.attempts.probe.and_then(|id| self.attempts.get(id));
        if probe.is_some_and(|attempt| self.is_outdated(attempt)) {
            self.drop_probe(now);
        }
        if !self.attempts.unready().any(|attempt| self.is_outdated(attempt)) {
            return;
        }
        self.close_unready("the carrier was changed", Self::is_outdated);
        if self.attempts.current().is_none() {
            // Starts a new search at once, because the attempts of the old one are closed.
            self.search = None;
        }
    }

    /// Whether the settings of a connection have changed since it was started.
    fn is_outdated(&self, attempt: &Attempt) -> bool {
        attempt.generation < self.attempts.generation || !self.book.contains(&attempt.address)
    }

    /// The next action, in order.
    pub(crate) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Updates the state of a connection.
    pub(crate) fn observe(&mut self, now: Instant, id: AttemptId, reading: Reading) {
        let Some(attempt) = self.attempts.get_mut(id) else { return };
        let before = std::mem::replace(&mut attempt.reading, reading);
        let grown = reading.acked > before.acked || reading.received > before.received;
        let tcp_path = attempt.mode == TunnelMode::Tls && attempt.path().is_some();
        if self.attempts.current().is_some_and(|current| current.id == id) {
            self.rtt = reading.rtt.or(self.rtt);
        }
        if grown && tcp_path {
            let verdict = self.choice.on_sign(now);
            self.obey(now, verdict);
        }
    }

    /// Handles everything that is due.
    pub(crate) fn turn(&mut self, now: Instant) {
        if self.is_usable() {
            self.watch_gone(now);
            self.watch_path(now);
            self.watch_mode(now);
            self.watch_spec(now);
            if self.search.is_none() && self.attempts.current().is_none() {
                let cause = if self.decision.is_some() { Cause::Lost } else { Cause::Start };
                self.begin_search(now, cause);
            }
            self.expire(now);
            self.run_search(now);
        }
        self.note_phase(now);
    }

    /// When [`Policy::turn`] is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let idle = self.is_usable() && self.attempts.current().is_none() && self.search.is_none();
        if idle || !self.actions.is_empty() {
            return Some(now);
        }
        if !self.is_usable() {
            return None;
        }
        let plan = self.plan().map(|plan| plan.at);
        let choice = self.settled_mode().and_then(|mode| self.choice.next_timeout(mode));
        let stall = self.is_stall_due().then_some(now);
        let wish = self.wish_over_at();
        let expiries = self.attempts.unready().filter_map(|attempt| self.expires_at(attempt));
        expiries.chain([plan, stall, choice, wish].into_iter().flatten()).min()
    }

    /// The operator enables or disables the carrier.
    pub(crate) fn set_enabled(&mut self, now: Instant, enabled: bool) {
        if self.enabled == enabled {
            return;
        }
        self.enabled = enabled;
        if enabled {
            self.last_start = None;
            self.begin_afresh();
        } else {
            self.end_all(now, "the carrier was disabled");
        }
        self.note_phase(now);
    }

    /// The operator sets a mode. A path of another mode stays until the new one is up.
    pub(crate) fn set_mode(&mut self, now: Instant, mode: Mode) {
        if self.choice.wish() == mode {
            return;
        }
        self.drop_probe(now);
        self.choice.set_wish(now, mode);
        self.close_unready("the mode was changed", |policy, attempt| {
            !policy.choice.allows(attempt.mode)
        });
        let urgent = self.search.as_ref().is_some_and(|search| search.cause.is_urgent());
        let Some(current) = self.attempts.current().map(|current| current.mode) else { return };
        match (mode, current) {
            _ if urgent => {}
            (Mode::Auto, TunnelMode::Tls) => self.begin_search(now, Cause::Mode),
            _ if !self.choice.allows(current) => self.begin_search(now, Cause::Mode),
            _ => {
                self.search.take_if(|search| search.cause == Cause::Mode);
                self.decide(now, current);
            }
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.choice.wish()
    }

    /// Begins the schedule of a search afresh: another cloud answered over some carrier.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.begin_afresh();
        if let Some(cause) = self.search.as_ref().map(|search| search.cause) {
            self.last_start = None;
            self.begin_search(now, cause);
        }
    }

    /// Whether its interface may reach the cloud.
    pub(crate) fn has_link(&self) -> bool {
        self.fits_any(&self.link)
    }

    /// Sets other limits for restarts.
    pub(crate) fn set_restart(&mut self, restart: Restart) {
        self.pace.restart = restart;
    }

    /// Whether few connections are tried.
    pub(crate) fn set_frugal(&mut self, frugal: bool) {
        self.pace.frugal = frugal;
    }

    /// Whether another cloud serves the users.
    pub(crate) fn set_probing(&mut self, probing: bool) {
        self.pace.probing = probing;
    }

    /// Sets the cloud's addresses; a path to any other address is replaced.
    pub(crate) fn set_addresses(&mut self, now: Instant, addresses: Vec<SocketAddr>) {
        self.book.replace(addresses);
        self.give_up_outdated(now);
        if self.attempts.current().is_some_and(|path| self.is_outdated(path)) {
            self.renew(now, Cause::Config);
        }
    }

    /// The modem found a cell after it had none. A search goes on, and ends if the old connection
    /// makes progress: that knows the carrier's rate, which a fresh one has to learn. (On the rail
    /// bench, downloads were slower by 6 % when each found cell replaced the connection.)
    pub(crate) fn on_found_cell(&mut self, now: Instant) {
        self.choice.on_network_change(now);
        self.begin_afresh();
    }

    /// Replaces the carrier's connection, whatever its state.
    pub(crate) fn renew(&mut self, now: Instant, cause: Cause) {
        if matches!(cause, Cause::Cell | Cause::Address | Cause::Interface) {
            self.choice.on_network_change(now);
        }
        let restart = self.pace.restart.enabled || matches!(cause, Cause::Operator | Cause::Config);
        let urgent =
            |search: &Search| search.cause.is_urgent() && !search.cause.ends_with_progress();
        if !self.is_usable()
            || self.attempts.current().is_none()
            || !restart
            || self.search.as_ref().is_some_and(urgent)
        {
            return self.begin_afresh();
        }
        self.tell(Notice::Restarting { cause });
        self.begin_search(now, cause);
    }

    /// The interface's state changed.
    pub(crate) fn on_link(&mut self, now: Instant, link: Link) {
        if self.link == link {
            return;
        }
        let before = std::mem::replace(&mut self.link, link);
        let was_usable = self.fits_any(&before);
        if self.link == Link::Absent || self.link.replaces(&before) {
            self.end_all(now, "its interface is gone");
            self.last_start = None;
            self.choice.on_network_change(now);
        }
        if !self.fits_any(&self.link) {
            if was_usable && self.enabled {
                self.tell(Notice::LinkLost);
            }
            self.drop_probe(now);
            self.search = None;
            self.close_unready("its interface is down", |_, attempt| !attempt.has_greeted());
        } else if !was_usable {
            if self.enabled {
                self.tell(Notice::LinkBack);
            }
            self.last_start = None;
            self.begin_afresh();
            self.renew(now, Cause::Interface);
        } else if let Some(own) = self.attempts.current().and_then(|path| path.reading.local)
            && !self.link.has(own)
        {
            self.renew(now, Cause::Address);
        }
        self.note_phase(now);
    }

    /// The sender of one direction suspects that UDP is policed to `rate`.
    pub(crate) fn on_policed(&mut self, now: Instant, id: AttemptId, rate: Bitrate) {
        let path =
            self.attempts.current().filter(|path| path.id == id && path.mode == TunnelMode::Quic);
        if path.is_some() && self.search.is_none() && self.is_usable() {
            let verdict = self.choice.on_policed(now, rate);
            self.obey(now, verdict);
        }
    }

    /// The carrier's state, and since when; `None` before the first turn.
    pub(crate) fn phase(&self) -> Option<(PathPhase, Instant)> {
        self.phase
    }

    pub(crate) fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    pub(crate) fn demotion(&self) -> Option<&Demotion> {
        self.choice.demotion()
    }

    pub(crate) fn counters(&self) -> PathCounters {
        self.counters
    }

    /// Whether neither the policy nor the session is closing a connection.
    pub(crate) fn is_open(&self, id: AttemptId) -> bool {
        let open = |attempt: &Attempt| attempt.is_unready() || attempt.path().is_some();
        self.attempts.get(id).is_some_and(open)
    }

    /// The connection in use.
    pub(crate) fn in_use(&self) -> Option<AttemptId> {
        self.attempts.current().map(|current| current.id)
    }

    fn is_usable(&self) -> bool {
        self.enabled && self.fits_any(&self.link)
    }

    fn fits_any(&self, link: &Link) -> bool {
        self.book.any(|address| link.reaches(address))
    }

    fn tell(&mut self, notice: Notice) {
        self.actions.push_back(Action::Tell(notice));
    }

    fn note_phase(&mut self, now: Instant) {
        let urgent = self.search.as_ref().is_some_and(|search| search.cause.ends_with_progress());
        let phase = match self.attempts.current() {
            _ if !self.enabled => PathPhase::Disabled,
            _ if !self.fits_any(&self.link) => PathPhase::NoInterface,
            Some(_) if urgent => PathPhase::Stalled,
            Some(_) => PathPhase::Up,
            None => PathPhase::Down,
        };
        if self.phase.is_none_or(|(known, _)| known != phase) {
            self.phase = Some((phase, now));
        }
    }
}
