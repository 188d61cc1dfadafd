//! Settings of an endpoint, and its status for operators.

use std::time::Duration;

use polyrail_model::{
    Bitrate, Bytes, Families, Identity, PathId, PathWish, SessionKey, TunnelMode,
};
use polyrail_scheduler::ChainSpec;

use crate::drops::DatagramDrops;
use crate::event::TunnelKey;

/// The settings of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a session lives without any path; default 120 s.
    pub linger: Duration,
    /// The maximum number of bytes that a session holds in each direction: received and unread,
    /// and written and not acknowledged; default 16 MiB, at least 1 MiB.
    pub memory: Bytes,
    /// The maximum number of open flows in a session; default 16,384. At the bound the heaviest
    /// user sheds a flow for a lighter one; other flows are refused.
    pub flows_max: usize,
    /// The maximum number of flows of one user; default 1,024. Further flows are refused.
    pub user_flows_max: usize,
    /// The address families that this host reaches; a cloud sends them to its gateways.
    pub families: Families,
    /// The scheduler.
    pub chain: ChainSpec,
    /// The scheduler of datagrams.
    pub datagram_chain: ChainSpec,
    /// Whether this cloud carries datagrams; it tells its gateways.
    pub datagrams: bool,
    /// Whether this cloud takes its gateways' reports; it tells them. Default false.
    pub reports: bool,
    /// Whether this cloud serves its gateways' speed tests; it tells them. Default false.
    pub speedtests: bool,
    /// Whether segments of a stalled path are reinjected on others, see
    /// [`limits::STALL_MIN`](crate::limits::STALL_MIN). Segments of a lost path always are, and
    /// handlers of the chain may reinject others.
    pub stall: bool,
}

/// A tunnel that may carry frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelInfo {
    /// The carrier's name; a newer tunnel of the same carrier replaces an older one once the peer
    /// is known to receive on it. The cloud passes an empty text and learns it from the gateway.
    pub carrier: String,
    /// The certificate's identity.
    pub peer: Identity,
    /// The key exported from the connection; `None` during its handshake, while it carries only
    /// early data.
    pub exporter: Option<[u8; 32]>,
    /// How the operator wants it used (gateway).
    pub wish: PathWish,
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
    /// The identity of the peer.
    pub peer: Option<Identity>,
    /// Open flows.
    pub flows: usize,
    /// The peer has sent GOAWAY.
    pub peer_going: bool,
    /// The peer is known to have received this side's GOAWAY.
    pub heard_going: bool,
    /// Users with open flows.
    pub users: usize,
    /// Flows opened since the session began.
    pub flows_opened: u64,
    /// Flows in memory, including flows without an OPEN and reset flows without an answer; not
    /// streams of datagrams.
    pub flows_held: usize,
    /// Unread bytes.
    pub memory_received: Bytes,
    /// Bytes written and not acknowledged.
    pub memory_sent: Bytes,
    /// Bytes that may be sent before the peer grants more.
    pub credit: Bytes,
    /// Bytes sent more than once, except those of paths that never delivered anything.
    pub reinjected: Bytes,
    /// Its datagrams.
    pub datagrams: DatagramStatus,
    /// Messages to the peer that were dropped because a queue was full.
    pub messages_dropped: u64,
    /// Its paths.
    pub paths: Vec<PathStatus>,
}

/// A snapshot of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The tunnel.
    pub tunnel: TunnelKey,
    /// The path's number.
    pub path: PathId,
    /// The carrier's name.
    pub carrier: String,
    /// The tunnel mode.
    pub mode: TunnelMode,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_var: Duration,
    /// One-way delay to the peer, comparable only between paths; `None` while unknown.
    pub owd: Option<Duration>,
    /// It makes no progress and carries no new data.
    pub stalled: bool,
    /// A newer path of its carrier has taken over; it only delivers the data in flight.
    pub superseded: bool,
    /// No proof yet that the peer receives on it; it carries user data only if no other path can
    /// (gateway).
    pub unproven: bool,
    /// How the operator wants it used.
    pub wish: PathWish,
    /// Bytes sent over it that the peer's session has not acknowledged.
    pub outstanding: Bytes,
    /// The transport's congestion window; this and the following are zero before the first sample.
    pub window: Bytes,
    /// Bytes sent that the peer's transport has not acknowledged.
    pub in_flight: Bytes,
    /// Bytes that the transport has not sent yet.
    pub unsent: Bytes,
    /// Recent delivery rate, if known.
    pub rate: Option<Bitrate>,
    /// Packets with data sent.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Consecutive timeouts of the transport.
    pub timeouts: u32,
    /// Users' bytes sent over it, copies and datagrams included.
    pub sent: Bytes,
    /// Users' bytes received over it, copies and datagrams included.
    pub received: Bytes,
}

/// Datagrams of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramStatus {
    /// Bindings with state.
    pub bindings: usize,
    /// Open streams of bindings.
    pub streams: usize,
    /// Datagrams sent, without copies.
    pub sent: u64,
    /// Copies sent.
    pub copies_sent: u64,
    /// Datagrams received, without copies.
    pub received: u64,
    /// Copies received, and datagrams too late to be told from copies.
    pub copies_received: u64,
    /// Datagrams dropped.
    pub drops: DatagramDrops,
}

/// The chain `datagrams`.
#[expect(clippy::expect_used, reason = "a test builds every chain of the table")]
fn datagrams() -> ChainSpec {
    ChainSpec::named("datagrams").expect("the table has a valid chain of this name")
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            linger: Duration::from_secs(120),
            memory: Bytes::from_mib(16),
            flows_max: 16_384,
            user_flows_max: 1_024,
            families: Families::BOTH,
            chain: ChainSpec::default(),
            datagram_chain: datagrams(),
            datagrams: true,
            reports: false,
            speedtests: false,
            stall: true,
        }
    }
}
