//! The table of queries between passengers and the resolver's stream.
//!
//! Invariants: a query that was taken is answered once, by the resolver or with SERVFAIL; an
//! answer goes to the client that asked, under its own id; at most [`PENDING_MAX`] queries are
//! held, at most [`PENDING_USER_MAX`] of one user.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail_model::UserId;

use super::message::{Query, Refusal};

/// Who asked, and whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// The passenger's address.
    pub address: SocketAddr,
    /// The server that was asked; the answer comes from it.
    pub asked: SocketAddr,
}

/// A datagram for a passenger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Where it goes, and which address it comes from.
    pub client: Client,
    /// The message.
    pub bytes: Vec<u8>,
}

/// The forwarder's state. Every method that takes `now` wants it not to run backwards.
#[derive(Debug)]
pub struct Forwarder {
    pending: HashMap<u16, Pending>,
    per_user: HashMap<UserId, usize>,
    /// Our ids by client and the client's id, to know a repeated query.
    asked: HashMap<(Client, u16), u16>,
    /// In order of their deadlines; those of queries that were answered are skipped.
    deadlines: VecDeque<(Instant, u16, u64)>,
    /// Queries that the stream has not got yet, in order.
    unsent: VecDeque<(u16, u64)>,
    /// Framed queries on their way into the stream; at most [`OUTPUT_STEP`] and one query.
    output: Vec<u8>,
    /// An answer that has not arrived whole; at most one frame.
    input: Vec<u8>,
    replies: VecDeque<Reply>,
    /// Since when the stream owes bytes.
    waiting_since: Option<Instant>,
    serial: u64,
    random: u64,
}

#[derive(Debug)]
struct Pending {
    query: Query,
    client: Client,
    user: UserId,
    /// Tells apart the queries that had the same id one after the other.
    serial: u64,
    /// Streams that took it.
    attempts: u32,
}

/// Queries that wait for an answer at once, of all users. One more is answered SERVFAIL.
pub const PENDING_MAX: usize = 2048;

/// Queries of one user that wait at once. One more is answered SERVFAIL.
pub const PENDING_USER_MAX: usize = 128;

/// How long a query waits for its answer, lost streams included; then SERVFAIL.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a stream may owe answers in silence until it counts as dead.
pub const STREAM_PATIENCE: Duration = Duration::from_secs(10);

impl Forwarder {
    /// A forwarder without queries. The seed chooses the ids on the stream.
    pub fn new(seed: u64) -> Self {
        Self {
            pending: HashMap::new(),
            per_user: HashMap::new(),
            asked: HashMap::new(),
            deadlines: VecDeque::new(),
            unsent: VecDeque::new(),
            output: Vec::new(),
            input: Vec::new(),
            replies: VecDeque::new(),
            waiting_since: None,
            serial: 0,
            random: seed,
        }
    }

    /// Takes a passenger's datagram. A repeated query that still waits is dropped.
    pub fn query(&mut self, now: Instant, user: UserId, client: Client, datagram: &[u8]) {
        let query = match Query::parse(datagram) {
            Ok(query) => query,
            Err(Refusal::Drop) => return,
            Err(Refusal::Answer(bytes)) => {
                self.replies.push_back(Reply { client, bytes });
                return;
            }
        };
        let known = self.asked.get(&(client, query.id())).and_then(|id| self.pending.get(id));
        if known.is_some_and(|pending| pending.query == query) {
            return;
        }
        let of_user = self.per_user.get(&user).copied().unwrap_or(0);
        if self.pending.len() >= PENDING_MAX || of_user >= PENDING_USER_MAX {
            self.replies.push_back(Reply { client, bytes: query.failure() });
            return;
        }
        self.forget_done();
        let id = self.free_id();
        self.serial += 1;
        let serial = self.serial;
        self.per_user.insert(user, of_user + 1);
        self.asked.insert((client, query.id()), id);
        self.deadlines.push_back((now + QUERY_TIMEOUT, id, serial));
        self.unsent.push_back((id, serial));
        self.pending.insert(id, Pending { query, client, user, serial, attempts: 0 });
    }

    /// The next datagram for a passenger.
    pub fn poll_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    /// Whether there are bytes for a stream: open one if there is none, and write
    /// [`Self::output`].
    pub fn wants_stream(&self) -> bool {
        let mut unsent = self.unsent.iter();
        !self.output.is_empty() || unsent.any(|(id, n)| is_waiting(&self.pending, *id, *n))
    }

    /// Bytes for the stream; call [`Self::written`] with the number it took, until this is empty or
    /// the stream is full.
    pub fn output(&mut self) -> &[u8] {
        while self.output.len() < OUTPUT_STEP
            && let Some((id, serial)) = self.unsent.pop_front()
        {
            // Queries that timed out while no stream stood are left out.
            let pending = self.pending.get_mut(&id).filter(|pending| pending.serial == serial);
            if let Some(pending) = pending {
                pending.attempts += 1;
                self.output.extend(pending.query.framed(id));
            }
        }
        &self.output
    }

