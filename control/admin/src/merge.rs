//! One answer from those of all data planes: clients see one cloud, whatever its workers.
//!
//! Workers share no session and number theirs interleaved, so lists are merged by their order.

use std::cmp::Reverse;

use super::metrics::{CloudCounts, Count, MetricsSnapshot, TurnHistogram};
use super::{
    AdminError, DrainState, ErrorCode, FlowPage, PathState, Snapshot, TunnelCounts, UserPage,
    UserPlace, UserState,
};

/// The first of the answers, changed by each of the others; there is at least one.
fn fold<T: Default>(all: Vec<T>, mut add: impl FnMut(&mut T, T)) -> T {
    let mut all = all.into_iter();
    let mut sum = all.next().unwrap_or_default();
    all.for_each(|one| add(&mut sum, one));
    sum
}

pub(crate) fn snapshots(all: Vec<Snapshot>) -> Snapshot {
    let mut sum = fold(all, |sum: &mut Snapshot, one| {
        sum.legs += one.legs;
        let TunnelCounts { up, half_open, refused, datagrams_dropped, retries_sent } = one.tunnels;
        sum.tunnels.up += up;
        sum.tunnels.half_open += half_open;
        sum.tunnels.refused += refused;
        sum.tunnels.datagrams_dropped += datagrams_dropped;
        sum.tunnels.retries_sent += retries_sent;
        sum.sessions.extend(one.sessions);
        sum.drain = match (sum.drain, one.drain) {
            (Some(drain), Some(other)) => Some(together(drain, other)),
            (drain, other) => drain.or(other),
        };
    });
    sum.sessions.sort_by_key(|session| session.id.parse::<u64>().unwrap_or(u64::MAX));
    sum
}

pub(crate) fn paths(all: Vec<Vec<PathState>>) -> Vec<PathState> {
    let is_one = all.len() == 1;
    let mut paths = all.concat();
    if !is_one {
        paths.sort_by(|a, b| a.name.cmp(&b.name));
    }
    paths
}

/// A page of at most `limit` flows. Up to the least of the places where a page ends early, the
/// pages are complete.
pub(crate) fn flows(limit: usize, pages: Vec<FlowPage>) -> FlowPage {
    let end = pages.iter().filter_map(|page| page.next).min();
    let mut flows: Vec<_> = pages.into_iter().flat_map(|page| page.flows).collect();
    flows.retain(|flow| end.is_none_or(|end| flow.id <= end));
    flows.sort_by_key(|flow| flow.id);
    if flows.len() <= limit {
        return FlowPage { flows, next: end };
    }
    flows.truncate(limit);
    let next = flows.last().map(|flow| flow.id);
    FlowPage { flows, next }
}

/// A page of at most `limit` users. Each of the pages has as many, or all.
pub(crate) fn users(limit: usize, mut pages: Vec<UserPage>) -> UserPage {
    if pages.len() == 1 {
        return pages.pop().unwrap_or_default();
    }
    let mut is_last = pages.iter().all(|page| page.next.is_none());
    let mut all: Vec<(UserPlace, UserState)> =
        pages.into_iter().flat_map(|page| page.places.into_iter().zip(page.users)).collect();
    all.sort_by_key(|(place, _)| *place);
    is_last &= all.len() <= limit;
    all.truncate(limit);
    let (places, users): (Vec<UserPlace>, Vec<UserState>) = all.into_iter().unzip();
    let next = places.last().copied().filter(|_| !is_last);
    UserPage { users, next, places }
}

/// The answer of the data plane that knows the path.
pub(crate) fn changes(
    answers: Vec<Result<PathState, AdminError>>,
) -> Result<PathState, AdminError> {
    let knows = |answer: &Result<PathState, AdminError>| match answer {
        Ok(_) => 2,
        Err(error) if error.code() != ErrorCode::UnknownPath => 1,
        Err(_) => 0,
    };
    let best = answers.into_iter().min_by_key(|answer| Reverse(knows(answer)));
    best.unwrap_or_else(|| Err(AdminError::new(ErrorCode::Internal, "no data plane")))
}

