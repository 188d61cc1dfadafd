//! What an endpoint tells its caller.

use std::time::{Duration, Instant};

use polyrail_model::{
    Bitrate, Channel, Destination, Families, FlowId, Identity, PathId, SessionKey, UserId,
};

use crate::wire::ResetReason;

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

/// What the sender of data has noticed about a path, and the other side should know: the gateway
/// alone can put another tunnel in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathReport {
    /// What is out on it makes no progress.
    Stalled,
    /// It is held to a rate, as policers of UDP do.
    Policed {
        /// The rate.
        rate: Bitrate,
    },
}

/// Why a flow cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The bound on flows is reached.
    #[error("too many open flows")]
    TooManyFlows,
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
    /// The session stands: the first path was welcomed.
    SessionUp {
        /// The session.
        session: SessionKey,
        /// The node at the other end.
        peer: Identity,
        /// The address families that the cloud reaches.
        families: Families,
    },
    /// The session and all of its flows are gone; each open flow had its own [`Event::Reset`].
    SessionEnded {
        /// The session.
        session: SessionKey,
        /// Why, for people.
        reason: String,
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
    /// Data waits on a path and nothing is acknowledged for too long; see
    /// [`limits::STALL_MIN`](crate::limits::STALL_MIN). [`Event::PathRecovered`] follows if the path
    /// makes progress again.
    PathStalled {
        /// The path's tunnel.
        tunnel: TunnelKey,
        /// When the peer was last heard over it, at the earliest when the data began to wait.
        since: Instant,
    },
    /// A stalled path makes progress again.
    PathRecovered {
        /// The path's tunnel.
        tunnel: TunnelKey,
    },
    /// The peer has noticed something about a path. Told once, whichever path brought it.
    PathReport {
        /// The path's tunnel.
        tunnel: TunnelKey,
        /// What it noticed.
        report: PathReport,
    },
    /// The caller is to flush and close the tunnel, then to report it down.
    CloseTunnel {
        /// The tunnel.
        tunnel: TunnelKey,
        /// Why, for people.
        reason: String,
        /// A newer tunnel of its carrier has taken over: nothing is wrong with either.
        superseded: bool,
    },
    /// The peer opened a flow: dial its destination (cloud).
    Opened {
        /// The flow.
        flow: FlowKey,
        /// Whose it is.
        user: UserId,
        /// Where it wants to go.
        destination: Destination,
    },
    /// The server's connection stands (gateway).
    Dialed {
        /// The flow.
        flow: FlowKey,
    },
    /// There is something to read, or the end was reached.
    Readable {
        /// The flow.
        flow: FlowKey,
    },
    /// A writer that was refused may go on.
    Writable {
        /// The flow.
        flow: FlowKey,
    },
    /// The flow was reset, and all that had to be delivered before was consumed. It is gone.
    Reset {
        /// The flow.
        flow: FlowKey,
        /// Why.
        reason: ResetReason,
    },
    /// Both directions have ended and everything is delivered. The flow is gone.
    Closed {
        /// The flow.
        flow: FlowKey,
    },
    /// A message of the peer that belongs to no flow; reported once, whichever path brought it.
    Message {
        /// The session.
        session: SessionKey,
        /// The receiver of the message.
        channel: Channel,
        /// For how long it was queued at the sender.
        waited: Duration,
        /// The message.
        payload: Vec<u8>,
    },
    /// Something that an operator must look at.
    Alarm {
        /// What, for people.
        text: String,
    },
}
