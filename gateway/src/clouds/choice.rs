//! Which cloud receives new flows, and how much the gateway tries to reach each.
//!
//! It has no sockets and no clock. The driver reports the state of all clouds at each look
//! ([`Choice::look`]), in order of preference. `docs/carriers.md` explains the rules for operators.
//!
//! Invariants: nothing moves while no cloud is reachable; a cloud that is not current is left only
//! when it has no flows; a cloud that keeps failing becomes current ever later.

use std::time::{Duration, Instant};

use crate::carriers::Effort;

/// The state of a cloud at a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Its session has a path that makes progress.
    pub(crate) reachable: bool,
    /// It has sent GOAWAY in its session.
    pub(crate) going: bool,
    /// Open flows of its session.
    pub(crate) flows: usize,
    /// The least round-trip time of its paths.
    pub(crate) srtt: Duration,
}

/// Why new flows go to another cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The cloud before did not answer, while the new one did.
    Unreachable,
    /// The cloud before is going away.
    Going,
    /// A preferred cloud has been reachable for some time.
    Back,
}

impl Reason {
    /// For logs and events.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Unreachable => "it does not answer, and another one does",
            Self::Going => "it is going away",
            Self::Back => "a preferred cloud is back",
        }
    }
}

/// A change of the current cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) reason: Reason,
}

/// The state of the choice.
#[derive(Debug)]
pub(crate) struct Choice {
    clouds: Vec<Standing>,
    current: usize,
    /// Since when the current cloud takes no flows: it is unreachable or going away.
    unfit_since: Option<Instant>,
    /// How long a preferred cloud must have been reachable before it is current again.
    settle: Duration,
    /// The preferred cloud that last became current again, and when.
    back: Option<(usize, Instant)>,
}

#[derive(Debug)]
struct Standing {
    view: View,
    /// When `view.reachable` last changed.
    since: Instant,
    effort: Effort,
}

impl Choice {
    /// `count` clouds, of which the first one is current.
    pub(crate) fn new(now: Instant, count: usize) -> Self {
        let standing = |place| {
            let effort = if place == 0 { Effort::Full } else { Effort::Off };
            Standing { view: View::default(), since: now, effort }
        };
        Self {
            clouds: (0..count).map(standing).collect(),
            current: 0,
            unfit_since: None,
            settle: SETTLE,
            back: None,
        }
    }

    /// Takes the state of all clouds; returns the change of the current cloud, if there is one.
    pub(crate) fn look(&mut self, now: Instant, views: &[View]) -> Option<Move> {
        for (cloud, view) in self.clouds.iter_mut().zip(views) {
            if cloud.view.reachable != view.reachable {
                cloud.since = now;
            }
            cloud.view = *view;
        }
        let view = self.clouds[self.current].view;
        let unfit = !view.reachable || view.going;
        self.unfit_since = unfit.then(|| self.unfit_since.unwrap_or(now));
        let moved = self.next(now);
        if let Some(moved) = moved {
            self.follow(now, moved);
        }
        self.plan(now);
        moved
    }

    pub(crate) fn current(&self) -> usize {
        self.current
    }

    pub(crate) fn view(&self, cloud: usize) -> View {
        self.clouds[cloud].view
    }

    /// How much the gateway tries to reach a cloud.
    pub(crate) fn effort(&self, cloud: usize) -> Effort {
        self.clouds[cloud].effort
    }

    /// Whether new connections wait until it is known which cloud they go to: never with one cloud,
    /// and at most for [`HOLD_MAX`].
    pub(crate) fn holds_new(&self, now: Instant) -> bool {
        let is_recent = |since| now.saturating_duration_since(since) < HOLD_MAX;
        self.clouds.len() > 1 && self.unfit_since.is_some_and(is_recent)
    }

    /// Whether nothing is pending: looks may be rare.
    pub(crate) fn is_calm(&self) -> bool {
        let rest = self.clouds.iter().enumerate().filter(|(place, _)| *place != self.current);
        self.unfit_since.is_none()
            && rest.map(|(_, cloud)| cloud.effort).all(|it| it == Effort::Off)
    }

