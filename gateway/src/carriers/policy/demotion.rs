//! Why, and for how long, mode `auto` does not use QUIC.

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

/// QUIC is not used for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demotion {
    pub(crate) why: Why,
    pub(crate) since: Instant,
    /// When QUIC is tried again.
    pub(crate) retry_at: Instant,
    /// How long the wait for that is.
    pub(crate) wait: Duration,
}

/// Why QUIC is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Probes were not answered while TCP was.
    Blocked,
    /// The same, and something said that nobody listens.
    Refused,
    /// UDP seems to be policed to `rate`.
    Policed { rate: Bitrate },
}

impl Why {
    /// Whether UDP passes, but slowly.
    pub(crate) fn is_policing(self) -> bool {
        matches!(self, Self::Policed { .. })
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
            Self::Policed { rate } => {
                write!(f, "UDP looks policed: QUIC passed at {:.1} Mbit/s", rate.as_mbps())
            }
        }
    }
}

/// So many unanswered probes show that UDP is blocked (DESIGN 4).
pub(crate) const UNANSWERED_MAX: u32 = 3;
