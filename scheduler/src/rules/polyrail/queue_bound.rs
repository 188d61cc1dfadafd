//! `queue_bound`: caps the bytes in flight of a path at its rate times round trip and queue.
//!
//! Rule: our own. A transport's window follows the rate of some seconds ago. On a train that may be
//! ten times the present rate, and the excess waits in the base station. So a path has at most
//! `present rate x (least round trip + queue)` in flight, and at least `least` bytes. The queue
//! also shows whether a path carries more than its known rate.

use std::time::Duration;

use polyrail_model::{Bytes, PathId};

use crate::params::{ParamError, Reader};
use crate::rules::path_rate::present_rate;
use crate::rules::per_path::PerPath;
use crate::{Handler, Note, PathView};

#[derive(Clone, Debug)]
pub struct QueueBound {
    queue: Duration,
    least: f64,
    caps: PerPath<Option<Bytes>>,
}

impl QueueBound {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let bounds = Duration::ZERO..=Duration::from_secs(60);
        Ok(Self {
            queue: params.time("queue", Duration::from_millis(200), bounds)?,
            least: params.count("least", 65_536, 0..=1 << 30)? as f64,
            caps: PerPath::default(),
        })
    }
}

impl Handler for QueueBound {
    fn gives_back(&mut self, path: &PathView, _now: std::time::Instant) -> bool {
        let bytes_s = present_rate(path).as_bps() as f64 / 8.0;
        let time = (path.rtt_min + self.queue).as_secs_f64();
        let known = !path.slow_start;
        *self.caps.of(path.id) = known.then_some(Bytes((bytes_s * time).max(self.least) as u64));
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
    use polyrail_model::Bitrate;

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
}
