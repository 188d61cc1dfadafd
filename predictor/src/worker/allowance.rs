//! What a peer may send, so that none fills the worker's channel.
//!
//! An allowance outlives its session, so that a peer gains nothing by new sessions.
//!
//! A train sends telemetry at most 11 times a second, and appends about one entry a second. Its
//! first replication is faster than this limit; then messages are dropped, and the sender repeats
//! them from the receiver's mark on.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::{Bucket, Channel, SessionKey};

use crate::wire;

/// The allowances of all peers by name; a full one may be missing.
#[derive(Debug, Default)]
pub(super) struct Allowances {
    /// The peers of the sessions.
    peers: BTreeMap<SessionKey, String>,
    of: BTreeMap<String, Allowance>,
}

/// The allowance of one peer.
#[derive(Debug)]
struct Allowance {
    telemetry: Bucket,
    others: Bucket,
    dropped: u64,
}

impl Allowances {
    /// A session with this peer has begun.
    pub(super) fn begin(&mut self, session: SessionKey, peer: String) {
        self.peers.insert(session, peer);
    }

    /// A session has ended.
    pub(super) fn end(&mut self, now: Instant, session: SessionKey) {
        self.peers.remove(&session);
        self.of.retain(|_, one| !(one.telemetry.is_full(now) && one.others.is_full(now)));
    }

    /// Whether the peer of a session may send a message now; logs some that it may not.
    pub(super) fn take(&mut self, now: Instant, session: SessionKey, channel: Channel) -> bool {
        let Some(peer) = self.peers.get(&session) else { return false };
        let full = Bucket::new(now, MESSAGES_A_SECOND, MESSAGES_AT_ONCE as f64);
        let new = || Allowance { telemetry: full, others: full, dropped: 0 };
        self.of.entry(peer.clone()).or_insert_with(new).take(now, peer, channel)
    }
}

impl Allowance {
    fn take(&mut self, now: Instant, peer: &str, channel: Channel) -> bool {
        let is_telemetry = channel == wire::TELEMETRY;
        let bucket = if is_telemetry { &mut self.telemetry } else { &mut self.others };
        if bucket.take(now, 1) {
            return true;
        }
        self.dropped += 1;
        if self.dropped.is_power_of_two() {
            let dropped = self.dropped;
            tracing::warn!(peer, dropped, "the peer sends too many LinkDB messages");
        }
        false
    }
}

/// Messages of a peer that a node takes, of telemetry and of the database each.
pub const MESSAGES_A_SECOND: f64 = 50.0;
/// The same at once.
pub const MESSAGES_AT_ONCE: usize = 256;
