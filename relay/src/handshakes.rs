//! The unfinished handshakes of one mode, in total and for each address of a peer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use polyrail_tunnel::network;

/// Handshakes by the key of their tunnel; keys rise with time.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    all: BTreeMap<usize, Option<IpAddr>>,
    /// By the network of the peer's address.
    of: BTreeMap<IpAddr, BTreeSet<usize>>,
}

impl Handshakes {
    pub(crate) fn begin(&mut self, key: usize, address: Option<IpAddr>) {
        let network = address.map(network);
        self.all.insert(key, network);
        if let Some(network) = network {
            self.of.entry(network).or_default().insert(key);
        }
    }

    pub(crate) fn end(&mut self, key: usize) {
        let Some(Some(network)) = self.all.remove(&key) else { return };
        if let Some(keys) = self.of.get_mut(&network) {
            keys.remove(&key);
            if keys.is_empty() {
                self.of.remove(&network);
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn oldest(&self) -> Option<usize> {
        self.all.first_key_value().map(|(key, _)| *key)
    }

    /// The number of handshakes with the network of this address, and the oldest one.
    pub(crate) fn of(&self, address: IpAddr) -> (usize, Option<usize>) {
        let keys = self.of.get(&network(address));
        keys.map_or((0, None), |keys| (keys.len(), keys.first().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_of_a_network_count_until_they_end() {
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let mut all = Handshakes::default();
        for (key, text) in ["192.0.2.1", "2001:db8::1", "2001:db8::2"].iter().enumerate() {
            all.begin(key, address(text));
        }
        all.begin(3, None);
        assert_eq!((all.count(), all.oldest()), (4, Some(0)));
        assert_eq!(all.of(address("2001:db8::9").unwrap()), (2, Some(1)));
        assert_eq!(all.of(address("::ffff:192.0.2.1").unwrap()), (1, Some(0)));
        (0..4).for_each(|key| all.end(key));
        assert_eq!((all.count(), all.oldest(), all.of.len()), (0, None, 0));
    }
}
