//! The control thread: its start, its tasks and its end.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use super::desk::{Desk, Running};
use super::handle::Channels;
use super::reloading::seals;
use super::socket::{self, Socket};
use super::stream::Stream;
use super::{
    AdminHandle, Command, DaemonConfig, Event, LinkDbProbe, Timestamp, connection, routes,
};
use crate::links;
use polyrail_config::log::LogHandle;
use polyrail_config::{Admin, Overrides};

/// The control thread of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct AdminServer;

/// Options of the control thread.
pub struct AdminOptions<C> {
    /// The configuration that the daemon starts with; the socket exists if it has `[admin]`.
    pub config: C,
    /// The configuration file, read again by each reload.
    pub file: PathBuf,
    /// Command line options that override the file.
    pub overrides: Overrides,
    /// The daemon's log, whose level and format a reload may change.
    pub log: Option<LogHandle>,
    /// Wakes the data plane after a command was queued.
    pub waker: Arc<mio::Waker>,
    /// Whether to watch the carriers' interfaces.
    pub watch_links: bool,
    /// Asks LinkDB for its state, if it is enabled.
    pub linkdb: Option<LinkDbProbe>,
}

/// The maximum number of connected clients; further ones wait.
pub(super) const CONNECTIONS_MAX: usize = 32;

/// How long tasks may delay the end of the thread.
const END_WAIT: Duration = Duration::from_millis(500);

/// Delay after a failed accept, as without descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl AdminServer {
    /// Creates the socket, if one is configured, and starts the thread.
    ///
    /// # Errors
    /// The socket or the thread cannot be created. The message is for the operator.
    pub fn start<C: DaemonConfig>(options: AdminOptions<C>) -> io::Result<AdminHandle<C>> {
        let bound = options.config.admin().map(|Admin { socket }| socket::bind(socket));
        let bound = bound.transpose()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (mut handle, channels) = AdminHandle::pair();
        let thread = std::thread::Builder::new().name("control".to_owned());
        handle.set_thread(thread.spawn(move || {
            let Channels { commands, events, lost, reload } = channels;
            let watch_links = options.watch_links;
            let desk = Arc::new(options.into_desk(commands));
            runtime.block_on(async {
                tokio::spawn(reload_on_request(desk.clone(), reload));
                run(desk, bound, events, lost, watch_links).await;
            });
            runtime.shutdown_timeout(END_WAIT);
        })?);
        Ok(handle)
    }
}

impl<C: DaemonConfig> AdminOptions<C> {
    pub(crate) fn into_desk(self, commands: std::sync::mpsc::SyncSender<Command<C>>) -> Desk<C> {
        let Self { config, file, overrides, log, waker, watch_links: _, linkdb } = self;
        let interfaces = watch::Sender::new(config.interfaces());
        let now = Timestamp::now();
        let seals = seals(config.tls());
        Desk {
            commands,
            waker,
            stream: Stream::new(),
            file,
            overrides,
            log,
            started: (Instant::now(), now),
            running: Mutex::new(Running { config, seals, loaded_at: now, reloads: 0, refused: 0 }),
            linkdb,
            reloading: Arc::default(),
            interfaces,
        }
    }
}

/// Runs all tasks until the handle is dropped.
async fn run<C: DaemonConfig>(
    desk: Arc<Desk<C>>,
    bound: Option<(UnixListener, Socket)>,
    events: mpsc::Receiver<(Timestamp, Event)>,
    lost: Arc<AtomicU64>,
    watch_links: bool,
) {
    desk.stream.push(Timestamp::now(), Event::Started);
    if watch_links {
        tokio::spawn(links::watch(desk.clone()));
    }
    let (listener, socket) = bound.unzip();
    if let Some(listener) = listener {
        tokio::spawn(accept(desk.clone(), listener));
    }
    collect(desk, events, lost).await;
    drop(socket);
}

/// Moves the data plane's events to the stream until the handle is dropped.
pub(super) async fn collect<C: DaemonConfig>(
    desk: Arc<Desk<C>>,
    mut events: mpsc::Receiver<(Timestamp, Event)>,
    lost: Arc<AtomicU64>,
) {
    while let Some((at, event)) = events.recv().await {
        desk.stream.push(at, event);
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            desk.stream.push(Timestamp::now(), Event::EventsLost { count });
        }
    }
}

/// Reloads on SIGHUP. The outcome is logged and published.
async fn reload_on_request<C: DaemonConfig>(desk: Arc<Desk<C>>, wanted: Arc<Notify>) {
    loop {
        wanted.notified().await;
        let _ = desk.reload("SIGHUP").await;
    }
}

async fn accept<C: DaemonConfig>(desk: Arc<Desk<C>>, listener: UnixListener) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve the admin socket"),
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
                tracing::warn!(%error, "cannot accept an admin client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
