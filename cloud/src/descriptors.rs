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

    /// The bindings of datagrams whose descriptors fit: a quarter, two for each.
    pub(crate) fn for_datagrams(&self) -> usize {
        self.total / 8
    }

    /// The descriptors that dials may occupy, with this number of tunnels over TCP and of users'
    /// sockets.
    pub(crate) fn for_dials(&self, tunnels: usize, sockets: usize) -> usize {
        self.total.saturating_sub(self.margin + tunnels + sockets)
    }
}

/// The margin is the total divided by this.
const MARGIN_PART: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_and_sockets_count_and_a_margin_is_reserved() {
        // 1,024 less 64 are 960; a sixteenth of that is kept for tunnels.
        let small = Descriptors::within(1024);
        assert_eq!(small.for_dials(0, 0), 900);
        assert_eq!(small.for_dials(100, 300), 500);
        assert_eq!(small.for_dials(100, 900), 0);
        // The maximum number of concurrent handshakes fits in the margin.
        let large = Descriptors::within(65_536);
        assert_eq!(large.for_dials(0, 0), 65_536 - 64 - HANDSHAKES_MAX);
        assert_eq!(Descriptors::within(0).for_dials(0, 0), 0);
    }
}
