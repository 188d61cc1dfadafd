//! Which worker of a cloud owns a gateway, and tunnels on their way to it.
//!
//! Each worker runs an event loop with a relay of its own. The owner of a gateway is a function of
//! its name, so that all its tunnels meet without a directory. A tunnel moves when its peer is
//! known, before its event acts; the event travels with it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use polyrail_model::Identity;
use polyrail_tunnel::{Early, Established, Parcel, TunnelEvent};

/// The place of a relay's worker among all. The default is a single worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// The number of this worker, from 0.
    pub own: usize,
    /// The number of workers; at least 1.
    pub count: usize,
}

impl Default for Workers {
    fn default() -> Self {
        Self { own: 0, count: 1 }
    }
}

impl Workers {
    /// The worker that has the sessions of this peer; the same in each worker of the process.
    pub fn owner(self, peer: &Identity) -> usize {
        // Without a random key.
        let mut hasher = DefaultHasher::new();
        peer.as_str().hash(&mut hasher);
        (hasher.finish() % self.count.max(1) as u64) as usize
    }

    /// The worker to which a tunnel moves at this event, if it does.
    pub(crate) fn goes_to(self, event: &TunnelEvent) -> Option<usize> {
        let peer = match event {
            TunnelEvent::Early(Early { peer, .. }) | TunnelEvent::Up(Established { peer, .. }) => {
                peer
            }
            TunnelEvent::Closed(_) => return None,
        };
        Some(self.owner(peer)).filter(|owner| *owner != self.own)
    }
}

/// A tunnel on its way to the worker that owns its peer.
#[derive(Debug)]
pub struct MovingTunnel {
    /// The worker.
    pub to: usize,
    /// The tunnel.
    pub parcel: Parcel,
    /// What the tunnel reported, which acts there.
    pub event: TunnelEvent,
    /// When the tunnel was added to the first relay.
    pub begun: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_knows_the_same_owner_and_all_workers_own_gateways() {
        let names = (0..64).map(|number| Identity::new(&format!("train-{number}")).unwrap());
        let names: Vec<Identity> = names.collect();
        for count in [1, 2, 5] {
            let mut owned = vec![0; count];
            for name in &names {
                let owners = (0..count).map(|own| Workers { own, count }.owner(name));
                let owners: Vec<usize> = owners.collect();
                assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
                owned[owners[0]] += 1;
            }
            assert!(owned.iter().all(|gateways| *gateways >= 32 / count), "{owned:?}");
        }
    }
}
