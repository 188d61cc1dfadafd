//! What a schedulerlet may see: paths, the segment in question, and the time.

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
    /// What the tunnel takes now without queueing it too early; zero when it is full.
    pub room: Bytes,
    /// Sent over this path and not yet acknowledged by the session.
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
    /// What the path carries at present: what it delivers while more than a round trip's worth is
    /// out, and whatever it delivers more; nearer to what is usual the longer it was idle. `None`
    /// while unknown.
    pub capacity: Option<Bitrate>,
    /// No progress for too long: to be left alone until it makes progress.
    pub stalled: bool,
    /// To be used only when no other path is left.
    pub backup: bool,
    /// What is foreseen, where anything is.
    pub forecast: Option<Forecast>,
    /// What earlier trips measured on the line ahead.
    pub look_ahead: LookAhead,
}

/// What earlier trips measured on the line ahead, in order of time; empty if nothing is known.
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

/// A handover that is foreseen to fail on a path (POLYCORN 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Until the train reaches the position where it fails; zero when that is passed and the modem
    /// is still in the old cell.
    pub fails_in: Duration,
    /// How uncertain the position is, as time at the present speed (POLYCORN: E_GPS / V).
    pub uncertainty: Duration,
    /// How many of 1,000 handovers of this cell and direction fail.
    pub permille: u16,
}

impl Forecast {
    /// Whether the failure is expected within a round trip and the error of the position.
    pub fn is_near(&self, srtt: Duration) -> bool {
        // A train that hardly moves has an error without bound.
        self.fails_in < srtt.saturating_add(self.uncertainty)
    }
}

/// The segment that looks for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentView {
    /// Its flow.
    pub flow: FlowId,
    /// Where it begins in its flow, in bytes.
    pub offset: u64,
    /// Bytes of the flow, from this segment on, that were never sent and wait for a path.
    pub unsent: Bytes,
    /// Bytes of the whole session that were never sent and wait for a path, these included.
    pub backlog: Bytes,
    /// What the receiver still grants: new data beyond waits.
    pub window: Bytes,
    /// Bytes of the flow that are on no path: those that were never sent, and those that go again,
    /// this segment included. What went ahead of its turn does not count.
    pub remaining: Bytes,
    /// The paths (by index) that have carried it already.
    pub carried: PathSet,
    /// It belongs to the tail of its flow: all of the flow was written. An application that has
    /// written nothing for a while is not taken for the end.
    pub tail: bool,
    /// It was sent before, and went back to the flow's buffer.
    pub reinjected: bool,
}

/// All that one decision rests on.
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

    /// Whether a handover is foreseen to fail within a round trip and the error of the position
    /// (POLYCORN 4.3): `t_HOF < srtt + E_GPS / V`.
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

/// How long a run may keep a path busy.
const RUN_TIME: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{ms, path};

    #[test]
    fn a_failure_is_near_within_a_round_trip_and_the_error() {
        let most = Duration::MAX;
        let near = |fails_in, uncertainty| {
            let forecast = Some(Forecast { fails_in, uncertainty, permille: 300 });
            PathView { forecast, ..path(1, 40) }.is_about_to_fail()
        };
        assert!(!path(1, 40).is_about_to_fail(), "no forecast");
        assert!(near(ms(239), ms(200)) && !near(ms(240), ms(200)));
        assert!(near(ms(240), most) && !near(most, ms(200)) && !near(most, most));
    }

    #[test]
    fn a_run_is_five_milliseconds_at_the_rate_within_its_bounds() {
        let with = |rate| PathView { rate, ..path(1, 40) }.run_max();
        assert_eq!(with(None), 4 * SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(0.1))), SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(20.0))), 8 * SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(1000.0))), RUN_MAX);
    }
}
