//! The limits of a database.

/// The most rows of each kind; a full table evicts its oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handovers; the oldest trips are evicted. Default 1,000,000 (some 100 MB).
    pub events_max: u64,
    /// Trips with handovers, and as many numbers of evicted trips. Default 20,000.
    pub trips_max: u64,
    /// Handovers of one trip; further ones are refused. Default 50,000.
    pub trip_events_max: u32,
    /// Cells; the one left longest ago is evicted. Default 50,000.
    pub cells_max: u64,
    /// Tracks; the one written longest ago is evicted. Default 256.
    pub tracks_max: u64,
    /// Places of the rate map. Default 200,000: three carriers, both directions, 3,300 km.
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
            places_max: 200_000,
        }
    }
}
