//! The DNS forwarder: datagrams of passengers, and a hostile resolver.
//!
//! Promises: a query gets at most one answer, its client alone gets it, no query is pending for
//! longer than [`QUERY_TIMEOUT`], and the table and the answers keep their bounds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_gateway::dns::{
    DnsClient, Forwarder, PENDING_MAX, PENDING_USER_MAX, QUERY_MAX, QUERY_TIMEOUT, UDP_ANSWER_MAX,
};
use polyrail_model::UserId;

use crate::input::Input;

struct World {
    now: Instant,
    forwarder: Forwarder,
    /// Datagrams of each client without an answer.
    asked: BTreeMap<SocketAddr, usize>,
    users: BTreeMap<u64, usize>,
    /// Queries that the resolver has received.
    sent: Vec<Vec<u8>>,
    stream: Vec<u8>,
}

/// Queries, answers, lost streams and time, in any order.
pub fn dns(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World {
        now: Instant::now(),
        forwarder: Forwarder::new(1),
        asked: BTreeMap::new(),
        users: BTreeMap::new(),
        sent: Vec::new(),
        stream: Vec::new(),
    };
    for _ in 0..OPERATIONS_MAX {
        if input.is_over() {
            break;
        }
        match input.byte() % 8 {
            0..=2 => world.ask(&mut input),
            3 => world.write(input.short().into()),
            4 => world.answer(&mut input),
            5 => world.forwarder.receive(world.now, input.part()),
            6 => {
                world.forwarder.stream_lost();
                world.sent.clear();
                world.stream.clear();
            }
            _ => world.pass(Duration::from_millis(input.short().into())),
        }
        world.check();
    }
    world.pass(QUERY_TIMEOUT);
    world.check();
    assert_eq!(world.forwarder.waiting(), 0, "queries outlive their deadline");
}

impl World {
    /// One user sends a datagram, or many with different ids.
    fn ask(&mut self, input: &mut Input<'_>) {
        let (user, port, count) = (input.byte() % 4, input.byte(), input.byte());
        let mut datagram = input.part().to_vec();
        for number in 0..count.max(1) {
            if let [high, low, ..] = &mut datagram[..] {
                *high = high.wrapping_add(number);
                *low ^= number;
            }
            let address = SocketAddr::from(([10, 9, 0, user], 1_000 + u16::from(port)));
            let client = DnsClient { address, asked: SocketAddr::from(([9, 9, 9, 9], 53)) };
            *self.asked.entry(address).or_default() += 1;
            *self.users.entry(user.into()).or_default() += 1;
            self.forwarder.query(self.now, UserId(user.into()), client, &datagram);
        }
    }

    /// The stream takes some bytes.
    fn write(&mut self, most: usize) {
        let some = self.forwarder.output().len().min(most);
        self.stream.extend_from_slice(&self.forwarder.output()[..some]);
        self.forwarder.written(self.now, some);
        while let [high, low, rest @ ..] = &self.stream[..] {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            assert!(length <= QUERY_MAX, "a query of {length} bytes");
            if rest.len() < length {
                break;
            }
            self.sent.push(rest[..length].to_vec());
            self.stream.drain(..2 + length);
        }
    }

    /// The resolver answers a query, with the fuzzer's records behind the question.
    fn answer(&mut self, input: &mut Input<'_>) {
        let (which, cut) = (usize::from(input.byte()), usize::from(input.byte()).max(1));
        let (flags, tail) = (input.byte(), input.part());
        let Some(query) = self.sent.get(which % self.sent.len().max(1)) else { return };
        let mut message = query.clone();
        message[2] |= 0x80;
        message[3] = flags;
        message.extend_from_slice(tail);
        let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
        let frame = [&length.to_be_bytes()[..], &message].concat();
        for part in frame.chunks(cut) {
            self.forwarder.receive(self.now, part);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        if self.forwarder.on_timeout(self.now) {
            self.sent.clear();
            self.stream.clear();
        }
        let next = self.forwarder.next_timeout();
        assert!(next.is_none_or(|next| next > self.now), "the timeout stays in the past");
    }

    fn check(&mut self) {
        while let Some(reply) = self.forwarder.poll_reply() {
            assert!(reply.bytes.len() <= UDP_ANSWER_MAX.max(QUERY_MAX), "{reply:?}");
            assert!(reply.bytes[2] & 0x80 != 0, "not a response");
            let owed = self.asked.get_mut(&reply.client.address).expect("a client that asked");
            *owed = owed.checked_sub(1).expect("an answer without a query");
        }
        let bound = PENDING_MAX.min(self.users.values().map(|n| *n.min(&PENDING_USER_MAX)).sum());
        assert!(self.forwarder.waiting() <= bound);
    }
}

const OPERATIONS_MAX: usize = 500;