    /// The stream took the first `count` bytes of the output.
    ///
    /// # Panics
    /// More was taken than there was.
    pub fn written(&mut self, now: Instant, count: usize) {
        self.output.drain(..count);
        if count > 0 {
            self.waiting_since.get_or_insert(now);
        }
    }

    /// Bytes came from the stream, in any cut. A message that answers no pending query is dropped.
    pub fn receive(&mut self, now: Instant, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let wanted = match self.input[..] {
                [high, low, ..] => 2 + usize::from(u16::from_be_bytes([high, low])),
                _ => 2,
            };
            let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.input.len()));
            self.input.extend(taken);
            bytes = rest;
            let frame = match self.input[..] {
                [high, low, ..] => 2 + usize::from(u16::from_be_bytes([high, low])),
                _ => usize::MAX,
            };
            if self.input.len() == frame {
                let message = std::mem::take(&mut self.input);
                self.answer(&message[2..]);
            }
        }
        self.waiting_since = (!self.pending.is_empty()).then_some(now);
    }

    /// The stream is gone, in whatever way. Waiting queries go to the next one, if they have not
    /// been sent [`ATTEMPTS_MAX`] times.
    pub fn stream_lost(&mut self) {
        self.output.clear();
        self.input.clear();
        self.waiting_since = None;
        let mut waiting: Vec<(u64, u16)> =
            self.pending.iter().map(|(id, pending)| (pending.serial, *id)).collect();
        waiting.sort_unstable();
        self.unsent.clear();
        for (serial, id) in waiting {
            if self.pending.get(&id).is_some_and(|pending| pending.attempts >= ATTEMPTS_MAX) {
                self.fail(id);
            } else {
                self.unsent.push_back((id, serial));
            }
        }
    }

    /// When to call [`Self::on_timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        let stale = self.waiting_since.map(|since| since + STREAM_PATIENCE);
        self.deadlines.front().map(|(at, ..)| *at).into_iter().chain(stale).min()
    }

    /// Answers queries that waited too long. Returns whether the stream owes answers for
    /// [`STREAM_PATIENCE`] and counts as dead: abort it; [`Self::stream_lost`] was done.
    #[must_use]
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        while let Some((at, id, serial)) = self.deadlines.front().copied() {
            let waits = is_waiting(&self.pending, id, serial);
            if waits && at > now {
                break;
            }
            self.deadlines.pop_front();
            if waits {
                self.fail(id);
            }
        }
        let stale = self.waiting_since.is_some_and(|since| now >= since + STREAM_PATIENCE);
        if stale {
            self.stream_lost();
        }
        stale
    }

    /// Queries that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Keeps the queues within twice the table, whatever was answered or timed out meanwhile.
    fn forget_done(&mut self) {
        let pending = &self.pending;
        if self.unsent.len() >= 2 * PENDING_MAX {
            self.unsent.retain(|(id, serial)| is_waiting(pending, *id, *serial));
        }
        if self.deadlines.len() >= 2 * PENDING_MAX {
            self.deadlines.retain(|(_, id, serial)| is_waiting(pending, *id, *serial));
        }
    }

    fn answer(&mut self, message: &[u8]) {
        let [high, low, ..] = *message else { return };
        let id = u16::from_be_bytes([high, low]);
        let fits = |pending: &Pending| pending.query.is_answered_by(message);
        if !self.pending.get(&id).is_some_and(fits) {
            tracing::debug!(length = message.len(), "dropped an answer to no waiting query");
            return;
        }
        if let Some(Pending { query, client, .. }) = self.remove(id) {
            self.replies.push_back(Reply { client, bytes: query.answer(message) });
        }
    }

    fn fail(&mut self, id: u16) {
        if let Some(Pending { query, client, .. }) = self.remove(id) {
            self.replies.push_back(Reply { client, bytes: query.failure() });
        }
    }

    fn remove(&mut self, id: u16) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        let asked = (pending.client, pending.query.id());
        if self.asked.get(&asked) == Some(&id) {
            self.asked.remove(&asked);
        }
        if let Some(count) = self.per_user.get_mut(&pending.user) {
            *count -= 1;
            if *count == 0 {
                self.per_user.remove(&pending.user);
            }
        }
        Some(pending)
    }

    /// A random id that no waiting query has. There always is one: [`PENDING_MAX`] is below 2^16.
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
            if !self.pending.contains_key(&id) {
                return id;
            }
        }
    }
}

fn is_waiting(pending: &HashMap<u16, Pending>, id: u16, serial: u64) -> bool {
    pending.get(&id).is_some_and(|pending| pending.serial == serial)
}

/// How many streams a query is tried on.
pub const ATTEMPTS_MAX: u32 = 3;

/// How many bytes are framed ahead of the stream.
const OUTPUT_STEP: usize = 4096;

#[cfg(test)]
mod tests;
