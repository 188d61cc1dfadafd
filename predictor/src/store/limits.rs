//! How much a database keeps.

/// How much is kept of each kind. When one is full the oldest falls out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handovers; the oldest trips fall out whole. Default 1,000,000 (some 100 MB).
    pub events_max: u64,
    /// Trips with handovers, and again as many of which only the number is kept. Default 20,000.
    pub trips_max: u64,
    /// Handovers of one trip; further ones are refused. Default 50,000.
    pub trip_events_max: u32,
    /// Cells that are remembered; the one that was left longest ago falls out. Default 50,000.
    pub cells_max: u64,
    /// Learned tracks; the one that was used longest ago falls out. Default 256.
    pub tracks_max: u64,
    /// Bytes of one track. Default 1 MiB.
    pub track_bytes_max: usize,
    /// Places of the trace database. Default 200,000: three carriers, both ways, 3,300 km.
    pub places_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            events_max: 1_000_000,
            trips_max: 20_000,
            trip_events_max: 50_000,
            cells_max: 50_000,
            tracks_max: 256,
            track_bytes_max: 1 << 20,
            places_max: 200_000,
        }
    }
}
