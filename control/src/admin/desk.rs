//! Where requests meet the data plane: each becomes a command, waits for its answer, and gives up.

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};

use super::reloading::Seals;
use super::stream::Stream;
use super::{
    API_VERSION, AdminError, Answer, Command, ConfigState, DaemonConfig, ErrorCode, Event,
    LinkChange, Loaded, PathChange, PathState, Reply, Status, Timestamp, process,
};
use crate::linkdb::{self, LinkDbState};
use crate::telemetry::{Board, ObservationSender, TelemetryPlan};
use polyrail_config::Overrides;
use polyrail_config::log::LogHandle;
use polyrail_predictor::worker::Feeder;

/// How long the data plane may take to answer.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// What is waited beyond that, so that what the data plane began in time is not taken for undone.
const GRACE: Duration = Duration::from_secs(2);

/// How long an asker waits altogether.
pub(super) const ASKER_WAIT: Duration = ANSWER_WAIT.saturating_add(GRACE);

/// The answer; `None` when the asker has waited long enough. It may still come after that.
pub(super) async fn in_time<T>(answer: &mut Answer<T>) -> Option<Result<T, AdminError>> {
    tokio::time::timeout(ASKER_WAIT, at_last(answer)).await.ok()
}

/// The answer, however late.
pub(super) async fn at_last<T>(answer: &mut Answer<T>) -> Result<T, AdminError> {
    (&mut answer.0).await.map_err(|_| {
        let message = "the data plane left the request without an answer";
        AdminError::new(ErrorCode::Internal, message)
    })
}

/// What an asker hears that waits no longer.
pub(super) fn too_late() -> AdminError {
    let message = "the data plane did not answer in time: look whether it was done";
    AdminError::new(ErrorCode::Timeout, message)
}

/// What all of the control thread's tasks share.
#[derive(Debug)]
pub(crate) struct Desk<C: DaemonConfig> {
    pub(super) commands: SyncSender<Command<C>>,
    pub(super) waker: Arc<mio::Waker>,
    pub(super) stream: Stream,
    pub(super) file: PathBuf,
    pub(super) overrides: Overrides,
    pub(super) log: Option<LogHandle>,
    pub(super) started: (Instant, Timestamp),
    pub(super) running: Mutex<Running<C>>,
    /// See [`AdminOptions::load`](super::AdminOptions::load).
    pub(super) load: fn(&C) -> Result<Loaded, String>,
    /// LinkDB's worker, if one is configured.
    pub(super) linkdb: Option<Feeder>,
    /// The queue of observations, for its counters.
    pub(super) observations: Option<ObservationSender>,
    /// Held while a reload is under way.
    pub(super) reloading: tokio::sync::Mutex<()>,
    /// A permit for each thread that reads files, also when nobody waits for it any more.
    pub(super) readers: Arc<Semaphore>,
    /// The interfaces that matter; see [`DaemonConfig::interfaces`].
    pub(crate) interfaces: watch::Sender<Option<Vec<String>>>,
    /// The sources of telemetry that are wanted.
    pub(super) telemetry: watch::Sender<TelemetryPlan>,
    /// How these are doing.
    pub(super) sources: Board,
}

/// The configuration that the data plane runs with.
#[derive(Debug)]
pub(super) struct Running<C> {
    pub(super) config: C,
    /// What was in its certificate files.
    pub(super) seals: Seals,
    pub(super) loaded_at: Timestamp,
    pub(super) reloads: u64,
    pub(super) refused: u64,
}

impl<C: DaemonConfig> Desk<C> {
    pub(super) fn running(&self) -> MutexGuard<'_, Running<C>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a command over and wakes the data plane; the command back when there is no room.
    pub(crate) fn hand_over(&self, command: Command<C>) -> Result<(), Box<Command<C>>> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(command) | TrySendError::Disconnected(command) => Box::new(command),
        })?;
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the data plane");
        }
        Ok(())
    }

    /// Asks the data plane and waits for its answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command<C>,
    ) -> Result<T, AdminError> {
        let mut answer = self.begin(command)?;
        in_time(&mut answer).await.unwrap_or_else(|| Err(too_late()))
    }

    /// Asks the data plane without waiting.
    pub(super) fn begin<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command<C>,
    ) -> Result<Answer<T>, AdminError> {
        let (reply, answer) = Reply::until(Instant::now() + ANSWER_WAIT);
        if self.hand_over(command(reply)).is_err() {
            let message = "too many requests wait for the data plane: try again";
            return Err(AdminError::new(ErrorCode::Busy, message));
        }
        Ok(answer)
    }

    /// Puts a change of an interface on the stream.
    pub(crate) fn link_changed(&self, change: LinkChange) {
        self.stream.push(Timestamp::now(), Event::LinkChanged(change));
    }

    pub(super) async fn status(&self) -> Result<Status, AdminError> {
        let snapshot = self.ask(Command::Status).await?;
        let running = self.running();
        let config = ConfigState {
            file: self.file.clone(),
            loaded_at: running.loaded_at,
            reloads: running.reloads,
            reloads_refused: running.refused,
        };
        Ok(Status {
            api: API_VERSION.to_owned(),
            role: C::KIND,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.started.1,
            uptime_s: self.started.0.elapsed().as_secs_f64(),
            config,
            process: process::state(self.log.as_ref().map_or(0, LogHandle::lost_lines)),
            snapshot,
        })
    }

    /// How the LinkDB is.
    pub(super) async fn linkdb(&self) -> Result<LinkDbState, AdminError> {
        let Some(worker) = &self.linkdb else {
            let message = "there is no LinkDB: set linkdb.path";
            return Err(AdminError::new(ErrorCode::NotFound, message));
        };
        let busy = || {
            let message = "the LinkDB's thread did not answer in time: try again";
            AdminError::new(ErrorCode::Busy, message)
        };
        let worker = linkdb::state(worker).await.ok_or_else(busy)?;
        let observations_dropped = self.observations.as_ref().map(ObservationSender::dropped);
        Ok(LinkDbState {
            worker,
            sources: self.sources.states(),
            observations_dropped: observations_dropped.unwrap_or_default(),
        })
    }

    pub(super) async fn paths(&self) -> Result<Vec<PathState>, AdminError> {
        self.ask(Command::Paths).await
    }

    pub(super) async fn path(&self, name: &str) -> Result<PathState, AdminError> {
        let paths = self.paths().await?;
        let found = paths.into_iter().find(|path| path.name == name);
        found.ok_or_else(|| AdminError::unknown_path(name))
    }

    pub(super) async fn set_path(
        &self,
        name: String,
        change: PathChange,
    ) -> Result<PathState, AdminError> {
        self.ask(|reply| Command::SetPath { name, change, reply }).await?
    }
}
