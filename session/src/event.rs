//! The events of an endpoint.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Channel, Destination, FlowId, Identity, PathId, SessionKey, UserId};

use crate::datagram::UserDatagram;
use crate::wire::{Offer, ResetReason};

/// The caller's name of a tunnel; may be used again after [`crate::Endpoint::tunnel_down`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelKey(pub usize);

/// A flow within one endpoint; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Its session.
    pub session: SessionKey,
    /// Its number there.
    pub flow: FlowId,
}

/// A problem of a path that the sender of data reports to the peer, because only the gateway can
/// replace a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathReport {
    /// The data in flight on it makes no progress.
    Stalled,
    /// The network polices it: it drops packets above a rate.
    Policed {
        /// The rate.
        rate: Bitrate,
    },
}

/// Why a flow cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The bound on flows is reached, and no other user has many more.
    #[error("too many open flows")]
    TooManyFlows,
    /// The bound on flows of one user is reached.
    #[error("too many open flows of the user")]
    TooManyOfUser,
    /// This side or the cloud is going away.
    #[error("the session is going away")]
    GoingAway,
    /// Only a gateway opens flows.
    #[error("only a gateway opens flows")]
    WrongRole,
}

/// Something that the caller must know or act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The session is up: the first path was welcomed.
    SessionUp {
        /// The session.
        session: SessionKey,
        /// The node at the other end.
        peer: Identity,
        /// What the cloud reaches and carries.
        offer: Offer,
    },
    /// The session and all of its flows have ended; each open flow had its own [`Event::Reset`].
    SessionEnded {
        /// The session.
        session: SessionKey,
        /// The reason, in words.
        reason: String,
        /// The number of flows that were open.
        flows: usize,
    },
    /// A tunnel has become a path of a session.
    PathUp {
        /// The tunnel.
        tunnel: TunnelKey,
        /// The session.
        session: SessionKey,
        /// The path's number.
        path: PathId,
    },
    /// Data on a path was not acknowledged for too long; see
    /// [`limits::STALL_MIN`](crate::limits::STALL_MIN). [`Event::PathRecovered`] follows if the
    /// path makes progress again.
    PathStalled {
        /// The path's tunnel.
        tunnel: TunnelKey,
        /// When the path last received from the peer, but not before it waits for an
        /// acknowledgement.
        since: Instant,
    },
    /// A stalled path makes progress again.
    PathRecovered {
        /// The path's tunnel.
        tunnel: TunnelKey,
    },
    /// The peer opens or accepts no more flows; reported once in a session.
    PeerGoing {
        /// The session.
        session: SessionKey,
        /// Why, in the words of the peer.
        reason: String,
    },
    /// The peer reports a problem of a path; reported once, although each path carries the report,
    /// and of many reports the newest.
    PathReport {
        /// The path's tunnel.
        tunnel: TunnelKey,
        /// The problem.
        report: PathReport,
    },
    /// The caller must flush and close the tunnel, then report it down.
    CloseTunnel {
        /// The tunnel.
        tunnel: TunnelKey,
        /// The reason, in words.
        reason: String,
        /// A newer tunnel of its carrier has taken over; neither has failed.
        superseded: bool,
    },
    /// The peer opened a flow: dial its destination (cloud).
    Opened {
        /// The flow.
        flow: FlowKey,
        /// The user who opened it.
        user: UserId,
        /// The server to dial.
        destination: Destination,
    },
    /// The connection to the server is established (gateway).
    Dialed {
        /// The flow.
        flow: FlowKey,
    },
    /// There are unread bytes, or the peer has ended its direction.
    Readable {
        /// The flow.
        flow: FlowKey,
    },
    /// A writer that had no room has room again.
    Writable {
        /// The flow.
        flow: FlowKey,
    },
    /// The flow was reset, and the reader has consumed all data before the reset. It is removed.
    Reset {
        /// The flow.
        flow: FlowKey,
        /// Why.
        reason: ResetReason,
    },
    /// Both directions have ended and all data is delivered. The flow is removed.
    Closed {
        /// The flow.
        flow: FlowKey,
    },
    /// A message of the peer that belongs to no flow; reported once, although paths carry copies.
    Message {
        /// The session.
        session: SessionKey,
        /// The receiver of the message.
        channel: Channel,
        /// How long the sender queued it.
        waited: Duration,
        /// The message.
        payload: Vec<u8>,
    },
    /// A datagram of the peer; reported once, although paths carry copies.
    Datagram {
        /// The session.
        session: SessionKey,
        /// The datagram.
        datagram: UserDatagram,
    },
    /// A condition that needs the operator's attention.
    Alarm {
        /// The session that it concerns, if there is one.
        session: Option<SessionKey>,
        /// The condition, in words.
        text: String,
    },
}
