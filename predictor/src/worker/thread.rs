//! The thread: it takes inputs in batches, runs its role's engine, and hands over outputs.

#![allow(clippy::disallowed_methods, reason = "the thread gives the engines their clock")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::buffered::BufferedStore;
use super::cloud::CloudEngine;
use super::gateway::GatewayEngine;
use super::options::{Notify, Options};
use super::{Engine, Input, Output, StoreState, WorkerState};
use crate::shared::{Answer, News};
use polyrail_model::NodeRole;

pub(super) struct Thread {
    pub(super) options: Options,
    pub(super) received: Receiver<Message>,
    pub(super) output: SyncSender<Output>,
    /// The same of further data planes (cloud), with their notifications.
    pub(super) further: Vec<(SyncSender<Output>, Notify)>,
    pub(super) counts: Arc<Counts>,
    pub(super) shared: Option<Box<dyn Fn() + Send>>,
}

/// A message of the handle.
pub(super) enum Message {
    Input(Input),
    State(SyncSender<WorkerState>),
    /// News of the shared database.
    Share(News, SyncSender<Option<Answer>>),
    /// Called when entries were written that the shared database may lack.
    Waker(Box<dyn Fn() + Send>),
    Stop,
    #[cfg(test)]
    Panic,
}

/// Counters of the channels.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Inputs in the channel.
    pub(super) inputs_waiting: AtomicUsize,
    /// Inputs that were dropped.
    pub(super) inputs_dropped: AtomicU64,
    /// Outputs that were dropped.
    pub(super) outputs_dropped: AtomicU64,
}

/// A message of the handle has ended the thread.
struct Stopped;

impl Thread {
    pub(super) fn run(mut self) {
        let worked = catch_unwind(AssertUnwindSafe(|| self.work()));
        let Err(panic) = worked else { return };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let reason = text.unwrap_or("unknown reason");
        tracing::error!(reason, "LinkDB panicked: forecasts are off until the daemon restarts");
        self.idle(reason);
    }

    fn work(&mut self) {
        let mut engine = engine(&self.options);
        while let Ok(()) = self.turn(&mut *engine) {}
        engine.close(Instant::now(), wall_ms());
    }

    /// After a panic: reports it, and drops and counts inputs.
    fn idle(&self, reason: &str) {
        while let Ok(message) = self.received.recv() {
            match message {
                Message::State(reply) => {
                    let path = self.options.path.clone();
                    let _ = reply.send(self.counted(WorkerState {
                        store: StoreState { path, ..StoreState::default() },
                        forecast: self.options.settings.forecast,
                        failed: Some(reason.to_owned()),
                        failures: 1,
                        ..WorkerState::default()
                    }));
                }
                Message::Input(_) => {
                    self.counts.inputs_waiting.fetch_sub(1, Ordering::Relaxed);
                    self.counts.inputs_dropped.fetch_add(1, Ordering::Relaxed);
                }
                Message::Share(_, reply) => drop(reply.send(None)),
                Message::Waker(_) => {}
                Message::Stop => return,
                #[cfg(test)]
                Message::Panic => {}
            }
        }
    }

    fn turn(&mut self, engine: &mut dyn Engine) -> Result<(), Stopped> {
        let next = engine.next_timeout();
        let wait = next.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        match self.received.recv_timeout(wait) {
            Ok(message) => self.take(engine, message)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
        }
        for _ in 1..BATCH {
            let Ok(message) = self.received.try_recv() else { break };
            self.take(engine, message)?;
        }
        engine.on_timeout(Instant::now(), wall_ms());
        self.hand_over(engine);
        if engine.write(Instant::now(), wall_ms()) {
            self.hand_over(engine);
        }
        if engine.take_unshared()
            && let Some(wake) = &self.shared
        {
            wake();
        }
        Ok(())
    }

    fn take(&mut self, engine: &mut dyn Engine, message: Message) -> Result<(), Stopped> {
        match message {
            Message::Input(input) => {
                self.counts.inputs_waiting.fetch_sub(1, Ordering::Relaxed);
                if let Input::Reload(settings) = &input {
                    self.options.settings = *settings;
                }
                engine.take(Instant::now(), wall_ms(), input);
            }
            Message::State(reply) => {
                let _ = reply.send(self.counted(engine.state(Instant::now())));
            }
            Message::Share(news, reply) => {
                let _ = reply.send(engine.share(Instant::now(), wall_ms(), news));
            }
            Message::Waker(waker) => self.shared = Some(waker),
            Message::Stop => return Err(Stopped),
            #[cfg(test)]
            Message::Panic => panic!("requested by the test"),
        }
        Ok(())
    }

    fn counted(&self, mut state: WorkerState) -> WorkerState {
        state.inputs_dropped += self.counts.inputs_dropped.load(Ordering::Relaxed);
        state.outputs_dropped = self.counts.outputs_dropped.load(Ordering::Relaxed);
        state
    }

    /// Hands over the engine's outputs. If the channel is full, an output is dropped and counted:
    /// the engine repeats forecasts, and databases repeat their requests.
    fn hand_over(&mut self, engine: &mut dyn Engine) {
        let (mut sent, mut dropped) = (vec![false; 1 + self.further.len()], 0);
        while let Some(output) = engine.poll(Instant::now()) {
            let plane: usize = output.session().map_or(0, |session| session.worker(sent.len()));
            let way = plane.checked_sub(1).and_then(|further| self.further.get(further));
            match way.map_or(&self.output, |(output, _)| output).try_send(output) {
                Ok(()) => sent[plane] = true,
                Err(TrySendError::Full(_)) => dropped += 1,
                Err(TrySendError::Disconnected(_)) => {}
            }
        }
        if dropped > 0 {
            self.counts.outputs_dropped.fetch_add(dropped, Ordering::Relaxed);
            engine.repeat_forecasts();
        }
        let notify = std::iter::once(&self.options.notify);
        let notify = notify.chain(self.further.iter().map(|(_, notify)| notify));
        for (notify, _) in notify.zip(sent).filter(|(_, sent)| *sent) {
            notify();
        }
    }
}

fn engine(options: &Options) -> Box<dyn Engine> {
    let now = Instant::now();
    let (settings, seed) = (options.settings, options.seed);
    let path = options.path.clone();
    let store = BufferedStore::open(now, path, settings, options.role, &options.name);
    match options.role {
        NodeRole::Gateway => Box::new(GatewayEngine::new(now, store, settings, seed)),
        NodeRole::Cloud => Box::new(CloudEngine::new(now, store, settings)),
    }
}

/// Milliseconds since 1970.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Messages that are taken before outputs are handed over.
const BATCH: usize = 256;
