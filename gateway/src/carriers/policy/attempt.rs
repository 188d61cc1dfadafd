//! One connection of a carrier, from its begin until it is forgotten, and its transport's state.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

/// The policy's id of a connection; never used twice by one carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptId(pub(crate) u64);

/// The stage of a connection.
///
/// ```text
///  Dialing ──[Early]──> Greeting ──> Path ──> Dismissed
///     └─────────────────────^
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No answer yet.
    Dialing,
    /// No answer yet; its greeting went out as early data and may have arrived.
    Early,
    /// The handshake is over.
    Greeting,
    /// The session has it as its path of this number.
    Path(u64),
    /// The session does not want it any more.
    Dismissed,
}

/// A transport's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Smoothed round-trip time and its variance; `None` before the first measurement.
    pub(crate) rtt: Option<Rtt>,
    /// Bytes that the peer's transport has acknowledged.
    pub(crate) acked: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// This end's address.
    pub(crate) local: Option<IpAddr>,
}

/// A round-trip time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rtt {
    /// Smoothed.
    pub(crate) smoothed: Duration,
    /// Its mean deviation.
    pub(crate) variance: Duration,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) id: AttemptId,
    pub(crate) mode: TunnelMode,
    pub(crate) address: SocketAddr,
    pub(crate) stage: Stage,
    pub(crate) started: Instant,
    /// When the cloud answered.
    pub(crate) up_at: Option<Instant>,
    pub(crate) reading: Reading,
    /// The session's last word on the path: it makes no progress.
    pub(crate) stalled: bool,
    /// The factor by which it may wait longer for its answer than others.
    pub(crate) patience: u32,
    /// The policy's generation when it was begun: how it leaves this machine.
    pub(crate) generation: u64,
    /// It greeted the cloud in early data.
    pub(crate) early: bool,
    /// The policy has asked to close it.
    pub(crate) closing: bool,
}

impl Attempt {
    /// Whether it may still become a path.
    pub(crate) fn is_unready(&self) -> bool {
        !self.closing && matches!(self.stage, Stage::Dialing | Stage::Early | Stage::Greeting)
    }

    /// Whether the cloud may have it as a path, or will in a moment.
    pub(crate) fn has_greeted(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Greeting)
    }

    /// The number of its path while the session has it.
    pub(crate) fn path(&self) -> Option<u64> {
        match self.stage {
            Stage::Path(number) if !self.closing => Some(number),
            _ => None,
        }
    }
}
