//! Refusals per user: counts for operators, and rate-limited log lines.
//!
//! Of each session at most [`USERS_MAX`] users are remembered; the one whose latest refusal is the
//! oldest is evicted. Each user gets at most one line in [`LINE_EVERY`], so one user's flood does
//! not hide another's refusals. The caller limits the lines of each gateway.
//!
//! Invariant: `order` has each user of the session once, under the turn of its record.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use polyrail_admin::{RefusedCounts, Timestamp};
use polyrail_model::{SessionKey, UserId};

/// The maximum number of remembered users of a session.
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

/// The refusals of all users, by session.
#[derive(Debug, Default)]
pub struct Refusals {
    /// The refusals of all users since the start.
    totals: RefusedCounts,
    /// Suppressed log lines since the start.
    suppressed: u64,
    sessions: BTreeMap<SessionKey, Users>,
}

#[derive(Debug, Default)]
struct Users {
    records: BTreeMap<UserId, Record>,
    /// The users by the turns of their latest refusals.
    order: BTreeMap<u64, UserId>,
    /// The number of refusals so far.
    turn: u64,
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
    turn: u64,
    line_at: Option<Instant>,
    /// Refusals since the last line.
    unlogged: u64,
}

impl Refusals {
    /// Counts a refusal. Logs it unless the user had a line lately, or `permit` denies one.
    /// `gateway` is known to a cloud, `address` to a gateway.
    pub fn add(
        &mut self,
        now: Instant,
        (session, user): (SessionKey, UserId),
        refused: Refused,
        reason: &str,
        (gateway, address): (Option<&str>, Option<IpAddr>),
        permit: impl FnOnce() -> bool,
    ) {
        let record = self.sessions.entry(session).or_default().latest(user);
        for counts in [&mut self.totals, &mut record.counts] {
            *match refused {
                Refused::Flow => &mut counts.flows,
                Refused::Quota => &mut counts.quota,
                Refused::Overload => &mut counts.overload,
                Refused::Query => &mut counts.queries,
            } += 1;
        }
        record.at = Timestamp::now();
        if record.reason != reason {
            reason.clone_into(&mut record.reason);
        }
        let due = |at: Instant| now.saturating_duration_since(at) >= LINE_EVERY;
        if record.line_at.is_none_or(due) && permit() {
            let suppressed = std::mem::take(&mut record.unlogged);
            record.line_at = Some(now);
            let address = address.map(tracing::field::display);
            let what = if refused == Refused::Query { "DNS query refused" } else { "flow refused" };
            tracing::warn!(gateway, %user, address, reason, suppressed, "{what}");
        } else {
            record.unlogged += 1;
            self.suppressed += 1;
        }
    }

    /// The refusals of all users since the start.
    pub fn totals(&self) -> RefusedCounts {
        self.totals
    }

    /// The log lines suppressed since the start, whoever suppressed them.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// The users with refusals.
    pub fn iter(&self) -> impl Iterator<Item = (SessionKey, UserId, &Record)> {
        self.sessions.iter().flat_map(|(&session, users)| {
            users.records.iter().map(move |(&user, record)| (session, user, record))
        })
    }

    /// The refusals of one user.
    pub fn get(&self, session: SessionKey, user: UserId) -> Option<&Record> {
        self.sessions.get(&session)?.records.get(&user)
    }

    /// Forgets the users of an ended session.
    pub fn forget(&mut self, session: SessionKey) {
        self.sessions.remove(&session);
    }
}

impl Users {
    /// The record of a user, which becomes the latest one.
    fn latest(&mut self, user: UserId) -> &mut Record {
        self.turn += 1;
        let turn = self.turn;
        if let Some(record) = self.records.get(&user) {
            self.order.remove(&record.turn);
        } else if self.records.len() >= USERS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.records.remove(&oldest);
        }
        self.order.insert(turn, user);
        let record = self.records.entry(user).or_insert_with(|| Record {
            counts: RefusedCounts::default(),
            reason: String::new(),
            at: Timestamp::now(),
            turn,
            line_at: None,
            unlogged: 0,
        });
        record.turn = turn;
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(refusals: &mut Refusals, now: Instant, who: (u64, u64), refused: Refused) {
        let who = (SessionKey(who.0), UserId(who.1));
        refusals.add(now, who, refused, "x", (None, None), || true);
    }

    #[test]
    fn refusals_are_counted_per_user_and_the_oldest_of_the_session_is_evicted() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        add(&mut refusals, now, (2, 5), Refused::Flow);
        for user in 0..USERS_MAX as u64 {
            add(&mut refusals, now, (1, user), Refused::Quota);
        }
        let late = now + Duration::from_secs(5);
        for refused in [Refused::Flow, Refused::Query, Refused::Overload, Refused::Quota] {
            add(&mut refusals, late, (1, 0), refused);
        }
        add(&mut refusals, late, (1, USERS_MAX as u64), Refused::Flow);
        let of = |session| refusals.iter().filter(move |(of, ..)| *of == SessionKey(session));
        assert_eq!((of(1).count(), of(2).count()), (USERS_MAX, 1), "another session's stay");
        let (_, user, first) = of(1).next().unwrap();
        let RefusedCounts { flows, quota, overload, queries } = first.counts;
        assert_eq!((user.0, flows, quota, overload, queries), (0, 1, 2, 1, 1));
        assert_eq!((first.reason.as_str(), first.unlogged), ("x", 4), "one line in ten seconds");
        assert!(of(1).all(|(_, user, _)| user.0 != 1), "the oldest is evicted");
        assert_eq!(refusals.sessions[&SessionKey(1)].order.len(), USERS_MAX);
        refusals.forget(SessionKey(1));
        assert_eq!(refusals.iter().count(), 1);
        let RefusedCounts { flows, quota, overload, queries } = refusals.totals();
        let all = (flows, quota, overload, queries);
        assert_eq!(all, (3, USERS_MAX as u64 + 1, 1, 1), "totals outlive users and sessions");
        assert_eq!(refusals.suppressed(), 4);
    }
}
