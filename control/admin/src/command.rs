//! What the control thread asks of the data plane, and how it is answered.

use std::time::Instant;

use tokio::sync::oneshot;

use super::{AdminError, DaemonConfig, LinkChange, Loaded, PathChange, PathState, Snapshot};
use polyrail_control::reload::Change;

/// A request to the data plane. What holds a [`Reply`] is answered at once, in the same turn of
/// the loop where that is possible; a reply that is dropped tells the asker so.
#[derive(Debug)]
pub enum Command<C: DaemonConfig> {
    /// Say how you are.
    Status(Reply<Snapshot>),
    /// Say how the paths are.
    Paths(Reply<Vec<PathState>>),
    /// Change one path; all of it or nothing. The answer is the path as it is then. The data plane
    /// publishes that an operator changed it.
    SetPath {
        /// Its name, as in [`PathState::name`].
        name: String,
        /// What is wanted; never empty.
        change: PathChange,
        /// Where the answer goes.
        reply: Reply<Result<PathState, AdminError>>,
    },
    /// Take a new configuration; all of it or nothing. It was checked, and so were its
    /// certificates. The log is not the data plane's business: its level, format and file change
    /// when the answer is `Ok`. An answer that comes too late for the asker is heeded all
    /// the same, and no other reload comes before it.
    Reload {
        /// The whole new configuration.
        config: Box<C>,
        /// How it differs from the one before; never empty.
        changes: Vec<Change>,
        /// What [`AdminOptions::load`](super::AdminOptions::load) built of its certificate files;
        /// there when the changes have [`Change::Certificates`]. No file is read for a reload on
        /// the data plane.
        loaded: Option<Loaded>,
        /// Where the answer goes: warnings, or why it was not taken.
        reply: Reply<Result<Vec<String>, AdminError>>,
    },
    /// An interface is now like this. Comes for each interface of the carriers at the start, after
    /// each of its changes, and after a reload that names new ones.
    Links(LinkChange),
}

/// Where the answer to a command goes.
#[derive(Debug)]
pub struct Reply<T> {
    sender: oneshot::Sender<T>,
    until: Option<Instant>,
}

/// The other end of a [`Reply`].
#[derive(Debug)]
pub struct Answer<T>(pub(super) oneshot::Receiver<T>);

impl<T> Reply<T> {
    /// A reply and where its answer arrives.
    pub fn channel() -> (Self, Answer<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender, until: None }, Answer(receiver))
    }

    /// As [`Reply::channel`], for an asker who waits until then.
    pub(super) fn until(until: Instant) -> (Self, Answer<T>) {
        let (reply, answer) = Self::channel();
        (Self { until: Some(until), ..reply }, answer)
    }

    /// Whether somebody still waits for the answer at `now`. A command that nobody waits for any
    /// more is best left undone: the asker was told that it may not happen.
    pub fn is_wanted(&self, now: Instant) -> bool {
        !self.sender.is_closed() && self.until.is_none_or(|until| now < until)
    }

    /// Answers.
    pub fn send(self, answer: T) {
        // An asker who went away misses nothing.
        let _ = self.sender.send(answer);
    }
}

impl<T> Answer<T> {
    /// The answer, once it is there.
    pub fn try_take(&mut self) -> Option<T> {
        self.0.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_answer_arrives_once() {
        let (reply, mut answer) = Reply::channel();
        assert!(reply.is_wanted(Instant::now()));
        assert_eq!(answer.try_take(), None);
        reply.send(7);
        assert_eq!((answer.try_take(), answer.try_take()), (Some(7), None));
    }

    #[test]
    fn nobody_waits_for_ever() {
        let now = Instant::now();
        let (reply, answer) = Reply::<()>::until(now + Duration::from_secs(1));
        assert!(reply.is_wanted(now) && !reply.is_wanted(now + Duration::from_secs(1)));
        drop(answer);
        assert!(!reply.is_wanted(now));
    }
}
