//! The DNS forwarder in the event loop: its sockets, and its flow to the resolver.
//!
//! The flow is opened for pending queries and kept until it ends; then it is opened again at once
//! if it delivered an answer, else after [`REOPEN_AFTER`]. The session reserves places for it
//! ([`OWN_USER`]).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::Registry;
use polyrail_model::{Destination, UserId};
use polyrail_relay::{LogLimiter, Relay, UserLimit};
use polyrail_session::limits::OWN_USER;
use polyrail_session::{Endpoint, FlowKey, ResetReason};

use crate::dns::{DnsClient, Forwarder, QUERY_MAX};
use crate::transparent::{TransparentUdp, UdpSockets};

pub(crate) struct NameService {
    resolver: SocketAddr,
    forwarder: Forwarder,
    sockets: UdpSockets,
    limit: UserLimit,
    flow: Option<FlowKey>,
    /// The flow has delivered bytes.
    answered: bool,
    /// No flow is opened before this time.
    open_at: Option<Instant>,
    buffer: Box<[u8]>,
    notices: LogLimiter,
}

impl NameService {
    /// Registers the sockets under `base` and the following tokens.
    pub(crate) fn new(
        now: Instant,
        registry: &Registry,
        base: usize,
        sockets: Vec<TransparentUdp>,
        resolver: SocketAddr,
        seed: u64,
    ) -> io::Result<Self> {
        Ok(Self {
            resolver,
            forwarder: Forwarder::new(seed),
            sockets: UdpSockets::new(registry, base, sockets)?,
            limit: UserLimit::new(now, QUERIES_OF_ALL, QUERIES_OF_USER),
            flow: None,
            answered: false,
            open_at: None,
            buffer: vec![0; QUERY_MAX + 1].into_boxed_slice(),
            notices: LogLimiter::default(),
        })
    }

    /// Sends all queries, including pending ones, to another resolver.
    pub(crate) fn set_resolver(&mut self, now: Instant, relay: &mut Relay, resolver: SocketAddr) {
        self.resolver = resolver;
        self.reopen(now, relay);
    }

    /// Sends pending and further queries over another flow, because new flows go to another cloud.
    pub(crate) fn reopen(&mut self, now: Instant, relay: &mut Relay) {
        self.open_at = None;
        if let Some(flow) = self.flow.take() {
            relay.endpoint().reset(now, flow, ResetReason::Idle);
            self.forwarder.stream_lost();
        }
    }

    /// The socket with this index is readable.
    pub(crate) fn on_ready(&mut self, index: usize) {
        self.sockets.on_ready(index);
    }

    /// Receives queries, reads and writes the flow, and sends answers. Returns the users of refused
    /// queries.
    pub(crate) fn on_turn(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        mut user_of: impl FnMut(IpAddr) -> UserId,
    ) -> Vec<UserId> {
        let mut refused = Vec::new();
        let Self { sockets, limit, forwarder, buffer, .. } = self;
        sockets.receive(now, buffer, QUERIES_PER_TURN, |datagram, query| {
            let client = DnsClient { address: datagram.client, asked: datagram.server };
            let user = user_of(client.address.ip());
            if may_ask(limit, now, user, client.address.ip()) {
                refused.extend(forwarder.query(now, user, client, query));
            } else {
                refused.push(user);
            }
        });
        if self.forwarder.next_timeout().is_some_and(|at| at <= now)
            && self.forwarder.on_timeout(now)
            && let Some(flow) = self.flow.take()
        {
            relay.endpoint().reset(now, flow, ResetReason::TimedOut);
            self.delay_reopening(now);
        }
        self.move_flow(now, relay.endpoint());
        self.answer(now);
        refused
    }

