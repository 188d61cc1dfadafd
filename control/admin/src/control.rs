//! The state of the control thread: it turns requests into commands to the data plane and waits for
//! the answers, with a timeout.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polyrail_config::log::LogHandle;
use polyrail_config::{ChainSpec, Config, Overrides, Tables, TlsConfig};
use polyrail_identity::digest;
use tokio::sync::{Semaphore, watch};

use super::metrics::Scraped;
use super::plane::{ANSWER_WAIT, Plane};
use super::stream::Stream;
use super::{
    API_VERSION, AdminCommand, AdminError, AdminEvent, ConfigState, DrainState, ErrorCode,
    FlowPage, FlowsQuery, LinkChange, LinkDbProbe, PathChange, PathState, PendingReply, Reply,
    Snapshot, SpeedtestOrder, SpeedtestState, Status, Timestamp, UserPage, UsersQuery, merge,
    process,
};

/// Additional wait, so that a command started in time is not reported as late.
const GRACE: Duration = Duration::from_secs(2);

/// How long a client waits altogether.
pub(super) const ASKER_WAIT: Duration = ANSWER_WAIT.saturating_add(GRACE);

/// The answer, however late.
pub(super) async fn at_last<T>(answer: &mut PendingReply<T>) -> Result<T, AdminError> {
    (&mut answer.0).await.map_err(|_| {
        let message = "the data plane dropped the request";
        AdminError::new(ErrorCode::Internal, message)
    })
}

/// The error of a client that waits no longer.
pub(super) fn too_late() -> AdminError {
    let message = "the data plane did not answer in time: look whether it was done";
    AdminError::new(ErrorCode::Timeout, message)
}

/// What a daemon is started with besides its configuration.
#[derive(Debug, Default)]
pub struct StartOptions {
    /// The configuration file, read again by each reload.
    pub file: PathBuf,
    /// Command line options that override the file.
    pub overrides: Overrides,
    /// The log, whose level and format a reload may change.
    pub log: Option<LogHandle>,
}

/// The state shared by the control thread's tasks.
pub(crate) struct Control<C: Tables> {
    pub(super) plane: Plane<C>,
    /// The data planes of further workers (cloud). They get the requests that the first one gets,
    /// except those of a gateway.
    pub(super) others: Vec<Plane<C>>,
    pub(super) stream: Stream,
    pub(super) start: StartOptions,
    pub(super) started: (Instant, Timestamp),
    pub(super) running: Mutex<Running<C>>,
    /// Asks LinkDB for its state, if it is enabled.
    pub(super) linkdb: Option<LinkDbProbe>,
    /// Permits of the readers of events.
    pub(super) readers: Arc<Semaphore>,
    /// The latest metrics.
    pub(super) scraped: Scraped,
    /// Locked during a reload.
    pub(super) reloading: Arc<tokio::sync::Mutex<()>>,
    /// The interfaces that matter; see [`Tables::interfaces`].
    pub(crate) interfaces: watch::Sender<Option<Vec<String>>>,
}

/// The configuration that the data plane runs with.
#[derive(Debug)]
pub(super) struct Running<C> {
    pub(super) config: Config<C>,
    pub(super) digests: Digests,
    pub(super) loaded_at: Timestamp,
    pub(super) reloads: u64,
    pub(super) refused: u64,
}

/// A digest of each certificate file that could be read, by its key.
pub(super) type Digests = BTreeMap<String, [u8; 32]>;

/// The current digests of the files of `[tls]`.
pub(super) fn digests(tls: &TlsConfig) -> Digests {
    let of = |(kind, file)| Some((format!("tls.{kind}"), digest(file).ok()?));
    tls.paths().files().filter_map(of).collect()
}

impl<C: Tables> Control<C> {
    pub(super) fn running(&self) -> MutexGuard<'_, Running<C>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command for the first data plane; returns it if the queue is full.
    pub(crate) fn hand_over(&self, command: AdminCommand<C>) -> Result<(), Box<AdminCommand<C>>> {
        self.plane.hand_over(command)
    }

