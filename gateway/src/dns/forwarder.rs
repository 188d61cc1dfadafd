//! The table of queries between passengers and the resolver's stream.
//!
//! Invariants: an accepted query is answered once, by the resolver or with SERVFAIL; an answer goes
//! to the client that asked, under the client's id; at most [`PENDING_MAX`] queries are pending, at
//! most [`PENDING_USER_MAX`] of one user.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_model::UserId;

use super::message::{Query, Refusal};

/// The two ends of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DnsClient {
    /// The passenger's address.
    pub address: SocketAddr,
    /// The server that was asked; the answer comes from it.
    pub asked: SocketAddr,
}

/// A datagram for a passenger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsReply {
    /// Its destination and source.
    pub client: DnsClient,
    /// The message.
    pub bytes: Vec<u8>,
}

/// The forwarder's state. `now` must not run backwards.
#[derive(Debug)]
pub struct Forwarder {
    /// The queries without an answer, in the order of their arrival and so of their deadlines.
    pending: BTreeMap<u64, Pending>,
    /// The pending query of each id on the stream.
    ids: HashMap<u16, u64>,
    /// The pending queries of each user that has any.
    users: HashMap<UserId, BTreeSet<u64>>,
    /// The first query that the current stream has not received; later ones follow.
    unsent: u64,
    /// The number of the last query.
    serial: u64,
    /// Framed queries for the stream; at most [`OUTPUT_STEP`] and one query.
    output: Vec<u8>,
    /// An incomplete answer; at most one frame.
    input: Vec<u8>,
    replies: VecDeque<DnsReply>,
    /// Since when the stream owes answers.
    waiting_since: Option<Instant>,
    random: u64,
}

#[derive(Debug)]
struct Pending {
    /// The id on the stream; no other pending query has it.
    id: u16,
    query: Query,
    client: DnsClient,
    user: UserId,
    deadline: Instant,
    /// The number of streams that it was sent on.
    attempts: u32,
}

/// The maximum number of pending queries of all users. Beyond, the newest query of the user with
/// the most is answered SERVFAIL.
pub const PENDING_MAX: usize = 2048;

/// The maximum number of pending queries of one user. Further ones are answered SERVFAIL.
pub const PENDING_USER_MAX: usize = 128;

/// How long a query may be pending, lost streams included; then it is answered SERVFAIL.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a stream may owe answers without sending a byte before it counts as dead.
pub const STREAM_PATIENCE: Duration = Duration::from_secs(10);

impl Forwarder {
    /// A forwarder without queries. The seed chooses the ids on the stream.
    pub fn new(seed: u64) -> Self {
        Self {
            pending: BTreeMap::new(),
            ids: HashMap::new(),
            users: HashMap::new(),
            unsent: 0,
            serial: 0,
            output: Vec::new(),
            input: Vec::new(),
            replies: VecDeque::new(),
            waiting_since: None,
            random: seed,
        }
    }

    /// Takes a passenger's datagram. A repeated query that is still pending is dropped. Returns the
    /// user whose query is refused because too many are pending.
    pub fn query(
        &mut self,
        now: Instant,
        user: UserId,
        client: DnsClient,
        datagram: &[u8],
    ) -> Option<UserId> {
        let query = match Query::parse(datagram) {
            Ok(query) => query,
            Err(Refusal::Drop) => return None,
            Err(Refusal::Answer(bytes)) => {
                self.replies.push_back(DnsReply { client, bytes });
                return None;
            }
        };
        let of_user = self.users.get(&user);
        let mut known = of_user.into_iter().flatten().filter_map(|serial| self.pending.get(serial));
        if known.any(|known| known.client == client && known.query == query) {
            return None;
        }
        let of_user = of_user.map_or(0, BTreeSet::len);
        let mut refused = None;
        if self.pending.len() >= PENDING_MAX && of_user < PENDING_USER_MAX {
            refused = self.shed(of_user + 2);
        }
        if self.pending.len() >= PENDING_MAX || of_user >= PENDING_USER_MAX {
            self.replies.push_back(DnsReply { client, bytes: query.failure() });
            return Some(user);
        }
        let (id, deadline) = (self.free_id(), now + QUERY_TIMEOUT);
        self.serial += 1;
        let pending = Pending { id, query, client, user, deadline, attempts: 0 };
        self.pending.insert(self.serial, pending);
        self.ids.insert(id, self.serial);
        self.users.entry(user).or_default().insert(self.serial);
        refused
    }

    /// Refuses the newest query of the user with the most, if that has at least this number.
    fn shed(&mut self, least: usize) -> Option<UserId> {
        let (user, queries) = self.users.iter().max_by_key(|(_, queries)| queries.len())?;
        let user = *user;
        let newest = *queries.last().filter(|_| queries.len() >= least)?;
        self.fail(newest);
        Some(user)
    }

    /// The next datagram for a passenger.
    pub fn poll_reply(&mut self) -> Option<DnsReply> {
        self.replies.pop_front()
    }

