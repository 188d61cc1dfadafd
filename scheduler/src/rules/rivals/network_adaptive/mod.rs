//! `network_adaptive`: the path that delivers the segment earliest, by the rates that earlier trips
//! measured at the places ahead.
//!
//! Rule: Dong, Song, Zhang and Du, "Improving Onboard Internet Services for High-Speed Vehicles by
//! Multipath Transmission in Heterogeneous Wireless Networks", IV-B, algorithm 1. With t the
//! present, C the time for the data already assigned to a path, S the length, B the rate and D the
//! delay: `t2 = t + C_i`, `t3 = t2 + S / B_i(t2)`, `b_i = t3 + D_i(t3)`. The least b wins, then
//! `C_i += S / B_i(t2)`. B and D come from [`PathView::look_ahead`], or from the path's present
//! values where that is empty. Bounds (V) on constant paths, tested as properties:
//! - `|C_i - C_j| <= S_max / B_min + D_max`;
//! - reordering takes at most `sum(w_i S_max + 2 B_i D_max)`, `w_i = B_i / B_min`;
//! - one link with all rates is ahead by at most `(S_max + B_min D_max) sum(w_i)`.
//!
//! Values that the paper leaves out: B and D apply for a slot of 1 s of travel, and are compared
//! with the path every 200 ms. If D differs by more than 50 ms and 25 %, or B by more than 30 %,
//! the path's values replace them until the slot ends, and the bytes of C are planned again at the
//! new rate. Paths with D over 1.5 s or B under 0.1 Mbit/s are skipped, unless all are.
//!
//! Choices: C is at most the time for the bytes in flight, so that errors do not add up. On a full
//! path the whole backlog comes first (see `otias`).

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

use crate::params::{ParamError, Reader};
use crate::rules::hsrsch::min_rtt::group;
use crate::rules::path_rate::{delay, rate};
use crate::rules::per_path::PerPath;
use crate::rules::rivals::edpf::{Earliest, duration};
use crate::rules::waits::Waits;
use crate::{Input, Note, PathSet, PathSets, PathView, SEGMENT, Schedulerlet};

/// Rate and delay of a path at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathForecast {
    /// B.
    rate: Bitrate,
    /// D: the delay towards the peer without queues.
    delay: Duration,
}

pub struct NetworkAdaptive {
    slot: Duration,
    monitor: Duration,
    paths: PerPath<Plan>,
    waits: Waits,
}

/// The plan of a path.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    /// t + C.
    busy_until: Option<Instant>,
    /// The start of the slot and its forecast.
    slot: Option<(Instant, PathForecast)>,
    monitored_at: Option<Instant>,
    /// Bytes per second at which the next segment would go: B(t2).
    rate: Bitrate,
}

impl PathForecast {
    /// The rate and delay that the path shows at present.
    fn present(path: &PathView) -> Self {
        Self { rate: rate(path), delay: delay(path) }
    }

    /// The rate and delay after `time`, if the look-ahead reaches so far; else the present ones.
    fn after(path: &PathView, time: Duration) -> Self {
        let step = path.look_ahead.at(time);
        step.map_or(Self::present(path), |step| Self { rate: step.rate, delay: step.delay })
    }

    /// Whether the path's values differ too much from the forecast.
    fn drifted(self, shown: Self) -> bool {
        let delay_bound = (self.delay / 4).max(DELAY_DRIFT);
        let rate = self.rate.as_bps();
        shown.delay.abs_diff(self.delay) > delay_bound
            || shown.rate.as_bps().abs_diff(rate) > rate / 10 * 3
    }
}

