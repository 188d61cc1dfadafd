//! A limit of what users may have done for them: each, and all together.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use polyrail_model::{Bucket, UserId};

/// How often something may happen in a second, for each user and for all. Once half of what all
/// have is used, each user has a tenth of its own, so that users who flood leave the others' part,
/// as long as those tenths are less than what all have.
#[derive(Debug)]
pub struct UserLimit {
    all: Bucket,
    half: f64,
    of_user: f64,
    /// Each user's own, and its tenth for when half of `all` is used. At most as many users as
    /// `all` has permitted since the sweep before the last: both are full after a second.
    users: HashMap<UserId, [Bucket; 2]>,
    sweep_at: Instant,
}

impl UserLimit {
    /// A limit that has permitted nothing yet. Each number is that of a second, and at once; a
    /// user's is at least ten.
    pub fn new(now: Instant, of_all: f64, of_user: f64) -> Self {
        let (all, users) = (Bucket::new(now, of_all, of_all), HashMap::new());
        Self { all, half: of_all / 2.0, of_user, users, sweep_at: now + SWEEP_EVERY }
    }

    /// Whether it may happen for this user now.
    pub fn permit(&mut self, now: Instant, user: UserId) -> bool {
        if now >= self.sweep_at {
            self.users.retain(|_, own| own.iter().any(|bucket| !bucket.is_full(now)));
            self.sweep_at = now + SWEEP_EVERY;
        }
        let of_user = self.of_user;
        let new = || [of_user, of_user / 10.0].map(|most| Bucket::new(now, most, most));
        let mut both = self.users.get(&user).copied().unwrap_or_else(new);
        let [own, tenth] = &mut both;
        let has_more = self.all.level(now) > self.half || tenth.take(now, 1);
        let permitted = has_more && own.take(now, 1) && self.all.take(now, 1);
        if permitted {
            self.users.insert(user, both);
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
        // Twenty users flood for ten seconds.
        let mut limit = UserLimit::new(now, 100.0, 10.0);
        let all: usize = (1..=20).map(|user| permits(&mut limit, at(0), user)).sum();
        assert_eq!(all, 5 * 10 + 15);
        for ms in 1..=10_000 {
            for user in 1..=20 {
                limit.permit(at(ms), UserId(user));
            }
            assert!(ms % 1_000 != 0 || limit.permit(at(ms), UserId(21)), "{ms}");
        }
        assert!(limit.permit(at(11_200), UserId(22)));
        assert_eq!(limit.users.len(), 1, "full buckets are not kept");
    }
}
