//! `queue_bound`: caps the bytes in flight of a path at its rate times round trip and queue.
//!
//! Rule: our own. A transport's window follows the rate of some seconds ago. On a train that may be
//! ten times the present rate, and the excess waits in the base station. So a path has at most
//! `present rate x (least round trip + queue)` in flight, and at least `least` bytes. The queue
//! also shows whether a path carries more than its known rate.
//!
//! Data in the queue of a carrier that fails is lost or late. So while a failure with a probability
//! of at least 0.3 is near, the queue is `failing_queue` only, until the forecast ends; not in slow
//! start, and `least` remains. It is near if a segment that queues might not be delivered before:
//! within the round trip, `queue`, 100 ms and the position error. Unlike `handover_rejection`, a
//! short queue keeps the carrier busy, whatever becomes of the forecast.
//!
//! Next to a call that is too much: its packets are late after 150 ms. There the rate is that of
//! the link while it was busy, which a path shows although it is not full, or the present rate if
//! that is unknown. The time is that of an acknowledgement without a queue, plus `call_queue`, less
//! the queue that the newest run met: a queue that stands is emptied within about a round trip.
//! Queues of the other direction do not count.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, PathId};

use crate::params::{ParamError, Reader};
use crate::rules::path_rate::present_rate;
use crate::rules::per_path::PerPath;
use crate::{Forecast, Handler, Note, PathView};

#[derive(Clone, Debug)]
pub struct QueueBound {
    usual: Bound,
    /// The queue of a path that is about to fail.
    failing_queue: Duration,
    calling: Bound,
    caps: PerPath<Option<Bytes>>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    queue: Duration,
    least: f64,
}

impl QueueBound {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let mut bound = |queue_key, queue, least_key, least| {
            let queue = params.time(queue_key, Duration::from_millis(queue), TIMES)?;
            let least = params.count(least_key, least, 0..=1 << 30)? as f64;
            Ok(Bound { queue, least })
        };
        let usual = bound("queue", 200, "least", 65_536)?;
        let calling = bound("call_queue", 10, "call_least", 5_000)?;
        let failing = params.time("failing_queue", Duration::from_millis(50), TIMES)?;
        let failing_queue = failing.min(usual.queue);
        Ok(Self { usual, failing_queue, calling, caps: PerPath::default() })
    }

    /// The time that data may queue next to no call.
    fn queue(&self, path: &PathView) -> Duration {
        let drained = path.srtt + self.usual.queue + MARGIN;
        let fails = |one: Forecast| one.permille >= LIKELY && one.is_near(drained);
        if path.forecast.is_some_and(fails) { self.failing_queue } else { self.usual.queue }
    }

    /// The cap next to a call.
    fn cap_beside_calls(&self, path: &PathView) -> Bytes {
        let most = path.srtt.max(path.rtt_min) + BACK_MAX;
        let round = path.unqueued.unwrap_or(path.rtt_min).clamp(path.rtt_min, most);
        // A path that delivers nothing has a queue, too.
        let silent = path.quiet.saturating_sub(round);
        let queued = path.queued.unwrap_or_default().max(silent);
        let time = (round + self.calling.queue).saturating_sub(queued).max(round / 2);
        let rate = path.busy_rate.unwrap_or_else(|| present_rate(path));
        self.calling.bytes(time, rate)
    }
}

impl Bound {
    fn bytes(&self, time: Duration, rate: Bitrate) -> Bytes {
        Bytes((rate.as_bps() as f64 / 8.0 * time.as_secs_f64()).max(self.least) as u64)
    }
}

/// A failure with at least this probability (1/1,000) shortens the queue: chosen, not varied.
const LIKELY: u16 = 300;

/// The queue is shortened so much earlier, because it has to be delivered first: chosen with
/// `failing_queue` (docs/evaluation.md, "The rail bench").
const MARGIN: Duration = Duration::from_millis(100);

/// The range of times.
const TIMES: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(60);

/// How much longer than usual an acknowledgement waits on its way back, at most: others come in a
/// burst after a blackout.
const BACK_MAX: Duration = Duration::from_millis(400);

impl Handler for QueueBound {
    fn gives_back(&mut self, path: &PathView, _now: Instant) -> bool {
        *self.caps.of(path.id) = match path.calls {
            true => Some(self.cap_beside_calls(path)),
            false if path.slow_start => None,
            false => Some(self.usual.bytes(path.rtt_min + self.queue(path), present_rate(path))),
        };
        false
    }