    /// Sends a command to the first data plane and waits for its answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> AdminCommand<C>,
    ) -> Result<T, AdminError> {
        let mut answer = self.plane.begin(command)?;
        let answer = tokio::time::timeout(ASKER_WAIT, at_last(&mut answer)).await;
        answer.unwrap_or_else(|_| Err(too_late()))
    }

    /// Sends a command to all data planes and waits for all answers.
    pub(super) async fn ask_all<T>(
        &self,
        command: impl Fn(Reply<T>) -> AdminCommand<C>,
    ) -> Result<Vec<T>, AdminError> {
        let planes = std::iter::once(&self.plane).chain(&self.others);
        // All get it, also if one is too busy: the same command again completes it.
        let pending: Vec<_> = planes.map(|plane| plane.begin(&command)).collect();
        let pending: Vec<_> = pending.into_iter().collect::<Result<_, _>>()?;
        let answers = async {
            let mut answers = Vec::new();
            for mut answer in pending {
                answers.push(at_last(&mut answer).await?);
            }
            Ok(answers)
        };
        tokio::time::timeout(ASKER_WAIT, answers).await.unwrap_or_else(|_| Err(too_late()))
    }

    /// Publishes a change of an interface.
    pub(crate) fn link_changed(&self, change: LinkChange) {
        self.stream.push(Timestamp::now(), AdminEvent::LinkChanged(change));
    }

    pub(super) async fn status(&self) -> Result<Status, AdminError> {
        let all = self.ask_all(AdminCommand::Status).await?;
        Ok(self.status_with(merge::snapshots(all)))
    }

    /// The status with this status of the data plane.
    pub(super) fn status_with(&self, snapshot: Snapshot) -> Status {
        let running = self.running();
        let config = ConfigState {
            file: self.start.file.clone(),
            loaded_at: running.loaded_at,
            reloads: running.reloads,
            reloads_refused: running.refused,
        };
        Status {
            api: API_VERSION.to_owned(),
            role: C::ROLE,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.started.1,
            uptime_s: self.started.0.elapsed().as_secs_f64(),
            config,
            process: process::state(),
            snapshot,
        }
    }

    /// LinkDB's state.
    pub(super) async fn linkdb(&self) -> Result<serde_json::Value, AdminError> {
        let Some(probe) = self.linkdb.clone() else {
            let message = "LinkDB is disabled: set linkdb.path";
            return Err(AdminError::new(ErrorCode::NotFound, message));
        };
        let busy = || {
            let message = "LinkDB did not answer in time: try again";
            AdminError::new(ErrorCode::Busy, message)
        };
        let state = tokio::task::spawn_blocking(move || probe()).await;
        state.ok().flatten().ok_or_else(busy)
    }

    pub(super) async fn paths(&self) -> Result<Vec<PathState>, AdminError> {
        self.ask_all(AdminCommand::Paths).await.map(merge::paths)
    }

    pub(super) async fn flows(&self, query: FlowsQuery) -> Result<FlowPage, AdminError> {
        let limit = query.limit;
        let command = |reply| AdminCommand::Flows { query: query.clone(), reply };
        self.ask_all(command).await.map(|pages| merge::flows(limit, pages))
    }

    pub(super) async fn users(&self, query: UsersQuery) -> Result<UserPage, AdminError> {
        let limit = query.limit;
        let command = |reply| AdminCommand::Users { query: query.clone(), reply };
        self.ask_all(command).await.map(|pages| merge::users(limit, pages))
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
        let command = |reply| {
            let (name, change) = (name.clone(), change.clone());
            AdminCommand::SetPath { name, change, reply }
        };
        merge::changes(self.ask_all(command).await?)
    }

    pub(super) async fn set_scheduler(&self, chain: ChainSpec) -> Result<(), AdminError> {
        let command = |reply| AdminCommand::SetScheduler { chain: chain.clone(), reply };
        self.ask_all(command).await.map(|_| ())
    }

    pub(super) async fn drain(&self, limit: Duration) -> Result<DrainState, AdminError> {
        let answers = self.ask_all(|reply| AdminCommand::Drain { limit, reply }).await?;
        let state = merge::drains(answers)?;
        let DrainState { flows, ends_in_s } = state;
        self.stream.push(Timestamp::now(), AdminEvent::Draining { flows, ends_in_s });
        Ok(state)
    }

    pub(super) async fn speedtest(
        &self,
        order: Option<SpeedtestOrder>,
    ) -> Result<SpeedtestState, AdminError> {
        self.ask(|reply| AdminCommand::Speedtest { order, reply }).await?
    }
}
