//! A search for a connection: chooses the next attempt, its time, and the attempt that it replaces.
//!
//! The modes that a search may use are its *lanes*. A single lane has all places. With two lanes,
//! the second joins later and has one place; the first has the others. If only one connection may
//! be alive, the lanes alternate.
//!
//! An attempt is replaced only after its lifetime. In a lane of several places one attempt in
//! [`PATIENT_EVERY`] is patient: it lives longer, in case the round trip has become longer.

use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

use super::attempt::{Attempt, AttemptId, Rtt, Stage};
use super::notice::Cause;
use super::pace::{Haste, Pace};

/// A running search.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) cause: Cause,
    pub(crate) begun: Instant,
    /// The number of started connections.
    pub(crate) started: u64,
    /// The path to replace, with its acknowledged bytes when the search began.
    pub(crate) mark: Option<Mark>,
    /// No further connections start until then, because the cloud answered one.
    pub(crate) hold_until: Option<Instant>,
    /// When a connection of the first lane was refused: the second lane joins at once.
    pub(crate) hurried_at: Option<Instant>,
    last_start: Option<Instant>,
    /// When earlier searches last started a connection.
    before: Option<Instant>,
    lanes: [Run; 2],
}

/// A path's acknowledged bytes when the search began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) attempt: AttemptId,
    pub(crate) acked: u64,
}

/// A lane's progress in this search.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    last: Option<Instant>,
    started: u32,
    replaced: u32,
}

/// The lanes of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lanes {
    pub(crate) first: TunnelMode,
    /// The other mode, and when it joins.
    pub(crate) second: Option<(TunnelMode, Instant)>,
}

/// The next connection to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) at: Instant,
    pub(crate) mode: TunnelMode,
    pub(crate) replaces: Option<AttemptId>,
}

/// The inputs of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    pub(crate) pace: &'a Pace,
    pub(crate) rtt: Option<Rtt>,
    pub(crate) attempts: &'a [Attempt],
    /// When a mode may be retried after a refusal; QUIC first.
    pub(crate) not_before: [Option<Instant>; 2],
}

impl Search {
    pub(crate) fn new(
        now: Instant,
        cause: Cause,
        mark: Option<Mark>,
        before: Option<Instant>,
    ) -> Self {
        Self {
            cause,
            begun: now,
            started: 0,
            mark,
            hold_until: None,
            hurried_at: None,
            last_start: None,
            before,
            lanes: [Run::default(); 2],
        }
    }

    /// The next connection; `None` if no lane may start one.
    pub(crate) fn plan(&self, lanes: Lanes, sight: Sight<'_>) -> Option<Plan> {
        let first = self.plan_lane(lanes.first, self.begun, lanes, sight);
        let second = lanes.second.and_then(|(mode, from)| self.plan_lane(mode, from, lanes, sight));
        let turn = |plan: &Plan| (plan.at, self.lanes[lane(plan.mode)].last);
        first.into_iter().chain(second).min_by_key(turn)
    }

    /// Records the start of a connection. Returns the factor of its lifetime.
    pub(crate) fn on_start(&mut self, now: Instant, plan: &Plan) -> u32 {
        self.started += 1;
        self.last_start = Some(now);
        let run = &mut self.lanes[lane(plan.mode)];
        run.last = Some(now);
        if plan.replaces.is_some() {
            run.replaced = run.replaced.saturating_add(1);
        }
        let (generation, place) = (run.started / PATIENT_EVERY, run.started % PATIENT_EVERY);
        run.started = run.started.saturating_add(1);
        if place == 0 { PATIENCE << generation.min(PATIENCE_DOUBLINGS) } else { 1 }
    }

