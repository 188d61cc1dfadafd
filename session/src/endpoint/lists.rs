//! The flows and users of all sessions, for operators.

use std::time::Instant;

use polyrail_model::{FlowName, Identity, SessionKey, UserId};

use super::Endpoint;
use crate::limits::BINDING_IDLE;
use crate::listing::{FlowView, UserView};

impl Endpoint {
    /// The flows and bindings after this one, in the order of their names; `only` of one session.
    /// Each step costs about the same, whatever the number of flows.
    pub fn flows_after(
        &self,
        after: Option<FlowName>,
        only: Option<SessionKey>,
    ) -> impl Iterator<Item = FlowView<'_>> {
        let first = after.map_or(SessionKey(0), |after| after.session);
        let wanted = move |session: SessionKey| only.is_none_or(|only| only == session);
        let sessions = self.sessions.range(first..).filter(move |(session, _)| wanted(**session));
        sessions.flat_map(move |(_, entry)| entry.session.flows_after(after))
    }

    /// The users with open flows, or with traffic in the last five minutes.
    pub fn users(&self, now: Instant) -> impl Iterator<Item = UserView> {
        let lists = self.sessions.values().flat_map(|entry| entry.session.users());
        lists.filter(move |view| is_listed(now, view))
    }

    /// One of [`Endpoint::users`].
    pub fn user(&self, now: Instant, session: SessionKey, user: UserId) -> Option<UserView> {
        let view = self.sessions.get(&session)?.session.user(user);
        is_listed(now, &view).then_some(view)
    }

    /// The peer of a session.
    pub fn peer_of(&self, session: SessionKey) -> Option<&Identity> {
        self.sessions.get(&session)?.peer.as_ref()
    }
}

fn is_listed(now: Instant, view: &UserView) -> bool {
    let age = view.traffic.map(|traffic| now.saturating_duration_since(traffic.at));
    view.flows > 0 || age.is_some_and(|age| age < BINDING_IDLE)
}
