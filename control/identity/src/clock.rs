//! The time by which certificates are judged.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

/// The time of day, for the validity of certificates and tickets only.
///
/// Deadlines use `Instant`, which callers pass in.
pub trait Clock: Debug + Send + Sync {
    /// The time since 1970-01-01 00:00 UTC.
    fn since_epoch(&self) -> Duration;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn since_epoch(&self) -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}
