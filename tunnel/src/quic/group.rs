//! Listeners of several event loops on one address, with the datagrams and tunnels between them.
//!
//! A connection id names the worker that gave it, and a client's first id names one by chance. A
//! listener keeps the datagrams of its own connections, and of ids that name it. The others become
//! [`Stray`]s, which the caller carries to the worker that they are for. A tunnel that moved is
//! [`Packed`] meanwhile; the listener that packed it remembers where its ids went.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::cid::{Cid, random};
use super::connection::Engine;
use super::retry::Retry;
use super::socket::Arrival;
use super::spent::Spent;

/// The place of a listener among those of the workers on its address. The default is a listener
/// that is alone.
#[derive(Clone)]
pub struct Group {
    /// The number of this listener's worker.
    pub worker: u8,
    /// The number of workers; at least 1.
    pub workers: u8,
    /// Whether the kernel steers datagrams to the workers that their ids name; else it chooses by
    /// the addresses. Default true.
    pub steered: bool,
    pub(super) ticket_key: [u8; 48],
    pub(super) retry: Retry,
    pub(super) spent: Arc<Spent>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            worker: 0,
            workers: 1,
            steered: true,
            ticket_key: random(),
            retry: Retry::new(Instant::now()),
            spent: Arc::default(),
        }
    }
}

impl Group {
    /// The listeners of this many workers on one address. Each can resume the sessions of the
    /// others, and checks the tokens of the others.
    pub fn of(workers: u8) -> impl Iterator<Item = Self> {
        let first = Self { workers: workers.max(1), ..Self::default() };
        (0..first.workers).map(move |worker| Self { worker, ..first.clone() })
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} of {})", self.worker, self.workers)
    }
}

/// Datagrams that arrived at a worker that they are not for.
pub struct Stray {
    /// The worker that they are for.
    pub worker: u8,
    /// Where the listeners of the group listen.
    pub listener: SocketAddr,
    pub(super) arrival: Arrival,
    pub(super) bytes: Vec<u8>,
    /// The tunnel moved to that worker: if it does not know the id, nobody does.
    pub(super) is_last: bool,
}

impl Stray {
    /// The number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The number of datagrams.
    pub fn count(&self) -> u64 {
        self.bytes.len().div_ceil(self.arrival.stride) as u64
    }
}

/// A tunnel on its way to another worker's listener on the same address.
pub(super) struct Packed {
    pub(super) engine: Engine,
    /// The id that the client chose first.
    pub(super) original: Cid,
    /// Its ids that datagrams may still have.
    pub(super) ids: Vec<Cid>,
    /// Datagrams that it had not read.
    pub(super) unread: Vec<(Arrival, Vec<u8>)>,
}

impl std::fmt::Debug for Stray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stray").field("worker", &self.worker).finish_non_exhaustive()
    }
}
