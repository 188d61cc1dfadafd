//! What paths carried, summed up by peer and carrier since the start: paths come and go.
//!
//! The sums are brought up to date when somebody asks and when a tunnel that was a path ends. What
//! a path carried in a session that ended at the same moment may be missing.

use std::collections::BTreeMap;

use polyrail_model::{Identity, TunnelMode};
use polyrail_session::{SessionKey, SessionStatus};

/// The traffic of one path, or of all paths of a carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Users' bytes sent, copies included.
    pub sent_bytes: u64,
    /// Users' bytes received, copies included.
    pub received_bytes: u64,
    /// Connections that became paths.
    pub paths: u64,
    /// Of these, how many travelled as QUIC.
    pub quic_paths: u64,
    /// How the newest travelled.
    pub mode: Option<TunnelMode>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    alive: BTreeMap<(SessionKey, u64), (Name, Carried)>,
    ended: BTreeMap<Name, Carried>,
}

/// The peer, if it is known, and the carrier.
pub(crate) type Name = (Option<Identity>, String);

impl Ledger {
    /// Takes the sessions as they are now.
    pub(crate) fn update(&mut self, sessions: &[SessionStatus]) {
        let mut alive = BTreeMap::new();
        for session in sessions {
            for path in &session.paths {
                let key = (session.session, path.path.0);
                let carried = Carried {
                    sent_bytes: path.sent.0,
                    received_bytes: path.received.0,
                    paths: 1,
                    quic_paths: u64::from(path.mode == TunnelMode::Quic),
                    mode: Some(path.mode),
                };
                let name = (session.peer.clone(), path.carrier.clone());
                alive.insert(key, (name, carried));
            }
        }
        let before = std::mem::replace(&mut self.alive, alive);
        for (key, (name, carried)) in before {
            let room = self.ended.len() < CARRIERS_MAX || self.ended.contains_key(&name);
            if room && !self.alive.contains_key(&key) {
                self.ended.entry(name).or_default().add(&carried);
            }
        }
    }

    /// Each carrier that ever had a path, with its peer.
    pub(crate) fn totals(&self) -> BTreeMap<Name, Carried> {
        let mut totals = self.ended.clone();
        for (name, carried) in self.alive.values() {
            totals.entry(name.clone()).or_default().add(carried);
        }
        totals
    }
}

impl Carried {
    /// Adds what a newer path carried.
    pub(crate) fn add(&mut self, newer: &Self) {
        self.sent_bytes += newer.sent_bytes;
        self.received_bytes += newer.received_bytes;
        self.paths += newer.paths;
        self.quic_paths += newer.quic_paths;
        self.mode = newer.mode.or(self.mode);
    }
}

/// Carriers whose sums are kept after their paths; those of more are left out.
const CARRIERS_MAX: usize = 4096;
