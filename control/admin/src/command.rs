//! Requests of the control thread to the data plane, and their replies.

use std::time::{Duration, Instant};

use polyrail_config::{ChainSpec, Config, Tables};
use polyrail_identity::TlsIdentity;
use tokio::sync::oneshot;

use super::metrics::MetricsSnapshot;
use super::{
    AdminError, DataUsage, DrainState, FlowPage, FlowsQuery, LinkChange, PathChange, PathState,
    Snapshot, SpeedtestOrder, SpeedtestState, UserPage, UsersQuery,
};

/// A request to the data plane, which answers in the same turn of its loop if it can. Dropping a
/// [`Reply`] reports an error to the client.
#[derive(Debug)]
pub enum AdminCommand<C: Tables> {
    /// Report the daemon's status.
    Status(Reply<Snapshot>),
    /// Report all paths.
    Paths(Reply<Vec<PathState>>),
    /// Report a page of the flows.
    Flows {
        /// The flows that the client requests.
        query: FlowsQuery,
        /// Where the answer goes.
        reply: Reply<FlowPage>,
    },
    /// Report a page of the users.
    Users {
        /// The users that the client requests.
        query: UsersQuery,
        /// Where the answer goes.
        reply: Reply<UserPage>,
    },
    /// Report the counters of the data plane.
    Metrics(Reply<MetricsSnapshot>),
    /// Send this report to the cloud, if that takes reports (gateway).
    Report(Vec<u8>),
    /// Change one path, wholly or not at all; the answer is its new state. The data plane publishes
    /// the change.
    SetPath {
        /// Its name, as in [`PathState::name`].
        name: String,
        /// The change; never empty.
        change: PathChange,
        /// Where the answer goes.
        reply: Reply<Result<PathState, AdminError>>,
    },
    /// Change the scheduler of this node's direction of sending, on all paths. The data plane
    /// publishes the change.
    SetScheduler {
        /// The new chain.
        chain: ChainSpec,
        /// Where the answer goes.
        reply: Reply<()>,
    },
    /// Let all flows end, open no more, and end the daemon (cloud).
    Drain {
        /// When the remaining flows are reset.
        limit: Duration,
        /// Where the answer goes.
        reply: Reply<Result<DrainState, AdminError>>,
    },
    /// Start a speed test, or report the latest one (gateway).
    Speedtest {
        /// The test to start; `None` reports the latest one, and keeps it running.
        order: Option<SpeedtestOrder>,
        /// Where the answer goes.
        reply: Reply<Result<SpeedtestState, AdminError>>,
    },
    /// Take a new configuration; all of it or nothing. It and its certificates were checked. Each
    /// part compares its section with the one in use. The control thread changes the log when the
    /// answer is `Ok`. A late answer counts too, and no other reload comes before it.
    Reload {
        /// The whole new configuration.
        config: Box<Config<C>>,
        /// The new certificates and key, if a path of `[tls]` or the contents of one of its files
        /// changed.
        identity: Option<TlsIdentity>,
        /// Where the answer goes: warnings, or the reason of a refusal.
        reply: Reply<Result<Vec<String>, AdminError>>,
    },
    /// The state of an interface: sent for each interface of the carriers at the start, after each
    /// change, and after a reload that adds interfaces.
    Links(LinkChange),
    /// Carriers with a cap whose used data has changed.
    Usage(Vec<DataUsage>),
}

/// The sender of the answer to a command.
#[derive(Debug)]
pub struct Reply<T> {
    sender: oneshot::Sender<T>,
    until: Instant,
}

/// The receiver of a [`Reply`].
#[derive(Debug)]
pub struct PendingReply<T>(pub(super) oneshot::Receiver<T>);

impl<T> Reply<T> {
    /// A reply for a client that waits until `until`, and its receiver.
    pub(super) fn until(until: Instant) -> (Self, PendingReply<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender, until }, PendingReply(receiver))
    }

    /// Whether a client still waits for the answer at `now`. A command without a waiting client
    /// should be skipped, because its client may have received a timeout.
    pub fn is_wanted(&self, now: Instant) -> bool {
        !self.sender.is_closed() && now < self.until
    }

    /// Sends the answer.
    pub fn send(self, answer: T) {
        // The client may have disconnected.
        let _ = self.sender.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_expires_or_is_abandoned() {
        let now = Instant::now();
        let (reply, answer) = Reply::<()>::until(now + Duration::from_secs(1));
        assert!(reply.is_wanted(now) && !reply.is_wanted(now + Duration::from_secs(1)));
        drop(answer);
        assert!(!reply.is_wanted(now));
    }
}
