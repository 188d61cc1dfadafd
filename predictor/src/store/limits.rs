//! The limits of a database.

/// The most rows of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries; the writer with most loses its oldest trip. Default 1,000,000 (some 100 MB).
    pub events_max: u64,
    /// Logs; an empty one is replaced, else a new one is refused. Default [`LOGS_MAX`].
    pub logs_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { events_max: 1_000_000, logs_max: LOGS_MAX }
    }
}

/// The most logs of a database: a cloud has two of most gateways, their own and one with the
/// cloud's observations.
pub const LOGS_MAX: usize = 2_048;
/// The most logs of a writer: a new one replaces an empty one, else the one written longest ago.
pub const WRITER_LOGS_MAX: usize = 8;
/// The most entries that a node takes from a writer in a day, and at once. A train with eight
/// carriers appends some 70,000 a day.
pub const ENTRIES_A_DAY: u32 = 200_000;
