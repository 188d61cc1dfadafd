//! A search for a connection: which one is begun next, when, and in whose place.
//!
//! Modes that a search may use are its *lanes*. With one lane all places are its own. With two, the
//! second joins later and has one place, the first lane has the others. When only one connection
//! may be alive, the lanes take turns.
//!
//! A connection gives its place up only when it has lived its life. In a lane of several places one
//! in [`PATIENT_EVERY`] is patient: it lives longer, in case the round trip has become longer.

use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

use super::attempt::{Attempt, AttemptId, Rtt, Stage};
use super::notice::Cause;
use super::pace::{Haste, Pace};

/// A search that is on.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) cause: Cause,
    pub(crate) begun: Instant,
    /// Connections begun.
    pub(crate) started: u64,
    /// The path that it is about: acknowledged bytes when the search began.
    pub(crate) mark: Option<Mark>,
    /// The cloud answered one for the first time: no further ones until then.
    pub(crate) hold_until: Option<Instant>,
    /// A connection of the first lane was refused: the second need not wait.
    pub(crate) hurried_at: Option<Instant>,
    last_start: Option<Instant>,
    /// When the last connection of earlier searches was begun.
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

/// The next begin.
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
    /// When a mode may be tried again after a refusal, QUIC first.
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

    /// The next connection; `None` when no lane can have one.
    pub(crate) fn plan(&self, lanes: Lanes, sight: Sight<'_>) -> Option<Plan> {
        let first = self.plan_lane(lanes.first, self.begun, lanes, sight);
        let second = lanes.second.and_then(|(mode, from)| self.plan_lane(mode, from, lanes, sight));
        let turn = |plan: &Plan| (plan.at, self.lanes[lane(plan.mode)].last);
        first.into_iter().chain(second).min_by_key(turn)
    }

    /// A plan is carried out. Returns how many times longer than others the connection may live.
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
            // Spread evenly: connections begun in a row would also be given up in a row.
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
        // The first of a lane comes when the lane joins, not an interval after the other lane;
        // where there is one place, the lanes share the pace of users that wait.
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
            // A path carries meanwhile.
            Cause::Slow | Cause::Mode => 1,
            _ => pace.alive_max(),
        }
    }

    /// The connection of a mode that is the first to have lived its life, and when that is.
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

    /// How long it has been going on.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }
}

/// In a lane of several places one connection of so many is patient, the first among them. While
/// it lives the others come less often, so it must not be the rule.
const PATIENT_EVERY: u32 = 32;
/// It lives so many times longer; the next one twice as long as that.
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
