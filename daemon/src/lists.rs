//! Pages of the lists of flows and users.
//!
//! A request examines at most [`EXAMINED_MAX`] flows, so that the data plane's loop answers it in
//! less than a millisecond or two; a page may therefore be shorter than its limit.

use std::cmp::Reverse;
use std::time::Instant;

use polyrail_admin::{
    FlowPage, FlowPhase, FlowState, FlowsQuery, RefusedCounts, UserPage, UserPlace, UserState,
    UsersQuery,
};
use polyrail_model::{Identity, SessionKey, UserId};
use polyrail_relay::Relay;
use polyrail_session::{FlowPhase as Phase, FlowView, UserView};

use crate::Refusals;
use crate::refusals::Record;

/// The maximum number of flows that one request examines.
pub const EXAMINED_MAX: usize = 4_096;

/// A page of the flows. `complete` adds addresses and gateways.
pub fn flows(
    now: Instant,
    relay: &Relay,
    query: &FlowsQuery,
    complete: impl Fn(&mut FlowState),
) -> FlowPage {
    let mut page = FlowPage::default();
    let Some(only) = only_session(relay, query.gateway.as_deref()) else { return page };
    let mut last = None;
    let listed = relay.endpoint_ref().flows_after(query.after, only);
    for (examined, view) in listed.enumerate() {
        if page.flows.len() >= query.limit || examined >= EXAMINED_MAX {
            page.next = last;
            break;
        }
        last = Some(view.name);
        if matches(now, &view, query) {
            let mut flow = flow_state(now, &view);
            complete(&mut flow);
            page.flows.push(flow);
        }
    }
    page
}

/// A page of the users, those with the most flows first. `complete` adds addresses or dials.
pub fn users(
    now: Instant,
    relay: &Relay,
    refusals: &Refusals,
    query: &UsersQuery,
    complete: impl Fn(SessionKey, UserId, &mut UserState),
) -> UserPage {
    let endpoint = relay.endpoint_ref();
    let Some(only) = only_session(relay, query.gateway.as_deref()) else {
        return UserPage::default();
    };
    let refused = refusals.iter().map(|(session, user, _)| (session, user));
    let refused = refused.filter(|&(session, user)| endpoint.user(now, session, user).is_none());
    let place = |session, user, flows| UserPlace { flows: Reverse(flows as u64), session, user };
    let wanted = |place: &UserPlace| {
        only.is_none_or(|only| only == place.session)
            && query.user.is_none_or(|user| user == place.user)
            && query.after.is_none_or(|after| after < *place)
            && place.flows.0 >= query.min_flows
    };
    let users = endpoint.users(now).map(|view| place(view.session, view.user, view.flows));
    let users = users.chain(refused.map(|(session, user)| place(session, user, 0)));
    let mut places: Vec<UserPlace> = users.filter(wanted).collect();
    let is_last = places.len() <= query.limit;
    if !is_last {
        places.select_nth_unstable(query.limit);
        places.truncate(query.limit);
    }
    places.sort_unstable();
    let next = places.last().copied().filter(|_| !is_last);
    let state = |&UserPlace { session, user, .. }: &UserPlace| {
        let view = endpoint.user(now, session, user);
        let mut state = user_state(user, view, refusals.get(session, user));
        complete(session, user, &mut state);
        state
    };
    UserPage { users: places.iter().map(state).collect(), next, places }
}

/// The session to which a list is restricted; `None` if the gateway is unknown.
fn only_session(relay: &Relay, gateway: Option<&str>) -> Option<Option<SessionKey>> {
    let Some(gateway) = gateway else { return Some(None) };
    let gateway = Identity::new(gateway).ok()?;
    relay.endpoint_ref().session_with(&gateway).map(Some)
}

fn matches(now: Instant, view: &FlowView<'_>, query: &FlowsQuery) -> bool {
    let age = now.saturating_duration_since(view.begun_at);
    query.user.is_none_or(|user| user == view.user)
        && query.kind.is_none_or(|kind| kind == view.name.kind)
        && age.as_secs() >= query.min_age_s
        && view.sent.0 + view.received.0 >= query.min_bytes
        && query.carrier.as_ref().is_none_or(|name| view.carriers().any(|one| one == name))
}

fn flow_state(now: Instant, view: &FlowView<'_>) -> FlowState {
    let age = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
    FlowState {
        id: view.name,
        kind: view.name.kind,
        gateway: None,
        user: view.user.to_string(),
        state: match view.phase {
            Phase::Opening => FlowPhase::Opening,
            Phase::Open => FlowPhase::Open,
            Phase::HalfClosed => FlowPhase::HalfClosed,
            Phase::Closing => FlowPhase::Closing,
            Phase::Resetting => FlowPhase::Resetting,
        },
        source: None,
        destination: view.destination.map(ToString::to_string),
        age_s: age(view.begun_at),
        idle_s: age(view.moved_at),
        sent_bytes: view.sent.0,
        received_bytes: view.received.0,
        carriers: view.carriers().map(str::to_owned).collect(),
    }
}

