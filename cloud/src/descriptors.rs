//! The number of descriptors that users may occupy.
//!
//! Legs, dials, sockets that wait to be reset and tunnels over TCP have descriptors; tunnels over
//! QUIC share that of their listener. A margin is reserved for tunnels, so that gateways can
//! reconnect and bring up further carriers. `session.flows_max` limits the share of one gateway.

use polyrail_tunnel::tls::HANDSHAKES_MAX;

/// The descriptors that are available to tunnels and users.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors {
    /// For tunnels and users' sockets together.
    total: usize,
    /// Of these, reserved for future tunnels.
    margin: usize,
}

impl Descriptors {
    /// `limit` is the process's limit of open descriptors.
    pub(crate) fn within(limit: u64) -> Self {
        // The reserve covers listeners, the resolver's threads, the log and the status.
        let total = polyrail_relay::flows_within(limit);
        Self { total, margin: (total / MARGIN_PART).min(HANDSHAKES_MAX) }
    }

    /// Whether one more flow fits, with this number of tunnels over TCP, users' sockets, and
    /// descriptors of dials.
    pub(crate) fn have_room(&self, tunnels: usize, sockets: usize, dials: usize) -> bool {
        // A new dial needs two: a socket, and one that may join it in the race.
        tunnels + sockets + dials + 2 <= self.total.saturating_sub(self.margin)
    }
}

/// The margin is the total divided by this.
const MARGIN_PART: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_and_dials_count_and_a_margin_is_reserved() {
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
        // The maximum number of concurrent handshakes fits in the margin.
        let large = Descriptors::within(65_536);
        assert!(large.have_room(0, 65_536 - 64 - HANDSHAKES_MAX - 2, 0));
        assert!(!large.have_room(0, 65_536 - 64 - HANDSHAKES_MAX - 1, 0));
        assert!(!Descriptors::within(0).have_room(0, 0, 0));
    }
}
