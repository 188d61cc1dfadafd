//! The handshakes in progress at a listener: counted, bounded, and the oldest found.
//!
//! At the bound a client that has proved its address replaces the oldest handshake, if that is old
//! enough: abandoned handshakes do not lock others out. One address gets only a part of the places
//! by proofs, so that it cannot take all of them in turn. Beyond its part it replaces its own
//! oldest handshake, because strangers and gateways may share the address of a translator.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::network;

/// The handshakes in progress by the number of their connection; numbers rise with time.
#[derive(Debug, Default)]
pub(super) struct HalfOpens(BTreeMap<u64, Entry>);

#[derive(Debug)]
struct Entry {
    since: Instant,
    /// The proved address, or its network.
    proven: Option<IpAddr>,
}

impl HalfOpens {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn begin(&mut self, since: Instant, connection: u64, proven: Option<IpAddr>) {
        self.0.insert(connection, Entry { since, proven: proven.map(network) });
    }

    pub(super) fn end(&mut self, connection: u64) {
        self.0.remove(&connection);
    }

    /// How many handshakes this address has by proof.
    pub(super) fn proven_by(&self, address: IpAddr) -> usize {
        self.of(address).count()
    }

    /// The connection whose handshake may be replaced.
    pub(super) fn oldest(&self, now: Instant) -> Option<u64> {
        replaceable(now, self.0.iter().next())
    }

    /// The same among those that this address has by proof.
    pub(super) fn oldest_of(&self, now: Instant, address: IpAddr) -> Option<u64> {
        replaceable(now, self.of(address).next())
    }

    fn of(&self, address: IpAddr) -> impl Iterator<Item = (&u64, &Entry)> {
        let network = Some(network(address));
        self.0.iter().filter(move |(_, entry)| entry.proven == network)
    }
}

fn replaceable(now: Instant, oldest: Option<(&u64, &Entry)>) -> Option<u64> {
    let (connection, entry) = oldest?;
    (now.saturating_duration_since(entry.since) >= GRACE).then_some(*connection)
}

/// A handshake over a slow carrier, with a loss, takes less.
const GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_count_until_they_end() {
        let (now, mut all) = (Instant::now(), HalfOpens::default());
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        all.begin(now, 1, None);
        all.begin(now, 2, Some(address("2001:db8::1")));
        all.begin(now, 3, Some(address("2001:db8::2")));
        all.begin(now, 4, Some(address("192.0.2.1")));
        assert_eq!(all.count(), 4);
        assert_eq!(all.proven_by(address("2001:db8::3")), 2);
        assert_eq!(all.proven_by(address("::ffff:192.0.2.1")), 1);
        assert_eq!(all.oldest(now + GRACE / 2), None);
        assert_eq!(all.oldest(now + GRACE), Some(1));
        let of = |time| all.oldest_of(now + time, address("2001:db8::3"));
        assert_eq!((of(GRACE / 2), of(GRACE)), (None, Some(2)));
        all.end(1);
        all.end(3);
        assert_eq!((all.count(), all.oldest(now + GRACE)), (2, Some(2)));
        assert_eq!(all.proven_by(address("2001:db8::3")), 1);
    }
}
