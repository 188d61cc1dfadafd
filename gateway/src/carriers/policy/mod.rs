//! What one carrier does: when it connects, how it travels, and when it starts anew.
//!
//! No sockets and no clock: the driver tells what happened and what its connections show, at
//! `now`, and does what [`Policy::poll`] says. After any input: [`Policy::turn`], then `poll` until
//! `None`, then [`Policy::next_timeout`].
//!
//! ```text
//!   NoInterface / Disabled ──comes──> Searching ──a path──> Settled
//!            ^                          ^   ^                 │ │
//!            ├──────────── goes ────────┼───┼─────────────────┘ │
//!            └──────────── goes ────────┘   └── stall, new cell, new address, operator,
//!                                               mode, trial; the old path stays meanwhile
//! ```
//!
//! Invariants: besides paths at most [`Pace::alive_max`] connections are alive, and one probe; at
//! most [`PATHS_MAX`] paths; an old path goes only when a newer one is there (the session closes
//! it when the newer one carries), when the operator or the interface says so, or by itself.
//! `docs/carriers.md` has all rules and constants as operators see them.

mod addresses;
mod attempt;
mod choice;
mod connections;
mod demotion;
mod notice;
mod outcome;
mod pace;
mod search;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_config::Mode;
use polyrail_model::{Bitrate, TunnelMode};
use polyrail_tunnel::Backoff;

pub(crate) use self::attempt::{AttemptId, Reading, Rtt, Way};
pub(crate) use self::demotion::Demotion;
pub(crate) use self::notice::{
    Action, Cause, Counters, Decision, Ending, EndingKind, Link, Notice, Phase, Start, TrialResult,
};
pub(crate) use self::pace::Pace;

use self::addresses::AddressBook;
use self::attempt::Attempt;
use self::choice::Choice;
use self::search::{Search, lane};

/// The policy of one carrier.
#[derive(Debug)]
pub(crate) struct Policy {
    pace: Pace,
    enabled: bool,
    link: Link,
    attempts: Vec<Attempt>,
    search: Option<Search>,
    /// A lone QUIC connection beside a TLS path.
    probe: Option<AttemptId>,
    choice: Choice,
    book: AddressBook,
    backoffs: [Backoff; 2],
    not_before: [Option<Instant>; 2],
    /// When a search last began a connection.
    last_start: Option<Instant>,
    /// How often it was changed how connections leave this machine.
    generation: u64,
    /// The last round trip of this carrier.
    rtt: Option<Rtt>,
    next_id: u64,
    /// The mode of the last path.
    travelled: Option<TunnelMode>,
    /// The operator was told of a path, and not of its end.
    carrying: bool,
    decision: Option<Decision>,
    counters: Counters,
    phase: (Phase, Option<Instant>),
    actions: VecDeque<Action>,
}

/// Paths that a carrier keeps while the session has not let go of the older ones.
const PATHS_MAX: usize = 3;
/// The longest wait after refusals.
const REFUSED_MAX: Duration = Duration::from_secs(2);

impl Policy {
    /// A carrier that connects at its first turn.
    pub(crate) fn new(pace: Pace, mode: Mode, addresses: Vec<SocketAddr>, seed: u64) -> Self {
        let backoff = |lane| Backoff::with_max(REFUSED_MAX, seed.wrapping_add(lane));
        Self {
            pace,
            enabled: true,
            link: Link::Unknown,
            attempts: Vec::new(),
            search: None,
            probe: None,
            choice: Choice::new(mode),
            book: AddressBook::new(addresses),
            backoffs: [backoff(0), backoff(1)],
            not_before: [None; 2],
            last_start: None,
            generation: 0,
            rtt: None,
            next_id: 0,
            travelled: None,
            carrying: false,
            decision: None,
            counters: Counters::default(),
            phase: (Phase::Down, None),
            actions: VecDeque::new(),
        }
    }

    /// The carrier may not be used at first.
    pub(crate) fn begin_disabled(&mut self) {
        self.enabled = false;
    }

    /// The carrier is bound to something else now, of which nothing is known yet. The old path
    /// stays until a fresh one is there.
    pub(crate) fn rebind(&mut self, now: Instant) {
        self.link = Link::Unknown;
        self.respec(now);
    }

    /// Connections are made otherwise from now on: what is on its way is given up, and the path is
    /// replaced. It stays until a fresh one is there.
    pub(crate) fn respec(&mut self, now: Instant) {
        self.generation += 1;
        self.give_up_outdated(now);
        self.renew(now, Cause::Config);
    }

