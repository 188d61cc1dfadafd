//! The input of a decision: paths, a segment and the time.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, FlowId, PathId};

use crate::{PathSet, RUN_MAX, SEGMENT};

/// One path as the session knows it at the moment of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathView {
    /// Its id, which outlives its place in the list of views.
    pub id: PathId,
    /// The carrier that it runs over: a fresh path of the same carrier has the same number.
    pub carrier: u32,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Least round-trip time of the transport's own window.
    pub rtt_min: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_var: Duration,
    /// One-way delay towards the peer, the least of the last second; `None` while unknown. Only
    /// differences between paths mean something: the least delay of all paths stands as half the
    /// least round-trip time. Source: the timestamps that the peer echoes.
    pub owd: Option<Duration>,
    /// How far a drift of the two clocks may have moved `owd`: 100 ppm of the time that it rests
    /// on, so it grows with age. Two paths whose delays differ by less than their errors are equal.
    pub owd_error: Duration,
    /// The queue in this direction of the newest run that the peer's session has acknowledged: its
    /// delay above the least of the last 10 to 20 s. `None` while unknown.
    pub queued: Option<Duration>,
    /// From the sending of that run to its acknowledgement, without that queue.
    pub unqueued: Option<Duration>,
    /// Bytes that the tunnel takes now without queueing too early; zero if it is full.
    pub room: Bytes,
    /// Sent over this path and not yet acknowledged by the peer's session.
    pub outstanding: Bytes,
    /// The transport's congestion window; zero while unknown.
    pub window: Bytes,
    /// Sent and not acknowledged by the peer's transport.
    pub in_flight: Bytes,
    /// Accepted by the transport and not sent yet.
    pub unsent: Bytes,
    /// The transport has lost nothing yet, and its window grows by half within some round trips.
    pub slow_start: bool,
    /// Consecutive timeouts of the transport without progress.
    pub timeouts: u32,
    /// Delivery rate, the most of the last second in which it was measured: samples that the
    /// application limited do not count unless they are more. `None` while unknown.
    pub rate: Option<Bitrate>,
    /// The present capacity: the rate delivered with more than a round trip's data in flight, any
    /// higher rate, or the newest `busy_rate`. Returns to its usual value while the path is idle.
    /// `None` while unknown.
    pub capacity: Option<Bitrate>,
    /// The rate of the link while it was busy in the last half second of arrivals. `None` if it was
    /// not for 2 s.
    pub busy_rate: Option<Bitrate>,
    /// No progress for too long: do not use until it makes progress.
    pub stalled: bool,
    /// How long the path has delivered nothing while data is in flight on it; zero if nothing is.
    pub quiet: Duration,
    /// Use only if no other path is left.
    pub backup: bool,
    /// Use only if no primary has room: [`rank`] makes it a backup meanwhile.
    pub secondary: bool,
    /// Its bytes cost money: it carries no copies.
    pub metered: bool,
    /// A passenger calls in this direction: queues must be short.
    pub calls: bool,
    /// The predicted handover failure, if any.
    pub forecast: Option<Forecast>,
    /// What earlier trips measured on the line ahead.
    pub look_ahead: LookAhead,
}

/// What earlier trips measured on the line ahead, in order of time; empty if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookAhead {
    steps: [Option<LookAheadStep>; STEPS],
}

/// The steps that a view holds; later ones are too far away to matter.
const STEPS: usize = 4;

impl LookAhead {
    /// The first four of these steps.
    pub fn new(steps: impl Iterator<Item = LookAheadStep>) -> Self {
        let mut ahead = Self::default();
        ahead.steps.iter_mut().zip(steps).for_each(|(place, step)| *place = Some(step));
        ahead
    }

    /// The step that applies after `time`, if it is known.
    pub fn at(&self, time: Duration) -> Option<&LookAheadStep> {
        self.steps().find(|step| step.begins_in <= time && time < step.ends_in)
    }

