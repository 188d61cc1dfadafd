//! What flows hold of one memory, in all and by user.

use std::collections::BTreeMap;

use polyrail_model::UserId;

/// Sums of what counts of each flow.
#[derive(Debug, Default)]
pub(super) struct Pool {
    all: u64,
    of_user: BTreeMap<UserId, u64>,
}

impl Pool {
    pub fn add(&mut self, user: UserId, bytes: u64) {
        if bytes > 0 {
            self.all += bytes;
            *self.of_user.entry(user).or_default() += bytes;
        }
    }

    pub fn subtract(&mut self, user: UserId, bytes: u64) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(sum) = self.of_user.get_mut(&user) {
            *sum = sum.saturating_sub(bytes);
            if *sum == 0 {
                self.of_user.remove(&user);
            }
        }
    }

    /// So much counts of a flow of this user, of which `counted` counted before.
    pub fn set(&mut self, user: UserId, counted: &mut u64, bytes: u64) {
        let before = std::mem::replace(counted, bytes);
        if bytes != before {
            self.add(user, bytes);
            self.subtract(user, before);
        }
    }

    /// What all flows hold.
    pub fn all(&self) -> u64 {
        self.all
    }

    /// What those of this user hold.
    pub fn of_user(&self, user: UserId) -> u64 {
        self.of_user.get(&user).copied().unwrap_or(0)
    }

    /// Both.
    pub fn sums(&self, user: UserId) -> (u64, u64) {
        (self.all, self.of_user(user))
    }

    #[cfg(test)]
    pub fn users(&self) -> usize {
        self.of_user.len()
    }
}
