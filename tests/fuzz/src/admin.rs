//! The admin socket: bytes of a client, through HTTP, the router and the commands.
//!
//! Promises: nothing panics, no request reports an internal error, and no change is empty.

use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use polyrail_admin::metrics::MetricsSnapshot;
use polyrail_admin::{
    AdminCommand, AdminError, AdminOptions, COMMANDS_MAX, DrainState, FlowPage, PathChange,
    PathPhase, PathState, Snapshot, StartOptions, UserPage,
};
use polyrail_config::{GatewayConfig, GatewayTables};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};

/// Sends the bytes, in reads of the size of the first one.
pub fn admin(data: &[u8]) {
    let [cut, request @ ..] = data else { return };
    let answer = RESOURCES.with(|Resources { runtime, options }| {
        let (sender, commands) = sync_channel(COMMANDS_MAX);
        let client = Client::new(request, usize::from(*cut).max(1) * 16);
        let mut served = pin!(options().serve(sender, client.clone()));
        runtime.block_on(async {
            for _ in 0..TURNS_MAX {
                tokio::select! {
                    biased;
                    () = &mut served => break,
                    () = tokio::task::yield_now() => commands.try_iter().for_each(answer),
                }
            }
        });
        drop(commands);
        std::mem::take(&mut client.lock().received)
    });
    if !answer.is_empty() {
        let head = String::from_utf8_lossy(&answer[..answer.len().min(64)]);
        let code = head.strip_prefix("HTTP/1.1 ").or(head.strip_prefix("HTTP/1.0 "));
        let code = code.and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        assert!(matches!(code.as_bytes(), [b'2' | b'4', ..] | b"503"), "{head}");
    }
}

/// Answers one command as a data plane with one path would.
fn answer(command: AdminCommand<GatewayTables>) {
    match command {
        AdminCommand::Status(reply) => reply.send(Snapshot::default()),
        AdminCommand::Paths(reply) => reply.send(vec![path()]),
        AdminCommand::Flows { reply, .. } => reply.send(FlowPage::default()),
        AdminCommand::Users { reply, .. } => reply.send(UserPage::default()),
        AdminCommand::Metrics(reply) => reply.send(MetricsSnapshot::default()),
        AdminCommand::Report(_) => {}
        AdminCommand::SetPath { name, change, reply } => {
            assert_ne!(change, PathChange::default(), "an empty change");
            let known = name == "a";
            reply.send(if known { Ok(path()) } else { Err(AdminError::unknown_path(&name)) });
        }
        AdminCommand::SetScheduler { reply, .. } => reply.send(()),
        AdminCommand::Reload { reply, .. } => reply.send(Ok(Vec::new())),
        AdminCommand::Drain { limit, reply } => {
            reply.send(Ok(DrainState { flows: 2, ends_in_s: limit.as_secs_f64() }));
        }
        AdminCommand::Speedtest { order, reply } => {
            assert!(order.is_none_or(|order| (1..=30).contains(&order.seconds)));
            reply.send(Err(AdminError::refused("a speed test runs")));
        }
        AdminCommand::Links(_) | AdminCommand::Usage(_) => {}
    }
}

struct Resources {
    runtime: Runtime,
    options: Box<dyn Fn() -> AdminOptions<GatewayTables>>,
}

thread_local! {
    static RESOURCES: Resources = Resources::new();
}

impl Resources {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let poll = mio::Poll::new().expect("a poll");
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).expect("a waker");
        let (poll, waker) = (Mutex::new(poll), Arc::new(waker));
        let config = GatewayConfig::parse(TEXT, Path::new("/nonexistent/gateway.toml"));
        let config = config.expect("a valid configuration");
        let options = move || {
            // It must outlive its wakers.
            let _ = &poll;
            AdminOptions {
                config: config.clone(),
                start: StartOptions::default(),
                waker: waker.clone(),
                watch_links: false,
                usage: None,
                linkdb: None,
            }
        };
        Self { runtime, options: Box::new(options) }
    }
}

/// A client that sends the input, keeps the answer, and never closes.
#[derive(Clone)]
struct Client(Arc<Mutex<Exchange>>);

struct Exchange {
    unsent: Vec<u8>,
    cut: usize,
    received: Vec<u8>,
}

impl Client {
    fn new(request: &[u8], cut: usize) -> Self {
        let (unsent, received) = (request.to_vec(), Vec::new());
        Self(Arc::new(Mutex::new(Exchange { unsent, cut, received })))
    }

    fn lock(&self) -> MutexGuard<'_, Exchange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Exchange { unsent, cut, .. } = &mut *self.lock();
        if unsent.is_empty() {
            return Poll::Pending;
        }
        let count = unsent.len().min(*cut).min(buffer.remaining());
        buffer.put_slice(&unsent[..count]);
        unsent.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.lock().received.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn path() -> PathState {
    PathState {
        name: "a".to_owned(),
        carrier: "a".to_owned(),
        peer: Some("cloud".to_owned()),
        enabled: true,
        interface: Some("wwan0".to_owned()),
        state: PathPhase::Up,
        ..PathState::default()
    }
}

const TEXT: &str = include_str!("../../../packaging/gateway.toml");
/// Turns of the runtime until a client without further bytes counts as idle.
const TURNS_MAX: usize = 60;