    /// Whether there are bytes for a stream: open one if there is none, and write
    /// [`Self::output`].
    pub fn wants_stream(&self) -> bool {
        !self.output.is_empty() || self.pending.range(self.unsent..).next().is_some()
    }

    /// Bytes for the stream; call [`Self::written`] with the number it took, until this is empty or
    /// the stream is full.
    pub fn output(&mut self) -> &[u8] {
        while self.output.len() < OUTPUT_STEP
            && let Some((&serial, pending)) = self.pending.range_mut(self.unsent..).next()
        {
            pending.attempts += 1;
            self.output.extend(pending.query.framed(pending.id));
            self.unsent = serial + 1;
        }
        &self.output
    }

    /// The stream took the first `count` bytes of the output.
    ///
    /// # Panics
    /// `count` is larger than the output.
    pub fn written(&mut self, now: Instant, count: usize) {
        self.output.drain(..count);
        if count > 0 {
            self.waiting_since.get_or_insert(now);
        }
    }

    /// Takes bytes from the stream, split anywhere. A message that answers no pending query is
    /// dropped.
    pub fn receive(&mut self, now: Instant, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let missing = frame_length(&self.input).unwrap_or(2) - self.input.len();
            let (taken, rest) = bytes.split_at(bytes.len().min(missing));
            self.input.extend(taken);
            bytes = rest;
            if frame_length(&self.input) == Some(self.input.len()) {
                let message = std::mem::take(&mut self.input);
                self.answer(&message[2..]);
            }
        }
        self.waiting_since = (!self.pending.is_empty()).then_some(now);
    }

    /// The stream is gone. Pending queries are sent on the next one, unless they were sent on
    /// [`ATTEMPTS_MAX`] streams.
    pub fn stream_lost(&mut self) {
        self.output.clear();
        self.input.clear();
        self.waiting_since = None;
        self.unsent = 0;
        let over = self.pending.iter().filter(|(_, pending)| pending.attempts >= ATTEMPTS_MAX);
        let over: Vec<u64> = over.map(|(serial, _)| *serial).collect();
        over.into_iter().for_each(|serial| self.fail(serial));
    }

    /// When to call [`Self::on_timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        let stale = self.waiting_since.map(|since| since + STREAM_PATIENCE);
        let first = self.pending.first_key_value().map(|(_, pending)| pending.deadline);
        first.into_iter().chain(stale).min()
    }

    /// Answers queries whose deadline has passed. Returns true if the stream has owed answers for
    /// [`STREAM_PATIENCE`]: abort it; [`Self::stream_lost`] was done.
    #[must_use]
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        while let Some((&serial, pending)) = self.pending.first_key_value()
            && pending.deadline <= now
        {
            self.fail(serial);
        }
        let stale = self.waiting_since.is_some_and(|since| now >= since + STREAM_PATIENCE);
        if stale {
            self.stream_lost();
        }
        stale
    }

    /// The number of pending queries.
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    fn answer(&mut self, message: &[u8]) {
        let [high, low, ..] = *message else { return };
        let id = u16::from_be_bytes([high, low]);
        let fits = |serial: &u64| self.pending[serial].query.is_answered_by(message);
        let serial = self.ids.get(&id).copied().filter(fits);
        let Some(pending) = serial.and_then(|serial| self.remove(serial)) else {
            return tracing::debug!(length = message.len(), "dropped an unsolicited DNS answer");
        };
        let bytes = pending.query.answer(message);
        self.replies.push_back(DnsReply { client: pending.client, bytes });
    }

    /// Answers a query with SERVFAIL.
    fn fail(&mut self, serial: u64) {
        let Some(pending) = self.remove(serial) else { return };
        let bytes = pending.query.failure();
        self.replies.push_back(DnsReply { client: pending.client, bytes });
    }

    fn remove(&mut self, serial: u64) -> Option<Pending> {
        let pending = self.pending.remove(&serial)?;
        self.ids.remove(&pending.id);
        if let Some(of_user) = self.users.get_mut(&pending.user) {
            of_user.remove(&serial);
            if of_user.is_empty() {
                self.users.remove(&pending.user);
            }
        }
        Some(pending)
    }

    /// A random id that no pending query has. There always is one: [`PENDING_MAX`] is below 2^16.
    fn free_id(&mut self) -> u16 {
        loop {
            // SplitMix64 (Steele, Lea, Flood 2014). The ids need not resist an attacker: nobody
            // but the resolver can write into the stream.
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.random;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let [high, low, ..] = (mixed ^ (mixed >> 31)).to_be_bytes();
            let id = u16::from_be_bytes([high, low]);
            if !self.ids.contains_key(&id) {
                return id;
            }
        }
    }
}

/// The length of the frame that begins `bytes`, its two bytes of length included; `None` before
/// those have arrived.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let [high, low, ..] = *bytes else { return None };
    Some(2 + usize::from(u16::from_be_bytes([high, low])))
}

/// The number of streams that a query is sent on.
pub const ATTEMPTS_MAX: u32 = 3;

/// How many bytes are framed ahead of the stream.
const OUTPUT_STEP: usize = 4096;

#[cfg(test)]
mod tests;
