//! One-way delay of paths, relative to each other, from echoed timestamps.
//!
//! An arrival that the peer echoes gives `d = received - sent`: the delay plus the unknown offset
//! between the two clocks. The offset is the same for all paths, so only differences of `d` between
//! paths are used: `owd_i = d_i - min over j of d_j + half the least minimum RTT`, where `d_i` is
//! the least `d` of the last second in which the path had echoes. While the path is idle, its
//! estimate stays, and its error grows.
//!
//! Invariants: a clock offset changes nothing; a drift of at most [`DRIFT_PPM`] changes an estimate
//! by no more than its error. No number that a peer may send panics.

use std::time::{Duration, Instant};

use crate::window::Window;

/// The echoes of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delay {
    window: Window<Piece>,
    newest: Option<Newest>,
    base: Option<Base>,
}

/// The newest echoed run.
#[derive(Clone, Copy, Debug)]
struct Newest {
    sent_at: Instant,
    /// Until its echo.
    round: Duration,
    delay_us: i64,
}

/// The least delays of the present and of the last period.
#[derive(Clone, Copy, Debug)]
struct Base {
    since: Instant,
    present_us: i64,
    last_us: i64,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    /// When its first run, which is the oldest, was sent.
    sent_at: Instant,
    least_us: i64,
}

/// The reference for all paths of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    now: Instant,
    least_us: i64,
    half_rtt: Duration,
}

/// One path's one-way delay, relative to the other paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relative {
    pub owd: Duration,
    /// How far the clocks' drift may have moved it.
    pub error: Duration,
}

impl Delay {
    /// Notes that a run sent at `sent_at` took `delay_us`, as the difference of the two clocks. A
    /// run older than the newest one is ignored: its echo was late or repeated.
    pub fn sample(&mut self, now: Instant, sent_at: Instant, delay_us: i64) {
        if sent_at > now || self.newest.is_some_and(|newest| sent_at < newest.sent_at) {
            return;
        }
        let round = now.saturating_duration_since(sent_at);
        // A copy of an echo comes later, and says nothing about the round trip.
        if self.newest.is_none_or(|newest| sent_at > newest.sent_at) {
            self.newest = Some(Newest { sent_at, round, delay_us });
        }
        let fresh = Base { since: now, present_us: delay_us, last_us: delay_us };
        let base = self.base.get_or_insert(fresh);
        if now.saturating_duration_since(base.since) >= BASE_PERIOD {
            *base = Base { last_us: base.present_us, ..fresh };
        }
        base.present_us = base.present_us.min(delay_us);
        let piece = Piece { sent_at, least_us: delay_us };
        self.window.add(now, piece, |open, new| open.least_us = open.least_us.min(new.least_us));
    }

    /// The delay of the newest echoed run above the least.
    pub fn queued(&self) -> Option<Duration> {
        let (newest, base) = (self.newest?, self.base?);
        let above_us = newest.delay_us.saturating_sub(base.present_us.min(base.last_us));
        Some(Duration::from_micros(u64::try_from(above_us).unwrap_or(0)))
    }

    /// The round trip of that run without it.
    pub fn unqueued(&self) -> Option<Duration> {
        Some(self.newest?.round.saturating_sub(self.queued()?))
    }

    /// The least delay in the window, unless the newest echo is too old.
    fn least_us(&self, now: Instant) -> Option<i64> {
        let age = now.saturating_duration_since(self.newest?.sent_at);
        let fresh = self.window.iter().filter(|_| age <= AGE_MAX);
        fresh.map(|piece| piece.least_us).min()
    }
}

impl Common {
    /// The reference for these paths; `rtt_min` is the least minimum round-trip time among them.
    /// `None` if no path has a known delay.
    pub fn of<'a>(
        now: Instant,
        rtt_min: Duration,
        delays: impl Iterator<Item = &'a Delay>,
    ) -> Option<Self> {
        let least_us = delays.filter_map(|delay| delay.least_us(now)).min()?;
        Some(Self { now, least_us, half_rtt: rtt_min / 2 })
    }

    /// The relative delay of one of the paths; `None` while its delay is unknown.
    pub fn relative(&self, delay: &Delay) -> Option<Relative> {
        let above = delay.least_us(self.now)?.saturating_sub(self.least_us);
        let oldest = delay.window.iter().next()?.sent_at;
        let reach = self.now.saturating_duration_since(oldest);
        Some(Relative {
            owd: self.half_rtt + Duration::from_micros(u64::try_from(above).unwrap_or(0)),
            error: reach.mul_f64(DRIFT_PPM / 1e6) + RESOLUTION,
        })
    }
}

/// The delay of a path without an echo for so long is unknown; PINGs are more frequent.
const AGE_MAX: Duration = Duration::from_secs(30);
/// bbr empties its queue as often. Clocks drift by 2 ms at most in two periods.
const BASE_PERIOD: Duration = Duration::from_secs(10);
/// How fast the clocks may drift apart: 100 ppm, more than crystal oscillators do.
const DRIFT_PPM: f64 = 100.0;
/// Timestamps are whole microseconds on both sides.
const RESOLUTION: Duration = Duration::from_micros(2);

#[cfg(test)]
mod tests;
