//! The data plane's end of the worker's channels.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polyrail_model::{Channel, SessionKey};

use super::allowance::Allowances;
use super::options::{Notify, Options};
use super::thread::{Counts, Message, Thread};
use super::{Input, Output, WorkerState};
use crate::shared::{Answer, News};
use crate::wire;

/// A running worker. Dropping it closes the database and joins the thread.
#[derive(Debug)]
pub struct Worker {
    feeder: Feeder,
    outputs: Receiver<Output>,
    thread: Option<JoinHandle<()>>,
    /// What the sessions' peers may send.
    allowances: Allowances,
}

/// Feeds a worker; never blocks.
#[derive(Clone, Debug)]
pub struct Feeder {
    messages: Sender<Message>,
    counts: Arc<Counts>,
}

impl Worker {
    /// Starts the thread, which opens the database.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn start(options: Options) -> io::Result<Self> {
        Self::start_with(options, Vec::new()).map(|(worker, _)| worker)
    }

    /// The same for the data planes of one process (cloud), each of which is notified of its own
    /// outputs: `others` are those besides the first. The sessions are numbered so that
    /// [`SessionKey::worker`] is the data plane. The first handle must be dropped last.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub fn start_with(options: Options, others: Vec<Notify>) -> io::Result<(Self, Vec<Self>)> {
        let (messages, received) = channel();
        let counts = Arc::<Counts>::default();
        let feeder = Feeder { messages, counts: counts.clone() };
        let handle = |outputs, thread| {
            let (feeder, allowances) = (feeder.clone(), Allowances::default());
            Self { feeder, outputs, thread, allowances }
        };
        let (output, outputs) = sync_channel(OUTPUTS_MAX);
        let (mut further, mut handles) = (Vec::new(), Vec::new());
        for notify in others {
            let (output, outputs) = sync_channel(OUTPUTS_MAX);
            further.push((output, notify));
            handles.push(handle(outputs, None));
        }
        let thread = Thread { options, received, output, further, counts, shared: None };
        let builder = std::thread::Builder::new().name("linkdb".to_owned());
        let thread = builder.spawn(move || thread.run())?;
        Ok((handle(outputs, Some(thread)), handles))
    }

    /// Feeds an input; see [`Feeder::feed`].
    pub fn feed(&self, input: Input) {
        self.feeder.feed(input);
    }

    /// A session with a peer of this name has begun.
    pub fn begin(&mut self, session: SessionKey, peer: String) {
        self.allowances.begin(session, peer.clone());
        self.feed(Input::Up { session, peer });
    }

    /// A session has ended.
    pub fn end(&mut self, now: Instant, session: SessionKey) {
        self.allowances.end(now, session);
        self.feed(Input::Down(session));
    }

    /// Decodes a message of the peer and feeds it. Invalid messages, and those beyond the peer's
    /// allowance, are counted as dropped.
    pub fn receive(
        &mut self,
        now: Instant,
        session: SessionKey,
        channel: Channel,
        waited: Duration,
        payload: &[u8],
    ) {
        if !self.allowances.take(now, session, channel) {
            self.feeder.counts.inputs_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        match wire::decode(channel, payload) {
            Ok(Some(wire::Message::Telemetry(mut telemetry))) => {
                telemetry.age = telemetry.age.saturating_add(waited);
                self.feed(Input::Telemetry { session, at: now, telemetry });
            }
            Ok(Some(wire::Message::Sync(message))) => self.feed(Input::Sync { session, message }),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, session = session.0, "discarded an invalid LinkDB message");
                self.feeder.counts.inputs_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Another handle that feeds the worker.
    pub fn feeder(&self) -> Feeder {
        self.feeder.clone()
    }

    /// The next output; call it until `None` after each notification.
    pub fn try_recv(&self) -> Option<Output> {
        self.outputs.try_recv().ok()
    }

    /// Makes the thread panic.
    #[cfg(test)]
    pub(super) fn panic(&self) {
        self.feeder.messages.send(Message::Panic).unwrap();
    }
}

impl Feeder {
    /// Feeds an input. If too many wait, the input is dropped and counted, except sessions and
    /// reloads, of which there are few.
    pub fn feed(&self, input: Input) {
        let is_required = matches!(
            input,
            Input::Up { .. } | Input::Follow(_) | Input::Down(_) | Input::Reload(_)
        );
        let waiting = self.counts.inputs_waiting.fetch_add(1, Ordering::Relaxed);
        let has_room = is_required || waiting < INPUTS_MAX;
        if !has_room || self.messages.send(Message::Input(input)).is_err() {
            self.counts.inputs_waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.inputs_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The worker's state; none if it has ended or does not answer within a second.
    pub fn state(&self) -> Option<WorkerState> {
        let (reply, answer) = sync_channel(1);
        self.messages.send(Message::State(reply)).ok()?;
        answer.recv_timeout(ANSWER_WAIT).ok()
    }

    /// Has `waker` called after entries were written that the shared database may lack.
    pub fn on_unshared(&self, waker: Box<dyn Fn() + Send>) {
        let _ = self.messages.send(Message::Waker(waker));
    }

    /// Reports news of the shared database; waits for the next work, and for the disk. `None`: the
    /// local database cannot be used now.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn share(&self, news: News) -> Result<Option<Answer>, RecvError> {
        let (reply, answer) = sync_channel(1);
        self.messages.send(Message::Share(news, reply)).map_err(|_| RecvError)?;
        answer.recv()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // After all inputs. If the disk hangs, the supervisor kills the daemon.
        let _ = self.feeder.messages.send(Message::Stop);
        let _ = thread.join();
    }
}

/// Inputs that wait for the worker; the rest is dropped.
const INPUTS_MAX: usize = 4_096;
/// Outputs that wait for the data plane; the rest is dropped.
const OUTPUTS_MAX: usize = 4_096;
/// How long a question for the state waits for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
