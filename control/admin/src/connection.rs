//! One client's connection: HTTP with limits on time and size.
//!
//! A connection carries one request. A client that does not send the head of its request in time,
//! or stops reading the answer for as long, is disconnected.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Timeout of the request's head, of its body, and of a blocked write of the answer.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of a request's head and of the buffered answer, in bytes.
pub(super) const HEAD_MAX: usize = 16 * 1024;

/// The maximum number of header lines of a request.
const HEADERS_MAX: usize = 64;

/// Serves one connection to its end.
pub(super) async fn serve<I>(io: I, router: Router)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = TokioIo::new(Guarded { io, waiting: None });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .auto_date_header(false)
        .serve_connection(io, TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "admin connection failed");
    }
}

/// A connection that fails if the client does not read for [`CLIENT_TIMEOUT`].
struct Guarded<I> {
    io: I,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<I> Guarded<I> {
    /// Fails a write that is blocked for too long.
    fn guard<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(CLIENT_TIMEOUT)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Guarded<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Guarded<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.guard(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.guard(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.guard(cx, shut)
    }
}