    /// Why another cloud is wanted.
    fn fault(&self, now: Instant) -> Option<(Reason, Instant)> {
        let since = self.unfit_since?;
        if self.clouds[self.current].view.going {
            return Some((Reason::Going, since));
        }
        let late = now.saturating_duration_since(since) >= PATIENCE;
        late.then_some((Reason::Unreachable, since))
    }

    fn next(&self, now: Instant) -> Option<Move> {
        let from = self.current;
        let fit = |place: usize, time: Duration| {
            let Standing { view, since, .. } = &self.clouds[place];
            let long = now.saturating_duration_since(*since) >= time;
            place != from && view.reachable && !view.going && long
        };
        if let Some((reason, _)) = self.fault(now) {
            // Carriers that return from a blackout reach every cloud at about the same time.
            let grace = |place: usize| match reason {
                Reason::Unreachable => (self.clouds[place].view.srtt * 3).max(GRACE),
                _ => Duration::ZERO,
            };
            let to = (0..self.clouds.len()).find(|place| fit(*place, grace(*place)))?;
            return Some(Move { from, to, reason });
        }
        let to = (0..from).find(|place| fit(*place, self.settle))?;
        Some(Move { from, to, reason: Reason::Back })
    }

    fn follow(&mut self, now: Instant, moved: Move) {
        self.current = moved.to;
        self.unfit_since = None;
        // The failure of another cloud says nothing about the one that had come back.
        if let Some((_, at)) = self.back.take_if(|(place, _)| *place == moved.from) {
            let brief = now.saturating_duration_since(at) < BRIEF;
            self.settle = if brief { (self.settle * 2).min(SETTLE_MAX) } else { SETTLE };
        }
        if moved.to < moved.from {
            self.back = Some((moved.to, now));
        }
    }

    /// Decides how much the gateway tries to reach each cloud.
    fn plan(&mut self, now: Instant) {
        let wanted = self.fault(now).map(|(_, since)| {
            // One more cloud at a time.
            let waited = now.saturating_duration_since(since).as_secs() / NEXT_AFTER.as_secs();
            usize::try_from(waited).unwrap_or(usize::MAX)
        });
        let current = &self.clouds[self.current];
        let steady =
            current.view.reachable && now.saturating_duration_since(current.since) >= STEADY;
        let mut rank = 0;
        for (place, cloud) in self.clouds.iter_mut().enumerate() {
            if place == self.current {
                cloud.effort = Effort::Full;
                continue;
            }
            let is_wanted = wanted.is_some_and(|last| rank <= last) && !cloud.view.going;
            rank += 1;
            cloud.effort = if is_wanted || cloud.view.flows > 0 {
                Effort::Full
            } else if place < self.current {
                if cloud.view.reachable { Effort::Full } else { Effort::Probe }
            } else if steady {
                Effort::Off
            } else {
                cloud.effort
            };
        }
    }
}

/// How long the current cloud may be unreachable before the gateway turns to another one: most
/// failed handovers of a single carrier are over (POLYCORN table 1).
const PATIENCE: Duration = Duration::from_millis(1_500);
/// How long another cloud must be reachable while the current one is not; at least three round
/// trips. A restarting path needs one or two.
const GRACE: Duration = Duration::from_secs(1);
/// After this a further cloud is tried, too.
const NEXT_AFTER: Duration = Duration::from_secs(3);
/// The maximum time for which new connections wait. A TCP client retransmits its SYN after 1, 3 and
/// 7 s (RFC 6298), so most still wait then.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(10);
/// How long a preferred cloud must have been reachable before it is current again, at first. It
/// doubles each time that the cloud fails within [`BRIEF`].
const SETTLE: Duration = Duration::from_secs(10);
const SETTLE_MAX: Duration = Duration::from_secs(320);
const BRIEF: Duration = Duration::from_secs(60);
/// How long the current cloud must have been reachable before a less preferred one is left.
const STEADY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
