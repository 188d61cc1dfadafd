//! Telemetry sources: train position and serving cells from gpsd, ModemManager and NDJSON lines.
//!
//! [`Telemetry`] runs the configured sources on one thread with its own tokio runtime and passes
//! each [`Observation`] to a callback, which must not block. A source that is unavailable is
//! logged once and retried with backoff; it does not affect the others. This crate neither learns
//! nor forecasts.

#![forbid(unsafe_code)]

mod gpsd;
mod lines;
mod modem_manager;
mod replay;
mod source;
mod state;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polyrail_model::Observation;
use tokio::runtime::Builder;
use tokio::sync::watch::{self, Receiver};
use tokio::task::JoinSet;

pub use replay::route_id;
use source::{Observer, Source};
pub use state::{SourceKind, SourcePhase, SourceState, SourceStates};

/// The sources to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TelemetrySettings {
    /// The address of gpsd, if it is used.
    pub gpsd: Option<SocketAddr>,
    /// The bus of ModemManager, if it is used.
    pub modem_manager: Option<MessageBus>,
    /// A file, named pipe or Unix socket with NDJSON lines, if one is used.
    pub replay: Option<PathBuf>,
    /// The carriers to report; observations of other carriers are dropped.
    pub carriers: Vec<CarrierModem>,
}

/// A D-Bus message bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageBus {
    /// The system bus.
    System,
    /// The bus at this address, as `unix:path=/run/dbus/system_bus_socket`.
    Address(String),
}

/// How to find a carrier's modem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarrierModem {
    /// The carrier's name.
    pub name: String,
    /// The network interface that the carrier is bound to.
    pub interface: Option<String>,
    /// The modem's object path, device or equipment identifier. Without it, the modem that owns
    /// `interface` is used.
    pub modem: Option<String>,
}

/// The running sources. Dropping it stops them.
#[derive(Debug)]
pub struct Telemetry {
    settings: watch::Sender<TelemetrySettings>,
    states: SourceStates,
}

impl Telemetry {
    /// Starts the sources on a thread of their own. `observe` is called on that thread for each
    /// observation.
    ///
    /// # Errors
    /// The system cannot start the thread or its runtime.
    pub fn start(
        settings: TelemetrySettings,
        observe: impl Fn(Observation) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (sender, receiver) = watch::channel(settings);
        let states = SourceStates::default();
        let running = run(receiver, Arc::new(observe), states.clone());
        std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            runtime.block_on(running);
            runtime.shutdown_timeout(END_WAIT);
        })?;
        Ok(Self { settings: sender, states })
    }

    /// Starts, stops and restarts sources whose settings changed; the others continue.
    pub fn set(&self, settings: TelemetrySettings) {
        self.settings.send_if_modified(|current| {
            let changed = *current != settings;
            *current = settings;
            changed
        });
    }

    /// The states of the sources, readable from any thread.
    pub fn states(&self) -> SourceStates {
        self.states.clone()
    }
}

impl fmt::Display for MessageBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("the system bus"),
            Self::Address(address) => f.write_str(address),
        }
    }
}

/// Runs the sources until the sender of settings is dropped.
async fn run(mut settings: Receiver<TelemetrySettings>, observe: Observer, states: SourceStates) {
    let mut tasks = Tasks {
        observe,
        states,
        carriers: watch::Sender::default(),
        settings: TelemetrySettings::default(),
        gpsd: None,
        modem_manager: None,
        replay: None,
    };
    loop {
        let new = settings.borrow_and_update().clone();
        tasks.update(new);
        if settings.changed().await.is_err() {
            return;
        }
    }
}

/// The running source tasks; each is aborted when its set is dropped.
struct Tasks {
    observe: Observer,
    states: SourceStates,
    /// The carriers' names, for a replay, which continues when they change.
    carriers: watch::Sender<Vec<String>>,
    settings: TelemetrySettings,
    gpsd: Option<JoinSet<()>>,
    modem_manager: Option<JoinSet<()>>,
    replay: Option<JoinSet<()>>,
}

impl Tasks {
    fn update(&mut self, new: TelemetrySettings) {
        let old = std::mem::replace(&mut self.settings, new.clone());
        let names = new.carriers.iter().map(|carrier| carrier.name.clone()).collect();
        self.carriers.send_replace(names);
        if new.gpsd != old.gpsd {
            let target = new.gpsd.map(|address| (address.to_string(), address));
            self.gpsd = self.start(SourceKind::Gpsd, target, gpsd::run);
        }
        if (&new.modem_manager, &new.carriers) != (&old.modem_manager, &old.carriers) {
            let target = new.modem_manager.map(|bus| (bus.to_string(), bus));
            let run = |bus, source| modem_manager::run(bus, new.carriers, source);
            self.modem_manager = self.start(SourceKind::ModemManager, target, run);
        }
        if new.replay != old.replay {
            let target = new.replay.map(|path| (path.display().to_string(), path));
            let carriers = self.carriers.subscribe();
            let run = |path, source| replay::run(path, carriers, source);
            self.replay = self.start(SourceKind::Replay, target, run);
        }
    }

    fn start<T, F: Future<Output = ()> + Send + 'static>(
        &self,
        kind: SourceKind,
        target: Option<(String, T)>,
        run: impl FnOnce(T, Source) -> F,
    ) -> Option<JoinSet<()>> {
        self.states.remove(kind);
        let (name, target) = target?;
        tracing::info!(source = kind.as_str(), target = name, "telemetry source started");
        let monitor = self.states.insert(kind, name);
        let source = Source { observe: self.observe.clone(), monitor };
        let mut task = JoinSet::new();
        task.spawn(run(target, source));
        Some(task)
    }
}

/// How long blocking calls may delay the end of the thread.
const END_WAIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