impl NetworkAdaptive {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let bounds = Duration::from_millis(1)..=Duration::from_secs(3_600);
        let slot = params.time("slot", Duration::from_secs(1), bounds.clone())?;
        let monitor = params.time("monitor", Duration::from_millis(200), bounds)?;
        let (paths, waits) = (PerPath::default(), Waits::default());
        Ok(Self { slot, monitor, paths, waits })
    }

    /// The forecast of this slot, or the path's values if they differ too much.
    fn forecast(&mut self, path: &PathView, now: Instant) -> PathForecast {
        let shown = PathForecast::present(path);
        let plan = self.paths.of(path.id);
        let in_slot = |(since, _): &(Instant, PathForecast)| now < *since + self.slot;
        let Some((_, forecast)) = plan.slot.filter(in_slot) else {
            // Slots follow each other without a gap while there are decisions.
            let since = match plan.slot {
                Some((since, _)) if now < since + self.slot * 2 => since + self.slot,
                _ => now,
            };
            let forecast = PathForecast::after(path, Duration::ZERO);
            (plan.slot, plan.monitored_at) = (Some((since, forecast)), Some(now));
            return forecast;
        };
        let due = plan.monitored_at.is_none_or(|at| now >= at + self.monitor);
        if !due {
            return forecast;
        }
        plan.monitored_at = Some(now);
        if !forecast.drifted(shown) {
            return forecast;
        }
        if let Some((_, known)) = &mut plan.slot {
            *known = shown;
        }
        let planned = plan.busy(now);
        let bytes = forecast.rate.bytes_in(planned).0;
        plan.busy_until = Some(now + duration(shown.rate, bytes));
        shown
    }

    /// The delivery time of these bytes over this path; stores the rate.
    fn delivery(&mut self, path: &PathView, bytes: u64, now: Instant) -> Instant {
        let forecast = self.forecast(path, now);
        let plan = self.paths.of(path.id);
        let drained = now + duration(forecast.rate, path.outstanding.0);
        plan.busy_until = plan.busy_until.map(|until| until.min(drained));
        let ends = plan.slot.map_or(now, |(since, _)| since + self.slot);
        let at = |time: Instant| match time < ends {
            true => forecast,
            false => PathForecast::after(path, time.saturating_duration_since(now)),
        };
        let t2 = now + plan.busy(now);
        plan.rate = at(t2).rate;
        let t3 = t2 + duration(plan.rate, bytes);
        t3 + at(t3).delay
    }

    /// The members within the limits of delay and rate.
    fn usable(&mut self, group: PathSet, input: &Input<'_>) -> PathSet {
        let mut usable = PathSet::EMPTY;
        for path in group.iter() {
            let forecast = self.forecast(&input.paths[path], input.now);
            if forecast.delay <= DELAY_MAX && forecast.rate >= RATE_MIN {
                usable.insert(path);
            }
        }
        if usable.is_empty() { group } else { usable }
    }
}

impl Plan {
    /// C.
    fn busy(&self, now: Instant) -> Duration {
        self.busy_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

impl Schedulerlet for NetworkAdaptive {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = self.usable(group(sets.candidates(), input), input);
        let available = group.filter(|i| input.paths[i].available());
        // The flow may have less than a segment unsent.
        let length = match input.segment.unsent.0 {
            0 => SEGMENT,
            unsent => unsent.min(SEGMENT),
        };
        let waiting = input.segment.backlog.0.max(length);
        let mut earliest = Earliest::default();
        for path in group.iter() {
            let open = available.contains(path);
            let bytes = if open { length } else { waiting };
            earliest.add(path, self.delivery(&input.paths[path], bytes, input.now), open);
        }
        earliest.select(sets, input, &mut self.waits, |path| {
            duration(self.paths.of(input.paths[path].id).rate, SEGMENT)
        });
    }

    fn note(&mut self, note: &Note, now: Instant) {
        match *note {
            Note::Sent { path, bytes, .. } => {
                let plan = self.paths.of(path);
                if plan.rate.as_bps() > 0 {
                    plan.busy_until = Some(now + plan.busy(now) + duration(plan.rate, bytes));
                }
            }
            Note::Gone { path } => self.paths.forget(path),
            Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

/// D_THR: the least one.
const DELAY_DRIFT: Duration = Duration::from_millis(50);

/// D_max.
const DELAY_MAX: Duration = Duration::from_millis(1_500);

/// B_min.
const RATE_MIN: Bitrate = Bitrate::from_bps(100_000);

#[cfg(test)]
mod tests;
