//! Which dial begins next: quotas per user, per gateway and in total, and fair turns between them.
//!
//! ```text
//!   ask ──> waiting ──begin_next──> active ──end──> forgotten
//!             └─ refused: its user has the most, and too many wait
//! ```
//!
//! A place goes to the session with the fewest active dials, and there to the user with the fewest;
//! among equals to the one that was served least recently. Dials of one user begin in their order.
//! If too many dials wait, the newest of the heaviest user of the heaviest session is refused, not
//! the one that asks. So a user's flood costs nobody else a place or more than a turn.
//!
//! Invariants: no quota is exceeded; a key is waiting, active or unknown; users and sessions
//! without dials have no entry.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use polyrail_model::{SessionKey, UserId};

/// Whose dial it is.
pub type Dialing = (SessionKey, UserId);

/// The numbers of dials that may be active, and of those that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Active dials of one user.
    pub user: usize,
    /// Active dials of one session.
    pub session: usize,
    /// Active dials in total.
    pub total: usize,
    /// Waiting dials of one session.
    pub session_waiting: usize,
    /// Waiting dials in total.
    pub total_waiting: usize,
}

/// The waiting and active dials, by the caller's keys.
#[derive(Debug)]
pub struct Admission<K> {
    quotas: Quotas,
    keys: BTreeMap<K, Known>,
    sessions: BTreeMap<SessionKey, Session<K>>,
    /// Sessions with a dial that may begin: active dials, turn.
    ready: BTreeSet<(usize, u64, SessionKey)>,
    /// Sessions with a waiting dial, by their number of dials.
    loads: BTreeSet<(usize, SessionKey)>,
    active: usize,
    waiting: usize,
    /// Counts dials that began.
    turn: u64,
}

/// The user and the state of a key's dial.
#[derive(Clone, Copy, Debug)]
struct Known {
    dialing: Dialing,
    active: bool,
}

#[derive(Debug)]
struct Session<K> {
    users: BTreeMap<UserId, User<K>>,
    ready: BTreeSet<(usize, u64, UserId)>,
    loads: BTreeSet<(usize, UserId)>,
    active: usize,
    waiting: usize,
    /// When a dial of it began last.
    turn: u64,
}

#[derive(Debug)]
struct User<K> {
    active: usize,
    waiting: VecDeque<K>,
    turn: u64,
}

impl<K: Copy + Ord> Admission<K> {
    /// Nothing waits or is active.
    pub fn new(quotas: Quotas) -> Self {
        Self {
            quotas,
            keys: BTreeMap::new(),
            sessions: BTreeMap::new(),
            ready: BTreeSet::new(),
            loads: BTreeSet::new(),
            active: 0,
            waiting: 0,
            turn: 0,
        }
    }