    fn plan_lane(
        &self,
        mode: TunnelMode,
        from: Instant,
        lanes: Lanes,
        sight: Sight<'_>,
    ) -> Option<Plan> {
        let run = &self.lanes[lane(mode)];
        let held = [self.paced(mode, sight.pace), self.hold_until, sight.not_before[lane(mode)]];
        let mut at = held.into_iter().flatten().fold(from, Instant::max);
        let alive_max = self.alive_max(sight.pace);
        let places = match lanes.second {
            Some((second, _)) if second == mode => 1,
            Some(_) => alive_max.saturating_sub(1).max(1),
            None => alive_max,
        };
        let unready = || sight.attempts.iter().filter(|attempt| attempt.is_unready());
        let own = unready().filter(|attempt| attempt.mode == mode).count();
        let mut replaces = None;
        if own >= places {
            let (ripe, id) = self.ripe(mode, places, sight)?;
            // Spreads replacements evenly, because attempts that start together expire together.
            let shared = u32::try_from(places).unwrap_or(u32::MAX);
            let spread = run.last.map_or(at, |last| last + sight.pace.life(sight.rtt, 0) / shared);
            (at, replaces) = (at.max(ripe).max(spread), Some(id));
        } else if unready().count() >= alive_max {
            let (ripe, id) = self.ripe(other(mode), alive_max, sight)?;
            (at, replaces) = (at.max(ripe), Some(id));
        }
        Some(Plan { at, mode, replaces })
    }

    /// When the pace permits the next connection of a mode.
    fn paced(&self, mode: TunnelMode, pace: &Pace) -> Option<Instant> {
        let Some(last) = self.last_start else {
            return self.before.map(|last| last + pace.interval(Haste::Urgent, Duration::ZERO));
        };
        // The first connection of a lane starts when the lane joins, not an interval after the
        // other lane. If there is one place, the lanes share the urgent pace.
        let haste = match self.lanes[lane(mode)].last {
            Some(_) if self.cause.is_urgent() => Haste::Urgent,
            Some(_) => Haste::Calm,
            None if pace.frugal && self.hurried_at.is_none() => Haste::Urgent,
            None => return None,
        };
        Some(last + pace.interval(haste, last.saturating_duration_since(self.begun)))
    }

    fn alive_max(&self, pace: &Pace) -> usize {
        match self.cause {
            // A path is up meanwhile.
            Cause::Slow | Cause::Mode => 1,
            // Races of all gateways would keep a cloud that has just started from answering any.
            Cause::Gone => 1,
            _ => pace.alive_max(),
        }
    }

    /// The first attempt of a mode to reach the end of its lifetime, and when.
    fn ripe(
        &self,
        mode: TunnelMode,
        places: usize,
        sight: Sight<'_>,
    ) -> Option<(Instant, AttemptId)> {
        let of_mode =
            sight.attempts.iter().filter(|attempt| attempt.is_unready() && attempt.mode == mode);
        let replaced = if places > 1 { 0 } else { self.lanes[lane(mode)].replaced };
        let ends = of_mode.map(|attempt| {
            let life = match (attempt.stage, attempt.up_at) {
                (Stage::Greeting, Some(up_at)) => {
                    let rtt = attempt.reading.rtt.or(sight.rtt);
                    let patience = if places > 1 { attempt.patience } else { 1 };
                    up_at.saturating_duration_since(attempt.started)
                        + Pace::greeting_life(rtt, attempt.early, patience, replaced)
                }
                _ if places > 1 => sight.pace.patient_life(sight.rtt, attempt.patience),
                _ => sight.pace.life(sight.rtt, replaced),
            };
            (attempt.started + life, attempt.id)
        });
        ends.min()
    }

    /// Its duration so far.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }
}

/// In a lane of several places, the first of this many attempts is patient. A patient attempt
/// occupies its place for longer, so it must be rare.
const PATIENT_EVERY: u32 = 32;
/// The factor of the lifetime of the first patient attempt; it doubles for each further one.
const PATIENCE: u32 = 4;
const PATIENCE_DOUBLINGS: u32 = 4;

/// The place of a mode in tables of both.
pub(crate) fn lane(mode: TunnelMode) -> usize {
    match mode {
        TunnelMode::Quic => 0,
        TunnelMode::Tls => 1,
    }
}

/// The other mode.
pub(crate) fn other(mode: TunnelMode) -> TunnelMode {
    match mode {
        TunnelMode::Quic => TunnelMode::Tls,
        TunnelMode::Tls => TunnelMode::Quic,
    }
}