    /// All steps.
    pub fn steps(&self) -> impl Iterator<Item = &LookAheadStep> {
        self.steps.iter().flatten()
    }
}

/// Rate and delay of a path at one place of the line ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookAheadStep {
    /// Time until the train reaches the place; zero once it has.
    pub begins_in: Duration,
    /// Time until the train has left the place.
    pub ends_in: Duration,
    /// The rate that the path carries there.
    pub rate: Bitrate,
    /// The delay towards the peer there, without queues.
    pub delay: Duration,
}

/// A predicted handover failure on a path (POLYCORN 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Time until the train reaches the position of the failure; zero once it has passed it and the
    /// modem is still in the old cell.
    pub fails_in: Duration,
    /// Time until the train reaches the place where nearly every handover of the cell has begun;
    /// zero once it has. Between both the handover begins anywhere.
    pub ends_in: Duration,
    /// The position error as time at the present speed (POLYCORN: E_GPS / V).
    pub uncertainty: Duration,
    /// The probability of failure in this cell and direction, in 1/1,000.
    pub permille: u16,
}

impl Forecast {
    /// Whether the failure is nearer than this time and the position error.
    pub fn is_near(&self, time: Duration) -> bool {
        // At a standstill the error is unbounded.
        self.fails_in < time.saturating_add(self.uncertainty)
    }

    /// The probability that the path fails within this time: that of a failure, times the share of
    /// the rest of the stretch in which the handover begins that the train reaches until then.
    pub fn fails_within(&self, time: Duration) -> f64 {
        let first = self.fails_in.saturating_sub(self.uncertainty);
        let Some(within) = time.checked_sub(first).filter(|within| !within.is_zero()) else {
            return 0.0;
        };
        let all = f64::from(self.permille.min(1_000)) / 1_000.0;
        let last = self.ends_in.max(self.fails_in).saturating_add(self.uncertainty);
        let part = within.as_secs_f64() / last.saturating_sub(first).max(within).as_secs_f64();
        all * part
    }
}

/// The segment that needs a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentView {
    /// Its flow.
    pub flow: FlowId,
    /// Its first byte in the flow.
    pub offset: u64,
    /// Unsent bytes of the flow from this segment on.
    pub unsent: Bytes,
    /// Unsent bytes of the whole session, including these.
    pub backlog: Bytes,
    /// The remaining receive window; new data beyond it waits.
    pub window: Bytes,
    /// Bytes of the flow that are on no path: unsent bytes and retransmissions, including this
    /// segment. Data sent ahead does not count.
    pub remaining: Bytes,
    /// The paths (by index) that have carried it already.
    pub carried: PathSet,
    /// How long a failing path holds its segments until they are sent again over another one, as
    /// the session measured it; for datagrams, which the session does not send again, a
    /// constant.
    pub recovery: Duration,
    /// It belongs to the tail of its flow: the application has closed the flow. A pause is not an
    /// end.
    pub tail: bool,
    /// It was sent before and returned to the flow's buffer.
    pub reinjected: bool,
    /// It is a datagram of a real-time flow, or of the beginning of a flow.
    pub realtime: bool,
}

/// The input of one decision.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The session's paths, at most [`crate::PATHS_MAX`].
    pub paths: &'a [PathView],
    /// The segment.
    pub segment: SegmentView,
    /// The time.
    pub now: Instant,
}

impl PathView {
    /// Whether the path is alive and has room for a segment now.
    pub fn available(&self) -> bool {
        !self.stalled && self.room > Bytes::ZERO
    }

    /// Whether a failure is predicted within a round trip and the position error (POLYCORN 4.3):
    /// `t_HOF < srtt + E_GPS / V`.
    pub fn is_about_to_fail(&self) -> bool {
        self.forecast.is_some_and(|forecast| forecast.is_near(self.srtt))
    }

