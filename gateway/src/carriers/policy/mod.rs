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
mod notice;
mod outcome;
mod pace;
mod search;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_control::config::Mode;
use polyrail_model::{Bitrate, TunnelMode};
use polyrail_tunnel::Backoff;

pub(crate) use self::attempt::{AttemptId, Reading, Rtt, Way};
pub(crate) use self::choice::Demotion;
pub(crate) use self::notice::{
    Action, Cause, Counters, Decision, Ending, EndingKind, Link, Notice, Phase, Start, TrialResult,
};
pub(crate) use self::pace::Pace;

use self::addresses::AddressBook;
use self::attempt::{Attempt, Stage};
use self::choice::{Choice, Current, Verdict, Why};
use self::search::{Lanes, Mark, Plan, Search, Sight, lane};

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
/// How long connections that no search waits for any more may still become paths.
const LEFTOVER_LIFE: Duration = Duration::from_secs(3);
/// How long a probe waits for an answer, besides three round trips.
const PROBE_LIFE: Duration = Duration::from_millis(500);
const PROBE_LIFE_MIN: Duration = Duration::from_secs(1);
/// How long a restart without need goes on while the old path carries.
const WISHED_FOR: Duration = Duration::from_secs(10);
/// When QUIC joins a search of a demoted carrier: TLS may be what is blocked.
const DEMOTED_JOIN: Duration = Duration::from_secs(3);
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

    /// The newest path as the mode's rules see it, while no search hides it from them.
    fn judged(&self, now: Instant) -> Option<Current> {
        let calm = |search: &Search| search.cause == Cause::Trial;
        let current = self.current().filter(|_| self.search.as_ref().is_none_or(calm))?;
        let srtt = current.reading.rtt.or(self.rtt).map(|rtt| rtt.smoothed).unwrap_or_default();
        let rates = current.meter.rates(now, choice::MEASURE);
        Some(Current { mode: current.mode, srtt, total: current.meter.total(), rates })
    }

    /// Begins and ends what the path's progress asks for.
    fn watch_path(&mut self, now: Instant) {
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
    fn give_up_wish(&mut self, now: Instant) {
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
    fn has_recovered(&self, now: Instant, search: &Search) -> bool {
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

    fn stall(&mut self, now: Instant, cause: Cause) {
        self.counters.stalls += 1;
        self.choice.on_disturbed();
        self.tell(Notice::Stalled { cause });
        self.begin_search(now, cause);
    }

    /// When the path counts as stalled; `None` while a search for that is on, or not wanted.
    fn stall_at(&self, now: Instant) -> Option<Instant> {
        let reading = &self.doubtable()?.reading;
        if reading.stalled {
            return Some(now);
        }
        Some(reading.waiting_since? + pace::stall_patience(reading.rtt.or(self.rtt)))
    }

    /// When a restart that nobody needs is given up.
    fn wish_over_at(&self) -> Option<Instant> {
        let search = self.search.as_ref()?;
        let wished = match search.cause {
            Cause::Cell | Cause::Address | Cause::Interface | Cause::Operator | Cause::Back => true,
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

    fn watch_mode(&mut self, now: Instant) {
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
    fn watch_spec(&mut self, now: Instant) {
        let outdated = self.current().is_some_and(|path| self.is_outdated(path));
        if outdated && self.search.is_none() {
            self.begin_search(now, Cause::Config);
        }
    }

    /// Carries out what the mode's rules say.
    fn obey(&mut self, now: Instant, verdict: Option<Verdict>) {
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
    fn end_trial(&mut self, now: Instant) {
        if let Some(rate) = self.choice.drop_trial(now) {
            self.tell(Notice::TrialOver { rate, result: TrialResult::Unknown });
        }
    }

    fn begin_search(&mut self, now: Instant, cause: Cause) {
        self.drop_probe(now);
        if cause != Cause::Trial {
            self.end_trial(now);
        }
        let mark = self.current().map(|path| Mark {
            attempt: path.id,
            acked: path.reading.acked,
            received: path.reading.received,
        });
        // Searches that follow each other closely keep the pace of one; operators need not wait.
        let paced = cause.is_urgent() && cause != Cause::Operator;
        let last_start = self.last_start.filter(|_| paced);
        self.search = Some(Search::new(now, cause, mark, last_start));
    }

    /// The modes that the search may use.
    fn lanes(&self, search: &Search) -> Lanes {
        let (quic, tls) = (TunnelMode::Quic, TunnelMode::Tls);
        let alone = |first| Lanes { first, second: None };
        match (search.cause, self.choice.wish()) {
            (Cause::Trial, _) | (_, Mode::Tls) => alone(tls),
            (Cause::Back, _) | (_, Mode::Quic) => alone(quic),
            (Cause::Mode, Mode::Auto) => {
                alone(if self.choice.demotion().is_some() { tls } else { quic })
            }
            (_, Mode::Auto) if self.choice.demotion().is_some() => {
                Lanes { first: tls, second: Some((quic, search.begun + DEMOTED_JOIN)) }
            }
            (_, Mode::Auto) => {
                // QUIC has not proven itself here since TLS won the last race.
                let doubtful = self.travelled == Some(tls);
                let delay = if doubtful { Duration::ZERO } else { pace::join_delay(self.rtt) };
                let join = search.begun + delay;
                let join = search.hurried_at.map_or(join, |at| join.min(at));
                Lanes { first: quic, second: Some((tls, join)) }
            }
        }
    }

    fn plan(&self) -> Option<Plan> {
        let search = self.search.as_ref()?;
        let sight = Sight {
            pace: &self.pace,
            rtt: self.rtt,
            attempts: &self.attempts,
            not_before: self.not_before,
        };
        search.plan(self.lanes(search), sight)
    }

    fn run_search(&mut self, now: Instant) {
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

    fn begin_probe(&mut self, now: Instant) {
        self.probe = self.start(now, TunnelMode::Quic, 1);
        if self.probe.is_none() {
            self.choice.on_probe_dropped(now);
        }
    }

    fn start(&mut self, now: Instant, mode: TunnelMode, patience: u32) -> Option<AttemptId> {
        let link = &self.link;
        let address = self.book.draw(|address| link.reaches(address))?;
        let id = AttemptId(self.next_id);
        self.next_id += 1;
        let racer = self.attempts.iter().any(|attempt| !attempt.closing);
        self.attempts.push(Attempt {
            id,
            mode,
            address,
            stage: Stage::Dialing,
            started: now,
            up_at: None,
            reading: Reading::default(),
            meter: attempt::Meter::default(),
            patience,
            generation: self.generation,
            early: false,
            closing: false,
        });
        self.counters.of(mode).begun += 1;
        let early = self.pace.restart.early_data;
        let rtt = self.rtt.map(|rtt| rtt.smoothed);
        let start = Start { attempt: id, mode, address, early, racer, rtt };
        self.actions.push_back(Action::Start(start));
        Some(id)
    }

    /// Closes a connection that was not answered in time.
    fn give_up(&mut self, now: Instant, id: AttemptId) {
        let Some(attempt) = self.attempts.iter().find(|attempt| attempt.id == id) else { return };
        if attempt.up_at.is_none() {
            self.book.failed(attempt.address, false);
        }
        if self.probe == Some(id) {
            self.probe = None;
            let verdict = self.choice.on_probe_failed(now, EndingKind::Silent);
            self.obey(now, verdict);
        }
        self.close(id, UNANSWERED);
    }

    /// Ends connections whose time is over and that no search counts.
    fn expire(&mut self, now: Instant) {
        let due = |attempt: &&Attempt| self.expires_at(attempt).is_some_and(|at| at <= now);
        let over: Vec<AttemptId> = self.attempts.iter().filter(due).map(|a| a.id).collect();
        for id in over {
            self.give_up(now, id);
        }
    }

    fn expires_at(&self, attempt: &Attempt) -> Option<Instant> {
        if !attempt.is_unready() || attempt.up_at.is_some() {
            return None;
        }
        if self.probe == Some(attempt.id) {
            let srtt = self.rtt.map(|rtt| rtt.smoothed).unwrap_or_default();
            return Some(attempt.started + (srtt * 3 + PROBE_LIFE).max(PROBE_LIFE_MIN));
        }
        self.search.is_none().then(|| attempt.started + LEFTOVER_LIFE)
    }

    fn drop_probe(&mut self, now: Instant) {
        if self.probe.take().is_some() {
            self.choice.on_probe_dropped(now);
        }
    }

    /// Forgets refusals: something changed.
    fn begin_afresh(&mut self) {
        self.backoffs.iter_mut().for_each(Backoff::reset);
        self.not_before = [None; 2];
    }

    fn end_all(&mut self, now: Instant, reason: &'static str) {
        self.drop_probe(now);
        self.end_trial(now);
        self.search = None;
        let all: Vec<AttemptId> = self.attempts.iter().map(|attempt| attempt.id).collect();
        all.into_iter().for_each(|id| self.close(id, reason));
        self.note_loss(now, reason);
    }

    fn close_unready(&mut self, reason: &'static str, unwanted: impl Fn(&Self, &Attempt) -> bool) {
        let probe = self.probe;
        let unready = self.attempts.iter().filter(|attempt| attempt.is_unready());
        let over: Vec<AttemptId> = unready
            .filter(|attempt| Some(attempt.id) != probe && unwanted(self, attempt))
            .map(|attempt| attempt.id)
            .collect();
        over.into_iter().for_each(|id| self.close(id, reason));
    }

    fn close(&mut self, id: AttemptId, reason: &'static str) {
        let attempt = self.attempts.iter_mut().find(|attempt| attempt.id == id);
        if let Some(attempt) = attempt.filter(|attempt| !attempt.closing) {
            attempt.closing = true;
            // What has greeted may be a path at the cloud, if this is not for want of an answer.
            let unheard = attempt.stage == Stage::Dialing
                || (attempt.stage == Stage::Early && reason == UNANSWERED);
            self.actions.push_back(Action::Close { attempt: id, unheard, reason });
        }
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

/// Why most connections of a race are closed.
const UNANSWERED: &str = "it was not answered in time";
/// Connections that one turn begins.
const STARTS_MAX: usize = 4;

/// The index of a mode's own things.
fn of(mode: TunnelMode) -> usize {
    lane(mode)
}
