//! All pending dials in one mio loop: the resolver, the races and their sockets.
//!
//! `admission` decides which dial begins next; a dial has at most one lookup, so the quotas of
//! dials are those of lookups. A lookup without a dial, for datagrams, counts as a dial. `race`
//! decides which address is tried next. The caller reports readiness of the dialer's tokens,
//! wake-ups of the resolver's waker and timeouts, and then polls [`Dialer::poll_event`] and
//! [`Dialer::poll_lookup`] until `None`.
//!
//! Invariants: a dial or lookup ends in exactly one event, unless it is cancelled; after that event
//! no socket, query or timer of it is left.

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

use super::{Admission, Attempt, DialError, Dialing, PARALLEL_MAX, Quotas, Race, Step, candidates};
use crate::access::AccessList;
use crate::resolve::{LOOKUP_SOCKETS, QueryId, Resolver};

/// The operator's settings for dials.
#[derive(Clone, Copy, Debug)]
pub struct DialSettings {
    /// How long a dial may take, name resolution included (`dial.timeout`). It may wait for as long
    /// before it begins.
    pub timeout: Duration,
    /// Concurrent dials of one user (`dial.user_max`).
    pub user_max: usize,
    /// Concurrent dials of one gateway's session (`dial.gateway_max`).
    pub gateway_max: usize,
    /// The address families to use.
    pub families: Families,
}

/// The end of one dial.
#[derive(Debug)]
pub struct DialEvent<K> {
    /// The caller's key of the dial.
    pub key: K,
    /// Whose dial it was.
    pub dialing: Dialing,
    /// Its destination.
    pub destination: Destination,
    /// The unregistered connection and its address, or the error.
    pub result: Result<(TcpStream, SocketAddr), DialError>,
}

/// The end of one lookup.
#[derive(Debug)]
pub struct LookupEvent<K> {
    /// The caller's key of the lookup.
    pub key: K,
    /// The name.
    pub destination: Destination,
    /// The first address that the cloud reaches and the access list permits, or the error.
    pub result: Result<SocketAddr, DialError>,
}

/// The dials of one event loop, by the caller's keys.
pub struct Dialer<K> {
    settings: DialSettings,
    access: AccessList,
    resolver: Resolver,
    registry: Registry,
    tokens: Range<usize>,
    admission: Admission<K>,
    dials: BTreeMap<K, Dial>,
    queries: BTreeMap<QueryId, K>,
    sockets: Slab<Connecting<K>>,
    timers: BTreeSet<(Instant, K)>,
    events: VecDeque<DialEvent<K>>,
    lookups: VecDeque<LookupEvent<K>>,
    /// The descriptors that dials may occupy.
    descriptors_max: usize,
}

struct Dial {
    dialing: Dialing,
    /// When it began; before, when it was requested.
    begun: Instant,
    destination: Destination,
    /// Only the address is wanted.
    is_lookup: bool,
    timer: Option<Instant>,
    stage: Stage,
}

