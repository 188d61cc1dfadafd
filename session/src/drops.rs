//! Passengers' datagrams that a session has dropped, by reason.

/// Datagrams that a session dropped, by reason. Each is counted once; tunnels count their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramDrops {
    /// Sent or received for a further binding, when there are too many.
    pub bindings: u64,
    /// Too much of the binding, of the user or of all users waited.
    pub queue: u64,
    /// Waited for 400 ms, before a stream for 1 s: there was no path, or none had room.
    pub stale: u64,
    /// Dropped by CoDel: the binding's queue stayed long.
    pub codel: u64,
    /// Longer than 2,048 bytes.
    pub too_long: u64,
    /// Waited when the binding ended; received ones, too.
    pub ended: u64,
}

impl DatagramDrops {
    /// All dropped datagrams.
    pub fn total(&self) -> u64 {
        let Self { bindings, queue, stale, codel, too_long, ended } = self;
        bindings + queue + stale + codel + too_long + ended
    }
}
