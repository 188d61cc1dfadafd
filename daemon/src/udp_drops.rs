//! Passengers' datagrams that a daemon drops at its sockets, by reason.

use polyrail_admin::metrics::Count;

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpDrop {
    /// The access list does not permit its destination (cloud).
    Forbidden,
    /// Its user or all users have too many bindings, or too many new servers answer.
    Quota,
    /// Its destination's name was not found in time, or too many datagrams waited for it (cloud).
    Lookup,
    /// The kernel did not take it.
    Unsent,
    /// Its sender may not send to the passenger (cloud), or the passenger's binding is over
    /// (gateway).
    Filtered,
    /// There is no session, or the cloud carries no datagrams (gateway).
    NoCloud,
    /// Its user is unknown (cloud), or it is not one of the SOCKS5 client's, or the cloud states no
    /// address (gateway).
    Invalid,
}

/// The numbers of dropped datagrams since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpDrops([u64; REASONS.len()]);

impl UdpDrops {
    /// Counts a datagram.
    pub fn count(&mut self, drop: UdpDrop) {
        self.add(drop, 1);
    }

    /// Counts several datagrams.
    pub fn add(&mut self, drop: UdpDrop, count: u64) {
        self.0[drop as usize] += count;
    }

    /// The numbers by reason.
    pub fn counts(&self) -> Vec<Count> {
        REASONS.into_iter().zip(self.0).collect()
    }
}

/// The names of the reasons, in the order of [`UdpDrop`].
const REASONS: [&str; 7] =
    ["forbidden", "quota", "lookup", "unsent", "filtered", "no_cloud", "invalid"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_by_reason() {
        let mut drops = UdpDrops::default();
        drops.count(UdpDrop::Forbidden);
        drops.add(UdpDrop::Invalid, 3);
        let counts: Vec<Count> = drops.counts().into_iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(counts, [("forbidden", 1), ("invalid", 3)]);
    }
}
