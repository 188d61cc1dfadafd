//! Which flows the session takes: a cap per user, then one of all users.
//!
//! At the cap of all users the heaviest user sheds its most idle flow for a user that has at least
//! two fewer. The user of the gateway's own flows ([`OWN_USER`]) has a few beyond that cap, so that
//! names are resolved on a full session.

use std::time::Instant;

use polyrail_model::{FlowId, UserId};

use super::session::Session;
use crate::event::OpenError;
use crate::limits::{FLOWS_REFUSED_MAX, FLOWS_RESERVED, OWN_USER, TEST_USER};
use crate::wire::ResetReason;

impl Session {
    /// Whether the gateway may open another flow of this user; sheds one of the heaviest user if
    /// necessary.
    pub(super) fn make_room(&mut self, now: Instant, user: UserId) -> Result<(), OpenError> {
        let max = self.settings.flows_max;
        if self.flows.users.all_of(user) >= self.user_max(user) {
            return Err(OpenError::TooManyOfUser);
        }
        // Reset flows stay until the peer answers; a dark path must not let them pile up.
        let few = self.flows.len() < max + FLOWS_REFUSED_MAX;
        let room = self.has_reserve(user, 0)
            || (few && self.flows.users.open() < max)
            || (few && self.shed(now, self.flows.users.open_of(user) + 2));
        if room { Ok(()) } else { Err(OpenError::TooManyFlows) }
    }

    /// Whether the cloud keeps a flow of this user that has just been opened; else, the reason.
    pub(super) fn keep_opened(&mut self, now: Instant, user: UserId) -> Result<(), ResetReason> {
        if self.flows.users.all_of(user) > self.user_max(user) {
            return Err(ResetReason::Quota);
        }
        let room = self.flows.users.open() <= self.settings.flows_max
            || self.has_reserve(user, 1)
            || self.shed(now, self.flows.users.open_of(user) + 1);
        if room { Ok(()) } else { Err(ResetReason::Overload) }
    }

    /// The cap of this user.
    fn user_max(&self, user: UserId) -> usize {
        let least = if matches!(user, OWN_USER | TEST_USER) { FLOWS_RESERVED } else { 0 };
        self.settings.user_flows_max.max(least)
    }

    /// Whether a flow of the gateway itself has a reserved place; `counted` is 1 if it is open.
    fn has_reserve(&self, user: UserId, counted: usize) -> bool {
        user == OWN_USER && self.flows.users.open_of(user) < FLOWS_RESERVED + counted
    }

    /// Resets the most idle flow of the heaviest user if that has at least this number of flows.
    /// Returns whether it did.
    pub fn shed(&mut self, now: Instant, least: usize) -> bool {
        let heaviest = self.flows.users.heaviest().filter(|(_, count)| *count >= least);
        let Some((user, count)) = heaviest else { return false };
        // A flow that the peer has reset counts, too, until its data is read.
        let open = self.flows.users.flows_of(user).filter_map(|id| self.flows.get(id));
        let Some(idle) = open.min_by_key(|flow| flow.moved_at).map(|flow| flow.id) else {
            return false;
        };
        tracing::debug!(%user, count, flow = idle.0, "shedding a flow of the heaviest user");
        self.break_off(now, idle, ResetReason::Quota);
        true
    }

    /// The number of open flows.
    pub fn open_flows(&self) -> usize {
        self.flows.users.open()
    }

    /// The user of a flow.
    pub fn user_of(&self, flow: FlowId) -> Option<UserId> {
        self.flows.get(flow).map(|flow| flow.user)
    }
}
