//! Which gateway processes use a certificate, to notice two at once.
//!
//! If a process greets again after another process has replaced it, both are alive: the certificate
//! was copied. This is reported at most once in ten seconds per identity.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{Bucket, Identity, InstanceId};

use crate::limits::INSTANCES_REMEMBERED;

#[derive(Debug, Default)]
pub(super) struct Instances {
    by_peer: BTreeMap<Identity, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The newest last.
    processes: VecDeque<([u8; PROCESS], Instant)>,
    reported_at: Option<Instant>,
    /// New sessions.
    sessions: Option<Bucket>,
}

/// The leading bytes of an instance identify the process; the rest counts its sessions.
const PROCESS: usize = 12;
/// New sessions of a certificate at once; then one a second, as a gateway that restarts for ever
/// needs.
const SESSIONS_AT_ONCE: f64 = 10.0;
/// Two processes must be seen over this time before a report: a restart takes less.
const ALIVE_FOR: Duration = Duration::from_secs(10);

/// Whether `one` is an earlier session of the process that `other` names.
pub(super) fn is_earlier(one: InstanceId, other: InstanceId) -> bool {
    one.0[..PROCESS] == other.0[..PROCESS] && one.0[PROCESS..] < other.0[PROCESS..]
}

impl Instances {
    /// A process greets. True if another process of the same certificate is alive, too, and has
    /// been for ten seconds.
    pub fn greets(&mut self, now: Instant, peer: &Identity, instance: InstanceId) -> bool {
        let mut process = [0; PROCESS];
        process.copy_from_slice(&instance.0[..PROCESS]);
        let seen = self.by_peer.entry(peer.clone()).or_default();
        let current = seen.processes.back().is_some_and(|(last, _)| *last == process);
        if current {
            return false;
        }
        let first = seen.processes.iter().find(|(known, _)| *known == process).map(|(_, at)| *at);
        if first.is_none() && seen.processes.len() >= INSTANCES_REMEMBERED {
            seen.processes.pop_front();
        }
        seen.processes.retain(|(known, _)| *known != process);
        seen.processes.push_back((process, first.unwrap_or(now)));
        let Some(first) = first else { return false };
        let long = now.saturating_duration_since(first) >= ALIVE_FOR;
        let reported =
            seen.reported_at.is_some_and(|at| now.saturating_duration_since(at) < ALIVE_FOR);
        if long && !reported {
            seen.reported_at = Some(now);
        }
        long && !reported
    }

    /// Whether this certificate may begin a session now. Each replaces the one before, and costs
    /// others log lines and turns of LinkDB.
    pub fn may_begin(&mut self, now: Instant, peer: &Identity) -> bool {
        let seen = self.by_peer.entry(peer.clone()).or_default();
        seen.sessions.get_or_insert_with(|| Bucket::new(now, 1.0, SESSIONS_AT_ONCE)).take(now, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_one_process_have_an_order() {
        let id = |process: u8, session: u8| {
            let mut id = [process; 16];
            id[15] = session;
            InstanceId(id)
        };
        assert!(is_earlier(id(1, 3), id(1, 4)));
        assert!(!is_earlier(id(1, 4), id(1, 4)));
        assert!(!is_earlier(id(1, 5), id(1, 4)));
        assert!(!is_earlier(id(2, 3), id(1, 4)));
    }

    #[test]
    fn sessions_of_a_certificate_begin_once_a_second() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let start = Instant::now();
        let [peer, other] = ["train-7", "train-8"].map(|name| Identity::new(name).unwrap());
        let mut instances = Instances::default();
        let begun = |instances: &mut Instances, peer: &Identity, until: u64| {
            let tries = (0..until).map(|ms| start + Duration::from_millis(ms));
            tries.filter(|at| instances.may_begin(*at, peer)).count()
        };
        assert_eq!(begun(&mut instances, &peer, 1), 1);
        assert!((18..=19).contains(&begun(&mut instances, &peer, 10_000)), "9 more, 1 a second");
        assert_eq!(begun(&mut instances, &other, 20), 10, "another gateway is not affected");
    }

    #[test]
    fn two_processes_are_reported_but_restarts_are_not() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let peer = Identity::new("train-7").unwrap();
        let instance = |process: u8, session: u8| {
            let mut id = [process; 16];
            id[15] = session;
            InstanceId(id)
        };
        let mut instances = Instances::default();
        assert!(!instances.greets(at(0), &peer, instance(1, 0)));
        assert!(!instances.greets(at(5), &peer, instance(1, 1)), "its next session");
        assert!(!instances.greets(at(6), &peer, instance(2, 0)), "a restart");
        assert!(!instances.greets(at(7), &peer, instance(1, 2)), "both, but not for long");
        assert!(!instances.greets(at(12), &peer, instance(2, 1)));
        assert!(instances.greets(at(13), &peer, instance(1, 3)), "both for over ten seconds");
        assert!(!instances.greets(at(17), &peer, instance(2, 2)), "already reported");
        assert!(instances.greets(at(24), &peer, instance(1, 4)), "reported again later");
    }
}