    fn give_up_outdated(&mut self, now: Instant) {
        let probes = |attempt: &Attempt| self.probe == Some(attempt.id);
        if self.attempts.iter().any(|attempt| probes(attempt) && self.is_outdated(attempt)) {
            self.drop_probe(now);
        }
        let unready = |attempt: &Attempt| attempt.is_unready() && self.is_outdated(attempt);
        if !self.attempts.iter().any(unready) {
            return;
        }
        self.close_unready("the carrier was changed", Self::is_outdated);
        if self.current().is_none() {
            // Begun anew at once: what it waited for is gone.
            self.search = None;
        }
    }

    /// Whether a connection is not such as would be made now.
    fn is_outdated(&self, attempt: &Attempt) -> bool {
        attempt.generation < self.generation || !self.book.contains(&attempt.address)
    }

    /// What is to be done, in order.
    pub(crate) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Takes what a connection shows.
    pub(crate) fn observe(&mut self, now: Instant, id: AttemptId, reading: Reading) {
        let Some(attempt) = self.attempts.iter_mut().find(|attempt| attempt.id == id) else {
            return;
        };
        let before = std::mem::replace(&mut attempt.reading, reading);
        attempt.meter.feed(now, reading.moved());
        let grown = reading.acked > before.acked || reading.received > before.received;
        let tcp_path = attempt.mode == TunnelMode::Tls && attempt.path().is_some();
        if self.current().is_some_and(|current| current.id == id) {
            self.rtt = reading.rtt.or(self.rtt);
        }
        if grown && tcp_path {
            let verdict = self.choice.on_sign(now);
            self.obey(now, verdict);
        }
    }

    /// Does what is due by now.
    pub(crate) fn turn(&mut self, now: Instant) {
        if self.is_usable() {
            self.watch_path(now);
            self.watch_mode(now);
            self.watch_spec(now);
            if self.search.is_none() && self.current().is_none() {
                let cause = if self.travelled.is_some() { Cause::Lost } else { Cause::Start };
                self.begin_search(now, cause);
            }
            self.expire(now);
            self.run_search(now);
        }
        self.note_phase(now);
    }

