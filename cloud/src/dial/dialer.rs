//! All pending dials in one mio loop: the resolver, the races and their sockets.
//!
//! `race` decides which address is tried next. The caller reports readiness of the dialer's tokens,
//! wake-ups of the resolver's waker and timeouts, and then polls [`Dialer::poll_event`] until
//! `None`.
//!
//! Invariants: a dial ends in exactly one event, unless it is cancelled; after that event no
//! socket, query or timer of the dial is left.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use polyrail_model::{Destination, Families};
use slab::Slab;

use super::{Attempt, DialError, Race, Step, candidates};
use crate::access::AccessList;
use crate::resolve::{QueryId, Resolver};

/// The operator's settings for dials.
#[derive(Clone, Copy, Debug)]
pub struct DialSettings {
    /// How long a dial may take, name resolution included (`dial.timeout`).
    pub timeout: Duration,
    /// The address families to use.
    pub families: Families,
}

/// The end of one dial.
#[derive(Debug)]
pub struct DialEvent<K> {
    /// The caller's key of the dial.
    pub key: K,
    /// Its destination.
    pub destination: Destination,
    /// The unregistered connection and its address, or the error.
    pub result: Result<(TcpStream, SocketAddr), DialError>,
}

/// The dials of one event loop, by the caller's keys.
pub struct Dialer<K> {
    settings: DialSettings,
    access: AccessList,
    resolver: Resolver,
    registry: Registry,
    tokens: Range<usize>,
    /// [`DIALS_MAX`], smaller in tests.
    dials_max: usize,
    dials: BTreeMap<K, Dial>,
    queries: BTreeMap<QueryId, K>,
    sockets: Slab<Connecting<K>>,
    timers: BTreeSet<(Instant, K)>,
    events: VecDeque<DialEvent<K>>,
}

struct Dial {
    begun: Instant,
    destination: Destination,
    timer: Option<Instant>,
    stage: Stage,
}

enum Stage {
    Resolving(QueryId),
    /// The race, and the slot of each attempt's socket.
    Racing(Box<Race>, Vec<(Attempt, usize)>),
}

struct Connecting<K> {
    key: K,
    attempt: Attempt,
    address: SocketAddr,
    stream: TcpStream,
}

impl<K: Copy + Ord> Dialer<K> {
    /// A dialer that registers its sockets with `registry` under its own `tokens`.
    ///
    /// The number of tokens bounds the concurrent attempts; further ones fail with
    /// [`DialError::Overload`].
    pub fn new(
        settings: DialSettings,
        access: AccessList,
        resolver: Resolver,
        registry: Registry,
        tokens: Range<usize>,
    ) -> Self {
        Self {
            settings,
            access,
            resolver,
            registry,
            tokens,
            dials_max: DIALS_MAX,
            dials: BTreeMap::new(),
            queries: BTreeMap::new(),
            sockets: Slab::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
        }
    }

    /// Uses another access list and other settings from the next dial on.
    pub fn set_rules(&mut self, settings: DialSettings, access: AccessList) {
        self.settings = settings;
        self.access = access;
    }

    /// Begins a dial; `key` must not be in use.
    pub fn dial(&mut self, now: Instant, key: K, destination: &Destination) {
        debug_assert!(!self.dials.contains_key(&key), "a key names one dial at a time");
        if self.dials.len() >= self.dials_max {
            let error = DialError::Overload(format!("{} dials are under way", self.dials_max));
            return self.report(key, destination.clone(), Err(error));
        }
        match destination {
            Destination::Address(address) => {
                self.race(now, key, now, &[address.ip()], destination.clone());
            }
            Destination::Name(name, _) => {
                match self.resolver.submit(name.clone(), now + self.settings.timeout) {
                    Ok(query) => {
                        self.queries.insert(query, key);
                        let stage = Stage::Resolving(query);
                        let destination = destination.clone();
                        self.dials
                            .insert(key, Dial { begun: now, destination, timer: None, stage });
                        self.arm(key, Some(now + self.settings.timeout));
                    }
                    Err(error) => self.report(key, destination.clone(), Err(error.into())),
                }
            }
        }
    }

