//! Users' traffic per peer and carrier since the start, because paths come and go.
//!
//! The totals are as of the last update. The last traffic of a path whose session ended between two
//! updates may be missing.

use std::collections::BTreeMap;

use polyrail_model::{Identity, TunnelMode};
use polyrail_session::limits::SESSION_PATHS_MAX;
use polyrail_session::{SessionKey, SessionStatus};

/// The traffic of one path, or of all paths of a carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Users' bytes sent, copies included.
    pub sent_bytes: u64,
    /// Users' bytes received, copies included.
    pub received_bytes: u64,
    /// Packets with data sent, those lost included.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Connections that became paths.
    pub paths: u64,
    /// Of these, QUIC connections.
    pub quic_paths: u64,
    /// The mode of the newest.
    pub mode: Option<TunnelMode>,
}

#[derive(Debug, Default)]
pub(crate) struct TrafficTotals {
    alive: Alive,
    ended: BTreeMap<Name, Traffic>,
}

/// The paths in use, by session and number.
type Alive = BTreeMap<(SessionKey, u64), (Name, Traffic)>;

/// The peer, if it is known, and the carrier.
pub(crate) type Name = (Option<Identity>, String);

impl TrafficTotals {
    /// Updates the totals from the current sessions.
    pub(crate) fn update(&mut self, sessions: &[SessionStatus]) {
        let mut alive = BTreeMap::new();
        for session in sessions {
            for path in &session.paths {
                let key = (session.session, path.path.0);
                let carried = Traffic {
                    sent_bytes: path.sent.0,
                    received_bytes: path.received.0,
                    sent_packets: path.sent_packets,
                    lost_packets: path.lost_packets,
                    paths: 1,
                    quic_paths: u64::from(path.mode == TunnelMode::Quic),
                    mode: Some(path.mode),
                };
                let name = (session.peer.clone(), path.carrier.clone());
                alive.insert(key, (name, carried));
            }
        }
        self.replace(alive);
    }

    /// Takes the paths that are in use now; adds those that have ended to the totals.
    fn replace(&mut self, alive: Alive) {
        let before = std::mem::replace(&mut self.alive, alive);
        for (key, (name, carried)) in before {
            if !self.alive.contains_key(&key) && self.has_room(&name) {
                self.ended.entry(name).or_default().add(&carried);
            }
        }
    }

    fn has_room(&self, name: &Name) -> bool {
        let of_peer = self.ended.range((name.0.clone(), String::new())..);
        let of_peer = of_peer.take_while(|((peer, _), _)| *peer == name.0);
        self.ended.contains_key(name) || of_peer.take(CARRIERS_MAX).count() < CARRIERS_MAX
    }

    /// The totals of each carrier that ever had a path.
    pub(crate) fn totals(&self) -> BTreeMap<Name, Traffic> {
        let mut totals = self.ended.clone();
        for (name, carried) in self.alive.values() {
            totals.entry(name.clone()).or_default().add(carried);
        }
        totals
    }
}

impl Traffic {
    /// Adds the traffic of a newer path.
    pub fn add(&mut self, newer: &Self) {
        self.sent_bytes += newer.sent_bytes;
        self.received_bytes += newer.received_bytes;
        self.sent_packets += newer.sent_packets;
        self.lost_packets += newer.lost_packets;
        self.paths += newer.paths;
        self.quic_paths += newer.quic_paths;
        self.mode = newer.mode.or(self.mode);
    }
}

/// The maximum number of carriers of a peer whose totals outlive their paths; others are dropped.
const CARRIERS_MAX: usize = SESSION_PATHS_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriers_of_one_peer_take_no_place_of_another() {
        let mut totals = TrafficTotals::default();
        let mut carry = |peer: &str, carrier: String, path: u64| {
            let name = (Identity::new(peer).ok(), carrier);
            let carried = Traffic { sent_bytes: 7, ..Traffic::default() };
            totals.replace([((SessionKey(1), path), (name.clone(), carried))].into());
            (totals.totals().len(), totals.totals()[&name].sent_bytes)
        };
        for number in 0..5_000 {
            carry("mallory", format!("c{number}"), number);
        }
        carry("train-7", "alpha".to_owned(), 10_000);
        carry("train-7", "alpha".to_owned(), 10_001);
        let all = carry("train-7", "alpha".to_owned(), 10_002);
        assert_eq!(all, (CARRIERS_MAX + 1, 3 * 7));
    }
}