/// A worker without flows may have ended before the others.
pub(crate) fn drains(
    answers: Vec<Result<DrainState, AdminError>>,
) -> Result<DrainState, AdminError> {
    let mut refused = None;
    let mut sum: Option<DrainState> = None;
    for answer in answers {
        match answer {
            Ok(drain) => sum = Some(sum.map_or(drain, |sum| together(sum, drain))),
            Err(error) => refused = Some(error),
        }
    }
    let none = || AdminError::new(ErrorCode::Internal, "no data plane");
    sum.ok_or_else(|| refused.unwrap_or_else(none))
}

fn together(one: DrainState, other: DrainState) -> DrainState {
    DrainState { flows: one.flows + other.flows, ends_in_s: one.ends_in_s.max(other.ends_in_s) }
}

pub(crate) fn metrics(all: Vec<MetricsSnapshot>) -> MetricsSnapshot {
    let is_one = all.len() == 1;
    let mut status = Vec::new();
    let mut sum = fold(all, |sum: &mut MetricsSnapshot, one| {
        status.push(one.status);
        sum.paths.extend(one.paths);
        add_turns(&mut sum.turns, &one.turns);
        sum.refused.flows += one.refused.flows;
        sum.refused.quota += one.refused.quota;
        sum.refused.overload += one.refused.overload;
        sum.refused.queries += one.refused.queries;
        sum.lines_suppressed += one.lines_suppressed;
        add_counts(&mut sum.udp_dropped, one.udp_dropped);
        add_counts(&mut sum.tunnel_dropped, one.tunnel_dropped);
        match (&mut sum.cloud, one.cloud) {
            (Some(cloud), Some(other)) => add_cloud(cloud, other),
            (cloud, other) => *cloud = cloud.take().or(other),
        }
    });
    if !is_one {
        status.insert(0, std::mem::take(&mut sum.status));
        sum.status = snapshots(status);
        sum.paths.sort_by(|a, b| a.name.cmp(&b.name));
    }
    sum
}

/// All data planes have the same buckets.
fn add_turns(sum: &mut TurnHistogram, one: &TurnHistogram) {
    for ((_, count), (_, other)) in sum.buckets.iter_mut().zip(&one.buckets) {
        *count += other;
    }
    sum.longer += one.longer;
    sum.sum += one.sum;
}

fn add_counts(sum: &mut Vec<Count>, one: Vec<Count>) {
    for (label, count) in one {
        match sum.iter_mut().find(|(known, _)| *known == label) {
            Some((_, known)) => *known += count,
            None => sum.push((label, count)),
        }
    }
}