    /// Cancels a dial; it ends without an event. An unused key is ignored.
    pub fn cancel(&mut self, key: K) {
        self.forget(key);
        self.events.retain(|event| event.key != key);
    }

    /// The number of dials under way.
    pub fn len(&self) -> usize {
        self.dials.len()
    }

    /// The descriptors that the dials may occupy: the open sockets, and one more for each dial,
    /// which may start another attempt.
    pub fn descriptors(&self) -> usize {
        self.sockets.len() + self.dials.len() + self.resolver.in_progress()
    }

    /// Whether no dial is under way.
    pub fn is_empty(&self) -> bool {
        self.dials.is_empty()
    }

    /// A token of this dialer's range is ready (to write, or in error).
    pub fn on_ready(&mut self, now: Instant, token: Token) {
        let Some(slot) = token.0.checked_sub(self.tokens.start) else { return };
        let Some(socket) = self.sockets.get(slot) else { return };
        let (key, attempt) = (socket.key, socket.attempt);
        let outcome = match established(&socket.stream) {
            Ok(true) => self.admit(slot),
            Ok(false) => return,
            Err(error) => Err(DialError::from_connect(socket.address, &error)),
        };
        if outcome.is_err() {
            self.take_attempt(key, attempt);
        }
        self.with_race(now, key, |race| match outcome {
            Ok(()) => race.connected(attempt),
            Err(error) => race.failed(now, attempt, error),
        });
    }

    /// The resolver's waker has fired.
    pub fn on_wake(&mut self, now: Instant) {
        while let Some(answer) = self.resolver.poll() {
            let Some(key) = self.queries.remove(&answer.query) else { continue };
            let Some(dial) = self.dials.get(&key) else { continue };
            let (begun, destination) = (dial.begun, dial.destination.clone());
            match answer.result {
                Ok(addresses) => self.race(now, key, begun, &addresses, destination),
                Err(error) => self.finish(key, Err(error.into())),
            }
        }
    }

