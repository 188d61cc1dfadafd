//! Round-trip times: single bytes that the cloud returns, one at a time.

use std::time::{Duration, Instant};

use polyrail_session::{Endpoint, FlowKey};

#[derive(Debug)]
pub(super) struct Echo {
    pub(super) flow: FlowKey,
    /// When the byte in flight was sent.
    sent_at: Option<Instant>,
    next_at: Instant,
    /// The round-trip times since the last [`Echo::take_median`].
    times: Vec<Duration>,
}

impl Echo {
    pub(super) fn new(now: Instant, flow: FlowKey) -> Self {
        Self { flow, sent_at: None, next_at: now, times: Vec::new() }
    }

    /// The number of round-trip times.
    pub(super) fn count(&self) -> usize {
        self.times.len()
    }

    /// The flow is readable.
    pub(super) fn receive(&mut self, now: Instant, endpoint: &mut Endpoint) {
        let count: usize = endpoint.readable(self.flow).iter().map(|part| part.len()).sum();
        endpoint.consume(now, self.flow, count);
        if count > 0
            && let Some(sent_at) = self.sent_at.take()
        {
            self.times.push(now.saturating_duration_since(sent_at));
            self.next_at = now + APART;
        }
    }

    /// Sends a byte if that is due.
    pub(super) fn send(&mut self, now: Instant, endpoint: &mut Endpoint) {
        if self.next_timeout().is_some_and(|at| at <= now) {
            endpoint.write(now, self.flow, b"?");
            self.sent_at = Some(now);
        }
    }

    /// When [`Echo::send`] is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.sent_at.is_none().then_some(self.next_at)
    }

    /// The median in microseconds; begins a new series.
    pub(super) fn take_median(&mut self) -> Option<u64> {
        let mut times = std::mem::take(&mut self.times);
        times.sort_unstable();
        let median = times.get(times.len() / 2)?;
        u64::try_from(median.as_micros()).ok()
    }
}

/// From an answer to the next byte.
const APART: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_model::{FlowId, SessionKey};

    #[test]
    fn median_is_that_of_one_series() {
        let flow = FlowKey { session: SessionKey(1), flow: FlowId(1) };
        let mut echo = Echo::new(Instant::now(), flow);
        assert_eq!(echo.take_median(), None);
        echo.times = [90, 20, 40].map(Duration::from_millis).to_vec();
        assert_eq!(echo.take_median(), Some(40_000));
        assert_eq!((echo.count(), echo.take_median()), (0, None));
    }
}
