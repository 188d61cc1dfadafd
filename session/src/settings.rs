//! Settings of an endpoint, and its status for operators.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes, Families, Identity, PathId, SessionKey, TunnelMode};
use polyrail_scheduler::ChainSpec;

use crate::event::TunnelKey;

/// The two ends of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// On board: opens sessions and flows.
    Gateway,
    /// On the ground: answers.
    Cloud,
}

/// How an endpoint behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a session lives without any path; default 120 s.
    pub linger: Duration,
    /// The most bytes that a session holds in each direction: received and not read, and written
    /// and not acknowledged; default 16 MiB, at least 1 MiB.
    pub memory: Bytes,
    /// Flows open at once in a session; default 16,384. Beyond, a flow is refused.
    pub flows_max: usize,
    /// The address families that this host reaches (a cloud tells its gateways).
    pub families: Families,
    /// The scheduler.
    pub chain: ChainSpec,
    /// Whether segments are reinjected when their path makes no progress for max(3 srtt + 4 rttvar,
    /// 300 ms). Segments of a lost path always are, and handlers of the chain may reinject others.
    pub stall: bool,
    /// Whether data that another path has delivered is withdrawn from tunnels that can.
    pub withdrawal: bool,
}

/// A tunnel that may carry frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelInfo {
    /// The carrier's name; a newer tunnel of the same carrier replaces an older one once the peer
    /// is known to receive on it. The cloud passes an empty text and learns it from the gateway.
    pub carrier: String,
    /// The certificate's identity.
    pub peer: Identity,
    /// The key exported from the connection; `None` while its handshake goes on and only early
    /// data passes.
    pub exporter: Option<[u8; 32]>,
    /// Use it only when no other path is left (gateway).
    pub backup: bool,
    /// The tunnel mode.
    pub mode: TunnelMode,
}

/// A snapshot for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The sessions.
    pub sessions: Vec<SessionStatus>,
}

/// A snapshot of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// The session.
    pub session: SessionKey,
    /// The node at the other end.
    pub peer: Option<Identity>,
    /// Open flows.
    pub flows: usize,
    /// Bytes received and not read.
    pub memory_received: Bytes,
    /// Bytes written and not acknowledged.
    pub memory_sent: Bytes,
    /// Bytes that may be sent before the peer grants more.
    pub credit: Bytes,
    /// Bytes that were sent more than once, without those of paths that never delivered anything.
    pub reinjected: Bytes,
    /// Messages to the peer that were dropped because a queue was full.
    pub messages_dropped: u64,
    /// Its paths.
    pub paths: Vec<PathStatus>,
}

/// A snapshot of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// Its tunnel.
    pub tunnel: TunnelKey,
    /// Its number.
    pub path: PathId,
    /// Its carrier's name.
    pub carrier: String,
    /// The tunnel mode.
    pub mode: TunnelMode,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_var: Duration,
    /// One-way delay towards the peer, comparable between paths only; `None` while unknown.
    pub owd: Option<Duration>,
    /// It makes no progress and carries no new data.
    pub stalled: bool,
    /// A newer path of its carrier has taken over; it only delivers the data in flight.
    pub superseded: bool,
    /// The peer is not yet known to receive on it; it carries user data only if no other path can
    /// (gateway).
    pub unproven: bool,
    /// Used only when no other path is left.
    pub backup: bool,
    /// Sent over it and not acknowledged by the session.
    pub outstanding: Bytes,
    /// The transport's congestion window; zero before the first sample, as are the figures below.
    pub window: Bytes,
    /// Sent and not acknowledged by the peer's transport.
    pub in_flight: Bytes,
    /// Accepted by the transport and not sent yet.
    pub unsent: Bytes,
    /// Recent delivery rate, where known.
    pub rate: Option<Bitrate>,
    /// Packets with data sent.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Consecutive timeouts of the transport.
    pub timeouts: u32,
    /// User bytes sent over it, copies included.
    pub sent: Bytes,
    /// User bytes received over it, copies included.
    pub received: Bytes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            linger: Duration::from_secs(120),
            memory: Bytes::from_mib(16),
            flows_max: 16_384,
            families: Families::BOTH,
            chain: ChainSpec::default(),
            stall: true,
            withdrawal: true,
        }
    }
}
