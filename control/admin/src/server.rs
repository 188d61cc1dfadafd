//! The control thread: its start, its tasks and its end.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use super::control::{Control, Running, StartOptions, digests};
use super::handle::Channels;
use super::plane::Plane;
use super::routes::READERS_MAX;
use super::socket::{self, Socket};
use super::stream::Stream;
use super::{
    AdminCommand, AdminEvent, AdminHandle, LinkDbProbe, Timestamp, connection, metrics, page,
    routes,
};
use crate::{links, usage};
use polyrail_config::{Admin, Config, Tables};
use polyrail_identity::NodeRole;

/// Options of the control thread.
pub struct AdminOptions<C> {
    /// The configuration that the daemon starts with; the socket exists if it has `[admin]`.
    pub config: Config<C>,
    /// Its source.
    pub start: StartOptions,
    /// Wakes the data plane after a command was queued.
    pub waker: Arc<mio::Waker>,
    /// Whether to watch the carriers' interfaces.
    pub watch_links: bool,
    /// The file of the data that carriers with a cap have used; `None`: nothing is counted.
    pub usage: Option<PathBuf>,
    /// Asks LinkDB for its state, if it is enabled.
    pub linkdb: Option<LinkDbProbe>,
}

/// The maximum number of connected clients; further ones wait.
pub(super) const CONNECTIONS_MAX: usize = 32;

/// The same of the metrics.
const SCRAPERS_MAX: usize = 8;

/// How long tasks may delay the end of the thread.
const END_WAIT: Duration = Duration::from_millis(500);

/// Delay after a failed accept, as without descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Creates the socket and the page's listener, if they are configured, and starts the control
/// thread.
///
/// # Errors
/// The socket, the listener or the thread cannot be created. The message is for the operator.
pub fn start<C: Tables>(options: AdminOptions<C>) -> io::Result<AdminHandle<C>> {
    start_with(options, &[]).map(|(handle, _)| handle)
}

/// The same for a daemon with further data planes, each with its waker: returns their handles, too.
/// Requests go to all, and clients see one daemon.
///
/// # Errors
/// As [`start`].
pub fn start_with<C: Tables>(
    options: AdminOptions<C>,
    wakers: &[Arc<mio::Waker>],
) -> io::Result<(AdminHandle<C>, Vec<AdminHandle<C>>)> {
    let admin = options.config.common.admin.as_ref();
    let bound = admin.map(|Admin { socket }| socket::bind(socket)).transpose()?;
    let page = options.config.common.page.as_ref();
    let page = page.map(|page| listen(page.listen, "page.listen")).transpose()?;
    let scraped = options.config.common.metrics;
    let scraped = scraped.map(|scraped| listen(scraped.listen, "metrics.listen")).transpose()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (mut handle, channels) = AdminHandle::pair();
    let (further, senders): (Vec<_>, Vec<_>) = wakers.iter().map(|_| handle.further()).unzip();
    let others = senders.into_iter().zip(wakers.iter().cloned());
    let others = others.map(|(commands, waker)| Plane { commands, waker }).collect();
    let thread = std::thread::Builder::new().name("control".to_owned());
    handle.set_thread(thread.spawn(move || {
        let Channels { commands, events, lost, reload, metered } = channels;
        let watch_links = options.watch_links;
        let usage = options.usage.clone();
        let mut control = options.into_control(commands);
        control.others = others;
        let control = Arc::new(control);
        runtime.block_on(async {
            tokio::spawn(reload_on_request(control.clone(), reload));
            if let Some(listener) = page {
                let router = page::router(control.clone());
                let most = page::CONNECTIONS_MAX;
                tokio::spawn(accept_tcp(listener, router, most, "the status page"));
            }
            let counts =
                usage.map(|path| tokio::spawn(usage::watch(control.clone(), path, metered)));
            run(control, (bound, scraped), events, lost, watch_links).await;
            // It writes its file.
            if let Some(counts) = counts {
                let _ = tokio::time::timeout(END_WAIT, counts).await;
            }
        });
        runtime.shutdown_timeout(END_WAIT);
    })?);
    Ok((handle, further))
}

