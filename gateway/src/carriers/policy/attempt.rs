//! One connection attempt of a carrier, and its transport's state.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_model::TunnelMode;

/// The policy's id of a connection; unique for each carrier.
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
    /// No answer yet; its greeting was sent as early data and may have arrived.
    Early,
    /// The handshake finished.
    Greeting,
    /// The session uses it as the path of this number.
    Path(u64),
    /// The session closes it.
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
    /// The session reports that the path is stalled.
    pub(crate) stalled: bool,
    /// The factor by which its lifetime exceeds that of other attempts.
    pub(crate) patience: u32,
    /// The generation of the socket options that it was started with.
    pub(crate) generation: u64,
    /// It sent its greeting as early data.
    pub(crate) early: bool,
    /// The policy requested to close it.
    pub(crate) closing: bool,
}

impl Attempt {
    /// Whether it may still become a path.
    pub(crate) fn is_unready(&self) -> bool {
        !self.closing && matches!(self.stage, Stage::Dialing | Stage::Early | Stage::Greeting)
    }

    /// Whether the cloud may already use it as a path, or will soon.
    pub(crate) fn has_greeted(&self) -> bool {
        matches!(self.stage, Stage::Early | Stage::Greeting)
    }

    /// The number of its path while the session uses it.
    pub(crate) fn path(&self) -> Option<u64> {
        match self.stage {
            Stage::Path(number) if !self.closing => Some(number),
            _ => None,
        }
    }
}
