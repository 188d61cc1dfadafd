//! The data that carriers with a cap have used, between the data plane and the thread that counts.

use time::Date;

/// A carrier whose bytes count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metered {
    /// The carrier's name.
    pub carrier: String,
    /// Its interface.
    pub interface: String,
    /// The day of the month on which a period begins.
    pub reset_day: u8,
}

/// The bytes that a carrier has carried in the current period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataUsage {
    /// The carrier's name.
    pub carrier: String,
    /// Bytes in both directions.
    pub used_bytes: u64,
    /// When the period began; its day, at 0:00 UTC.
    pub since: Date,
    /// When it ends.
    pub until: Date,
}
