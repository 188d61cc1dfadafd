//! `queue_bound`: a path gets no more than it delivers soon.
//!
//! Rule: our own. A transport's window follows the rate of some seconds ago; on a train that may be
//! ten times the present one, and what is handed over then waits in the base station. So a path has
//! at most `present rate x (least round trip + queue)` out, at least `least` bytes. While it shows no
//! queue it may deliver more than it was given to: then `growth` times as much.

use std::time::Duration;

use polyrail_model::{Bytes, PathId};

use super::figures::{has_queue, present_rate};
use super::per_path::PerPath;
use crate::params::{ParamError, Reader};
use crate::{Handler, Note, PathView};

/// The handler that keeps queues short.
#[derive(Clone, Debug)]
pub struct QueueBound {
    queue: Duration,
    least: f64,
    growth: f64,
    caps: PerPath<Option<Bytes>>,
}

impl QueueBound {
    /// `queue`: how long what is out may wait beside its least round trip; `least`: what a path may
    /// always have out; `growth`: by how much it may exceed its known rate while it shows no queue.
    ///
    /// # Errors
    /// A parameter is wrong.
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let bounds = Duration::ZERO..=Duration::from_secs(60);
        Ok(Self {
            queue: params.time("queue", Duration::from_millis(300), bounds)?,
            least: params.count("least", 196_608, 0..=1 << 30)? as f64,
            growth: params.number("growth", 4.0, 1.0..=100.0)?,
            caps: PerPath::default(),
        })
    }
}

impl Handler for QueueBound {
    fn name(&self) -> &'static str {
        "queue_bound"
    }

    fn gives_back(&mut self, path: &PathView, _now: std::time::Instant) -> bool {
        let bytes_s = present_rate(path).as_bps() as f64 / 8.0;
        let time = (path.rtt_min + self.queue).as_secs_f64();
        let factor = if has_queue(path) { 1.0 } else { self.growth };
        *self.caps.of(path.id) = Some(Bytes((bytes_s * time * factor).max(self.least) as u64));
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
    use crate::view::samples::{base, path};

    #[test]
    fn table() {
        let ms = Duration::from_millis;
        let rule = "queue_bound(queue=60ms, growth=3, least=20000)";
        let mut chain = ChainSpec::of(&["min_rtt", rule]).unwrap().build();
        let mut cap = |path: PathView| {
            assert!(!chain.gives_back(&path, base()));
            chain.cap(path.id)
        };
        // 1 KB a millisecond, 40 ms and 60.
        let known = PathView { rate: Some(Bitrate::from_mbps(8.0)), ..path(1, 40) };
        assert_eq!(cap(known), Some(Bytes(300_000)), "no queue");
        let flowing = Some(Bitrate::from_mbps(4.0));
        let queued = PathView { srtt: ms(70), flowing, ..known };
        assert_eq!(cap(queued), Some(Bytes(50_000)), "half the rate, and a queue");
        let faster = PathView { flowing: Some(Bitrate::from_mbps(16.0)), ..known };
        assert_eq!(cap(faster), Some(Bytes(600_000)), "more than was known");
        let slow = PathView { flowing: Some(Bitrate::from_mbps(0.1)), ..queued };
        assert_eq!(cap(slow), Some(Bytes(20_000)), "never less");
        assert_eq!(chain.cap(PathId(2)), None, "not seen");
        chain.note(&Note::Gone { path: PathId(1) }, base());
        assert_eq!(chain.cap(PathId(1)), None, "gone");
    }
}
