//! The control thread: its tasks, and how it begins and ends.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use super::desk::{Desk, Running};
use super::handle::{Ends, Wires};
use super::reloading::{READERS_MAX, seals};
use super::socket::{self, Socket};
use super::stream::Stream;
use super::{AdminHandle, Command, DaemonConfig, Event, Loaded, Timestamp, connection, routes};
use crate::links;
use crate::telemetry::{self, Board, ObservationSender};
use polyrail_config::log::LogHandle;
use polyrail_config::{Admin, Overrides};
use polyrail_predictor::worker::Feeder;

/// The control thread of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct AdminServer;

/// What the control thread is told at its start.
#[derive(Debug)]
pub struct AdminOptions<C> {
    /// The configuration that the daemon starts with; its `[admin]` says whether there is a
    /// socket.
    pub config: C,
    /// The file it came from, read again by each reload.
    pub file: PathBuf,
    /// What the command line said over it.
    pub overrides: Overrides,
    /// The daemon's log, whose level, format and file a reload may change.
    pub log: Option<LogHandle>,
    /// Wakes the data plane when there is a command.
    pub waker: Arc<mio::Waker>,
    /// Whether the interfaces of the carriers are watched.
    pub watch_links: bool,
    /// Asks the LinkDB how it is, where there is one.
    pub linkdb: Option<Feeder>,
    /// Reads the certificate files and builds of them what the data plane needs; or says why they
    /// are of no use. Called for a reload, on a thread that may wait.
    pub load: fn(&C) -> Result<Loaded, String>,
}

/// Clients of the socket at once; further ones wait until one is served or cut off.
pub(super) const CONNECTIONS_MAX: usize = 32;

/// How long tasks may take to end when the daemon does.
const END_WAIT: Duration = Duration::from_millis(500);

/// How long is waited after the system refused a connection, as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl AdminServer {
    /// Makes the socket, if one is wanted, and starts the thread.
    ///
    /// # Errors
    /// The socket cannot be made, or the system has no room for a thread. The message is for the
    /// operator.
    pub fn start<C: DaemonConfig>(options: AdminOptions<C>) -> io::Result<AdminHandle<C>> {
        let bound = options.config.admin().map(|Admin { socket }| socket::bind(socket));
        let bound = bound.transpose()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (mut handle, ends) = AdminHandle::pair();
        let thread = std::thread::Builder::new().name("control".to_owned());
        handle.hold(thread.spawn(move || {
            let Ends { commands, events, wires, ended, observations, sources } = ends;
            let watched = options.watch_links;
            let mut desk = options.into_desk(commands);
            desk.sources = sources;
            desk.observations = Some(observations.clone());
            let run = run(Arc::new(desk), bound, events, wires, observations, watched);
            runtime.block_on(run);
            runtime.shutdown_timeout(END_WAIT);
            drop(ended);
        })?);
        Ok(handle)
    }
}

impl<C: DaemonConfig> AdminOptions<C> {
    pub(crate) fn into_desk(self, commands: std::sync::mpsc::SyncSender<Command<C>>) -> Desk<C> {
        let Self { config, file, overrides, log, waker, watch_links: _, linkdb, load } = self;
        let interfaces = watch::Sender::new(config.interfaces());
        let telemetry = watch::Sender::new(config.telemetry());
        let now = Timestamp::now();
        let seals = seals(config.tls(), |_, _| ());
        Desk {
            commands,
            waker,
            stream: Stream::new(),
            file,
            overrides,
            log,
            started: (Instant::now(), now),
            running: Mutex::new(Running { config, seals, loaded_at: now, reloads: 0, refused: 0 }),
            load,
            linkdb,
            observations: None,
            reloading: tokio::sync::Mutex::default(),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            interfaces,
            telemetry,
            sources: Board::default(),
        }
    }
}

/// Runs all tasks until the handle is dropped.
async fn run<C: DaemonConfig>(
    desk: Arc<Desk<C>>,
    bound: Option<(UnixListener, Socket)>,
    events: mpsc::Receiver<(Timestamp, Event)>,
    wires: Wires,
    observations: ObservationSender,
    watch_links: bool,
) {
    desk.stream.push(Timestamp::now(), Event::Started);
    let Wires { events: _, lost, reload, stop } = wires;
    tokio::spawn(collect(desk.clone(), events, lost));
    tokio::spawn(reload_on_request(desk.clone(), reload));
    if watch_links {
        tokio::spawn(links::watch(desk.clone()));
    }
    tokio::spawn(telemetry::run(desk.telemetry.subscribe(), observations, desk.sources.clone()));
    let (listener, socket) = bound.unzip();
    if let Some(listener) = listener {
        tokio::spawn(accept(desk, listener));
    }
    stop.notified().await;
    drop(socket);
}

/// Brings the data plane's events to the stream.
pub(super) async fn collect<C: DaemonConfig>(
    desk: Arc<Desk<C>>,
    mut events: mpsc::Receiver<(Timestamp, Event)>,
    lost: Arc<std::sync::atomic::AtomicU64>,
) {
    while let Some((at, event)) = events.recv().await {
        desk.stream.push(at, event);
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            desk.stream.push(Timestamp::now(), Event::EventsLost { count });
        }
    }
}

/// Does what SIGHUP asks for. The outcome is logged and stands in the stream.
async fn reload_on_request<C: DaemonConfig>(desk: Arc<Desk<C>>, wanted: Arc<Notify>) {
    loop {
        wanted.notified().await;
        let _ = desk.reload("SIGHUP").await;
    }
}

async fn accept<C: DaemonConfig>(desk: Arc<Desk<C>>, listener: UnixListener) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin socket cannot be served"),
    };
    let router = routes::router(desk);
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = connection::serve(stream, router.clone());
                tokio::spawn(async move {
                    served.await;
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "an admin client was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