fn user_state(user: UserId, view: Option<UserView>, refused: Option<&Record>) -> UserState {
    let traffic = view.and_then(|view| view.traffic);
    UserState {
        user: user.to_string(),
        gateway: None,
        address: None,
        group: None,
        flows: view.map_or(0, |view| view.flows as u64),
        sent_bytes: traffic.map(|traffic| traffic.sent.0),
        received_bytes: traffic.map(|traffic| traffic.received.0),
        dials: 0,
        dials_waiting: 0,
        refused: refused.map_or_else(RefusedCounts::default, |record| record.counts),
        refused_reason: refused.map(|record| record.reason.clone()),
        refused_at: refused.map(|record| record.at),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::{Destination, FlowName};
    use polyrail_session::FlowKey;

    use super::*;
    use crate::Refused;
    use crate::side::Side;

    const USERS: u64 = 20;

    /// A gateway without a path, with this many flows of twenty users. The first user has another
    /// flow.
    fn gateway(flows: u64) -> (Side, Vec<FlowKey>) {
        let mut side = Side::gateway();
        let to = Destination::Address(([192, 0, 2, 1], 80).into());
        let users = std::iter::once(0).chain((0..flows).map(|number| number % USERS));
        let open = |user| {
            let endpoint = side.relay.endpoint();
            endpoint.open(Instant::now(), UserId(user), to.clone()).unwrap()
        };
        let keys = users.map(open).collect();
        (side, keys)
    }

    /// All pages of a list of flows.
    fn pages(side: &Side, query: &FlowsQuery) -> Vec<Vec<FlowName>> {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let query = FlowsQuery { after, ..query.clone() };
            let begin = Instant::now();
            let page = flows(begin, &side.relay, &query, |_| ());
            println!("{} flows in {:?}", page.flows.len(), begin.elapsed());
            assert!(page.flows.len() <= query.limit);
            pages.push(page.flows.iter().map(|flow| flow.id).collect());
            after = page.next;
            if after.is_none() {
                return pages;
            }
        }
    }

    #[test]
    fn pages_of_flows_are_complete_and_one_request_examines_a_bounded_number() {
        let count = EXAMINED_MAX as u64 + 100;
        let (side, keys) = gateway(count);
        let all = FlowsQuery { limit: 1_000, ..FlowsQuery::default() };
        let listed = pages(&side, &all);
        let numbers: Vec<u64> = listed.concat().iter().map(|name| name.number).collect();
        let opened: Vec<u64> = keys.iter().map(|key| key.flow.0).collect();
        assert_eq!((numbers == opened, listed.len()), (true, 5));
        // A filter with few results ends a page early.
        let heavy = FlowsQuery { min_bytes: 1, ..all.clone() };
        assert_eq!(pages(&side, &heavy), [vec![], vec![]]);
        let user = FlowsQuery { user: Some(UserId(7)), ..all.clone() };
        let of_user = pages(&side, &user);
        assert_eq!(of_user.len(), 2);
        assert_eq!(of_user.concat().len() as u64, count / USERS + u64::from(count % USERS > 7));
    }

    #[test]
    fn flows_are_filtered() {
        let (mut side, keys) = gateway(3);
        side.relay.endpoint().write(Instant::now(), keys[1], b"hello");
        let count = |query: FlowsQuery| {
            let later = Instant::now() + Duration::from_secs(5);
            flows(later, &side.relay, &query, |_| ()).flows.len()
        };
        let usual = FlowsQuery::default;
        assert_eq!(count(usual()), 4);
        assert_eq!(count(FlowsQuery { user: Some(UserId(0)), ..usual() }), 2);
        assert_eq!(count(FlowsQuery { min_bytes: 5, ..usual() }), 1);
        assert_eq!(count(FlowsQuery { min_bytes: 6, ..usual() }), 0);
        assert_eq!(count(FlowsQuery { min_age_s: 5, ..usual() }), 4);
        assert_eq!(count(FlowsQuery { min_age_s: 60, ..usual() }), 0);
        assert_eq!(count(FlowsQuery { carrier: Some("a".to_owned()), ..usual() }), 0);
        assert_eq!(count(FlowsQuery { kind: "udp".parse().ok(), ..usual() }), 0);
        assert_eq!(count(FlowsQuery { gateway: Some("train-7".to_owned()), ..usual() }), 0);
        assert_eq!(count(FlowsQuery { gateway: Some("no name".to_owned()), ..usual() }), 0);
    }

    #[test]
    fn users_are_listed_in_pages_with_the_heaviest_first_and_with_refusals() {
        let (mut side, keys) = gateway(USERS);
        let now = Instant::now();
        side.relay.endpoint().write(now, keys[0], b"hello");
        let mut refusals = Refusals::default();
        for user in [3, 77] {
            let who = (keys[0].session, UserId(user));
            refusals.add(now, who, Refused::Flow, "too many", (None, None), || false);
        }
        let page = |query: UsersQuery| {
            users(now, &side.relay, &refusals, &query, |_, user, state| {
                assert_eq!(state.user, user.to_string());
            })
        };
        let (mut after, mut all) = (None, Vec::new());
        loop {
            let UserPage { users, next, .. } =
                page(UsersQuery { limit: 5, after, ..UsersQuery::default() });
            all.extend(users);
            after = next;
            if after.is_none() {
                break;
            }
        }
        let number = |user: u64| UserId(user).to_string();
        let order: Vec<String> = (0..USERS).chain([77]).map(number).collect();
        let listed: Vec<String> = all.iter().map(|user| user.user.clone()).collect();
        assert_eq!(listed, order, "the first has two flows, the last one none");
        assert_eq!((all[0].flows, all[0].sent_bytes, all[0].received_bytes), (2, Some(5), Some(0)));
        assert_eq!((all[3].refused.flows, all[3].flows, all[3].sent_bytes), (1, 1, None));
        assert_eq!(all[20].refused_reason.as_deref(), Some("too many"));
        let count = |query: UsersQuery| page(query).users.len();
        let usual = UsersQuery::default;
        assert_eq!(count(UsersQuery { user: Some(UserId(77)), ..usual() }), 1);
        assert_eq!(count(UsersQuery { min_flows: 2, ..usual() }), 1);
        assert_eq!(count(UsersQuery { gateway: Some("train-7".to_owned()), ..usual() }), 0);
    }
}
