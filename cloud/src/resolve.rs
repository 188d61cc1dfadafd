//! Resolves names outside the event loop.
//!
//! One thread with an asynchronous resolver (`hickory-resolver`, which reads `/etc/resolv.conf` and
//! `/etc/hosts`) carries out all lookups at once, so name servers that do not answer delay no other
//! lookup. Answers return through a channel and a [`mio::Waker`].
//!
//! The resolver has no queue: each lookup begins at once, and the caller bounds the lookups and
//! shares them among users. A lookup ends with its answer, at its deadline, or when the caller
//! cancels it. A lookup that panics fails alone. If the thread ends otherwise, it ends the process,
//! because a cloud that resolves no names serves nobody.
//!
//! Invariants: a query has at most one answer, and a cancelled one none; the addresses are not yet
//! checked against the access list.

mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use polyrail_model::HostName;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use names::Names;

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
    /// The resolver's thread is too slow.
    #[error("more than {REQUESTS_MAX} requests wait for the resolver")]
    Overload,
}

/// The caller's end of the thread.
pub struct Resolver {
    jobs: mpsc::Sender<Job>,
    answers: Receiver<Resolution>,
    /// Queries without an answer.
    open: BTreeSet<QueryId>,
    next: u64,
}

enum Job {
    Look { query: QueryId, name: HostName, deadline: Instant },
    Cancel(QueryId),
}

impl Resolver {
    /// Starts the thread. It ends when the resolver is dropped.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(waker: Arc<mio::Waker>) -> io::Result<Self> {
        let names = Names::default();
        Self::with_lookup(waker, move |name| names.lookup(name))
    }

    pub(crate) fn with_lookup<F>(
        waker: Arc<mio::Waker>,
        lookup: impl Fn(HostName) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send + 'static,
    {
        let (jobs, queue) = mpsc::channel(REQUESTS_MAX);
        let (done, answers) = channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let serve = move || runtime.block_on(serve(queue, &done, &waker, lookup));
        std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
            let reason = match catch_unwind(AssertUnwindSafe(serve)) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "panic".to_owned(),
            };
            tracing::error!(reason, "the resolver's thread ended: aborting");
            std::process::abort();
        })?;
        Ok(Self { jobs, answers, open: BTreeSet::new(), next: 0 })
    }

    /// Queries the addresses of a name. After `deadline` there is no answer.
    ///
    /// # Errors
    /// [`ResolveError::Overload`]: [`REQUESTS_MAX`] requests wait for the thread.
    pub fn submit(&mut self, name: HostName, deadline: Instant) -> Result<QueryId, ResolveError> {
        let query = QueryId(self.next);
        let job = Job::Look { query, name, deadline };
        self.jobs.try_send(job).map_err(|_| ResolveError::Overload)?;
        self.next += 1;
        self.open.insert(query);
        Ok(query)
    }

    /// The caller does not want the answer any more.
    pub fn cancel(&mut self, query: QueryId) {
        if self.open.remove(&query) {
            // If the thread is behind, the lookup ends at its deadline.
            let _ = self.jobs.try_send(Job::Cancel(query));
        }
    }

    /// The next answer; call until `None` after a wake-up.
    pub fn poll(&mut self) -> Option<Resolution> {
        loop {
            let resolution = self.answers.try_recv().ok()?;
            if self.open.remove(&resolution.query) {
                return Some(resolution);
            }
        }
    }
}

/// Carries out lookups until the caller is gone.
async fn serve<F>(
    mut queue: mpsc::Receiver<Job>,
    done: &Sender<Resolution>,
    waker: &mio::Waker,
    lookup: impl Fn(HostName) -> F,
) -> io::Result<()>
where
    F: Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send + 'static,
{
    let (mut tasks, mut running) = (JoinSet::new(), BTreeMap::<QueryId, AbortHandle>::new());
    loop {
        tokio::select! {
            job = queue.recv() => match job {
                Some(Job::Look { query, name, deadline }) => {
                    let (deadline, answer) = (deadline.into(), lookup(name));
                    let task = async move {
                        (query, tokio::time::timeout_at(deadline, answer).await)
                    };
                    running.insert(query, tasks.spawn(task));
                }
                Some(Job::Cancel(query)) => {
                    running.remove(&query).inspect(AbortHandle::abort);
                }
                None => return Ok(()),
            },
            Some(ended) = tasks.join_next() => {
                let (query, result) = match ended {
                    Ok((query, outcome)) => {
                        let late = |_| Err(ResolveError::Temporary("no answer in time".to_owned()));
                        (query, outcome.unwrap_or_else(late).and_then(bounded))
                    }
                    Err(error) => {
                        let ended = running.iter().find(|(_, task)| task.id() == error.id());
                        // A cancelled task is gone and has no answer.
                        let Some((&query, _)) = ended else { continue };
                        (query, Err(ResolveError::Temporary("the lookup panicked".to_owned())))
                    }
                };
                running.remove(&query);
                if done.send(Resolution { query, result }).is_err() {
                    // The caller is gone.
                    return Ok(());
                }
                waker.wake()?;
            }
        }
    }
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

/// The maximum number of lookups in progress, which the caller observes.
pub const LOOKUPS_MAX: usize = 4_096;
/// The maximum number of requests that wait for the thread: each lookup, and its cancellation.
pub const REQUESTS_MAX: usize = 2 * LOOKUPS_MAX;
/// The maximum number of sockets of one lookup.
pub const LOOKUP_SOCKETS: usize = names::SOCKETS_MAX;
/// The maximum number of addresses of one family in an answer; further ones are dropped.
pub const ADDRESSES_PER_FAMILY_MAX: usize = 8;
