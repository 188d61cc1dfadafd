//! The thread: it takes what comes, lets the worker work, and hands over what that has to say.
//!
//! A panic, which is a fault of the program, ends neither the daemon nor the thread: the worker is
//! built anew, with the sessions that stand, when what it had not written was written if that goes.
//! After the first time that happens at once, then a minute after the last time at the soonest;
//! meanwhile the state says why nothing is foreseen, and what comes is counted as dropped.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::ground::Ground;
use super::handle::{Counts, Message, Options, Role};
use super::keeper::Keeper;
use super::train::Train;
use super::unsaid::Unsaid;
use super::{Input, LinkDbState, Output, SessionNumber, StoreState};

/// The thread's state.
pub(super) struct Station {
    /// None after a panic.
    worker: Option<Worker>,
    /// As they are now.
    options: Options,
    /// Those that stand, and who is at their other ends.
    sessions: BTreeMap<SessionNumber, String>,
    /// Why there is no worker.
    failed: Option<String>,
    failures: u64,
    /// When the worker was last built anew.
    rebuilt_at: Option<Instant>,
    received: Receiver<Message>,
    ordered: Receiver<Input>,
    output: SyncSender<Output>,
    /// What the data plane had no room for.
    unsaid: Unsaid,
    counts: Arc<Counts>,
    hurry: Arc<AtomicBool>,
}

enum Worker {
    Train(Box<Train>),
    Ground(Box<Ground>),
}

impl Station {
    pub(super) fn new(
        options: Options,
        received: Receiver<Message>,
        ordered: Receiver<Input>,
        output: SyncSender<Output>,
        counts: Arc<Counts>,
        hurry: Arc<AtomicBool>,
    ) -> Self {
        Self {
            worker: None,
            options,
            sessions: BTreeMap::new(),
            failed: None,
            failures: 0,
            rebuilt_at: None,
            received,
            ordered,
            output,
            unsaid: Unsaid::default(),
            counts,
            hurry,
        }
    }

    pub(super) fn run(mut self) {
        self.guarded(Self::build);
        while self.guarded(Self::turn).unwrap_or(true) {}
        self.guarded(|station| station.worker.as_mut().map(Worker::close));
        self.guarded(|station| drop(station.worker.take()));
    }

