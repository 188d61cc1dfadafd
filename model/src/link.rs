//! The state and the forecasts of a path.

use std::time::{Duration, Instant};

use crate::{Bitrate, Bytes};

/// The state of one path's transport at one moment, as the tunnel measured it.
///
/// For TLS over TCP the values come from the kernel's `TCP_INFO`. Values that the transport does
/// not know are `None`.
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
    /// Whether the sent data, not the path, limited the delivery rate.
    pub application_limited: bool,
    /// Packets with data sent since the connection began, including retransmissions.
    pub sent_packets: u64,
    /// Packets declared lost since the connection began.
    pub lost_packets: u64,
    /// Those of them that arrived after all, as far as the peer reported it.
    pub spurious_packets: u64,
    /// Consecutive retransmission timeouts without progress; 0 when progress was made.
    pub timeouts: u32,
    /// Bytes acknowledged by the peer's transport since the connection began.
    pub acked: Bytes,
}

/// A predicted failure of a carrier's next handover. LinkDB computes it from position and history;
/// the session passes it to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkForecast {
    /// When the train reaches the place of the failure; in the past once the train has passed it
    /// and is still in the old cell.
    pub fails_at: Instant,
    /// When the train reaches the place where nearly every handover of this cell has begun.
    pub ends_at: Instant,
    /// The uncertainty of both times, to both sides.
    pub uncertainty: Duration,
    /// The probability of the failure, in 1/1,000.
    pub permille: u16,
    /// When the forecast expires.
    pub expires_at: Instant,
}

/// The rates of a carrier on the line ahead, as earlier trips measured them. LinkDB computes it
/// from its rate map; the session passes it to the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkOutlook {
    /// The steps in order of time. Only the next few are used.
    pub steps: Vec<OutlookStep>,
}

/// One place on the line ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlookStep {
    /// When the train reaches the place.
    pub from: Instant,
    /// The carrier's rate there.
    pub rate: Bitrate,
    /// The delay towards the peer there, without queues.
    pub delay: Duration,
}

impl LinkOutlook {
    /// The time for which the last step applies.
    pub const LAST_STEP: Duration = Duration::from_secs(3);
}
