//! The data plane's end of the worker's channels.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polyrail_model::{Channel, SessionKey};

use super::thread::{Counts, Thread};
use super::{Input, Output, WorkerState};
use crate::wire;

/// Which side of a session the worker is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// On board, with observations.
    Gateway,
    /// On the ground, with messages of gateways.
    Cloud,
}

/// How a worker starts.
pub struct Options {
    /// The side.
    pub role: Role,
    /// The database's file; without one the database lives in memory.
    pub path: Option<PathBuf>,
    /// What a reload may change.
    pub settings: Settings,
    /// Random: the numbers of trips and tracks derive from it.
    pub seed: u64,
    /// Called by the worker when there is output.
    pub notify: Box<dyn Fn() + Send>,
}

/// What a reload may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of handovers in the database.
    pub events_max: u64,
    /// Handovers older than this are evicted; the cells' histories stay.
    pub retention: Duration,
    /// Whether the worker makes forecasts.
    pub forecast: bool,
    /// Whether the forecaster rejects cells that history cannot tell apart.
    pub guard: bool,
    /// Whether gateways receive each other's handovers (cloud); applies to new sessions.
    pub share: bool,
}

/// A running worker. Dropping it closes the database and joins the thread.
#[derive(Debug)]
pub struct Worker {
    feeder: Feeder,
    outputs: Receiver<Output>,
    thread: Option<JoinHandle<()>>,
}

/// Feeds a worker; never blocks.
#[derive(Clone, Debug)]
pub struct Feeder {
    inputs: SyncSender<Message>,
    /// Sessions and reloads, which must not be dropped: at most a few per session, without a bound.
    orders: std::sync::mpsc::Sender<Input>,
    counts: Arc<Counts>,
}

pub(super) enum Message {
    Input(Input),
    /// There are orders.
    Order,
    State(SyncSender<WorkerState>),
    Stop,
    #[cfg(test)]
    Panic,
}

impl Worker {
    /// Starts the thread, which opens the database.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn start(options: Options) -> io::Result<Self> {
        let (inputs, received) = sync_channel(INPUTS_MAX);
        let (orders, ordered) = std::sync::mpsc::channel();
        let (output, outputs) = sync_channel(OUTPUTS_MAX);
        let counts = Arc::<Counts>::default();
        let feeder = Feeder { inputs, orders, counts: counts.clone() };
        let thread = Thread { options, received, ordered, output, counts };
        let builder = std::thread::Builder::new().name("linkdb".to_owned());
        let thread = builder.spawn(move || thread.run())?;
        Ok(Self { feeder, outputs, thread: Some(thread) })
    }

    /// Feeds an input; see [`Feeder::feed`].
    pub fn feed(&self, input: Input) {
        self.feeder.feed(input);
    }

    /// Decodes a message of the peer and feeds it. An invalid one is counted as dropped.
    pub fn receive(
        &self,
        now: Instant,
        session: SessionKey,
        channel: Channel,
        waited: Duration,
        payload: &[u8],
    ) {
        match wire::decode(channel, payload) {
            Ok(Some(wire::Message::Telemetry(mut telemetry))) => {
                telemetry.age = telemetry.age.saturating_add(waited);
                self.feed(Input::Telemetry { session, at: now, telemetry });
            }
            Ok(Some(wire::Message::Sync(message))) => self.feed(Input::Sync { session, message }),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, session = session.0, "discarded an invalid LinkDB message");
                self.feeder.counts.inputs.fetch_add(1, Ordering::Relaxed);
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
        self.feeder.inputs.send(Message::Panic).unwrap();
    }
}

impl Feeder {
    /// Feeds an input. If the channel is full the input is dropped and counted, except sessions and
    /// reloads.
    pub fn feed(&self, input: Input) {
        if matches!(input, Input::Up { .. } | Input::Down(_) | Input::Reload(_)) {
            // If the channel is full, the worker looks at the orders with the next message.
            let _ = self.orders.send(input);
            let _ = self.inputs.try_send(Message::Order);
        } else if self.inputs.try_send(Message::Input(input)).is_err() {
            self.counts.inputs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The worker's state; none if it has ended or does not answer within a second.
    pub fn state(&self) -> Option<WorkerState> {
        let (reply, answer) = sync_channel(1);
        self.inputs.try_send(Message::State(reply)).ok()?;
        answer.recv_timeout(ANSWER_WAIT).ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // Behind everything that was fed. A disk that hangs holds the daemon up until the
        // supervisor kills it.
        let _ = self.feeder.inputs.send(Message::Stop);
        let _ = thread.join();
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { role, path, settings, .. } = self;
        write!(f, "Options({role:?}, {path:?}, {settings:?})")
    }
}

/// Inputs that wait for the worker; the rest is dropped.
const INPUTS_MAX: usize = 4_096;
/// Outputs that wait for the data plane; the rest is dropped.
const OUTPUTS_MAX: usize = 4_096;
/// How long a question for the state waits for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
