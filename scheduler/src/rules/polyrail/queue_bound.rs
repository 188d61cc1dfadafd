//! `queue_bound`: caps the bytes in flight of a path at its rate times round trip and queue.
//!
//! Rule: our own. A transport's window follows the rate of some seconds ago. On a train that may be
//! ten times the present rate, and the excess waits in the base station. So a path has at most
//! `present rate x (least round trip + queue)` in flight, and at least `least` bytes. The queue
//! also shows whether a path carries more than its known rate.
//!
//! Next to a call that is too much: its packets are late after 150 ms. There the queue is
//! `call_queue` less the queue that the newest run met: a path with an empty queue grows fast, and
//! about half of `call_queue` stands in it. That is too short to show that a path has become
//! slower. So a path may have the rate that it delivered in the last round trip, for the time that
//! an acknowledgement takes with that queue. That holds while the cap limits the path; otherwise
//! the cap stays, or is that of the present rate if the path has little to do. It stays also for
//! about two round trips after that. Queues of the other direction do not count.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, PathId};

use crate::params::{ParamError, Reader};
use crate::rules::path_rate::present_rate;
use crate::rules::per_path::PerPath;
use crate::{DELIVERED_SPAN_MIN, Handler, Note, PathView, SEGMENT};

#[derive(Clone, Debug)]
pub struct QueueBound {
    usual: Bound,
    calling: Bound,
    caps: PerPath<Option<Cap>>,
}

#[derive(Clone, Copy, Debug)]
struct Cap {
    bytes: Bytes,
    /// Next to a call: when the path last had the cap of its present rate.
    beside_call: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    queue: Duration,
    least: f64,
}

impl QueueBound {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let mut bound = |keys: [&'static str; 2], queue_ms, least| {
            let times = Duration::ZERO..=Duration::from_secs(60);
            let queue = params.time(keys[0], Duration::from_millis(queue_ms), times)?;
            let least = params.count(keys[1], least, 0..=1 << 30)? as f64;
            Ok(Bound { queue, least })
        };
        let usual = bound(["queue", "least"], 200, 65_536)?;
        let calling = bound(["call_queue", "call_least"], 40, 5_000)?;
        Ok(Self { usual, calling, caps: PerPath::default() })
    }

    /// The cap next to a call, of which `last` is the last one.
    fn cap_beside_calls(&self, path: &PathView, last: Option<Cap>, now: Instant) -> Cap {
        let queue = self.calling.queue.saturating_sub(path.queued.unwrap_or_default());
        let bound = Bound { queue, ..self.calling };
        let Some((last, fresh_at)) = last.and_then(|cap| Some((cap, cap.beside_call?))) else {
            return bound.at_present_rate(path, now);
        };
        let age = now.saturating_duration_since(fresh_at);
        // Acknowledgements have just made room that the session has not used yet.
        let binds = path.outstanding.0.saturating_add(2 * SEGMENT) >= last.bytes.0 / 4 * 3;
        match path.delivered {
            Some(delivered)
                if binds && age > path.rtt_min + path.rtt_min.max(DELIVERED_SPAN_MIN) =>
            {
                let most = path.srtt.max(path.rtt_min) + BACK_MAX;
                let round = path.unqueued.unwrap_or(path.rtt_min).clamp(path.rtt_min, most);
                Cap { bytes: bound.bytes(round, delivered), ..last }
            }
            Some(_) if path.outstanding.0 >= last.bytes.0 / 4 => last,
            _ => bound.at_present_rate(path, now),
        }
    }
}

impl Bound {
    fn bytes(&self, round: Duration, rate: Bitrate) -> Bytes {
        let time = (round + self.queue).as_secs_f64();
        Bytes((rate.as_bps() as f64 / 8.0 * time).max(self.least) as u64)
    }

    fn at_present_rate(self, path: &PathView, now: Instant) -> Cap {
        let bytes = self.bytes(path.rtt_min, present_rate(path));
        Cap { bytes, beside_call: Some(now) }
    }
}

/// How much longer than usual an acknowledgement waits on its way back, at most: others come in a
/// burst after a blackout.
const BACK_MAX: Duration = Duration::from_millis(400);

impl Handler for QueueBound {
    fn gives_back(&mut self, path: &PathView, now: Instant) -> bool {
        let last = self.caps.get(path.id).copied().flatten();
        *self.caps.of(path.id) = match path.calls {
            true => Some(self.cap_beside_calls(path, last, now)),
            false if path.slow_start => None,
            false => Some(Cap {
                bytes: self.usual.bytes(path.rtt_min, present_rate(path)),
                beside_call: None,
            }),
        };
        false
    }

