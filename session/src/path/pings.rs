//! When a path sends PINGs: regularly, and when the received data pauses. A PONG confirms the
//! control frames sent before its PING.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polyrail_model::FlowId;

use crate::limits::{PAUSE_BYTES, PAUSE_MIN, PING_ACTIVE, PING_DATAGRAMS, PING_IDLE};

#[derive(Debug)]
pub(crate) struct Pings {
    /// The token of the PING in flight, and when it was sent.
    in_flight: Option<(u64, Instant)>,
    next_at: Instant,
    /// The numbers of flows whose control frames were sent here: since the last PING, and before
    /// it. Control frames that no PONG confirms are repeated when the path stalls or is lost.
    unconfirmed: BTreeSet<FlowId>,
    unconfirmed_before: BTreeSet<FlowId>,
    /// When user data last arrived, and the bytes since the last pause.
    pub received_at: Instant,
    received_since_pause: u64,
}

impl Pings {
    pub fn new(now: Instant) -> Self {
        Self {
            in_flight: None,
            next_at: now + PING_ACTIVE,
            unconfirmed: BTreeSet::new(),
            unconfirmed_before: BTreeSet::new(),
            received_at: now,
            received_since_pause: 0,
        }
    }

    /// When the PING in flight was sent.
    pub fn pinged_at(&self) -> Option<Instant> {
        self.in_flight.map(|(_, at)| at)
    }

    /// When the next PING is due. One PING is in flight at a time; an old one is given up, so that
    /// a dead connection is noticed.
    pub fn next_at(&self) -> Instant {
        self.pinged_at().map_or(self.next_at, |at| at + PING_IDLE)
    }

    /// A PING was sent.
    pub fn sent(&mut self, now: Instant, token: u64) {
        self.in_flight = Some((token, now));
        self.unconfirmed_before.append(&mut self.unconfirmed);
    }

    /// A PONG arrived. Returns the round-trip time if it answers the PING in flight.
    pub fn answered(&mut self, now: Instant, token: u64) -> Option<Duration> {
        let (_, at) = self.in_flight.take_if(|(sent, _)| *sent == token)?;
        self.unconfirmed_before.clear();
        let interval = if self.unconfirmed.is_empty() { PING_IDLE } else { PING_ACTIVE };
        self.next_at = now + interval;
        Some(now.saturating_duration_since(at))
    }

    /// Sends a PING as soon as none is in flight.
    pub fn soon(&mut self, now: Instant) {
        self.next_at = now;
    }

    /// Sends frequent PINGs, because the path carries datagrams.
    pub fn watch(&mut self, now: Instant) {
        self.next_at = self.next_at.min(now + PING_DATAGRAMS);
    }

    // Control frames.

    /// A control frame of the flow with this number was sent here.
    pub fn sent_control(&mut self, now: Instant, flow: FlowId) {
        if self.unconfirmed.is_empty() {
            self.next_at = self.next_at.min(now + PING_ACTIVE);
        }
        self.unconfirmed.insert(flow);
    }

    /// The number of flows with unconfirmed control frames.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed.len() + self.unconfirmed_before.len()
    }

    /// Forgets the control frames of other flows: their peers ask again.
    pub fn retain_unconfirmed(&mut self, keep: impl Fn(&FlowId) -> bool) {
        self.unconfirmed.retain(&keep);
        self.unconfirmed_before.retain(&keep);
    }

    pub fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed.is_empty() || !self.unconfirmed_before.is_empty()
    }

    pub fn take_unconfirmed(&mut self) -> BTreeSet<FlowId> {
        let mut flows = std::mem::take(&mut self.unconfirmed);
        flows.append(&mut self.unconfirmed_before);
        flows
    }

    // Pauses.

    /// User data arrived; if `watched`, a PING follows when it stops.
    pub fn on_received(&mut self, now: Instant, bytes: u64, watched: bool) {
        self.received_at = now;
        if watched {
            self.received_since_pause = self.received_since_pause.saturating_add(bytes);
        }
    }

    /// When a pause of the received data calls for a PING.
    pub fn pause_at(&self, srtt: Duration) -> Option<Instant> {
        let transfer = self.received_since_pause >= PAUSE_BYTES;
        transfer.then(|| self.received_at + (srtt * 2).max(PAUSE_MIN))
    }

    /// Whether the received data has paused; true once for each pause.
    pub fn begins_pause(&mut self, now: Instant, srtt: Duration) -> bool {
        let paused = self.pause_at(srtt).is_some_and(|at| now >= at);
        if paused {
            self.received_since_pause = 0;
        }
        paused
    }
}
