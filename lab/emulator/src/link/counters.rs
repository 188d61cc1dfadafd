//! The counters of a link.

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// How many packets.
    pub packets: u64,
    /// How many bytes in them.
    pub bytes: u64,
}

/// Each packet offered ends in exactly one of the others: `offered + duplicated = delivered +
/// queue_full + blackout + too_big + policed + lost + flight_full + packets still inside`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Handed to the link.
    pub offered: Tally,
    /// Delivered at the far end.
    pub delivered: Tally,
    /// Duplicates made by the link.
    pub duplicated: Tally,
    /// Dropped because the queue was full.
    pub queue_full: Tally,
    /// Dropped by a blackout, on arrival or in the queue.
    pub blackout: Tally,
    /// Dropped because they were larger than the path's MTU.
    pub too_big: Tally,
    /// UDP that the policer dropped.
    pub policed: Tally,
    /// Lost at random or in a burst, after the queue.
    pub lost: Tally,
    /// Dropped because too much was in propagation.
    pub flight_full: Tally,
}

impl Tally {
    pub(super) fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

impl Counters {
    /// All packets that will never be delivered.
    pub fn dropped(&self) -> Tally {
        let causes = [
            self.queue_full,
            self.blackout,
            self.too_big,
            self.policed,
            self.lost,
            self.flight_full,
        ];
        causes.iter().fold(Tally::default(), |sum, cause| Tally {
            packets: sum.packets + cause.packets,
            bytes: sum.bytes + cause.bytes,
        })
    }
}
