//! What a schedulerlet may see: paths, the segment in question, and the time.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, PathId};

use crate::{PathSet, RUN_MAX, SEGMENT};

/// One path as the session knows it at the moment of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// Its id, which outlives its place in the list of views.
    pub id: PathId,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_var: Duration,
    /// One-way delay towards the peer, the least of the last second; `None` while unknown. Only
    /// differences between paths mean something: the least delay of all paths stands as half the
    /// least round-trip time. Source: the timestamps that the peer echoes.
    pub owd: Option<Duration>,
    /// Time since the newest run that `owd` rests on was sent; zero while it is unknown.
    pub owd_age: Duration,
    /// How far a drift of the two clocks may have moved `owd`: 100 ppm of the time that it rests
    /// on, so it grows with age. Two paths whose delays differ by less than their errors are equal.
    pub owd_error: Duration,
    /// What the tunnel takes now without queueing it too early; zero when it is full.
    pub room: Bytes,
    /// Sent over this path and not yet acknowledged by the session.
    pub outstanding: Bytes,
    /// Recent delivery rate, where known.
    pub rate: Option<Bitrate>,
    /// No progress for too long: to be left alone until it makes progress.
    pub stalled: bool,
    /// To be used only when no other path is left.
    pub backup: bool,
}

/// The segment that looks for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentView {
    /// What is left of the flow from this segment on, in bytes.
    pub remaining: Bytes,
    /// The paths (by index) that have carried it already.
    pub carried: PathSet,
    /// It belongs to the tail of its flow.
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
pub(crate) mod samples {
    use super::*;

    /// A path with this id and round-trip time, and room.
    pub fn path(id: u64, srtt_ms: u64) -> PathView {
        PathView {
            id: PathId(id),
            srtt: Duration::from_millis(srtt_ms),
            rtt_var: Duration::ZERO,
            owd: None,
            owd_age: Duration::ZERO,
            owd_error: Duration::ZERO,
            room: Bytes(16_384),
            outstanding: Bytes::ZERO,
            rate: None,
            stalled: false,
            backup: false,
        }
    }

    /// The same path without room.
    pub fn full(path: PathView) -> PathView {
        PathView { room: Bytes::ZERO, ..path }
    }

    /// The same path, stalled.
    pub fn stalled(path: PathView) -> PathView {
        PathView { stalled: true, ..path }
    }

    /// The same path as a backup.
    pub fn backup(path: PathView) -> PathView {
        PathView { backup: true, ..path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_five_milliseconds_at_the_rate_within_its_bounds() {
        let with = |rate| PathView { rate, ..samples::path(1, 40) }.run_max();
        assert_eq!(with(None), 4 * SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(0.1))), SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(20.0))), 8 * SEGMENT);
        assert_eq!(with(Some(Bitrate::from_mbps(1000.0))), RUN_MAX);
    }
}