enum Stage {
    /// It waits until [`Admission`] lets it begin.
    Waiting,
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
            admission: Admission::new(quotas(&settings)),
            dials: BTreeMap::new(),
            queries: BTreeMap::new(),
            sockets: Slab::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            lookups: VecDeque::new(),
            descriptors_max: usize::MAX,
        }
    }

    /// Uses another access list and other settings from the next dial on.
    pub fn set_rules(&mut self, settings: DialSettings, access: AccessList) {
        self.admission.set_quotas(quotas(&settings));
        self.settings = settings;
        self.access = access;
    }

    /// Sets the number of descriptors that the dials may occupy. A dial begins only if
    /// [`DIAL_DESCRIPTORS`] of them are free; dials under way continue.
    pub fn set_descriptors_max(&mut self, now: Instant, max: usize) {
        self.descriptors_max = max;
        self.begin_waiting(now);
    }

    /// Begins a dial of a user as soon as the quotas permit; `key` must not be in use.
    pub fn dial(&mut self, now: Instant, key: K, dialing: Dialing, destination: &Destination) {
        self.add(now, key, dialing, (destination.clone(), false));
    }

    /// Begins the lookup of a name as soon as the quotas permit; `key` must not be in use.
    pub fn look_up(&mut self, now: Instant, key: K, dialing: Dialing, destination: Destination) {
        self.add(now, key, dialing, (destination, true));
    }

    fn add(&mut self, now: Instant, key: K, dialing: Dialing, wanted: (Destination, bool)) {
        debug_assert!(!self.dials.contains_key(&key), "a key names one dial at a time");
        let (destination, is_lookup) = wanted;
        let (begun, timer, stage) = (now, None, Stage::Waiting);
        self.dials.insert(key, Dial { dialing, begun, destination, is_lookup, timer, stage });
        self.arm(key, Some(now + self.settings.timeout));
        if let Some(refused) = self.admission.ask(key, dialing) {
            self.finish(refused, Err(DialError::Quota("it has the most, and too many wait")));
        }
        self.begin_waiting(now);
    }

    /// Begins the dials that the quotas and the descriptors permit.
    fn begin_waiting(&mut self, now: Instant) {
        while self.descriptors() + DIAL_DESCRIPTORS <= self.descriptors_max
            && let Some(key) = self.admission.begin_next()
        {
            self.begin(now, key);
        }
    }

    fn begin(&mut self, now: Instant, key: K) {
        let Some(dial) = self.dials.get_mut(&key) else { return };
        dial.begun = now;
        match &dial.destination {
            Destination::Address(address) => {
                let address = address.ip();
                self.race(now, key, &[address]);
            }
            Destination::Name(name, _) => {
                let deadline = now + self.settings.timeout;
                match self.resolver.submit(name.clone(), deadline) {
                    Ok(query) => {
                        dial.stage = Stage::Resolving(query);
                        self.queries.insert(query, key);
                        self.arm(key, Some(deadline));
                    }
                    Err(error) => self.finish(key, Err(error.into())),
                }
            }
        }
    }

    /// Cancels a dial; it ends without an event. An unused key is ignored.
    pub fn cancel(&mut self, now: Instant, key: K) {
        if self.forget(key).is_none() {
            self.events.retain(|event| event.key != key);
        }
        self.begin_waiting(now);
    }

    /// A user's dials under way, and its waiting dials.
    pub fn of_user(&self, dialing: Dialing) -> (usize, usize) {
        self.admission.of_user(dialing)
    }

    /// The number of dials under way.
    pub fn active(&self) -> usize {
        self.admission.active()
    }

    /// The number of dials, including waiting ones.
    pub fn len(&self) -> usize {
        self.dials.len()
    }

    /// The descriptors that the dials may occupy: those of a lookup, or those of the attempts of a
    /// race, and the connections that the caller has not taken.
    pub fn descriptors(&self) -> usize {
        let lookups = self.queries.len();
        let races = self.admission.active().saturating_sub(lookups);
        lookups * LOOKUP_SOCKETS + races * PARALLEL_MAX + self.events.len()
    }

    /// Whether there is no dial.
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
        self.begin_waiting(now);
    }

    /// The resolver's waker has fired.
    pub fn on_wake(&mut self, now: Instant) {
        while let Some(answer) = self.resolver.poll() {
            let Some(key) = self.queries.remove(&answer.query) else { continue };
            match answer.result {
                Ok(addresses) => self.race(now, key, &addresses),
                Err(error) => self.finish(key, Err(error.into())),
            }
        }
        self.begin_waiting(now);
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
                Some(Stage::Waiting) => self.refuse_waiting(key),
                None => drop(self.timers.pop_first()),
            }
            // A dial whose wait is over now, too, may take the place.
            self.begin_waiting(now);
        }
    }

    /// A dial has waited for too long.
    fn refuse_waiting(&mut self, key: K) {
        let Some(dial) = self.dials.get(&key) else { return };
        let error = match self.admission.of_user(dial.dialing).0 >= self.settings.user_max {
            true => DialError::Quota("its dials did not end in time"),
            false => DialError::Overload("too many dials of other users".into()),
        };
        self.finish(key, Err(error));
    }

    /// When [`Dialer::on_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next dial that ended.
    pub fn poll_event(&mut self) -> Option<DialEvent<K>> {
        self.events.pop_front()
    }

    /// The next lookup that ended.
    pub fn poll_lookup(&mut self) -> Option<LookupEvent<K>> {
        self.lookups.pop_front()
    }

    /// Starts to connect, or ends the dial if no address is permitted.
    fn race(&mut self, now: Instant, key: K, addresses: &[IpAddr]) {
        let Some(dial) = self.dials.get_mut(&key) else { return };
        let port = dial.destination.port();
        match candidates(addresses, port, self.settings.families, &self.access) {
            Ok(order) if dial.is_lookup => self.end_lookup(key, Ok(order[0])),
            Ok(order) => {
                let race = Race::new(now, dial.begun, self.settings.timeout, order);
                dial.stage = Stage::Racing(Box::new(race), Vec::new());
                self.with_race(now, key, |_| {});
            }
            Err(error) => self.finish(key, Err(error)),
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
        if self.dials.get(&key).is_some_and(|dial| dial.is_lookup) {
            return self.end_lookup(key, result.map(|(_, address)| address));
        }
        if let Some(Dial { dialing, destination, .. }) = self.forget(key) {
            self.events.push_back(DialEvent { key, dialing, destination, result });
        }
    }

    fn end_lookup(&mut self, key: K, result: Result<SocketAddr, DialError>) {
        if let Some(Dial { destination, .. }) = self.forget(key) {
            self.lookups.push_back(LookupEvent { key, destination, result });
        }
    }

    /// Drops all state of a dial.
    fn forget(&mut self, key: K) -> Option<Dial> {
        self.arm(key, None);
        let mut dial = self.dials.remove(&key)?;
        self.admission.end(key);
        match &mut dial.stage {
            Stage::Waiting => {}
            Stage::Resolving(query) => {
                self.queries.remove(query);
                self.resolver.cancel(*query);
            }
            Stage::Racing(_, slots) => {
                for (_, slot) in std::mem::take(slots) {
                    self.close(slot);
                }
            }
        }
        Some(dial)
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

fn quotas(settings: &DialSettings) -> Quotas {
    Quotas {
        user: settings.user_max,
        session: settings.gateway_max,
        total: DIALS_MAX,
        session_waiting: SESSION_WAITING_MAX,
        total_waiting: WAITING_MAX,
    }
}

/// The maximum number of dials under way, of all gateways; further ones wait.
pub const DIALS_MAX: usize = 4096;
/// The maximum number of waiting dials of one session. Beyond, the heaviest user's newest fails
/// with [`DialError::Quota`].
pub const SESSION_WAITING_MAX: usize = 4096;
/// The maximum number of waiting dials in total; beyond, the heaviest session pays.
pub const WAITING_MAX: usize = 4 * SESSION_WAITING_MAX;
/// The maximum number of descriptors of one dial: first a lookup, then a race.
pub const DIAL_DESCRIPTORS: usize = LOOKUP_SOCKETS;
const _: () = assert!(DIAL_DESCRIPTORS >= PARALLEL_MAX, "the race has what the lookup had");
const _: () = assert!(DIALS_MAX <= crate::resolve::LOOKUPS_MAX, "every dial may look up a name");
