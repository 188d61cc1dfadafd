//! Passengers' datagrams that a tunnel has dropped, by reason.

use std::ops::AddAssign;

use crate::phase::TunnelPhase;

/// The numbers of dropped units of the kind [`Unit::Datagram`](polyrail_model::Unit::Datagram).
///
/// Each is counted once. A copy over another tunnel is a unit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelDrops {
    /// Sent before the end of the handshake: an attacker could replay early data.
    pub early: u64,
    /// Too many waited in the tunnel; the oldest was dropped.
    pub queue: u64,
    /// They expired: pacing, the window or bytes before them held them back for too long.
    pub expired: u64,
    /// Longer than two packets of the path, or the peer takes none.
    pub too_long: u64,
    /// They waited when the tunnel ended, or were sent after its end.
    pub ended: u64,
    /// Received, and not read in time. The halves of a long unit count each.
    pub unread: u64,
}

impl TunnelDrops {
    /// The numbers by the names of their reasons.
    pub fn by_reason(self) -> [(&'static str, u64); 6] {
        let Self { early, queue, expired, too_long, ended, unread } = self;
        [
            ("early", early),
            ("queue", queue),
            ("expired", expired),
            ("too_long", too_long),
            ("ended", ended),
            ("unread", unread),
        ]
    }

    /// Whether a datagram may be sent in this phase; if not, it is counted.
    pub(crate) fn permit(&mut self, phase: TunnelPhase) -> bool {
        match phase {
            TunnelPhase::Up => return true,
            TunnelPhase::Connecting | TunnelPhase::Handshaking | TunnelPhase::Early => {
                self.early += 1;
            }
            TunnelPhase::Closing | TunnelPhase::Leaving | TunnelPhase::Closed => self.ended += 1,
        }
        false
    }
}

impl AddAssign for TunnelDrops {
    fn add_assign(&mut self, other: Self) {
        self.early += other.early;
        self.queue += other.queue;
        self.expired += other.expired;
        self.too_long += other.too_long;
        self.ended += other.ended;
        self.unread += other.unread;
    }
}