fn add_cloud(sum: &mut CloudCounts, one: CloudCounts) {
    sum.dials += one.dials;
    sum.dials_waiting += one.dials_waiting;
    add_counts(&mut sum.dials_failed, one.dials_failed);
    sum.reports.extend(one.reports);
    sum.reports_ignored += one.reports_ignored;
    add_counts(&mut sum.handed_over, one.handed_over);
    sum.workers += one.workers;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::{FlowKind, FlowName, SessionKey, UserId};

    use super::*;
    use crate::{FlowPhase, FlowState};

    fn flow(session: u64, number: u64) -> FlowState {
        FlowState {
            id: FlowName { session: SessionKey(session), kind: FlowKind::Tcp, number },
            kind: FlowKind::Tcp,
            gateway: None,
            user: String::new(),
            state: FlowPhase::Open,
            source: None,
            destination: None,
            age_s: 0.0,
            idle_s: 0.0,
            sent_bytes: 0,
            received_bytes: 0,
            carriers: Vec::new(),
        }
    }

    #[test]
    fn pages_of_flows_end_where_the_first_of_them_is_incomplete() {
        let page = |flows: &[(u64, u64)], next: Option<(u64, u64)>| FlowPage {
            flows: flows.iter().map(|&(session, number)| flow(session, number)).collect(),
            next: next.map(|(session, number)| flow(session, number).id),
        };
        let merged = |limit, pages| {
            let FlowPage { flows, next } = flows(limit, pages);
            let name = |id: FlowName| (id.session.0, id.number);
            (flows.iter().map(|flow| name(flow.id)).collect::<Vec<_>>(), next.map(name))
        };
        let (one, two) = (page(&[(1, 1), (1, 2), (3, 1)], None), page(&[(2, 1), (2, 9)], None));
        let all = vec![(1, 1), (1, 2), (2, 1), (2, 9), (3, 1)];
        assert_eq!(merged(9, vec![one.clone(), two.clone()]), (all.clone(), None));
        assert_eq!(merged(5, vec![one.clone(), two.clone()]), (all.clone(), None));
        assert_eq!(merged(4, vec![one.clone(), two]), (all[..4].to_vec(), Some((2, 9))));
        let short = page(&[(2, 1)], Some((2, 4)));
        assert_eq!(merged(9, vec![one, short]), (all[..3].to_vec(), Some((2, 4))));
    }

    #[test]
    fn users_of_all_workers_are_in_the_order_of_their_flows() {
        let page = |places: &[(u64, u64)], next: bool| {
            let places: Vec<UserPlace> = places
                .iter()
                .map(|&(flows, session)| UserPlace {
                    flows: Reverse(flows),
                    session: SessionKey(session),
                    user: UserId(7),
                })
                .collect();
            let user = |place: &UserPlace| UserState {
                user: place.to_string(),
                flows: place.flows.0,
                ..UserState::default()
            };
            let users = places.iter().map(user).collect();
            UserPage { users, next: places.last().copied().filter(|_| next), places }
        };
        let merged = |limit, pages| {
            let page = users(limit, pages);
            let flows: Vec<u64> = page.users.iter().map(|user| user.flows).collect();
            (flows, page.next.map(|place| place.flows.0))
        };
        let (one, two) = (page(&[(9, 1), (3, 1)], false), page(&[(5, 2), (1, 2)], false));
        assert_eq!(merged(4, vec![one.clone(), two.clone()]), (vec![9, 5, 3, 1], None));
        assert_eq!(merged(3, vec![one.clone(), two]), (vec![9, 5, 3], Some(3)));
        assert_eq!(merged(2, vec![one, page(&[(5, 2), (4, 2)], true)]), (vec![9, 5], Some(5)));
    }

    #[test]
    fn counters_of_all_workers_are_added() {
        let one = |flows, label| MetricsSnapshot {
            status: Snapshot {
                legs: flows,
                drain: Some(DrainState { flows, ends_in_s: flows as f64 }),
                ..Snapshot::default()
            },
            turns: TurnHistogram {
                buckets: vec![(Duration::from_millis(1), flows)],
                longer: 1,
                sum: Duration::from_secs(flows),
            },
            udp_dropped: vec![("same", 1), (label, flows)],
            cloud: Some(CloudCounts { dials: flows, workers: 1, ..CloudCounts::default() }),
            ..MetricsSnapshot::default()
        };
        let sum = metrics(vec![one(3, "a"), one(4, "b")]);
        assert_eq!((sum.status.legs, sum.turns.longer), (7, 2));
        assert_eq!(sum.status.drain, Some(DrainState { flows: 7, ends_in_s: 4.0 }));
        assert_eq!(sum.turns.buckets, [(Duration::from_millis(1), 7)]);
        assert_eq!(sum.udp_dropped, [("same", 2), ("a", 3), ("b", 4)]);
        let cloud = sum.cloud.unwrap();
        assert_eq!((cloud.dials, cloud.workers), (7, 2));
        assert_eq!(metrics(vec![one(3, "a")]), one(3, "a"));
    }

    #[test]
    fn only_the_worker_that_knows_a_path_answers() {
        let unknown = || Err(AdminError::unknown_path("x"));
        let refused = || Err(AdminError::refused("only the gateway"));
        assert_eq!(changes(vec![unknown(), refused()]), refused());
        assert_eq!(changes(vec![unknown(), unknown()]), unknown());
        let drain = DrainState { flows: 1, ends_in_s: 2.0 };
        let over = || Err(AdminError::refused("shutting down"));
        assert_eq!(drains(vec![over(), Ok(drain)]), Ok(drain));
        assert_eq!(drains(vec![over()]), over());
    }
}
