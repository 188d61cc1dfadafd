//! The flows and users of a session, for operators.

use std::ops::Bound;

use polyrail_model::{BindingId, FlowId, FlowKind, FlowName, UserId};

use super::session::Session;
use crate::listing::{FlowView, UserView};

impl Session {
    /// The flows and bindings after this one, in the order of their names.
    pub fn flows_after(&self, after: Option<FlowName>) -> impl Iterator<Item = FlowView<'_>> {
        let (session, names) = (self.key, &self.paths.names);
        let after = after.filter(|after| after.session == session);
        let (flows, bindings) = match after {
            None => (Some(Bound::Unbounded), Bound::Unbounded),
            Some(FlowName { kind: FlowKind::Tcp, number, .. }) => {
                (Some(Bound::Excluded(FlowId(number))), Bound::Unbounded)
            }
            Some(FlowName { kind: FlowKind::Udp, number, .. }) => {
                (None, Bound::Excluded(BindingId(number)))
            }
        };
        let flows = flows.into_iter().flat_map(|from| self.flows.from(from));
        let flows = flows.filter(|flow| flow.binding().is_none());
        let flows = flows.map(move |flow| FlowView::of_flow(session, flow, names));
        let bindings = self.datagrams.bindings.range((bindings, Bound::Unbounded));
        flows.chain(bindings.map(move |(id, binding)| {
            let name = FlowName { session, kind: FlowKind::Udp, number: id.0 };
            FlowView::of_binding(name, binding, names)
        }))
    }

    /// The users with flows or remembered traffic.
    pub fn users(&self) -> impl Iterator<Item = UserView> {
        let with_flows = self.flows.users.counts().map(|(user, _)| user);
        let others = self.traffic.users().filter(|user| self.flows.users.all_of(*user) == 0);
        with_flows.chain(others).map(|user| self.user(user))
    }

    /// One user.
    pub fn user(&self, user: UserId) -> UserView {
        let (session, flows) = (self.key, self.flows.users.open_of(user));
        UserView { session, user, flows, traffic: self.traffic.get(user) }
    }
}