impl<C: Tables> AdminOptions<C> {
    /// Serves one connection without a socket and a control thread, for the fuzzer. Commands to the
    /// data plane go to `commands`.
    #[doc(hidden)]
    pub async fn serve<I>(self, commands: std::sync::mpsc::SyncSender<AdminCommand<C>>, io: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        connection::serve(io, routes::router(Arc::new(self.into_control(commands)))).await;
    }

    pub(crate) fn into_control(
        self,
        commands: std::sync::mpsc::SyncSender<AdminCommand<C>>,
    ) -> Control<C> {
        let Self { config, start, waker, watch_links: _, usage: _, linkdb } = self;
        let interfaces = watch::Sender::new(config.interfaces());
        let now = Timestamp::now();
        let digests = digests(&config.common.tls);
        Control {
            plane: Plane { commands, waker },
            others: Vec::new(),
            stream: Stream::new(),
            start,
            started: (Instant::now(), now),
            running: Mutex::new(Running {
                config,
                digests,
                loaded_at: now,
                reloads: 0,
                refused: 0,
            }),
            linkdb,
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            scraped: metrics::Scraped::default(),
            reloading: Arc::default(),
            interfaces,
        }
    }
}

/// Runs all tasks until the handle is dropped.
async fn run<C: Tables>(
    control: Arc<Control<C>>,
    (bound, scraped): (Option<(UnixListener, Socket)>, Option<TcpListener>),
    events: mpsc::Receiver<(Timestamp, AdminEvent)>,
    lost: Arc<AtomicU64>,
    watch_links: bool,
) {
    control.stream.push(Timestamp::now(), AdminEvent::Started);
    if watch_links {
        tokio::spawn(links::watch(control.clone()));
    }
    let (listener, socket) = bound.unzip();
    if let Some(listener) = listener {
        tokio::spawn(accept(control.clone(), listener));
    }
    if let Some(listener) = scraped {
        let router = metrics::router(control.clone());
        tokio::spawn(accept_tcp(listener, router, SCRAPERS_MAX, "the metrics"));
    }
    if C::ROLE == NodeRole::Gateway {
        tokio::spawn(metrics::report_to_cloud(control.clone()));
    }
    collect(control, events, lost).await;
    drop(socket);
}

/// Moves the data plane's events to the stream until the handle is dropped.
pub(super) async fn collect<C: Tables>(
    control: Arc<Control<C>>,
    mut events: mpsc::Receiver<(Timestamp, AdminEvent)>,
    lost: Arc<AtomicU64>,
) {
    while let Some((at, event)) = events.recv().await {
        control.stream.push(at, event);
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            control.stream.push(Timestamp::now(), AdminEvent::EventsLost { count });
        }
    }
}

/// Reloads on SIGHUP. The outcome is logged and published.
async fn reload_on_request<C: Tables>(control: Arc<Control<C>>, wanted: Arc<Notify>) {
    loop {
        wanted.notified().await;
        let _ = control.reload("SIGHUP").await;
    }
}

async fn accept<C: Tables>(control: Arc<Control<C>>, listener: UnixListener) {
    match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => {
            let accept = || async { Ok(listener.accept().await?.0) };
            serve_all(accept, routes::router(control), CONNECTIONS_MAX).await;
        }
        Err(error) => tracing::error!(%error, "cannot serve the admin socket"),
    }
}

/// Opens the listener that this key of the configuration demands.
pub(super) fn listen(address: SocketAddr, key: &str) -> io::Result<TcpListener> {
    let open = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    open().map_err(|error: io::Error| {
        let reason = format!("cannot listen on {address} ({key}): {error}");
        io::Error::new(error.kind(), reason)
    })
}

async fn accept_tcp(listener: TcpListener, router: Router, max: usize, what: &str) {
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => {
            let accept = || async { Ok(listener.accept().await?.0) };
            serve_all(accept, router, max).await;
        }
        Err(error) => tracing::error!(%error, "cannot serve {what}"),
    }
}

/// Serves all connections that `accept` returns, at most `max` at once.
async fn serve_all<I, F>(accept: impl Fn() -> F, router: Router, max: usize)
where
    F: Future<Output = io::Result<I>>,
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let seats = Arc::new(Semaphore::new(max));
    loop {
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        match accept().await {
            Ok(stream) => {
                let served = connection::serve(stream, router.clone());
                tokio::spawn(async move {
                    served.await;
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client of the control thread");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
