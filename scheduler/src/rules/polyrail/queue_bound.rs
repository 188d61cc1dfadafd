//! `queue_bound`: caps the bytes in flight of a path at its rate times round trip and queue.
//!
//! Rule: our own. A transport's window follows the rate of some seconds ago. On a train that may be
//! ten times the present rate, and the excess waits in the base station. So a path has at most
//! `present rate x (least round trip + queue)` in flight, and at least `least` bytes. The queue
//! also shows whether a path carries more than its known rate.
//!
//! Next to a call that is too much: its packets are late after 150 ms. There the queue is
//! `call_queue`, too short to show that a path has become slower. So the rate is what the path
//! delivered in the last round trip, provided that it was given all it may have: an increase of the
//! capacity raises the cap by `call_queue / least round trip` in each round trip.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes, PathId};

use crate::params::{ParamError, Reader};
use crate::rules::path_rate::present_rate;
use crate::rules::per_path::PerPath;
use crate::{Handler, Note, PathView, SEGMENT};

#[derive(Clone, Debug)]
pub struct QueueBound {
    general: Bound,
    beside_calls: Bound,
    caps: PerPath<Option<Bytes>>,
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
        let general = bound(["queue", "least"], 200, 65_536)?;
        let beside_calls = bound(["call_queue", "call_least"], 60, 5_000)?;
        Ok(Self { general, beside_calls, caps: PerPath::default() })
    }

    /// The cap next to calls; `cap` is the last one.
    fn beside_calls(&self, path: &PathView, cap: Option<Bytes>) -> Bytes {
        let bytes = |rate: Bitrate| self.beside_calls.bytes(path, rate);
        let Some(cap) = cap else { return bytes(present_rate(path)) };
        // The window of a sender that waits for room has just been opened by acknowledgements.
        let used = path.outstanding.0.saturating_add(2 * SEGMENT);
        match path.delivered {
            Some(delivered) if used >= cap.0 / 4 * 3 => bytes(delivered),
            Some(_) if used >= cap.0 / 4 => cap,
            _ => bytes(present_rate(path)),
        }
    }
}

impl Bound {
    fn bytes(&self, path: &PathView, rate: Bitrate) -> Bytes {
        let time = (path.rtt_min + self.queue).as_secs_f64();
        Bytes((rate.as_bps() as f64 / 8.0 * time).max(self.least) as u64)
    }
}

impl Handler for QueueBound {
    fn gives_back(&mut self, path: &PathView, _now: std::time::Instant) -> bool {
        let cap = match path.realtime {
            true => self.beside_calls(path, self.cap(path.id)),
            false => self.general.bytes(path, present_rate(path)),
        };
        *self.caps.of(path.id) = (!path.slow_start).then_some(cap);
        false
    }

    fn cap(&self, path: PathId) -> Option<Bytes> {
        self.caps.get(path).copied().flatten()
    }

    fn note(&mut self, note: &Note, _now: std::time::Instant) {
        if let Note::Gone { path } = *note {
            self.caps.forget(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChainSpec;
    use crate::samples::{base, path};

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

    #[test]
    fn cap_beside_a_call_follows_what_was_delivered() {
        let rule = "queue_bound(call_queue=60ms, call_least=5000)";
        let mut chain = ChainSpec::of(&["min_rtt", rule]).unwrap().build();
        let mut cap = |outstanding_kb: u64, delivered: Option<f64>| {
            let rate = Some(Bitrate::from_mbps(8.0));
            let delivered = delivered.map(Bitrate::from_mbps);
            let outstanding = Bytes(outstanding_kb * 1_000);
            let path = PathView { rate, delivered, outstanding, realtime: true, ..path(1, 40) };
            chain.gives_back(&path, base());
            chain.cap(path.id).unwrap().0 / 1_000
        };
        // 1 KB a millisecond, 40 ms and 60.
        assert_eq!(cap(0, None), 100, "an idle path has its present rate");
        assert_eq!(cap(40, Some(0.8)), 100, "it was not given all it may have");
        assert_eq!(cap(80, Some(4.0)), 50, "it carries half of that");
        assert_eq!(cap(50, Some(10.0)), 125, "more, by 60 in 40 ms");
        assert_eq!(cap(125, Some(0.0)), 5, "dark");
        assert_eq!(cap(5, Some(1.0)), 12, "it returns");
        assert_eq!(cap(0, Some(0.1)), 100, "only the call is left");
    }
}
