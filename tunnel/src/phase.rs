//! The phases of a tunnel, and the time limits of its handshake and its graceful close.

use std::time::{Duration, Instant};

/// See the drawing at [`Tunnel`](crate::Tunnel), and that of QUIC in [`quic`](crate::quic).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TunnelPhase {
    /// Of TCP alone.
    Connecting,
    Handshaking,
    /// In the handshake, with early data: the client may send it, or the server has received it.
    Early,
    Up,
    Closing,
    /// Of QUIC alone: the peer closed it, and received units are still read.
    Leaving,
    Closed,
}

/// The phase of a tunnel and its deadline. Phases never go back.
#[derive(Debug)]
pub(crate) struct TunnelLife {
    phase: TunnelPhase,
    began: Instant,
    deadline: Option<Instant>,
}

impl TunnelLife {
    pub(crate) fn new(now: Instant, phase: TunnelPhase, limit: Duration) -> Self {
        Self { phase, began: now, deadline: Some(now + limit) }
    }

    pub(crate) fn phase(&self) -> TunnelPhase {
        self.phase
    }

    /// Whether the handshake is in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self.phase, TunnelPhase::Handshaking | TunnelPhase::Early)
    }

    /// Whether units may be sent.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, TunnelPhase::Early | TunnelPhase::Up)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase == TunnelPhase::Closed
    }

    /// When the connect or the accept began.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// When the connect, the handshake or the graceful close must be over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Enters a phase that must be over at the deadline.
    pub(crate) fn enter(&mut self, phase: TunnelPhase, deadline: Option<Instant>) {
        debug_assert!(phase >= self.phase, "{phase:?} after {:?}", self.phase);
        (self.phase, self.deadline) = (phase, deadline);
    }
}
