//! The control thread's way to one data plane. A daemon has one, and a cloud one for each worker.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use polyrail_config::Tables;

use super::{AdminCommand, AdminError, ErrorCode, PendingReply, Reply};

/// How long the data plane may take to answer.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// The queue of a data plane's commands.
pub(crate) struct Plane<C: Tables> {
    pub(crate) commands: SyncSender<AdminCommand<C>>,
    pub(crate) waker: Arc<mio::Waker>,
}

impl<C: Tables> Plane<C> {
    /// Queues a command and wakes the data plane; returns the command if the queue is full.
    pub(crate) fn hand_over(&self, command: AdminCommand<C>) -> Result<(), Box<AdminCommand<C>>> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(command) | TrySendError::Disconnected(command) => Box::new(command),
        })?;
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the data plane");
        }
        Ok(())
    }

    /// Sends a command without waiting.
    pub(crate) fn begin<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> AdminCommand<C>,
    ) -> Result<PendingReply<T>, AdminError> {
        let (reply, answer) = Reply::until(Instant::now() + ANSWER_WAIT);
        if self.hand_over(command(reply)).is_err() {
            let message = "too many pending requests: try again";
            return Err(AdminError::new(ErrorCode::Busy, message));
        }
        Ok(answer)
    }
}
