//! Who a passenger is: a number made of the link address, or of the source address.
//!
//! A device's IPv6 addresses rotate (RFC 8981, before it RFC 4941) while its link address stays,
//! so the link address is the better name, where the kernel's neighbour table knows it. Behind a
//! router on board it does not: then the source address is taken. The number is a keyed hash
//! under a key of this process: it tells equality and nothing else, and only for one run.

mod neighbours;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use polyrail_config::UserKey;
use polyrail_model::UserId;
use ring::hmac;
use ring::rand::SystemRandom;

pub use neighbours::{KernelNeighbours, Neighbours};

/// Names users. Answers at once: at worst after some system calls that do not wait.
#[derive(Debug)]
pub struct Users<N = KernelNeighbours> {
    kind: UserKey,
    key: hmac::Key,
    neighbours: N,
    /// What the neighbour table said lately; at most [`CACHE_MAX`] entries.
    cache: HashMap<IpAddr, (Instant, UserId)>,
}

/// Addresses whose user is remembered. When full, the old ones are forgotten, else all are.
pub const CACHE_MAX: usize = 4096;

/// How long an address is believed to be of one device. An address that passes from one device
/// to another within this time takes the user with it.
pub const CACHE_AGE: Duration = Duration::from_secs(30);

impl Users {
    /// Names users by `kind`, with the neighbours on these interfaces; on all when there are none
    /// given.
    ///
    /// # Errors
    /// The system gives no randomness or no netlink socket.
    pub fn new(kind: UserKey, interfaces: Vec<String>) -> io::Result<Self> {
        Self::with_neighbours(kind, KernelNeighbours::new(interfaces)?)
    }
}

impl<N: Neighbours> Users<N> {
    /// Names users by `kind`, with the given neighbour table.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn with_neighbours(kind: UserKey, neighbours: N) -> io::Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| io::Error::other("the system gives no randomness"))?;
        Ok(Self { kind, key, neighbours, cache: HashMap::new() })
    }

    /// The user behind a source address.
    pub fn user(&mut self, now: Instant, source: IpAddr) -> UserId {
        let source = source.to_canonical();
        if self.kind == UserKey::Address {
            return self.name_of_address(source);
        }
        if let Some((since, user)) = self.cache.get(&source)
            && now.saturating_duration_since(*since) < CACHE_AGE
        {
            return *user;
        }
        let user = match self.neighbours.link_address(source) {
            Some(link) => self.name(LINK, &link),
            None => self.name_of_address(source),
        };
        self.remember(now, source, user);
        user
    }

    fn remember(&mut self, now: Instant, source: IpAddr, user: UserId) {
        if self.cache.len() >= CACHE_MAX {
            self.cache.retain(|_, (at, _)| now.saturating_duration_since(*at) < CACHE_AGE);
        }
        if self.cache.len() >= CACHE_MAX {
            self.cache.clear();
        }
        self.cache.insert(source, (now, user));
    }

    fn name_of_address(&self, source: IpAddr) -> UserId {
        match source {
            IpAddr::V4(v4) => self.name(ADDRESS, &v4.octets()),
            IpAddr::V6(v6) => self.name(ADDRESS, &v6.octets()),
        }
    }

    fn name(&self, kind: u8, bytes: &[u8]) -> UserId {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&[kind]);
        context.update(bytes);
        let tag = context.sign();
        let number = tag.as_ref().iter().take(8).fold(0, |n, byte| (n << 8) | u64::from(*byte));
        UserId(number)
    }
}

/// What a hash is of: a link address and an IP address with the same bytes differ.
const LINK: u8 = 1;
const ADDRESS: u8 = 2;