    /// Does something that may panic; none when it did.
    fn guarded<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| act(self))) {
            Ok(done) => Some(done),
            Err(panic) => {
                self.fail(panic.as_ref());
                None
            }
        }
    }

    fn fail(&mut self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let reason = text.unwrap_or("its thread panicked").to_owned();
        tracing::error!(reason, "the LinkDB fails, there are no forecasts; it is begun anew");
        self.failures += 1;
        self.failed = Some(reason);
        // What is broken may break again where what waits is written, and where it is given up.
        let mut worker = self.worker.take();
        let saved = catch_unwind(AssertUnwindSafe(|| worker.as_mut().map(Worker::save)));
        if saved.is_err() {
            tracing::error!("what the LinkDB had not written is lost");
        }
        let _ = catch_unwind(AssertUnwindSafe(move || drop(worker)));
    }

    fn build(&mut self) {
        let mut worker = Worker::new(&self.options);
        for (&session, peer) in &self.sessions {
            let up = Input::Up { session, peer: peer.clone() };
            worker.take(Instant::now(), wall_ms(), up);
        }
        (self.worker, self.failed) = (Some(worker), None);
    }

    /// When a worker is built anew; none while there is one.
    fn rebuild_at(&self, now: Instant) -> Option<Instant> {
        let soonest = self.rebuilt_at.map_or(now, |last| last + REBUILD_APART);
        self.worker.is_none().then_some(soonest)
    }

    /// False when it is to end.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        if self.rebuild_at(now).is_some_and(|at| at <= now) {
            self.rebuilt_at = Some(now);
            // Another numbers other trips; the one before may have counted on from its seed.
            self.options.seed = self.options.seed.wrapping_add(SEED_APART);
            self.build();
        }
        match self.received.recv_timeout(self.wait(now)) {
            Ok(message) => {
                if !self.take(message) {
                    return false;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        // What came together is done together, before there is an answer.
        for _ in 1..BATCH {
            match self.received.try_recv() {
                Ok(message) => {
                    if !self.take(message) {
                        return false;
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        if let Some(worker) = &mut self.worker {
            worker.on_timeout(Instant::now(), wall_ms());
        }
        self.speak();
        let written = |worker: &mut Worker| worker.write(Instant::now(), wall_ms());
        if self.worker.as_mut().is_some_and(written) {
            self.speak();
        }
        true
    }

    /// For how long nothing is to be done if nothing comes.
    fn wait(&self, now: Instant) -> Duration {
        let at = match &self.worker {
            Some(worker) => worker.next_timeout(),
            None => self.rebuild_at(now),
        };
        let wait = at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        if self.unsaid.is_empty() { wait } else { wait.min(SAY_AGAIN) }
    }

    /// False when it is to end.
    fn take(&mut self, message: Message) -> bool {
        while let Ok(order) = self.ordered.try_recv() {
            match &order {
                Input::Up { session, peer } => {
                    self.sessions.insert(*session, peer.clone());
                }
                Input::Down(session) => {
                    self.sessions.remove(session);
                }
                Input::Retune(tuning) => self.options.tuning = *tuning,
                _ => {}
            }
            self.work(order);
        }
        match message {
            Message::Order => {}
            Message::Input(_) if self.worker.is_none() => {
                self.counts.inputs.fetch_add(1, Ordering::Relaxed);
            }
            Message::Input(input) => self.work(input),
            // Somebody who went away misses nothing.
            Message::State(reply) => drop(reply.try_send(self.state())),
            Message::Stop => return false,
            #[cfg(test)]
            Message::Panic => panic!("as the test wants it"),
        }
        !self.hurry.load(Ordering::Relaxed)
    }

    fn work(&mut self, input: Input) {
        if let Some(worker) = &mut self.worker {
            worker.take(Instant::now(), wall_ms(), input);
        }
    }

    fn state(&self) -> LinkDbState {
        let mut state = match &self.worker {
            Some(worker) => worker.state(Instant::now()),
            None => LinkDbState {
                store: StoreState { path: self.options.path.clone(), ..StoreState::default() },
                forecast: self.options.tuning.forecast,
                guard: self.options.tuning.guard,
                ..LinkDbState::default()
            },
        };
        state.failed.clone_from(&self.failed);
        state.failures = self.failures;
        state.inputs_dropped += self.counts.inputs.load(Ordering::Relaxed);
        state.outputs_dropped = self.counts.outputs.load(Ordering::Relaxed);
        state
    }

    /// Hands over what there is to say. What a data plane has no room for waits, and it is woken to
    /// make some; of what does not find room here either, forecasts and telemetry are told again,
    /// and databases ask again.
    fn speak(&mut self) {
        while let Some(output) = self.worker.as_mut().and_then(|one| one.poll(Instant::now())) {
            if !self.unsaid.put(output) {
                self.counts.outputs.fetch_add(1, Ordering::Relaxed);
            }
        }
        let sender = &self.output;
        let said = self.unsaid.give(|output| match sender.try_send(output) {
            Err(TrySendError::Full(output)) => Err(output),
            // One that is gone needs nothing.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        });
        if said > 0
            && let Err(error) = self.options.waker.wake()
        {
            tracing::error!(%error, "cannot wake the data plane");
        }
    }
}

impl Worker {
    fn new(options: &Options) -> Self {
        let now = Instant::now();
        let Options { role, path, tuning, seed, waker: _ } = options;
        let keeper = Keeper::open(now, path.clone(), *tuning);
        match role {
            Role::Train => Self::Train(Box::new(Train::new(now, keeper, *tuning, *seed))),
            Role::Ground => Self::Ground(Box::new(Ground::new(now, keeper, *tuning))),
        }
    }

    fn take(&mut self, now: Instant, wall_ms: u64, input: Input) {
        match self {
            Self::Train(train) => train.take(now, wall_ms, input),
            Self::Ground(ground) => ground.take(now, wall_ms, input),
        }
    }

    fn on_timeout(&mut self, now: Instant, wall_ms: u64) {
        match self {
            Self::Train(train) => train.on_timeout(now, wall_ms),
            Self::Ground(ground) => ground.on_timeout(now, wall_ms),
        }
    }

    /// Does what waits for the disk. True when there may be more to say then.
    fn write(&mut self, now: Instant, wall_ms: u64) -> bool {
        match self {
            Self::Train(train) => {
                train.write(now, wall_ms);
                true
            }
            Self::Ground(ground) => ground.write(now, wall_ms),
        }
    }

    fn poll(&mut self, now: Instant) -> Option<Output> {
        match self {
            Self::Train(train) => train.poll(now),
            Self::Ground(ground) => ground.poll(now),
        }
    }

    /// When it has something to do though nothing comes; none: now.
    fn next_timeout(&self) -> Option<Instant> {
        match self {
            Self::Train(train) => Some(train.next_timeout()),
            Self::Ground(ground) => ground.next_timeout(),
        }
    }

    fn state(&self, now: Instant) -> LinkDbState {
        match self {
            Self::Train(train) => train.state(now),
            Self::Ground(ground) => ground.state(now),
        }
    }

    /// Writes what was seen here, and leaves all else as it is.
    fn save(&mut self) {
        let now = Instant::now();
        match self {
            Self::Train(train) => train.save(now),
            Self::Ground(ground) => ground.close(now),
        }
    }

    fn close(&mut self) {
        let now = Instant::now();
        match self {
            Self::Train(train) => train.close(now, wall_ms()),
            Self::Ground(ground) => ground.close(now),
        }
    }
}

/// Milliseconds since 1970; a clock before that is 1970.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Inputs that are taken before the outputs are looked at.
const BATCH: usize = 256;
/// How often what the data plane had no room for is tried again.
const SAY_AGAIN: Duration = Duration::from_millis(10);
/// More than the pilots of one worker.
const SEED_APART: u64 = 1 << 32;
/// After the first time a worker is built anew so long after the last time at the soonest.
const REBUILD_APART: Duration = Duration::from_secs(60);
