//! The handshakes that a listener has under way: counted, bounded, and the oldest found.
//!
//! At the bound a client that has proved its address takes the place of the oldest handshake, if
//! that had time enough: so handshakes that nobody goes on with do not lock others out. One address
//! gets only a part of the places by proofs, so that it cannot take them all in turn.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// One of them; dropped when it is over.
#[derive(Debug)]
pub(super) struct HalfOpen(Arc<AtomicUsize>);

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All of them, the oldest first.
#[derive(Debug, Default)]
pub(super) struct HalfOpens {
    count: Arc<AtomicUsize>,
    list: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    since: Instant,
    connection: u64,
    /// The address that was proved.
    proven: Option<IpAddr>,
    handle: Weak<HalfOpen>,
}

impl HalfOpens {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a handshake for as long as the handle lives.
    pub(super) fn begin(
        &mut self,
        since: Instant,
        connection: u64,
        proven: Option<IpAddr>,
    ) -> Arc<HalfOpen> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        // Those that are over are forgotten in bulk.
        if self.list.len() >= 2 * count + SLACK {
            self.list.retain(|entry| entry.handle.strong_count() > 0);
        }
        let handle = Arc::new(HalfOpen(self.count.clone()));
        let proven = proven.map(holder);
        self.list.push_back(Entry { since, connection, proven, handle: Arc::downgrade(&handle) });
        handle
    }

    /// How many this address has by proof.
    pub(super) fn proven_by(&self, address: IpAddr) -> usize {
        let holder = Some(holder(address));
        self.under_way().filter(|entry| entry.proven == holder).count()
    }

    /// The connection whose handshake gives way to another.
    pub(super) fn oldest(&self, now: Instant) -> Option<u64> {
        let entry = self.under_way().next()?;
        (now.saturating_duration_since(entry.since) >= GRACE).then_some(entry.connection)
    }

    fn under_way(&self) -> impl Iterator<Item = &Entry> {
        self.list.iter().filter(|entry| entry.handle.strong_count() > 0)
    }
}

/// Who is behind an address: of IPv6 the network, which has room for any number of them.
fn holder(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => {
            let mut octets = ip.octets();
            octets[8..].fill(0);
            IpAddr::from(octets)
        }
        ip => ip,
    }
}

/// A handshake over a slow carrier, with a loss, takes less.
const GRACE: Duration = Duration::from_secs(2);
/// Entries that are not worth looking through.
const SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_counted_until_they_are_over() {
        let (now, mut all) = (Instant::now(), HalfOpens::default());
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = all.begin(now, 1, None);
        let second = all.begin(now, 2, Some(address("2001:db8::1")));
        let third = all.begin(now, 3, Some(address("2001:db8::2")));
        let fourth = all.begin(now, 4, Some(address("192.0.2.1")));
        assert_eq!(all.count(), 4);
        assert_eq!(all.proven_by(address("2001:db8::3")), 2);
        assert_eq!(all.proven_by(address("::ffff:192.0.2.1")), 1);
        assert_eq!(all.oldest(now + GRACE / 2), None);
        assert_eq!(all.oldest(now + GRACE), Some(1));
        drop((first, third));
        assert_eq!((all.count(), all.oldest(now + GRACE)), (2, Some(2)));
        assert_eq!(all.proven_by(address("2001:db8::3")), 1);
        drop((second, fourth));
        assert_eq!((all.count(), all.oldest(now + GRACE)), (0, None));
        for connection in 0..10_000 {
            drop(all.begin(now, connection, None));
        }
        assert!(all.list.len() <= SLACK + 2, "{}", all.list.len());
    }
}
