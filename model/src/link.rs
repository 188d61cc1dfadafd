//! What a tunnel reports about its path.

use std::time::{Duration, Instant};

use crate::{Bitrate, Bytes};

/// The state of one path's transport at one moment, as the tunnel measured it.
///
/// For TLS over TCP the figures come from the kernel's `TCP_INFO`. What the transport does not
/// know is `None`; nothing is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSample {
    /// When it was taken.
    pub at: Instant,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Least round-trip time of the transport's own window.
    pub rtt_min: Duration,
    /// Mean deviation of the round-trip time (RFC 6298).
    pub rtt_var: Duration,
    /// Congestion window.
    pub window: Bytes,
    /// Sent and not yet acknowledged.
    pub in_flight: Bytes,
    /// Accepted by the transport and not yet sent.
    pub unsent: Bytes,
    /// Recent rate of delivery; `None` before the first measurement.
    pub delivery_rate: Option<Bitrate>,
    /// Whether the delivery rate was limited by what was offered, not by the path.
    pub application_limited: bool,
    /// Packets with data sent since the connection began, those sent again included.
    pub sent_packets: u64,
    /// Packets declared lost since the connection began.
    pub lost_packets: u64,
    /// Consecutive retransmission timeouts without progress; 0 when progress was made.
    pub timeouts: u32,
    /// Bytes acknowledged by the peer's transport since the connection began.
    pub acked: Bytes,
}

/// What is foreseen of a carrier: the handover ahead is likely to fail. Made from position and
/// history by who knows them; the session passes it on to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkForecast {
    /// When the train reaches the place of the failure; earlier than now once it has passed it and
    /// is still in the old cell.
    pub fails_at: Instant,
    /// How uncertain that is, to both sides.
    pub uncertainty: Duration,
    /// How many of 1,000 of these handovers fail.
    pub permille: u16,
    /// When it is too old to be believed, if no newer one has come.
    pub expires_at: Instant,
}

/// What earlier trips say that a carrier will carry on the track ahead. Made from a database of
/// places by who knows the position; the session passes it on to the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkOutlook {
    /// From when on what holds, in the order of time. The next few count.
    pub steps: Vec<OutlookStep>,
}

/// One place on the track ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlookStep {
    /// When the train comes there.
    pub from: Instant,
    /// What the carrier carries there.
    pub rate: Bitrate,
    /// The delay towards the peer there, without queues.
    pub delay: Duration,
}

impl LinkOutlook {
    /// For so long the last step holds.
    pub const LAST_STEP: Duration = Duration::from_secs(3);
}