    fn cap(&self, path: PathId) -> Option<Bytes> {
        self.caps.get(path).copied().flatten()
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        if let Note::Gone { path } = *note {
            self.caps.forget(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChainSpec;
    use crate::samples::{base, ms, path};

    #[test]
    fn table() {
        let rule = "queue_bound(queue=60ms, least=20000)";
        let mut chain = ChainSpec::of(&["min_rtt", rule]).unwrap().build();
        let mut cap = |path: PathView| {
            assert!(!chain.gives_back(&path, base()));
            chain.cap(path.id)
        };
        // 1 KB a millisecond, 40 ms and 60.
        let known = PathView { rate: Some(Bitrate::from_mbps(8.0)), ..path(1, 40) };
        assert_eq!(cap(known), Some(Bytes(100_000)));
        let at = |mbps| PathView { capacity: Some(Bitrate::from_mbps(mbps)), ..known };
        assert_eq!(cap(at(4.0)), Some(Bytes(50_000)), "half of what the transport says");
        assert_eq!(cap(at(16.0)), Some(Bytes(200_000)), "more");
        assert_eq!(cap(at(0.1)), Some(Bytes(20_000)), "never less");
        assert_eq!(cap(PathView { slow_start: true, ..known }), None);
        assert_eq!(chain.cap(PathId(2)), None, "not seen");
        chain.note(&Note::Gone { path: PathId(1) }, base());
        assert_eq!(chain.cap(PathId(1)), None, "gone");
    }

    /// A path of 1 KB a millisecond and 40 ms that may fail in so many ms.
    fn failing(fails_in: u64, permille: u16) -> PathView {
        let uncertainty = ms(100);
        let forecast =
            Forecast { fails_in: ms(fails_in), ends_in: ms(60_000), uncertainty, permille };
        let rate = Some(Bitrate::from_mbps(8.0));
        PathView { rate, forecast: Some(forecast), ..path(1, 40) }
    }

    #[test]
    fn likely_failure_shortens_the_queue_before_it_begins() {
        let cap = |rule: &str, path: PathView| {
            let mut chain = ChainSpec::of(&["min_rtt", rule]).unwrap().build();
            chain.gives_back(&path, base());
            chain.cap(path.id).map(|cap| cap.0 / 1_000)
        };
        let slow = PathView { rate: Some(Bitrate::from_mbps(0.8)), ..failing(0, 300) };
        for (case, path, wanted) in [
            // A queue of 200 ms is delivered within 240; 100 more, and the position error.
            ("far", failing(440, 300), Some(240)),
            ("near", failing(439, 300), Some(90)),
            ("here", failing(0, 300), Some(90)),
            ("unlikely", failing(0, 299), Some(240)),
            ("its end", PathView { forecast: None, ..failing(0, 300) }, Some(240)),
            ("queued", PathView { srtt: ms(140), ..failing(539, 300) }, Some(90)),
            ("slow", slow, Some(65)),
            ("slow start", PathView { slow_start: true, ..failing(0, 1_000) }, None),
            ("beside a call", PathView { calls: true, ..failing(0, 1_000) }, Some(50)),
        ] {
            assert_eq!(cap("queue_bound", path), wanted, "{case}");
        }
        let near = failing(100, 300);
        assert_eq!(cap("queue_bound(failing_queue=100ms)", near), Some(140));
        assert_eq!(cap("queue_bound(queue=30ms)", near), Some(70), "never more than usual");
    }

    /// A path beside a call with 40 ms, whose link carried 1 KB a millisecond.
    fn beside_call() -> PathView {
        PathView {
            rate: Some(Bitrate::from_mbps(80.0)),
            busy_rate: Some(Bitrate::from_mbps(8.0)),
            unqueued: Some(ms(40)),
            calls: true,
            ..path(1, 40)
        }
    }

    /// The cap in KB beside a call, with a queue of 20 ms.
    fn cap(path: PathView) -> u64 {
        let rule = "queue_bound(call_queue=20ms, call_least=5000)";
        let mut chain = ChainSpec::of(&["min_rtt", rule]).unwrap().build();
        chain.gives_back(&path, base());
        chain.cap(path.id).unwrap().0 / 1_000
    }

    #[test]
    fn cap_beside_a_call_is_what_the_busy_link_carries() {
        let call = beside_call();
        let busy = |mbps| PathView { busy_rate: Some(Bitrate::from_mbps(mbps)), ..call };
        assert_eq!((cap(call), cap(busy(4.0)), cap(busy(16.0))), (60, 30, 120));
        assert_eq!(cap(busy(0.01)), 5, "never less");
        assert_eq!(cap(PathView { slow_start: true, ..call }), 60, "slow start is no exception");
        assert_eq!(cap(PathView { busy_rate: None, ..call }), 600, "its present rate");
        let mut chain = ChainSpec::of(&["min_rtt", "queue_bound"]).unwrap().build();
        for (calls, wanted) in [(true, 50_000), (false, 2_400_000), (true, 50_000)] {
            chain.gives_back(&PathView { calls, ..call }, base());
            assert_eq!(chain.cap(call.id), Some(Bytes(wanted)), "a call: {calls}");
        }
    }

    #[test]
    fn queue_that_stands_is_no_room_beside_a_call() {
        let queued = |millis| cap(PathView { queued: Some(ms(millis)), ..beside_call() });
        assert_eq!((queued(0), queued(20), queued(30)), (60, 40, 30));
        assert_eq!((queued(40), queued(500)), (20, 20), "not less than half of the round trip");
        let quiet = |millis| cap(PathView { quiet: ms(millis), ..beside_call() });
        assert_eq!((quiet(40), quiet(60), quiet(2_000)), (60, 40, 20), "silence is a queue, too");
    }

    #[test]
    fn late_acknowledgements_do_not_lower_the_cap_beside_a_call() {
        let back = |millis| cap(PathView { unqueued: Some(ms(millis)), ..beside_call() });
        assert_eq!((back(300), back(440), back(5_000)), (320, 460, 460), "at most 400 ms more");
        assert_eq!(back(1), 60, "not less than the least round trip");
    }
}
