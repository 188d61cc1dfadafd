//! The unfinished handshakes of one mode, in total and for each address of a peer.

use std::collections::BTreeMap;
use std::net::IpAddr;

use polyrail_tunnel::network;

/// The network of the peer's address by the key of the tunnel; keys rise with time.
#[derive(Debug, Default)]
pub(crate) struct Handshakes(BTreeMap<usize, Option<IpAddr>>);

impl Handshakes {
    pub(crate) fn begin(&mut self, key: usize, address: Option<IpAddr>) {
        self.0.insert(key, address.map(network));
    }

    pub(crate) fn end(&mut self, key: usize) {
        self.0.remove(&key);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn oldest(&self) -> Option<usize> {
        self.0.first_key_value().map(|(key, _)| *key)
    }

    /// The number of handshakes with the network of this address, and the oldest one, of at most
    /// `tls::HANDSHAKES_MAX`.
    pub(crate) fn of(&self, address: IpAddr) -> (usize, Option<usize>) {
        let network = Some(network(address));
        let mut keys = self.0.iter().filter(|(_, of)| **of == network).map(|(key, _)| *key);
        let oldest = keys.next();
        (oldest.map_or(0, |_| 1 + keys.count()), oldest)
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
        assert_eq!((all.count(), all.oldest()), (0, None));
    }
}