    /// The longest run for this path: 5 ms at its rate, at least one segment and at most
    /// [`RUN_MAX`]; four segments while the rate is unknown.
    pub fn run_max(&self) -> u64 {
        let Some(rate) = self.rate else { return 4 * SEGMENT };
        let bytes = rate.bytes_in(RUN_TIME).0;
        (bytes / SEGMENT * SEGMENT).clamp(SEGMENT, RUN_MAX)
    }
}

/// Makes secondary paths backups while a primary has room; otherwise they are ordinary paths. So
/// each rule that knows backups keeps to the ranks.
pub fn rank(views: &mut [PathView]) {
    if !views.iter().any(|view| view.secondary) {
        return;
    }
    let is_primary = |view: &PathView| !view.secondary && !view.backup;
    let has_room = views.iter().any(|view| is_primary(view) && view.available());
    views.iter_mut().filter(|view| view.secondary).for_each(|view| view.backup = has_room);
}

/// The longest time that a run may take on a path.
const RUN_TIME: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{backup, full, ms, path, stalled};

    #[test]
    fn failure_is_near_within_a_round_trip_and_the_position_error() {
        let most = Duration::MAX;
        let near = |fails_in, uncertainty| {
            let forecast =
                Some(Forecast { fails_in, ends_in: fails_in, uncertainty, permille: 300 });
            PathView { forecast, ..path(1, 40) }.is_about_to_fail()
        };
        assert!(!path(1, 40).is_about_to_fail(), "no forecast");
        assert!(near(ms(239), ms(200)) && !near(ms(240), ms(200)));
        assert!(near(ms(240), most) && !near(most, ms(200)) && !near(most, most));
    }

    #[test]
    fn failure_is_spread_over_the_stretch() {
        // The stretch is from 900 to 2,900 ms.
        let within = |time, permille| {
            let (fails_in, ends_in, uncertainty) = (ms(1_000), ms(2_800), ms(100));
            Forecast { fails_in, ends_in, uncertainty, permille }.fails_within(ms(time))
        };
        for (time, permille, wanted) in [
            (900, 1_000, 0.0),
            (902, 1_000, 0.001),
            (1_100, 1_000, 0.1),
            (1_100, 500, 0.05),
            (1_100, 0, 0.0),
            (2_900, 1_000, 1.0),
            (2_900, 200, 0.2),
            (60_000, 200, 0.2),
        ] {
            let found = within(time, permille);
            assert!((found - wanted).abs() < 1e-9, "{time} ms, {permille}: {found}");
        }
        let now = Duration::ZERO;
        let unknown =
            Forecast { fails_in: now, ends_in: now, uncertainty: Duration::MAX, permille: 1_000 };
        assert!(unknown.fails_within(ms(1)) < 1e-9, "at a standstill");
    }

    #[test]
    fn secondary_is_a_backup_while_a_primary_has_room() {
        let (a, b, c) = (path(1, 40), path(2, 20), path(3, 20));
        let secondary = |view| PathView { secondary: true, ..view };
        let ranked = |first: PathView| {
            let mut views = [first, secondary(b), backup(c)];
            rank(&mut views);
            views.map(|view| view.backup)
        };
        assert_eq!(ranked(a), [false, true, true]);
        assert_eq!(ranked(full(a)), [false, false, true], "the primary is full");
        assert_eq!(ranked(stalled(a)), [false, false, true], "no primary lives");
        assert_eq!(ranked(secondary(a)), [false, false, true], "there is no primary");
        assert_eq!(ranked(backup(a)), [true, false, true], "backups are no primaries");
        let mut views = [full(a), PathView { backup: true, ..secondary(b) }];
        rank(&mut views);
        assert!(!views[1].backup, "it is no backup any more");
    }

    #[test]
    fn run_takes_five_milliseconds_within_its_bounds() {
        let with = |rate| PathView { rate, ..path(1, 40) }.run_max();
        assert_eq!(with(None), 4 * SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(0.1))), SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(20.0))), 8 * SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(1000.0))), RUN_MAX);
    }
}