    /// When [`Policy::turn`] is next wanted.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let idle = self.is_usable() && self.current().is_none() && self.search.is_none();
        if idle || !self.actions.is_empty() {
            return Some(now);
        }
        if !self.is_usable() {
            return None;
        }
        let plan = self.plan().map(|plan| plan.at);
        let choice = self.judged(now).and_then(|current| self.choice.next_timeout(current));
        let wish = self.wish_over_at();
        let expiries = self.attempts.iter().filter_map(|attempt| self.expires_at(attempt));
        expiries.chain([plan, self.stall_at(now), choice, wish].into_iter().flatten()).min()
    }

    /// The operator lets the carrier be used, or not.
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

    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }

    /// The operator wishes a mode. A path of another one stays until the new one is there.
    pub(crate) fn set_mode(&mut self, now: Instant, mode: Mode) {
        if self.choice.wish() == mode {
            return;
        }
        self.drop_probe(now);
        self.end_trial(now);
        self.choice.set_wish(now, mode);
        self.close_unready("the mode was changed", |policy, attempt| {
            !policy.choice.allows(attempt.mode)
        });
        let urgent = self.search.as_ref().is_some_and(|search| search.cause.is_urgent());
        let Some(current) = self.current().map(|current| current.mode) else { return };
        match (mode, current) {
            _ if urgent => {}
            (Mode::Auto, TunnelMode::Tls) => self.begin_search(now, Cause::Mode),
            _ if !self.choice.allows(current) => self.begin_search(now, Cause::Mode),
            _ => {
                let of_mode = |search: &mut Search| {
                    matches!(search.cause, Cause::Mode | Cause::Trial | Cause::Back)
                };
                self.search.take_if(of_mode);
                self.decide(now, current, Cause::Mode);
            }
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.choice.wish()
    }

    /// Takes other bounds for restarts.
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Takes other addresses of the cloud; a path to one that is not among them is replaced.
    pub(crate) fn set_addresses(&mut self, now: Instant, addresses: Vec<SocketAddr>) {
        self.book.replace(addresses);
        self.give_up_outdated(now);
        if self.current().is_some_and(|path| self.is_outdated(path)) {
            self.renew(now, Cause::Config);
        }
    }

    /// Gives the carrier a fresh connection, whatever the old one does.
    pub(crate) fn renew(&mut self, now: Instant, cause: Cause) {
        if matches!(cause, Cause::Cell | Cause::Address | Cause::Interface) {
            self.choice.on_network_change(now);
        }
        let restart = self.pace.restart.enabled || matches!(cause, Cause::Operator | Cause::Config);
        let urgent =
            |search: &Search| search.cause.is_urgent() && !search.cause.ends_with_progress();
        if !self.is_usable()
            || self.current().is_none()
            || !restart
            || self.search.as_ref().is_some_and(urgent)
        {
            return self.begin_afresh();
        }
        self.tell(Notice::Restarting { cause });
        self.begin_search(now, cause);
    }

    /// The interface is now like this.
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
        } else if let Some(own) = self.current().and_then(|path| path.reading.local)
            && !self.link.has(own)
        {
            self.renew(now, Cause::Address);
        }
        self.note_phase(now);
    }

    /// The cloud says that what it sends over this path stops.
    pub(crate) fn on_peer_stall(&mut self, now: Instant, id: AttemptId) {
        let concerned = self.current().is_some_and(|current| current.id == id);
        let calm = self.search.as_ref().is_none_or(|search| !search.cause.is_urgent());
        if concerned && calm && self.pace.restart.enabled && self.is_usable() {
            self.stall(now, Cause::PeerStall);
        }
    }

    /// The side that sends this way suspects that UDP is policed to `rate`.
    pub(crate) fn on_policed(&mut self, now: Instant, id: AttemptId, rate: Bitrate, way: Way) {
        let concerned =
            self.current().is_some_and(|path| path.id == id && path.mode == TunnelMode::Quic);
        if !concerned || self.search.is_some() || !self.is_usable() || self.choice.on_trial() {
            return;
        }
        if self.choice.wish() == Mode::Quic {
            // Whatever it is, a fresh connection neither remembers a rate that has collapsed nor
            // packets of a size that no longer passes.
            if self.choice.may_renew(now) {
                self.renew(now, Cause::Slow);
            }
            return;
        }
        let verdict = self.choice.on_policed(now, rate, way);
        self.obey(now, verdict);
        if self.choice.on_trial() {
            self.counters.trials += 1;
            self.tell(Notice::Trial { rate });
            self.begin_search(now, Cause::Trial);
        }
    }

    /// How it is doing, and since when.
    pub(crate) fn phase(&self) -> (Phase, Option<Instant>) {
        self.phase
    }

    pub(crate) fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    pub(crate) fn demotion(&self) -> Option<&Demotion> {
        self.choice.demotion()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether a connection is neither being closed nor left to the session to close.
    pub(crate) fn is_open(&self, id: AttemptId) -> bool {
        let open = |attempt: &&Attempt| attempt.is_unready() || attempt.path().is_some();
        self.attempts.iter().filter(open).any(|attempt| attempt.id == id)
    }

    /// The connection in use.
    pub(crate) fn in_use(&self) -> Option<AttemptId> {
        self.current().map(|current| current.id)
    }

    /// The connection in use, if a stall of it would begin a restart.
    pub(crate) fn watched(&self) -> Option<AttemptId> {
        self.doubtable().filter(|_| self.is_usable()).map(|path| path.id)
    }

    fn doubtable(&self) -> Option<&Attempt> {
        let urgent = self.search.as_ref().is_some_and(|search| search.cause.is_urgent());
        self.current().filter(|_| !urgent && self.pace.restart.enabled)
    }

    fn is_usable(&self) -> bool {
        self.enabled && self.fits_any(&self.link)
    }

    fn fits_any(&self, link: &Link) -> bool {
        self.book.any(|address| link.reaches(address))
    }

    /// The newest path.
    fn current(&self) -> Option<&Attempt> {
        self.attempts.iter().filter(|attempt| attempt.path().is_some()).max_by_key(|a| a.path())
    }

    fn tell(&mut self, notice: Notice) {
        self.actions.push_back(Action::Tell(notice));
    }

    fn note_phase(&mut self, now: Instant) {
        let urgent = self.search.as_ref().is_some_and(|search| search.cause.ends_with_progress());
        let phase = match self.current() {
            _ if !self.enabled => Phase::Disabled,
            _ if !self.fits_any(&self.link) => Phase::NoInterface,
            Some(_) if urgent => Phase::Stalled,
            Some(_) => Phase::Up,
            None => Phase::Down,
        };
        if self.phase.0 != phase || self.phase.1.is_none() {
            self.phase = (phase, Some(now));
        }
    }
}

/// The index of a mode's own things.
fn of(mode: TunnelMode) -> usize {
    lane(mode)
}
