//! Identifies passengers: a number derived from the link address, or from the source address.
//!
//! A device's IPv6 addresses rotate (RFC 8981, before it RFC 4941) while its link address stays, so
//! the link address is used if the kernel's neighbour table has it. For devices behind a router on
//! board it does not; then the source address is used. All addresses of a link that no neighbour is
//! known to have are one user, so that forged ones share one quota. The number is a hash with a key
//! of this process: it shows only equality, and only until the process ends.

mod groups;
mod origin;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use polyrail_config::{GroupConfig, UserKey};
use polyrail_model::codec::NUMBER_MAX;
use polyrail_model::{Bucket, UserId, Weight};
use ring::hmac;
use ring::rand::SystemRandom;

use groups::Groups;
pub use origin::{KernelNeighbours, Neighbours, Origin};

/// Identifies users, without blocking.
#[derive(Debug)]
pub struct Users<N = KernelNeighbours> {
    kind: UserKey,
    key: hmac::Key,
    neighbours: N,
    /// Recent answers of the neighbour table; at most [`CACHE_MAX`].
    cache: HashMap<IpAddr, Answer>,
    /// Messages to the kernel about addresses of datagrams.
    questions: Bucket,
    /// All addresses of a link that no neighbour is known to have.
    strangers: UserId,
    /// The link addresses of all neighbours, for when no question is left, and when it is due.
    list: HashMap<IpAddr, [u8; 6]>,
    list_at: Option<Instant>,
    /// The latest address of each user, for operators; at most [`CACHE_MAX`] users, then all are
    /// forgotten.
    addresses: HashMap<UserId, IpAddr>,
    groups: Groups,
    /// Users whose weight may have changed.
    news: BTreeSet<UserId>,
}

/// An answer of the neighbour table.
#[derive(Clone, Copy, Debug)]
struct Answer {
    until: Instant,
    user: UserId,
    /// It is behind a router, and so a user of its own.
    is_routed: bool,
}

/// The maximum number of cached addresses. When it is reached, expired ones are evicted, those
/// behind routers after ten minutes more; if those are few, also all of the device with the
/// most, where all addresses behind routers are one device.
pub const CACHE_MAX: usize = 16_384;

/// How long an address is assumed to belong to one device. If another device takes over the address
/// within this time, it counts as the same user.
pub const CACHE_AGE: Duration = Duration::from_secs(30);

/// How long an expired address behind a router stays its user's when the kernel cannot be asked.
const ROUTED_KEPT: Duration = Duration::from_secs(600);

/// How long an address counts as one that no neighbour has. An answer to it makes the kernel
/// resolve it, sooner than a carrier's round trip, but a flood that nobody answers would have the
/// kernel asked for each packet.
const UNRESOLVED_AGE: Duration = Duration::from_millis(20);

/// Messages to the kernel about datagrams' addresses. Each takes 0.1 ms or more of all users' time.
/// Beyond it the newest list of all neighbours decides, and addresses that are not on it count as
/// unresolved. Connections ask all the same.
const QUESTIONS_A_SECOND: f64 = 1500.0;
const QUESTIONS_AT_ONCE: f64 = 300.0;
/// How often that list is read, at most.
const LIST_EVERY: Duration = Duration::from_secs(1);

impl Users {
    /// Identifies users by `kind`, with the neighbours on these interfaces; on all if the list is
    /// empty.
    ///
    /// # Errors
    /// The system has no randomness, or cannot create a netlink socket.
    pub fn new(kind: UserKey, interfaces: Vec<String>) -> io::Result<Self> {
        Self::with_neighbours(kind, KernelNeighbours::new(interfaces)?)
    }
}

