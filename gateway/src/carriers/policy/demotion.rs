//! Why and for how long mode `auto` does not use QUIC.

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

/// QUIC is not used for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demotion {
    pub(crate) why: Why,
    pub(crate) since: Instant,
    /// When QUIC is retried.
    pub(crate) retry_at: Instant,
    /// The wait until then.
    pub(crate) wait: Duration,
}

/// Why QUIC is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Probes were unanswered while TCP made progress.
    Blocked,
    /// The same, and a probe was refused.
    Refused,
    /// UDP looks policed to `rate`.
    Policed { rate: Bitrate },
}

impl Why {
    /// Whether UDP is delivered, but slowly.
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

/// This many unanswered probes show that UDP is blocked: random loss rarely hits three in a row.
pub(crate) const UNANSWERED_MAX: u32 = 3;