    /// Uses other quotas; active dials beyond them stay.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.quotas = quotas;
        let all = |(session, of): (&SessionKey, &Session<K>)| {
            of.users.keys().map(|user| (*session, *user)).collect::<Vec<_>>()
        };
        let all: Vec<Dialing> = self.sessions.iter().flat_map(all).collect();
        all.into_iter().for_each(|dialing| self.change(dialing, |_, _| ()));
    }

    /// A new dial waits. Returns the dial to refuse if too many wait, which may be the new one.
    #[must_use]
    pub fn ask(&mut self, key: K, dialing: Dialing) -> Option<K> {
        self.keys.insert(key, Known { dialing, active: false });
        self.change(dialing, |_, user| user.waiting.push_back(key));
        let (session, Quotas { session_waiting, total_waiting, .. }) = (dialing.0, self.quotas);
        let heavy = if self.waiting > total_waiting {
            self.loads.last().map(|(_, session)| *session)
        } else {
            let of = self.sessions.get(&session);
            of.is_some_and(|of| of.waiting > session_waiting).then_some(session)
        };
        let of = self.sessions.get(&heavy?)?;
        let (_, user) = of.loads.last()?;
        let refused = *of.users.get(user)?.waiting.back()?;
        self.end(refused);
        Some(refused)
    }

    /// The next dial that begins; it is active from now on.
    pub fn begin_next(&mut self) -> Option<K> {
        if self.active >= self.quotas.total {
            return None;
        }
        let &(_, _, session) = self.ready.first()?;
        let &(_, _, user) = self.sessions.get(&session)?.ready.first()?;
        self.turn += 1;
        let turn = self.turn;
        let key = self.change((session, user), |of, user| {
            (of.turn, user.turn) = (turn, turn);
            let key = user.waiting.pop_front()?;
            user.active += 1;
            Some(key)
        })?;
        self.keys.insert(key, Known { dialing: (session, user), active: true });
        Some(key)
    }

    /// A dial is over, or its caller gave it up. An unknown key is ignored.
    pub fn end(&mut self, key: K) {
        let Some(Known { dialing, active }) = self.keys.remove(&key) else { return };
        self.change(dialing, |_, user| match active {
            true => user.active -= 1,
            false => user.waiting.retain(|other| *other != key),
        });
    }

    /// The number of active dials.
    pub fn active(&self) -> usize {
        self.active
    }

    /// The active and the waiting dials of a user.
    pub fn of_user(&self, (session, user): Dialing) -> (usize, usize) {
        let user = self.sessions.get(&session).and_then(|of| of.users.get(&user));
        user.map_or((0, 0), |user| (user.active, user.waiting.len()))
    }

    /// Changes a user's dials, and everything that is derived from them.
    fn change<T>(
        &mut self,
        (session, user): Dialing,
        act: impl FnOnce(&mut Session<K>, &mut User<K>) -> T,
    ) -> T {
        let new = || Session {
            users: BTreeMap::new(),
            ready: BTreeSet::new(),
            loads: BTreeSet::new(),
            active: 0,
            waiting: 0,
            turn: 0,
        };
        let mut of = self.sessions.remove(&session).unwrap_or_else(new);
        self.ready.remove(&(of.active, of.turn, session));
        self.loads.remove(&(of.active + of.waiting, session));
        (self.active, self.waiting) = (self.active - of.active, self.waiting - of.waiting);

        let new = || User { active: 0, waiting: VecDeque::new(), turn: 0 };
        let mut one = of.users.remove(&user).unwrap_or_else(new);
        of.ready.remove(&(one.active, one.turn, user));
        of.loads.remove(&(one.active + one.waiting.len(), user));
        (of.active, of.waiting) = (of.active - one.active, of.waiting - one.waiting.len());

        let result = act(&mut of, &mut one);

        (of.active, of.waiting) = (of.active + one.active, of.waiting + one.waiting.len());
        (self.active, self.waiting) = (self.active + of.active, self.waiting + of.waiting);
        if !one.waiting.is_empty() {
            of.loads.insert((one.active + one.waiting.len(), user));
            if one.active < self.quotas.user {
                of.ready.insert((one.active, one.turn, user));
            }
        }
        if one.active > 0 || !one.waiting.is_empty() {
            of.users.insert(user, one);
        }
        if of.waiting > 0 {
            self.loads.insert((of.active + of.waiting, session));
            if of.active < self.quotas.session && !of.ready.is_empty() {
                self.ready.insert((of.active, of.turn, session));
            }
        }
        if !of.users.is_empty() {
            self.sessions.insert(session, of);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTAS: Quotas =
        Quotas { user: 3, session: 5, total: 8, session_waiting: 10, total_waiting: 20 };

    fn dialing(session: u64, user: u64) -> Dialing {
        (SessionKey(session), UserId(user))
    }

    fn all(admission: &mut Admission<u32>) -> Vec<u32> {
        std::iter::from_fn(|| admission.begin_next()).collect()
    }

    #[test]
    fn dials_beyond_the_quotas_of_user_session_and_process_wait() {
        let mut admission = Admission::new(QUOTAS);
        let asked = [(1, 1, 0..5), (1, 2, 10..15), (2, 1, 20..22), (3, 1, 30..33)];
        for (session, user, keys) in asked {
            keys.for_each(|key| assert_eq!(admission.ask(key, dialing(session, user)), None));
        }
        let mut begun = all(&mut admission);
        assert_eq!(begun[..4], [0, 20, 30, 10], "sessions take turns, and users in a session");
        begun.sort_unstable();
        assert_eq!(begun, [0, 1, 10, 20, 21, 30, 31, 32], "the process is full");
        admission.end(32);
        assert_eq!(all(&mut admission), [11], "session 2 has none left, session 1 the fewest");
        for key in [20, 21, 30, 31] {
            admission.end(key);
        }
        begun = all(&mut admission);
        assert_eq!(begun.len(), 1, "session 1 is full: {begun:?}");
        assert_eq!(admission.of_user(dialing(1, 1)).0 + admission.of_user(dialing(1, 2)).0, 5);
        admission.end(10);
        assert_eq!(all(&mut admission).len(), 1);
        admission.set_quotas(Quotas { user: 9, session: 9, ..QUOTAS });
        assert_eq!(all(&mut admission).len(), 3);
        assert_eq!(admission.active(), 8);
    }

    #[test]
    fn heaviest_user_is_refused_and_others_get_the_next_place() {
        let mut admission = Admission::new(Quotas { total_waiting: 11, ..QUOTAS });
        for key in 0..13 {
            let refused = admission.ask(key, dialing(1, 66));
            assert_eq!(refused, (key >= 10).then_some(key), "its own newest");
        }
        assert_eq!(all(&mut admission), [0, 1, 2]);
        for key in 50..53 {
            assert_eq!(admission.ask(key, dialing(1, 66)), None, "three wait no more");
        }
        assert_eq!(admission.ask(100, dialing(1, 7)), Some(52), "not the one that asks");
        assert_eq!(all(&mut admission), [100]);
        // Two more sessions: the heaviest session pays.
        assert_eq!(admission.ask(200, dialing(2, 1)), None);
        assert_eq!(admission.ask(201, dialing(2, 1)), None);
        assert_eq!(admission.ask(202, dialing(2, 1)), Some(51));
        assert_eq!(all(&mut admission), [200, 201, 202]);
    }

    #[test]
    fn ended_dials_leave_nothing() {
        let mut admission = Admission::new(QUOTAS);
        for key in 0..8 {
            assert_eq!(admission.ask(key, dialing(u64::from(key % 3), u64::from(key % 2))), None);
        }
        let begun = all(&mut admission);
        assert_eq!(begun.len(), 8);
        (0..9).rev().for_each(|key| admission.end(key));
        assert_eq!((admission.active, admission.waiting), (0, 0));
        assert!(admission.keys.is_empty() && admission.sessions.is_empty());
        assert!(admission.ready.is_empty() && admission.loads.is_empty());
    }

    #[test]
    fn quick_dials_of_one_user_do_not_overtake_another_user() {
        let mut admission = Admission::new(Quotas { total: 1, ..QUOTAS });
        for key in 0..5 {
            assert_eq!(admission.ask(key, dialing(1, 1)), None);
        }
        assert_eq!(admission.ask(9, dialing(1, 2)), None);
        let mut order = Vec::new();
        while let Some(key) = admission.begin_next() {
            order.push(key);
            admission.end(key);
        }
        assert_eq!(order, [0, 9, 1, 2, 3, 4]);
    }
}