impl<N: Neighbours> Users<N> {
    /// Identifies users by `kind`, with the given neighbour table.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn with_neighbours(kind: UserKey, neighbours: N) -> io::Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| io::Error::other("no system randomness"))?;
        let strangers = name(&key, UNRESOLVED, &[]);
        Ok(Self {
            kind,
            key,
            neighbours,
            cache: HashMap::new(),
            questions: Bucket::new(Instant::now(), QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE),
            strangers,
            list: HashMap::new(),
            list_at: None,
            addresses: HashMap::new(),
            groups: Groups::default(),
            news: BTreeSet::new(),
        })
    }

    /// The user of a datagram's source address.
    pub fn user(&mut self, now: Instant, source: IpAddr) -> UserId {
        self.note(now, source, false)
    }

    /// The user of a connection: its handshake has made the kernel resolve the address.
    pub fn user_of_connection(&mut self, now: Instant, source: IpAddr) -> UserId {
        self.note(now, source, true)
    }

    fn note(&mut self, now: Instant, source: IpAddr, is_resolved: bool) -> UserId {
        let source = source.to_canonical();
        let user = self.identify(now, source, is_resolved);
        if self.addresses.len() >= CACHE_MAX && !self.addresses.contains_key(&user) {
            self.addresses.clear();
        }
        let before = self.addresses.insert(user, source);
        if before != Some(source) && !self.groups.is_empty() {
            self.news.insert(user);
        }
        user
    }

    /// Sets the groups of users.
    pub fn set_groups(&mut self, groups: &[GroupConfig]) {
        self.groups = Groups::new(groups, |link| self.name(LINK, link));
        self.news = self.addresses.keys().copied().collect();
    }

    /// The users whose weight may have changed since the last call, with their weights.
    pub fn take_weights(&mut self) -> Vec<(UserId, Weight)> {
        let news = std::mem::take(&mut self.news);
        let weight = |user: UserId| (user, self.groups.weight(user, self.address_of(user)));
        news.into_iter().map(weight).collect()
    }

    /// The name of a user's group, if it has one.
    pub fn group_of(&self, user: UserId) -> Option<&str> {
        self.groups.name(user, self.address_of(user))
    }

    /// The latest address of a user, if it is known.
    pub fn address_of(&self, user: UserId) -> Option<IpAddr> {
        self.addresses.get(&user).copied()
    }

    fn identify(&mut self, now: Instant, source: IpAddr, is_resolved: bool) -> UserId {
        if self.kind == UserKey::Address || source.is_loopback() {
            return self.name_of_address(source);
        }
        let strangers = self.strangers;
        match self.cache.get(&source) {
            Some(Answer { user, .. }) if is_resolved && *user == strangers => {}
            Some(Answer { until, user, .. }) if now < *until => return *user,
            _ if is_resolved || self.questions.take(now, self.neighbours.questions()) => {}
            known => {
                // The device behind a known address may be another one by now.
                let routed = known.filter(|known| known.is_routed);
                let routed = routed.map(|known| known.user);
                return self.listed(now, source).or(routed).unwrap_or(strangers);
            }
        }
        let origin = self.neighbours.origin(source);
        let is_routed = origin == Origin::Elsewhere;
        let (user, age) = match origin {
            Origin::Neighbour(link) => (self.name(LINK, &link), CACHE_AGE),
            Origin::Unresolved => (strangers, UNRESOLVED_AGE),
            Origin::Elsewhere => (self.name_of_address(source), CACHE_AGE),
        };
        if self.cache.len() >= CACHE_MAX && !self.cache.contains_key(&source) {
            self.make_room(now);
        }
        self.cache.insert(source, Answer { until: now + age, user, is_routed });
        user
    }

    /// The user of a neighbour's address, by the list of all.
    fn listed(&mut self, now: Instant, source: IpAddr) -> Option<UserId> {
        if self.list_at.is_none_or(|at| now >= at) {
            self.list_at = Some(now + LIST_EVERY);
            self.list = self.neighbours.list();
        }
        let link = self.list.get(&source)?;
        Some(self.name(LINK, link))
    }

    fn make_room(&mut self, now: Instant) {
        let kept = |answer: &Answer| if answer.is_routed { ROUTED_KEPT } else { Duration::ZERO };
        self.cache.retain(|_, answer| now < answer.until + kept(answer));
        if self.cache.len() > CACHE_MAX / 2 {
            // All that are routed are one device.
            let device = |answer: &Answer| (!answer.is_routed).then_some(answer.user);
            let mut counts: HashMap<Option<UserId>, usize> = HashMap::new();
            for answer in self.cache.values() {
                *counts.entry(device(answer)).or_default() += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            self.cache.retain(|_, answer| most.is_none_or(|(most, _)| device(answer) != most));
        }
    }

    fn name_of_address(&self, source: IpAddr) -> UserId {
        match source {
            IpAddr::V4(v4) => self.name(ADDRESS, &v4.octets()),
            IpAddr::V6(v6) => self.name(ADDRESS, &v6.octets()),
        }
    }

    fn name(&self, kind: u8, bytes: &[u8]) -> UserId {
        name(&self.key, kind, bytes)
    }
}

fn name(key: &hmac::Key, kind: u8, bytes: &[u8]) -> UserId {
    let mut context = hmac::Context::with_key(key);
    context.update(&[kind]);
    context.update(bytes);
    let tag = context.sign();
    let number = tag.as_ref().iter().take(8).fold(0, |n, byte| (n << 8) | u64::from(*byte));
    // A larger number would be cut on its way to the cloud.
    UserId(number & NUMBER_MAX)
}

/// Prefixes of the hash input: a link address and an IP address with the same bytes differ.
const LINK: u8 = 1;
const ADDRESS: u8 = 2;
const UNRESOLVED: u8 = 3;
