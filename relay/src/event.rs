//! What the relay tells the daemon.

use std::net::SocketAddr;

use polyrail_model::{Bitrate, Identity};
use polyrail_session::{Event, FlowKey, ResetReason, TunnelKey};
use polyrail_tunnel::{CloseReason, Established};

use crate::MovingTunnel;

/// An event for the daemon.
#[derive(Debug)]
pub enum RelayEvent {
    /// A session event that no leg handles: sessions, paths, dials, alarms, and flows without a
    /// leg. [`Event::CloseTunnel`] is not among them.
    Session(Event),
    /// The session, or the peer's, has refused a flow that has a leg: [`ResetReason::Quota`] or
    /// [`ResetReason::Overload`].
    FlowRefused {
        /// The flow; the session no longer knows it.
        flow: FlowKey,
        /// The address at the other end of its leg.
        peer: Option<SocketAddr>,
        /// The reason.
        reason: ResetReason,
    },
    /// The session uses a tunnel before its handshake finished; [`RelayEvent::TunnelUp`] follows.
    TunnelEarly {
        /// The tunnel.
        tunnel: TunnelKey,
    },
    /// A tunnel's handshake finished.
    TunnelUp {
        /// The tunnel.
        tunnel: TunnelKey,
        /// The result of the handshake.
        established: Established,
    },
    /// Traffic sent over a QUIC tunnel looks policed, see [`crate::Suspicion`]; repeated every few
    /// seconds.
    TunnelPoliced {
        /// The tunnel.
        tunnel: TunnelKey,
        /// The rate that gets through.
        rate: Bitrate,
    },
    /// The session refused the tunnel; it is being closed.
    TunnelRefused {
        /// The tunnel.
        tunnel: TunnelKey,
        /// The reason, in words.
        reason: String,
        /// The peer.
        peer: Option<Identity>,
        /// The peer's address.
        address: Option<SocketAddr>,
        /// A newer tunnel of its carrier has taken over.
        superseded: bool,
    },
    /// A tunnel is removed, because another worker owns its peer; [`Relay::take_in`] of that
    /// worker's relay follows.
    ///
    /// [`Relay::take_in`]: crate::Relay::take_in
    TunnelMoves(MovingTunnel),
    /// A tunnel is closed and removed.
    TunnelClosed {
        /// The tunnel.
        tunnel: TunnelKey,
        /// The reason.
        reason: CloseReason,
        /// The peer, if the handshake authenticated it.
        peer: Option<Identity>,
        /// The peer's address.
        address: Option<SocketAddr>,
    },
}
