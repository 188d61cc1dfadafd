//! The bytes of each user of a session, of flows and datagrams, for operators.
//!
//! At most [`USERS_MAX`] users are remembered. To make room, those without traffic for
//! [`FORGET_AFTER`] are forgotten; if there are none, all are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{Bytes, UserId};

use crate::listing::UserTraffic;

#[derive(Debug, Default)]
pub(crate) struct UsersTraffic {
    users: BTreeMap<UserId, UserTraffic>,
}

impl UsersTraffic {
    /// A user's bytes for the peer were accepted.
    pub fn sent(&mut self, now: Instant, user: UserId, bytes: u64) {
        self.of(now, user).sent.0 += bytes;
    }

    /// A user's bytes from the peer were delivered.
    pub fn received(&mut self, now: Instant, user: UserId, bytes: u64) {
        self.of(now, user).received.0 += bytes;
    }

    /// The remembered users.
    pub fn users(&self) -> impl Iterator<Item = UserId> {
        self.users.keys().copied()
    }

    /// The bytes of a user, if it is remembered.
    pub fn get(&self, user: UserId) -> Option<UserTraffic> {
        self.users.get(&user).copied()
    }

    fn of(&mut self, now: Instant, user: UserId) -> &mut UserTraffic {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(&user) {
            let recent = |at: Instant| now.saturating_duration_since(at) < FORGET_AFTER;
            self.users.retain(|_, traffic| recent(traffic.at));
            if self.users.len() >= USERS_MAX {
                self.users.clear();
            }
        }
        let new = || UserTraffic { sent: Bytes(0), received: Bytes(0), at: now };
        let traffic = self.users.entry(user).or_insert_with(new);
        traffic.at = now;
        traffic
    }
}

/// The maximum number of remembered users.
const USERS_MAX: usize = 4_096;
/// Users without traffic for this time make room for others.
const FORGET_AFTER: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_users_make_room_and_else_all_are_forgotten() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let begin = Instant::now();
        let (mut traffic, later) = (UsersTraffic::default(), begin + FORGET_AFTER);
        (0..10).for_each(|user| traffic.sent(begin, UserId(user), 1));
        (10..USERS_MAX as u64).for_each(|user| traffic.received(later, UserId(user), 2));
        traffic.sent(later, UserId(10), 3);
        let of = |traffic: &UsersTraffic, user| {
            traffic.get(UserId(user)).map(|one| (one.sent.0, one.received.0))
        };
        assert_eq!((of(&traffic, 0), of(&traffic, 10)), (Some((1, 0)), Some((3, 2))));
        traffic.sent(later, UserId(u64::MAX), 1);
        assert_eq!((traffic.users().count(), of(&traffic, 0)), (USERS_MAX - 9, None));
        (0..9).for_each(|user| traffic.sent(later, UserId(user), 1));
        traffic.sent(later, UserId(9), 1);
        assert_eq!((traffic.users().count(), of(&traffic, 10)), (1, None));
    }
}
