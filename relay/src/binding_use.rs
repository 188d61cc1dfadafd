//! How long the binding of a passenger's endpoint lives (RFC 4787 4.3).

use std::time::{Duration, Instant};

/// The use of one binding.
#[derive(Clone, Copy, Debug)]
pub struct BindingUse {
    used_at: Instant,
    sent: u64,
    received: u64,
}

impl BindingUse {
    /// An unused binding.
    pub fn new(now: Instant) -> Self {
        Self { used_at: now, sent: 0, received: 0 }
    }

    /// When the passenger last sent.
    pub fn used_at(&self) -> Instant {
        self.used_at
    }

    /// The passenger has sent a datagram.
    pub fn on_sent(&mut self, now: Instant) {
        self.used_at = now;
        self.sent += 1;
    }

    /// A datagram for the passenger has come. It does not prolong the binding (RFC 4787 REQ-6:
    /// only outbound refresh is required, and an outsider must not keep it alive).
    pub fn on_received(&mut self) {
        self.received += 1;
    }

    /// Whether it has been idle for too long: five minutes, or 30 s after one request and its
    /// reply.
    pub fn is_over(&self, now: Instant) -> bool {
        let limit = if self.sent == 1 && self.received == 1 { IDLE_ANSWERED } else { IDLE };
        now.saturating_duration_since(self.used_at) >= limit
    }
}

const IDLE: Duration = polyrail_session::limits::BINDING_IDLE;
const IDLE_ANSWERED: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binding_lives_five_minutes_and_half_a_minute_after_a_request_and_its_reply() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this table
        let begin = Instant::now();
        for (sent, received, seconds) in [(1, 0, 300), (1, 1, 30), (1, 2, 300), (2, 1, 300)] {
            let mut life = BindingUse::new(begin);
            (0..sent).for_each(|_| life.on_sent(begin));
            (0..received).for_each(|_| life.on_received());
            let after = |seconds| life.is_over(begin + Duration::from_secs(seconds));
            assert_eq!((after(seconds - 1), after(seconds)), (false, true), "{sent}, {received}");
        }
    }
}