    fn cap(&self, path: PathId) -> Option<Bytes> {
        self.caps.get(path).copied().flatten().map(|cap| cap.bytes)
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

    /// The caps in KB of one path, 1 KB a millisecond and 40 ms, with 60 ms of queue beside calls,
    /// a second apart.
    fn caps(states: &[(PathView, u64, &str)]) {
        caps_every(ms(1_000), states);
    }

    fn caps_every(apart: Duration, states: &[(PathView, u64, &str)]) {
        let rule = "queue_bound(call_queue=60ms, call_least=5000)";
        let mut chain = ChainSpec::of(&["min_rtt", rule]).unwrap().build();
        for (number, (state, wanted, why)) in states.iter().enumerate() {
            chain.gives_back(state, base() + apart * number as u32);
            assert_eq!(chain.cap(state.id).unwrap().0 / 1_000, *wanted, "{why}");
        }
    }

    /// A path beside a call: bytes outstanding, Mbit/s delivered, and ms without the queue.
    fn beside_call(outstanding: u64, delivered: Option<f64>, unqueued: u64) -> PathView {
        PathView {
            rate: Some(Bitrate::from_mbps(8.0)),
            delivered: delivered.map(Bitrate::from_mbps),
            unqueued: Some(ms(unqueued)),
            outstanding: Bytes(outstanding),
            calls: true,
            ..path(1, 40)
        }
    }

    #[test]
    fn cap_beside_a_call_follows_what_was_delivered() {
        caps(&[
            (beside_call(0, None, 40), 100, "an idle path has its present rate"),
            (beside_call(40_000, Some(0.8), 40), 100, "it was not given all it may have"),
            (beside_call(80_000, Some(4.0), 40), 50, "it carries half of that"),
            (beside_call(50_000, Some(10.0), 40), 125, "more, by 60 in 40 ms"),
            (beside_call(125_000, Some(0.0), 40), 5, "dark"),
            (beside_call(4_000, Some(1.0), 40), 12, "it returns"),
            (beside_call(12_000, Some(1.0), 5_000), 62, "acknowledgements that a blackout held"),
            (beside_call(0, Some(0.1), 40), 100, "only the call is left"),
        ]);
        let dark = beside_call(5_000, Some(0.0), 40);
        let idle = beside_call(0, Some(0.1), 40);
        caps(&[(idle, 100, "present rate"), (dark, 100, "half"), (idle, 100, "none after all")]);
        let fresh = PathView { slow_start: true, ..idle };
        caps(&[(fresh, 100, "slow start is no exception")]);
    }

    #[test]
    fn queue_that_stands_is_no_room_beside_a_call() {
        let queued =
            |millis| PathView { queued: Some(ms(millis)), ..beside_call(100_000, Some(8.0), 40) };
        caps(&[
            (queued(0), 100, "the first"),
            (queued(20), 80, "20 of 60 ms stand"),
            (queued(60), 40, "all"),
            (queued(500), 40, "more"),
        ]);
    }

    #[test]
    fn burst_after_a_pause_has_its_cap_until_its_acknowledgements() {
        let idle = beside_call(0, Some(0.1), 40);
        let burst = beside_call(100_000, Some(0.1), 40);
        let states = [(idle, 100, "idle"), (burst, 100, "60 ms"), (burst, 100, "120 ms")];
        caps_every(ms(60), &states);
        caps_every(ms(61), &[states[0], states[1], (burst, 5, "late")]);
    }

    #[test]
    fn late_acknowledgements_do_not_lower_the_cap_beside_a_call() {
        // 300 ms on the way back, and no queue: the path delivers its cap in a round trip.
        let mut chain = ChainSpec::of(&["min_rtt", "queue_bound"]).unwrap().build();
        chain.gives_back(&beside_call(0, None, 340), base());
        let mut cap = chain.cap(PathId(1)).unwrap().0;
        for second in 1..20 {
            let delivered = cap as f64 * 8.0 / 340e3;
            let now = base() + ms(second * 1_000);
            chain.gives_back(&beside_call(cap, Some(delivered), 340), now);
            let next = chain.cap(PathId(1)).unwrap().0;
            assert!(next > cap, "{next} after {cap}");
            cap = next;
        }
    }

    #[test]
    fn each_call_begins_with_the_present_rate() {
        let usual = PathView { calls: false, ..beside_call(100_000, Some(8.0), 40) };
        let call = beside_call(100_000, Some(8.0), 40);
        caps(&[(usual, 240, "no call"), (call, 100, "a call"), (usual, 240, "over")]);
    }
}