    /// Handles timeouts that are due.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            match self.dials.get(&key).map(|dial| &dial.stage) {
                Some(Stage::Racing(..)) => self.with_race(now, key, |race| race.on_timeout(now)),
                Some(Stage::Resolving(_)) => {
                    self.finish(key, Err(DialError::TimedOut(self.settings.timeout)));
                }
                None => drop(self.timers.pop_first()),
            }
        }
    }

    /// When [`Dialer::on_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next dial that ended.
    pub fn poll_event(&mut self) -> Option<DialEvent<K>> {
        self.events.pop_front()
    }

    /// Starts to connect, or ends the dial if no address is permitted.
    fn race(
        &mut self,
        now: Instant,
        key: K,
        begun: Instant,
        addresses: &[IpAddr],
        destination: Destination,
    ) {
        match candidates(addresses, destination.port(), self.settings.families, &self.access) {
            Ok(order) => {
                let race = Race::new(now, begun, self.settings.timeout, order);
                let stage = Stage::Racing(Box::new(race), Vec::new());
                let timer = self.dials.get(&key).and_then(|dial| dial.timer);
                self.dials.insert(key, Dial { begun, destination, timer, stage });
                self.with_race(now, key, |_| {});
            }
            Err(error) => {
                self.forget(key);
                self.report(key, destination, Err(error));
            }
        }
    }

    /// Passes an input to the race of a dial and carries out its steps.
    fn with_race(&mut self, now: Instant, key: K, input: impl FnOnce(&mut Race)) {
        let Some(Dial { stage: Stage::Racing(race, _), .. }) = self.dials.get_mut(&key) else {
            return;
        };
        input(race);
        while let Some(Dial { stage: Stage::Racing(race, _), .. }) = self.dials.get_mut(&key) {
            match race.poll() {
                Some(Step::Connect(attempt, address)) => {
                    if let Err(error) = self.connect(key, attempt, address)
                        && let Some(Dial { stage: Stage::Racing(race, _), .. }) =
                            self.dials.get_mut(&key)
                    {
                        race.failed(now, attempt, error);
                    }
                }
                Some(Step::Cancel(attempt)) => drop(self.take_attempt(key, attempt)),
                Some(Step::Won(attempt)) => {
                    let won = self.take_attempt(key, attempt);
                    let missing = || DialError::Overload("the winning socket is gone".into());
                    self.finish(key, won.ok_or_else(missing));
                }
                Some(Step::Lost(error)) => self.finish(key, Err(error)),
                None => {
                    let timer = race.next_timeout();
                    return self.arm(key, timer);
                }
            }
        }
    }

    fn connect(&mut self, key: K, attempt: Attempt, address: SocketAddr) -> Result<(), DialError> {
        if self.sockets.len() >= self.tokens.len() {
            return Err(DialError::Overload("too many connections are being made".into()));
        }
        let failed = |error: io::Error| DialError::from_connect(address, &error);
        let mut stream = TcpStream::connect(address).map_err(failed)?;
        let entry = self.sockets.vacant_entry();
        let token = Token(self.tokens.start + entry.key());
        self.registry.register(&mut stream, token, Interest::WRITABLE).map_err(failed)?;
        let slot = entry.key();
        entry.insert(Connecting { key, attempt, address, stream });
        if let Some(Dial { stage: Stage::Racing(_, slots), .. }) = self.dials.get_mut(&key) {
            slots.push((attempt, slot));
        }
        Ok(())
    }

    /// Whether an established connection may be used: a connection to this host needs an `allow`.
    fn admit(&self, slot: usize) -> Result<(), DialError> {
        let Connecting { address, stream, .. } = &self.sockets[slot];
        let own = stream.local_addr().map_err(|error| DialError::from_connect(*address, &error))?;
        if own.ip().to_canonical() == address.ip() {
            self.access.check_own(*address)?;
        }
        Ok(())
    }

    /// Takes the socket of one attempt out of the dial and out of the loop.
    fn take_attempt(&mut self, key: K, attempt: Attempt) -> Option<(TcpStream, SocketAddr)> {
        let Dial { stage: Stage::Racing(_, slots), .. } = self.dials.get_mut(&key)? else {
            return None;
        };
        let i = slots.iter().position(|(other, _)| *other == attempt)?;
        let (_, slot) = slots.swap_remove(i);
        self.close(slot)
    }

    /// Takes a socket out of the loop.
    fn close(&mut self, slot: usize) -> Option<(TcpStream, SocketAddr)> {
        let Connecting { mut stream, address, .. } = self.sockets.try_remove(slot)?;
        // It fails only for an unregistered socket.
        let _ = self.registry.deregister(&mut stream);
        Some((stream, address))
    }

    fn finish(&mut self, key: K, result: Result<(TcpStream, SocketAddr), DialError>) {
        if let Some(destination) = self.forget(key) {
            self.report(key, destination, result);
        }
    }

    fn report(
        &mut self,
        key: K,
        destination: Destination,
        result: Result<(TcpStream, SocketAddr), DialError>,
    ) {
        self.events.push_back(DialEvent { key, destination, result });
    }

    /// Drops all state of a dial; returns its destination.
    fn forget(&mut self, key: K) -> Option<Destination> {
        self.arm(key, None);
        let dial = self.dials.remove(&key)?;
        match dial.stage {
            Stage::Resolving(query) => {
                self.queries.remove(&query);
                self.resolver.cancel(query);
            }
            Stage::Racing(_, slots) => {
                for (_, slot) in slots {
                    self.close(slot);
                }
            }
        }
        Some(dial.destination)
    }

    fn arm(&mut self, key: K, at: Option<Instant>) {
        let Some(dial) = self.dials.get_mut(&key) else { return };
        if let Some(old) = std::mem::replace(&mut dial.timer, at) {
            self.timers.remove(&(old, key));
        }
        self.timers.extend(at.map(|at| (at, key)));
    }
}

/// Whether a connection is established; false while it is pending, an error if it failed.
fn established(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// The maximum number of pending dials; further ones fail with [`DialError::Overload`].
pub const DIALS_MAX: usize = 4096;
const _: () = assert!(DIALS_MAX <= crate::resolve::LOOKUPS_MAX, "every dial may look up a name");
