//! A limit of what users may have done for them: each, and all together.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use polyrail_model::{Bucket, UserId};

/// How often something may happen in a second, for each user and for all. The second half of that
/// is for users who have used a tenth of theirs at most, so that many users who flood do not take
/// the others' part.
#[derive(Debug)]
pub struct UserLimit {
    all: Bucket,
    of_all: f64,
    of_user: f64,
    /// The buckets that are not full; at most as many as `all` has permitted since the last sweep.
    users: HashMap<UserId, Bucket>,
    sweep_at: Instant,
}

impl UserLimit {
    /// A limit that has permitted nothing yet. Each number is that of a second, and at once.
    pub fn new(now: Instant, of_all: f64, of_user: f64) -> Self {
        let (all, users) = (Bucket::new(now, of_all, of_all), HashMap::new());
        Self { all, of_all, of_user, users, sweep_at: now + SWEEP_EVERY }
    }

    /// Whether it may happen for this user now.
    pub fn permit(&mut self, now: Instant, user: UserId) -> bool {
        if now >= self.sweep_at {
            self.users.retain(|_, bucket| !bucket.is_full(now));
            self.sweep_at = now + SWEEP_EVERY;
        }
        let own = self.users.get(&user);
        let new = || Bucket::new(now, self.of_user, self.of_user);
        let mut own = own.copied().unwrap_or_else(new);
        let is_new = own.level(now) >= 0.9 * self.of_user;
        let reserve = if is_new { 0.0 } else { self.of_all / 2.0 };
        let permitted = self.all.level(now) >= reserve && own.take(now, 1) && self.all.take(now, 1);
        if permitted {
            self.users.insert(user, own);
        }
        permitted
    }
}

const SWEEP_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_who_floods_takes_nothing_from_others() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut limit = UserLimit::new(now, 100.0, 10.0);
        let permits = |limit: &mut UserLimit, at, user| {
            (0..1_000).filter(|_| limit.permit(at, UserId(user))).count()
        };
        assert_eq!((permits(&mut limit, at(0), 1), permits(&mut limit, at(0), 2)), (10, 10));
        assert_eq!(permits(&mut limit, at(500), 1), 5, "ten a second");
        // Many users flood: the second half is for those who had one at most.
        let mut limit = UserLimit::new(now, 100.0, 10.0);
        let all: usize = (1..=20).map(|user| permits(&mut limit, at(0), user)).sum();
        assert_eq!(all, 5 * 10 + 15 * 2);
        assert_eq!(permits(&mut limit, at(0), 21), 2);
        assert!(limit.permit(at(1_100), UserId(22)));
        assert_eq!(limit.users.len(), 1, "full buckets are not kept");
    }
}
