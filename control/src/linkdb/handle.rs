//! The ends of the thread's channels.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polyrail_model::Observation;

use super::station::Station;
use super::{Input, LinkDbState, Output};
use polyrail_config::LinkDbConfig;

/// Which side of a session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// On board: it observes.
    Train,
    /// On the ground: it is told.
    Ground,
}

/// What the thread is started with.
#[derive(Debug)]
pub struct Options {
    /// Which side this is.
    pub role: Role,
    /// The database's file. None: all is forgotten when the daemon ends.
    pub path: Option<PathBuf>,
    /// What a reload may change.
    pub tuning: Tuning,
    /// Random: trips and tracks are numbered from it.
    pub seed: u64,
    /// Wakes the data plane when there is output.
    pub waker: Arc<mio::Waker>,
}

/// What a reload may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Handovers that are kept one by one.
    pub events_max: u64,
    /// Handovers older than this are forgotten; the cells' summaries stay.
    pub retention: Duration,
    /// Whether forecasts are made.
    pub forecast: bool,
    /// Whether cells that history cannot tell apart are refused.
    pub guard: bool,
    /// Whether gateways are given each other's handovers (cloud); holds for sessions that begin.
    pub share: bool,
}

impl Tuning {
    /// What the configuration wants.
    pub fn new(config: &LinkDbConfig, share: bool) -> Self {
        let LinkDbConfig { path: _, events_max, retention_days, forecast, guard, share: _ } =
            *config;
        let retention = DAY * retention_days.get();
        Self { events_max, retention, forecast, guard, share }
    }
}

impl Options {
    /// As the configuration wants it.
    pub fn new(
        config: &LinkDbConfig,
        tuning: Tuning,
        role: Role,
        seed: u64,
        waker: Arc<mio::Waker>,
    ) -> Self {
        Self { role, path: Some(config.path.clone()), tuning, seed, waker }
    }
}

/// The data plane's end. When it is dropped the thread ends.
#[derive(Debug)]
pub struct LinkDb {
    feeder: Feeder,
    outputs: Receiver<Output>,
    thread: Option<JoinHandle<()>>,
    /// It is to end before all that it was told is done.
    hurry: Arc<AtomicBool>,
    ended: Receiver<()>,
}

/// Feeds the thread; never waits.
#[derive(Clone, Debug)]
struct Feeder {
    inputs: SyncSender<Message>,
    /// What must not be dropped: sessions that come and go, and changes of the configuration. As
    /// many as there are sessions at most, so without a bound of its own.
    orders: Sender<Input>,
    counts: Arc<Counts>,
}

/// Asks the thread how it is.
#[derive(Clone, Debug)]
pub struct Asker(Feeder);

/// What fell off the channels.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) inputs: AtomicU64,
    pub(super) outputs: AtomicU64,
}

pub(super) enum Message {
    Input(Input),
    /// There are orders.
    Order,
    State(SyncSender<LinkDbState>),
    Stop,
    /// Something is wrong with the program.
    #[cfg(test)]
    Panic,
}

impl LinkDb {
    /// Starts the thread; the database is opened there.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn start(options: Options) -> io::Result<Self> {
        let (inputs, received) = sync_channel(INPUTS_MAX);
        let (orders, ordered) = channel();
        let (output, outputs) = sync_channel(OUTPUTS_MAX);
        let (ended_sender, ended) = sync_channel(1);
        let counts = Arc::<Counts>::default();
        let feeder = Feeder { inputs, orders, counts: counts.clone() };
        let hurry = Arc::<AtomicBool>::default();
        let hurried = hurry.clone();
        let thread = std::thread::Builder::new().name("linkdb".to_owned()).spawn(move || {
            Station::new(options, received, ordered, output, counts, hurried).run();
            drop(ended_sender);
        })?;
        Ok(Self { feeder, outputs, thread: Some(thread), hurry, ended })
    }

    /// Tells the thread something; when it cannot keep up that is dropped, and counted.
    pub fn feed(&self, input: Input) {
        self.feeder.feed(input);
    }

    /// Feeds observations from other threads; it never blocks.
    pub fn observer(&self) -> impl Fn(Observation) + Send + Sync + 'static {
        let feeder = self.feeder.clone();
        move |observation| feeder.feed(Input::Observed(observation))
    }

    /// Something that asks for its state.
    pub fn asker(&self) -> Asker {
        Asker(self.feeder.clone())
    }

    /// Lets the thread panic, as a fault of the program would.
    #[cfg(test)]
    pub(super) fn panic(&self) {
        self.feeder.inputs.try_send(Message::Panic).unwrap();
    }

    /// What the thread has to say; call it until there is nothing whenever the waker woke the loop.
    pub fn try_recv(&self) -> Option<Output> {
        self.outputs.try_recv().ok()
    }
}

impl Feeder {
    /// Tells the thread something; when it cannot keep up that is dropped, and counted.
    fn feed(&self, input: Input) {
        if matches!(input, Input::Up { .. } | Input::Down(_) | Input::Retune(_)) {
            // A thread that is gone needs no orders; one that has much to do looks at them first.
            let _ = self.orders.send(input);
            let _ = self.inputs.try_send(Message::Order);
        } else if self.inputs.try_send(Message::Input(input)).is_err() {
            self.counts.inputs.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Asker {
    /// Its state; waits for it. None when the thread is gone or too busy to say it within a second.
    pub fn state(&self) -> Option<LinkDbState> {
        let (sender, receiver) = sync_channel(1);
        self.0.inputs.try_send(Message::State(sender)).ok()?;
        receiver.recv_timeout(ANSWER_WAIT).ok()
    }
}

impl Drop for LinkDb {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // What it was told is still done, as far as the time goes; then it closes the database. A
        // thread that hangs in a file system is left behind.
        let until = Instant::now() + END_WAIT;
        while self.feeder.inputs.try_send(Message::Stop).is_err() && Instant::now() < until {
            if self.has_ended(Duration::from_millis(10)) {
                break;
            }
        }
        if !self.has_ended(until.saturating_duration_since(Instant::now())) {
            self.hurry.store(true, Ordering::Relaxed);
            if !self.has_ended(END_WAIT) {
                return;
            }
        }
        let _ = thread.join();
    }
}

impl LinkDb {
    /// Waits so long for the thread's end.
    fn has_ended(&self, wait: Duration) -> bool {
        self.ended.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected)
    }
}

const DAY: Duration = Duration::from_secs(86_400);
/// What waits for the thread; beyond, it is dropped.
const INPUTS_MAX: usize = 4096;
/// What waits for the data plane; beyond, it waits in the thread.
const OUTPUTS_MAX: usize = 1024;
/// How long an asker waits.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// How long the thread may take to do what it was told, and then to end.
const END_WAIT: Duration = Duration::from_secs(1);
