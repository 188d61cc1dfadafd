//! How many descriptors users may take of those that the process has.
//!
//! Everything that has a descriptor counts: legs, dials, sockets that wait to be reset, tunnels
//! over TCP; those over QUIC share their listener's. A margin stays free of flows, so that gateways
//! can come back and bring further carriers up, whatever passengers do. Only
//! `session.flows_max` limits one gateway's part of the rest.

use polyrail_tunnel::tls::HANDSHAKES_MAX;

/// What the process's limit leaves to flows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors {
    /// For tunnels and users' sockets together.
    total: usize,
    /// Of these, kept for tunnels that are not there yet.
    margin: usize,
}

impl Descriptors {
    /// `limit` is the process's limit of open descriptors.
    pub(crate) fn within(limit: u64) -> Self {
        // The reserve covers listeners, the resolver's threads, the log and the status.
        let total = polyrail_relay::flows_within(limit);
        Self { total, margin: (total / MARGIN_PART).min(HANDSHAKES_MAX) }
    }

    /// Whether one more flow fits beside so many tunnels with sockets of their own, users' sockets,
    /// and descriptors of dials.
    pub(crate) fn have_room(&self, tunnels: usize, sockets: usize, dials: usize) -> bool {
        // A new dial takes two: a socket, and the one that may join it in the race.
        tunnels + sockets + dials + 2 <= self.total.saturating_sub(self.margin)
    }
}

/// The margin is this part of all.
const MARGIN_PART: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_and_dials_count_and_a_margin_stays() {
        // 1,024 less 64 are 960; a sixteenth of that is kept for tunnels.
        let small = Descriptors::within(1024);
        assert!(small.have_room(0, 898, 0));
        assert!(!small.have_room(0, 899, 0));
        for (tunnels, legs, dials) in [(100, 798, 0), (0, 798, 100), (300, 300, 298)] {
            assert!(small.have_room(tunnels, legs, dials));
            assert!(!small.have_room(tunnels + 1, legs, dials));
            assert!(!small.have_room(tunnels, legs + 1, dials));
            assert!(!small.have_room(tunnels, legs, dials + 1));
        }
        // As many gateways as may come at once find room, whatever users hold.
        let large = Descriptors::within(65_536);
        assert!(large.have_room(0, 65_536 - 64 - HANDSHAKES_MAX - 2, 0));
        assert!(!large.have_room(0, 65_536 - 64 - HANDSHAKES_MAX - 1, 0));
        assert!(!Descriptors::within(0).have_room(0, 0, 0));
    }
}
