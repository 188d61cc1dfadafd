//! Refusals per user: counts for operators, and rate-limited log lines.
//!
//! At most [`USERS_MAX`] users are remembered; the one whose latest refusal is the oldest is
//! evicted. Each user gets at most one line in [`LINE_EVERY`], so one user's flood does not hide
//! another's refusals.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use polyrail_admin::{RefusedCounts, Timestamp};
use polyrail_model::{SessionKey, UserId};
use polyrail_relay::LogLimiter;

/// The maximum number of remembered users.
pub const USERS_MAX: usize = 1_024;

/// The least time between two log lines of one user.
pub const LINE_EVERY: Duration = Duration::from_secs(10);

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A flow, because too many are open.
    Flow,
    /// A flow, because of the user's quota.
    Quota,
    /// A flow, because of a bound of all users.
    Overload,
    /// A DNS query.
    Query,
}

/// The refusals of all users. A gateway has one session and uses its first key.
#[derive(Debug, Default)]
pub struct Refusals {
    users: BTreeMap<(SessionKey, UserId), Record>,
    lines: LogLimiter,
}

/// The refusals of one user.
#[derive(Clone, Debug)]
pub struct Record {
    /// Their numbers.
    pub counts: RefusedCounts,
    /// The reason of the latest one.
    pub reason: String,
    /// When that was.
    pub at: Timestamp,
    last: Instant,
    line_at: Option<Instant>,
    /// Refusals since the last line.
    unlogged: u64,
}

impl Refusals {
    /// Counts a refusal, and logs it unless the user had a line lately. `gateway` is known to a
    /// cloud, `address` to a gateway.
    pub fn add(
        &mut self,
        now: Instant,
        (session, user): (SessionKey, UserId),
        refused: Refused,
        reason: &str,
        (gateway, address): (Option<&str>, Option<IpAddr>),
    ) {
        self.make_room((session, user));
        let new = || Record {
            counts: RefusedCounts::default(),
            reason: String::new(),
            at: Timestamp::now(),
            last: now,
            line_at: None,
            unlogged: 0,
        };
        let record = self.users.entry((session, user)).or_insert_with(new);
        let counts = &mut record.counts;
        *match refused {
            Refused::Flow => &mut counts.flows,
            Refused::Quota => &mut counts.quota,
            Refused::Overload => &mut counts.overload,
            Refused::Query => &mut counts.queries,
        } += 1;
        (record.last, record.at) = (now, Timestamp::now());
        if record.reason != reason {
            reason.clone_into(&mut record.reason);
        }
        let due = |at: Instant| now.saturating_duration_since(at) >= LINE_EVERY;
        if record.line_at.is_none_or(due) && self.lines.permit(now).is_some() {
            let suppressed = std::mem::take(&mut record.unlogged);
            record.line_at = Some(now);
            let address = address.map(tracing::field::display);
            let what = if refused == Refused::Query { "DNS query refused" } else { "flow refused" };
            tracing::warn!(gateway, %user, address, reason, suppressed, "{what}");
        } else {
            record.unlogged += 1;
        }
    }

    /// The users with refusals.
    pub fn iter(&self) -> impl Iterator<Item = (SessionKey, UserId, &Record)> {
        self.users.iter().map(|(&(session, user), record)| (session, user, record))
    }

    /// Forgets the users of an ended session.
    pub fn forget(&mut self, session: SessionKey) {
        self.users.retain(|(of, _), _| *of != session);
    }

    fn make_room(&mut self, key: (SessionKey, UserId)) {
        if self.users.len() < USERS_MAX || self.users.contains_key(&key) {
            return;
        }
        let oldest = self.users.iter().min_by_key(|(_, record)| record.last);
        if let Some(oldest) = oldest.map(|(key, _)| *key) {
            self.users.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_per_user_and_the_oldest_is_evicted() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let nobody = (None, None);
        for user in 0..USERS_MAX as u64 {
            let at = now + Duration::from_millis(user);
            refusals.add(at, (SessionKey(1), UserId(user)), Refused::Quota, "x", nobody);
        }
        let late = now + Duration::from_secs(5);
        for refused in [Refused::Flow, Refused::Query, Refused::Overload, Refused::Quota] {
            refusals.add(late, (SessionKey(1), UserId(0)), refused, "y", nobody);
        }
        refusals.add(late, (SessionKey(2), UserId(5)), Refused::Flow, "z", nobody);
        assert_eq!(refusals.iter().count(), USERS_MAX);
        let (_, user, first) = refusals.iter().next().unwrap();
        let RefusedCounts { flows, quota, overload, queries } = first.counts;
        assert_eq!((user.0, flows, quota, overload, queries), (0, 1, 2, 1, 1));
        assert_eq!((first.reason.as_str(), first.unlogged), ("y", 4), "one line in ten seconds");
        assert!(refusals.iter().all(|(_, user, _)| user.0 != 1), "the oldest is evicted");
        refusals.forget(SessionKey(1));
        assert_eq!(refusals.iter().count(), 1);
    }
}
