//! What a peer may send, so that no session fills the worker's channel.
//!
//! A train sends telemetry at most 11 times a second, and appends about one entry a second. Its
//! first replication is faster than this limit; then messages are dropped, and the sender repeats
//! them from the receiver's mark on.

use std::time::Instant;

use polyrail_model::Channel;

use crate::sync::Bucket;
use crate::wire;

/// The allowance of one session.
#[derive(Debug)]
pub(super) struct Allowance {
    peer: String,
    telemetry: Bucket,
    others: Bucket,
    dropped: u64,
}

impl Allowance {
    pub(super) fn new(now: Instant, peer: String) -> Self {
        let full = Bucket::new(now, MESSAGES_A_SECOND, MESSAGES_AT_ONCE as f64);
        Self { peer, telemetry: full, others: full, dropped: 0 }
    }

    /// Whether the peer may send a message now; logs some that it may not.
    pub(super) fn take(&mut self, now: Instant, channel: Channel) -> bool {
        let is_telemetry = channel == wire::TELEMETRY;
        let bucket = if is_telemetry { &mut self.telemetry } else { &mut self.others };
        if bucket.take(now, 1) {
            return true;
        }
        self.dropped += 1;
        if self.dropped.is_power_of_two() {
            let (peer, dropped) = (&self.peer, self.dropped);
            tracing::warn!(peer, dropped, "the peer sends too many LinkDB messages");
        }
        false
    }
}

/// Messages of a session that a node takes, of telemetry and of the database each.
pub const MESSAGES_A_SECOND: f64 = 50.0;
/// The same at once.
pub const MESSAGES_AT_ONCE: usize = 256;