    /// When [`NameService::on_turn`] is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let gates = self.sockets.next_timeout(now).into_iter();
        let reopening = self.open_at.filter(|_| self.forwarder.wants_stream());
        gates.chain(self.forwarder.next_timeout()).chain(reopening).min()
    }

    /// Handles an event of a flow; returns false if it is another flow.
    pub(crate) fn on_flow(&mut self, now: Instant, relay: &mut Relay, flow: FlowKey) -> bool {
        if self.flow != Some(flow) {
            return false;
        }
        self.move_flow(now, relay.endpoint());
        // Requests the event for the next bytes, even if nothing was read.
        relay.endpoint().consume(now, flow, 0);
        self.answer(now);
        true
    }

    /// Handles the end of a flow; returns false if it is another flow. Pending queries are sent on
    /// the next flow.
    pub(crate) fn on_gone(&mut self, now: Instant, relay: &mut Relay, flow: FlowKey) -> bool {
        if self.flow != Some(flow) {
            return false;
        }
        self.lose_flow(now);
        self.move_flow(now, relay.endpoint());
        self.answer(now);
        true
    }

    fn lose_flow(&mut self, now: Instant) {
        self.flow = None;
        if !self.answered {
            self.delay_reopening(now);
        }
        self.forwarder.stream_lost();
    }

    fn delay_reopening(&mut self, now: Instant) {
        self.open_at = Some(now + REOPEN_AFTER);
    }

    /// The log lines suppressed since the start.
    pub(crate) fn suppressed(&self) -> u64 {
        self.notices.suppressed()
    }

    fn open_flow(&mut self, now: Instant, endpoint: &mut Endpoint) {
        if self.flow.is_some()
            || !self.forwarder.wants_stream()
            || self.open_at.is_some_and(|at| now < at)
        {
            return;
        }
        let to = Destination::Address(self.resolver);
        (self.answered, self.open_at) = (false, None);
        match endpoint.open(now, OWN_USER, to) {
            Ok(flow) => self.flow = Some(flow),
            Err(error) => {
                self.delay_reopening(now);
                if self.notices.permit(now).is_some() {
                    tracing::warn!(%error, "cannot open a flow to the DNS resolver");
                }
            }
        }
    }

    fn move_flow(&mut self, now: Instant, endpoint: &mut Endpoint) {
        self.open_flow(now, endpoint);
        let Some(flow) = self.flow else { return };
        loop {
            let output = self.forwarder.output();
            if output.is_empty() {
                break;
            }
            let taken = endpoint.write(now, flow, output);
            self.forwarder.written(now, taken);
            if taken == 0 {
                break;
            }
        }
        loop {
            let [first, _] = endpoint.readable(flow);
            if first.is_empty() {
                break;
            }
            self.answered = true;
            self.forwarder.receive(now, first);
            let read = first.len();
            endpoint.consume(now, flow, read);
        }
        if endpoint.finished(flow) {
            endpoint.finish(now, flow);
            self.lose_flow(now);
            // The next flow, which cannot have ended yet.
            self.move_flow(now, endpoint);
        }
    }

    fn answer(&mut self, now: Instant) {
        while let Some(reply) = self.forwarder.poll_reply() {
            let DnsClient { address, asked } = reply.client;
            let Some(socket) = self.sockets.serving(asked) else { continue };
            if let Err(error) = socket.reply(asked, address, &reply.bytes)
                && let Some(left_out) = self.notices.permit(now)
            {
                tracing::warn!(%error, left_out, "cannot send a DNS answer");
            }
        }
    }
}

/// Whether this user may make another query. A resolver on the gateway asks for all users.
fn may_ask(limit: &mut UserLimit, now: Instant, user: UserId, from: IpAddr) -> bool {
    from.is_loopback() || limit.permit(now, user)
}

/// The pause after a flow that delivered nothing. A query lives for 5 s and is sent three times.
const REOPEN_AFTER: Duration = Duration::from_millis(500);
/// The maximum number of queries received from one socket per turn.
const QUERIES_PER_TURN: usize = 64;
/// Queries in a second of each user, and of all. Further ones get no answer.
const QUERIES_OF_USER: f64 = 500.0;
const QUERIES_OF_ALL: f64 = 2_000.0;

#[cfg(test)]
mod tests {
    use mio::Poll;
    use polyrail_model::{InstanceId, UserId};
    use polyrail_relay::RelaySettings;
    use polyrail_session::Settings;

    use super::*;
    use crate::dns::DnsClient;

    /// A query for `a.`, type A.
    const QUERY: &[u8] = &[0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];

    #[test]
    fn queries_of_a_user_are_limited_and_those_of_a_resolver_here_are_not() {
        let now = Instant::now();
        let mut limit = UserLimit::new(now, QUERIES_OF_ALL, QUERIES_OF_USER);
        let mut count = |user, from: [u8; 4]| {
            let may = |_: &i32| may_ask(&mut limit, now, UserId(user), from.into());
            (0..3_000).filter(may).count()
        };
        assert_eq!((count(1, [10, 9, 0, 2]), count(2, [10, 9, 0, 3])), (500, 500));
        assert_eq!(count(1, [127, 0, 0, 1]), 3_000);
    }

    #[test]
    fn upstream_flow_is_reopened_for_pending_queries_although_users_hold_every_flow() {
        let poll = Poll::new().unwrap();
        let registry = || poll.registry().try_clone().unwrap();
        let now = Instant::now();
        let settings = Settings { flows_max: 3, ..Settings::default() };
        let endpoint = Endpoint::gateway(now, settings, InstanceId([1; 16]));
        let mut relay = Relay::new(registry(), endpoint, RelaySettings::default());
        let to: SocketAddr = ([192, 0, 2, 1], 53).into();
        for user in 1..=3 {
            relay.endpoint().open(now, UserId(user), Destination::Address(to)).unwrap();
        }
        let mut names = NameService::new(now, &registry(), 64, Vec::new(), to, 7).unwrap();
        let client = DnsClient { address: ([10, 0, 0, 2], 5000).into(), asked: to };
        assert_eq!(names.forwarder.query(now, UserId(9), client, QUERY), None);
        let turn = |names: &mut NameService, relay: &mut Relay, at| {
            names.on_turn(at, relay, |_| UserId(9));
            names.flow
        };
        let first = turn(&mut names, &mut relay, now).expect("a reserved place");
        // The flow ends without an answer: the next one follows after a pause.
        relay.endpoint().reset(now, first, ResetReason::Refused);
        assert!(names.on_gone(now, &mut relay, first));
        assert_eq!(names.flow, None);
        assert_eq!(names.next_timeout(now), Some(now + REOPEN_AFTER));
        let second = turn(&mut names, &mut relay, now + REOPEN_AFTER).expect("opened again");
        assert_ne!(second, first);
        // A flow that delivered an answer is replaced at once.
        names.answered = true;
        relay.endpoint().reset(now, second, ResetReason::PeerReset);
        assert!(names.on_gone(now, &mut relay, second));
        assert!(names.flow.is_some_and(|third| third != second));
    }
}
