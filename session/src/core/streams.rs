//! The streams of a session: which binding has one, how many each user has, and when one was last
//! used.
//!
//! Invariant: a user's count is the number of its entries among the open ones; users without
//! streams and without a pause have no entry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use polyrail_model::{BindingId, FlowId, UserId};

use crate::flow::{Flow, Life};
use crate::wire::ResetReason;

/// The streams of a session, by binding.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: BTreeMap<BindingId, Stream>,
    users: BTreeMap<UserId, UserStreams>,
    /// Streams with datagrams that were left for the next turn.
    unread: BTreeSet<FlowId>,
    /// The cloud takes streams (gateway).
    pub offered: bool,
    /// When idle ones are ended (gateway).
    pub(super) due: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub flow: FlowId,
    user: UserId,
    /// The time in which the peer was heard until a datagram last took it.
    used: Duration,
}

#[derive(Debug, Default)]
struct UserStreams {
    count: usize,
    /// After a refusal: when another one is tried (gateway).
    again_at: Option<Instant>,
}

impl Streams {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// The flows that are streams of this user.
    pub fn flows_of(&self, user: UserId) -> impl Iterator<Item = FlowId> {
        self.open.values().filter(move |stream| stream.user == user).map(|stream| stream.flow)
    }

    /// The flow that is, or was, the stream of this binding.
    pub fn flow_of(&self, binding: BindingId) -> Option<FlowId> {
        self.open.get(&binding).map(|stream| stream.flow)
    }

    /// Whether the user may have another one.
    pub fn has_room(&self, user: UserId) -> bool {
        let own = self.users.get(&user).map_or(0, |user| user.count);
        self.open.len() < STREAMS_MAX && own < USER_STREAMS_MAX
    }

    /// Whether a stream of the user was refused lately (gateway).
    pub fn pauses(&self, now: Instant, user: UserId) -> bool {
        self.users.get(&user).and_then(|user| user.again_at).is_some_and(|at| now < at)
    }

    /// A stream of the user was refused (gateway).
    pub fn pause(&mut self, now: Instant, user: UserId) {
        self.users.entry(user).or_default().again_at = Some(now + AGAIN);
        self.due.get_or_insert(now + AGAIN);
    }

    /// The binding has a stream. Returns the one that it had before.
    pub fn insert(
        &mut self,
        binding: BindingId,
        user: UserId,
        flow: FlowId,
        heard: Duration,
    ) -> Option<FlowId> {
        self.users.entry(user).or_default().count += 1;
        let before = self.open.insert(binding, Stream { flow, user, used: heard })?;
        self.leave(before.user);
        Some(before.flow)
    }

    /// The flow is over. Unless it was idle, the user gets no other one for a while.
    pub fn forget(&mut self, now: Instant, flow: &Flow) {
        let Some(binding) = flow.binding() else { return };
        self.unread.remove(&flow.id);
        if self.flow_of(binding) == Some(flow.id) {
            self.open.remove(&binding);
            self.leave(flow.user);
        }
        let idle = ResetReason::Idle;
        let is_idle = matches!(flow.life, Life::Resetting { reason, .. } if reason == idle);
        if self.offered && !is_idle {
            self.pause(now, flow.user);
        }
    }

    fn leave(&mut self, user: UserId) {
        let Some(of_user) = self.users.get_mut(&user) else { return };
        of_user.count -= 1;
        if of_user.count == 0 && of_user.again_at.is_none() {
            self.users.remove(&user);
        }
    }

    /// Forgets pauses that are over. Returns whether streams or pauses are left.
    pub fn sweep(&mut self, now: Instant) -> bool {
        self.users.retain(|_, user| {
            user.again_at = user.again_at.filter(|&at| now < at);
            user.count > 0 || user.again_at.is_some()
        });
        !self.users.is_empty()
    }

    /// A datagram has taken the stream of this binding.
    pub fn use_now(&mut self, heard: Duration, binding: BindingId) {
        self.open.get_mut(&binding).into_iter().for_each(|stream| stream.used = heard);
    }

    /// The bindings whose streams have carried nothing for a while in which the peer was heard.
    pub fn idle(&self, heard: Duration) -> impl Iterator<Item = (BindingId, FlowId)> {
        let is_idle = move |stream: &Stream| heard.saturating_sub(stream.used) >= IDLE;
        let idle = self.open.iter().filter(move |(_, stream)| is_idle(stream));
        idle.map(|(binding, stream)| (*binding, stream.flow))
    }

    /// All bindings with a stream.
    pub fn all(&self) -> impl Iterator<Item = (BindingId, FlowId)> {
        self.open.iter().map(|(binding, stream)| (*binding, stream.flow))
    }

    /// The stream has more datagrams than a turn delivers.
    pub fn read_later(&mut self, flow: FlowId) {
        self.unread.insert(flow);
    }

    /// Takes out the streams that have more datagrams.
    pub fn take_unread(&mut self) -> BTreeSet<FlowId> {
        std::mem::take(&mut self.unread)
    }
}

/// Streams of a session and of a user; the others' datagrams are sent one by one.
const STREAMS_MAX: usize = 4_096;
const USER_STREAMS_MAX: usize = 64;
/// A stream without a datagram for so long is ended.
const IDLE: Duration = Duration::from_secs(10);
/// After a refusal the user gets no stream for so long.
const AGAIN: Duration = Duration::from_secs(5);
