//! Why, and for how long, mode `auto` leaves QUIC alone.

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

use super::attempt::Way;

/// QUIC is left alone for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demotion {
    pub(crate) why: Why,
    pub(crate) since: Instant,
    /// When QUIC is tried again.
    pub(crate) retry_at: Instant,
    /// How long the wait for that is.
    pub(crate) wait: Duration,
}

/// Why QUIC is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Probes were not answered while TCP was.
    Blocked,
    /// The same, and something said that nobody listens.
    Refused,
    /// UDP passed at `rate` one way, TCP at `tls`.
    Policed { rate: Bitrate, tls: Bitrate, way: Way },
    /// A retry after that was no better.
    StillPoliced { rate: Bitrate, tls: Bitrate, way: Way },
}

impl Why {
    /// Whether UDP passes, but slowly.
    pub(crate) fn is_policing(self) -> bool {
        matches!(self, Self::Policed { .. } | Self::StillPoliced { .. })
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Blocked => write!(
                f,
                "UDP is blocked: {UNANSWERED_MAX} QUIC connections were not answered while TCP was"
            ),
            Self::Refused => {
                write!(f, "UDP is refused: nobody takes QUIC there, while TCP was answered")
            }
            Self::Policed { rate, tls, .. } => write!(
                f,
                "UDP is policed: QUIC passed at {:.1} Mbit/s, TLS at {:.1} Mbit/s",
                rate.as_mbps(),
                tls.as_mbps()
            ),
            Self::StillPoliced { rate, tls, .. } => write!(
                f,
                "UDP is still policed: QUIC passed at {:.1} Mbit/s, TLS at {:.1} Mbit/s before",
                rate.as_mbps(),
                tls.as_mbps()
            ),
        }
    }
}

/// So many unanswered probes show that UDP is blocked (DESIGN 4).
pub(crate) const UNANSWERED_MAX: u32 = 3;
