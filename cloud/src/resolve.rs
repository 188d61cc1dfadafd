//! Resolves names outside the event loop.
//!
//! The system's resolver (`getaddrinfo`, so `/etc/hosts` and `/etc/resolv.conf` count) blocks; a
//! small pool of threads calls it, and answers come back through a channel and a [`mio::Waker`].
//! The caller enforces a query's deadline, and shares the threads among users.
//!
//! Invariants: every query gets one answer; the addresses are in the system's order
//! (RFC 6724) and not yet checked against the access list.

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use polyrail_model::HostName;

/// A query, numbered in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryId(u64);

/// The end of one query.
#[derive(Debug)]
pub struct Resolution {
    /// Which query.
    pub query: QueryId,
    /// At least one address, at most [`ADDRESSES_PER_FAMILY_MAX`] of each family; or the reason
    /// why there is none.
    pub result: Result<Vec<IpAddr>, ResolveError>,
}

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name does not exist, or has no address.
    #[error("the name has no address ({0})")]
    NotFound(String),
    /// The name servers did not answer; a later attempt may succeed.
    #[error("the name servers do not answer ({0}): check /etc/resolv.conf of the cloud")]
    Temporary(String),
    /// Too many queries are waiting.
    #[error("more than {QUEUE_MAX} names wait to be resolved")]
    Overload,
}

/// The pool of threads.
pub struct Resolver {
    jobs: SyncSender<Job>,
    answers: Receiver<Resolution>,
    next: u64,
}

/// The lookup of a name; the system's resolver outside tests.
type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

struct Job {
    query: QueryId,
    name: HostName,
}

impl Resolver {
    /// Starts the threads. They end when the resolver is dropped and their last lookup returns.
    ///
    /// # Errors
    /// The system cannot start threads.
    pub fn start(waker: Arc<mio::Waker>) -> io::Result<Self> {
        Self::with_lookup(waker, Arc::new(system_lookup))
    }

    pub(crate) fn with_lookup(waker: Arc<mio::Waker>, lookup: Arc<Lookup>) -> io::Result<Self> {
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let (done, answers) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for i in 0..THREADS {
            let worker = Worker {
                queue: Arc::clone(&queue),
                done: done.clone(),
                waker: Arc::clone(&waker),
                lookup: Arc::clone(&lookup),
            };
            std::thread::Builder::new()
                .name(format!("resolve-{i}"))
                .stack_size(STACK_BYTES)
                .spawn(move || worker.run())?;
        }
        Ok(Self { jobs, answers, next: 0 })
    }

    /// Queries the addresses of a name.
    ///
    /// # Errors
    /// [`ResolveError::Overload`]: the queue is full.
    pub fn submit(&mut self, name: HostName) -> Result<QueryId, ResolveError> {
        let query = QueryId(self.next);
        self.jobs.try_send(Job { query, name }).map_err(|_| ResolveError::Overload)?;
        self.next += 1;
        Ok(query)
    }

    /// The next answer; call until `None` after a wake-up.
    pub fn poll(&mut self) -> Option<Resolution> {
        self.answers.try_recv().ok()
    }
}

struct Worker {
    queue: Arc<Mutex<Receiver<Job>>>,
    done: Sender<Resolution>,
    waker: Arc<mio::Waker>,
    lookup: Arc<Lookup>,
}

impl Worker {
    fn run(self) {
        loop {
            // One thread waits for a job with the lock; the others wait for the lock. A poisoned
            // lock is harmless, because the receiver has no partial state.
            let job = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { query, name }) = job else { return };
            let result = match (self.lookup)(name.as_str()) {
                Ok(addresses) => bounded(addresses),
                Err(error) => Err(classify(&error)),
            };
            if self.done.send(Resolution { query, result }).is_err() || self.waker.wake().is_err() {
                return;
            }
        }
    }
}

fn system_lookup(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

/// At most [`ADDRESSES_PER_FAMILY_MAX`] of each family, in order, each once.
fn bounded(addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, ResolveError> {
    let mut kept: Vec<IpAddr> = Vec::new();
    for address in addresses {
        let same_family = kept.iter().filter(|a| a.is_ipv4() == address.is_ipv4()).count();
        if same_family < ADDRESSES_PER_FAMILY_MAX && !kept.contains(&address) {
            kept.push(address);
        }
    }
    if kept.is_empty() { Err(ResolveError::NotFound("no addresses".into())) } else { Ok(kept) }
}

/// The standard library distinguishes errors of `getaddrinfo` only by their text.
fn classify(error: &io::Error) -> ResolveError {
    let full = error.to_string();
    let text = full.strip_prefix("failed to lookup address information: ").unwrap_or(&full);
    let temporary = ["Temporary failure", "Try again", "System error", "Memory allocation"];
    if temporary.iter().any(|t| text.contains(t)) || error.raw_os_error().is_some() {
        ResolveError::Temporary(text.to_owned())
    } else {
        ResolveError::NotFound(text.to_owned())
    }
}

/// The maximum number of queued queries; further ones are refused. A caller that has at most
/// [`THREADS`] queries without an answer meets no refusal.
pub const QUEUE_MAX: usize = THREADS;
/// The maximum number of addresses of one family in an answer; further ones are dropped.
pub const ADDRESSES_PER_FAMILY_MAX: usize = 8;
/// The number of concurrent lookups.
pub const THREADS: usize = 16;
/// Stack of a thread; `getaddrinfo` needs up to about 100 KB.
const STACK_BYTES: usize = 512 * 1024;
