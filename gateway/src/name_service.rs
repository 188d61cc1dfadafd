//! The DNS forwarder in the event loop: its sockets, and its flow to the resolver.
//!
//! The flow is opened for pending queries and kept until the resolver closes it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use mio::{Registry, Token};
use polyrail_model::{Destination, UserId};
use polyrail_relay::{AcceptGate, LogLimiter, Relay};
use polyrail_session::{Endpoint, FlowKey, ResetReason};

use crate::dns::{DnsSocket, Forwarder, QUERY_MAX};

pub(crate) struct NameService {
    resolver: SocketAddr,
    forwarder: Forwarder,
    sockets: Vec<(DnsSocket, AcceptGate)>,
    flow: Option<FlowKey>,
    buffer: Box<[u8]>,
    notices: LogLimiter,
}

impl NameService {
    /// Registers the sockets under `base` and the following tokens.
    pub(crate) fn new(
        registry: &Registry,
        base: usize,
        sockets: Vec<DnsSocket>,
        resolver: SocketAddr,
        seed: u64,
    ) -> io::Result<Self> {
        let mut taken_in = Vec::new();
        for (index, mut socket) in sockets.into_iter().enumerate() {
            socket.register(registry, Token(base + index))?;
            taken_in.push((socket, AcceptGate::default()));
        }
        Ok(Self {
            resolver,
            forwarder: Forwarder::new(seed),
            sockets: taken_in,
            flow: None,
            buffer: vec![0; QUERY_MAX + 1].into_boxed_slice(),
            notices: LogLimiter::default(),
        })
    }

    /// Sends all queries, including pending ones, to another resolver.
    pub(crate) fn set_resolver(&mut self, now: Instant, relay: &mut Relay, resolver: SocketAddr) {
        self.resolver = resolver;
        if let Some(flow) = self.flow.take() {
            relay.endpoint().reset(now, flow, ResetReason::Idle);
            self.forwarder.stream_lost();
        }
    }

    /// The socket with this index is readable.
    pub(crate) fn on_ready(&mut self, index: usize) {
        if let Some((_, gate)) = self.sockets.get_mut(index) {
            gate.on_ready();
        }
    }

    /// Receives queries, reads and writes the flow, and sends answers.
    pub(crate) fn on_turn(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        mut user_of: impl FnMut(IpAddr) -> UserId,
    ) {
        for (socket, gate) in &mut self.sockets {
            for _ in 0..QUERIES_PER_TURN {
                let received = gate.take(now, || socket.receive(&mut self.buffer).map(Some));
                let Some(datagram) = received else { break };
                let user = user_of(datagram.client.address.ip());
                let query = &self.buffer[..datagram.length];
                self.forwarder.query(now, user, datagram.client, query);
            }
        }
        if self.forwarder.next_timeout().is_some_and(|at| at <= now)
            && self.forwarder.on_timeout(now)
            && let Some(flow) = self.flow.take()
        {
            relay.endpoint().reset(now, flow, ResetReason::TimedOut);
        }
        self.move_flow(now, relay.endpoint());
        self.answer(now);
    }

    /// When [`NameService::on_turn`] is due.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let gates = self.sockets.iter().filter_map(|(_, gate)| gate.next_timeout(now));
        gates.chain(self.forwarder.next_timeout()).min()
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

    /// Handles the end of a flow; returns false if it is another flow.
    pub(crate) fn on_gone(&mut self, now: Instant, flow: FlowKey) -> bool {
        if self.flow != Some(flow) {
            return false;
        }
        self.flow = None;
        self.forwarder.stream_lost();
        self.answer(now);
        true
    }

    fn move_flow(&mut self, now: Instant, endpoint: &mut Endpoint) {
        if self.flow.is_none() && self.forwarder.wants_stream() {
            let to = Destination::Address(self.resolver);
            match endpoint.open(now, FORWARDER, to) {
                Ok(flow) => self.flow = Some(flow),
                Err(error) if self.notices.permit(now).is_some() => {
                    tracing::warn!(%error, "cannot open a flow to the DNS resolver");
                }
                Err(_) => {}
            }
        }
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
            self.forwarder.receive(now, first);
            let read = first.len();
            endpoint.consume(now, flow, read);
        }
        if endpoint.finished(flow) {
            self.flow = None;
            endpoint.finish(now, flow);
            self.forwarder.stream_lost();
        }
    }

    fn answer(&mut self, now: Instant) {
        while let Some(reply) = self.forwarder.poll_reply() {
            let mut sockets = self.sockets.iter();
            let Some((socket, _)) = sockets.find(|(socket, _)| socket.serves(reply.client.asked))
            else {
                continue;
            };
            if let Err(error) = socket.reply(&reply)
                && let Some(left_out) = self.notices.permit(now)
            {
                tracing::warn!(%error, left_out, "cannot send a DNS answer");
            }
        }
    }
}

/// The user of the forwarder's flow; it belongs to no passenger.
const FORWARDER: UserId = UserId(0);
/// The maximum number of queries received from one socket per turn.
const QUERIES_PER_TURN: usize = 64;
