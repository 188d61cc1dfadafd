//! One user's (or server's) TCP connection, joined to a flow.
//!
//! ```text
//!   read side:   Open ──end of stream──> Ended            (endpoint.finish)
//!   write side:  Open ──flow finished──> Ended            (shutdown of the socket)
//!   both Ended ──> done: the socket is closed in order
//!   the socket fails ──> what it still delivers is read, then the flow is reset
//! ```
//!
//! Readiness is edge-triggered and remembered here; a side that the session blocks goes on when
//! the session says so.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use polyrail_session::{Endpoint, FlowKey, ResetReason};
use socket2::{SockRef, TcpKeepalive};

/// Idle time before a keep-alive probe on a leg, and between probes.
pub const KEEPALIVE: Duration = Duration::from_secs(60);

/// How long a leg's peer may leave data unacknowledged (`TCP_USER_TIMEOUT`).
pub const USER_TIMEOUT: Duration = Duration::from_secs(120);

/// The most that one leg moves in each direction before others have their turn, in bytes.
pub const LEG_BYTES: usize = 128 * 1024;

#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) stream: TcpStream,
    pub(crate) flow: FlowKey,
    /// When a byte last moved.
    pub(crate) moved_at: Instant,
    /// Stands in the queue of legs to be served.
    pub(crate) queued: bool,
    /// The session said that there is something to read, or may have said so before the leg was
    /// there. It says so once until it is read.
    pub(crate) told: bool,
    readable: bool,
    writable: bool,
    read_ended: bool,
    write_ended: bool,
    failed: bool,
}

/// What became of a leg in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// It waits for its socket or for the session.
    Waits,
    /// It has used up its turn and has more to move.
    HasMore,
    /// Both directions have ended.
    Done,
    /// The socket failed.
    Failed(ResetReason),
}

impl Leg {
    /// Joins a connected socket to a flow and sets the socket's options.
    pub(crate) fn new(now: Instant, stream: TcpStream, flow: FlowKey) -> Self {
        if let Err(error) = set_options(&SockRef::from(&stream)) {
            // The connection may have died meanwhile: reading will tell.
            tracing::debug!(%error, "options of a connection");
        }
        Self {
            stream,
            flow,
            moved_at: now,
            queued: false,
            told: true,
            readable: true,
            writable: true,
            read_ended: false,
            write_ended: false,
            failed: false,
        }
    }

    pub(crate) fn on_ready(&mut self, event: &mio::event::Event) {
        self.failed |= event.is_error();
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.writable |= event.is_writable();
    }

    /// Closes the socket after both directions have ended.
    pub(crate) fn close_in_order(self) {
        // It fails only on a socket that is dead already.
        let _ = SockRef::from(&self.stream).set_linger(None);
    }

    /// Whether exactly one direction has ended.
    pub(crate) fn is_half_closed(&self) -> bool {
        self.read_ended != self.write_ended
    }

    /// Moves what can be moved, within the turn's bound; adds it to `moved`.
    pub(crate) fn serve(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        scratch: &mut [u8],
        moved: &mut usize,
    ) -> Served {
        let before = *moved;
        let more_out = self.write_out(now, endpoint, moved);
        let (more_in, failure) = match self.read_in(now, endpoint, scratch, moved) {
            Ok(more) => (more, None),
            Err(reason) => (false, Some(reason)),
        };
        if *moved != before {
            self.moved_at = now;
        }
        if let Some(reason) = failure {
            return Served::Failed(reason);
        }
        if self.failed && self.read_ended {
            let error = self.stream.take_error().ok().flatten();
            return Served::Failed(error.map_or(ResetReason::PeerReset, |e| reason_of(&e)));
        }
        match (self.read_ended && self.write_ended, more_in || more_out) {
            (true, _) => Served::Done,
            (false, true) => Served::HasMore,
            (false, false) => Served::Waits,
        }
    }

    /// From the flow to the socket; true when the bound stopped it.
    fn write_out(&mut self, now: Instant, endpoint: &mut Endpoint, moved: &mut usize) -> bool {
        let mut budget = LEG_BYTES;
        while self.writable && !self.write_ended && !self.failed {
            let [first, second] = endpoint.readable(self.flow);
            if first.is_empty() && second.is_empty() {
                if endpoint.finished(self.flow) {
                    // It fails only when the connection is gone, which reading tells as well.
                    let _ = self.stream.shutdown(Shutdown::Write);
                    self.write_ended = true;
                } else if std::mem::take(&mut self.told) {
                    endpoint.consume(now, self.flow, 0);
                }
                return false;
            }
            if budget == 0 {
                return true;
            }
            let result = if second.is_empty() {
                self.stream.write(first)
            } else {
                self.stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)])
            };
            match result {
                Ok(written) => {
                    self.told = false;
                    endpoint.consume(now, self.flow, written);
                    *moved += written;
                    budget = budget.saturating_sub(written);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.writable = false,
                    io::ErrorKind::Interrupted => {}
                    _ => {
                        self.failed = true;
                        self.readable = true;
                    }
                },
            }
        }
        false
    }

    /// From the socket to the flow; true when the bound stopped it.
    fn read_in(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        scratch: &mut [u8],
        moved: &mut usize,
    ) -> Result<bool, ResetReason> {
        let mut budget = LEG_BYTES;
        while self.readable && !self.read_ended {
            if budget == 0 {
                return Ok(true);
            }
            let room = endpoint.write_room(self.flow).min(scratch.len());
            if room == 0 {
                return Ok(false);
            }
            match self.stream.read(&mut scratch[..room]) {
                Ok(0) => {
                    self.read_ended = true;
                    if !self.failed {
                        endpoint.finish(now, self.flow);
                    }
                }
                Ok(read) => {
                    let taken = endpoint.write(now, self.flow, &scratch[..read]);
                    debug_assert_eq!(taken, read, "the session takes what it has room for");
                    *moved += read;
                    budget = budget.saturating_sub(read);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.readable = false;
                        // The error was of the write side and is said already.
                        self.read_ended |= self.failed;
                    }
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(reason_of(&error)),
                },
            }
        }
        Ok(false)
    }
}

/// What a socket's failure means for the flow.
fn reason_of(error: &io::Error) -> ResetReason {
    match error.raw_os_error() {
        Some(libc::ETIMEDOUT) => ResetReason::TimedOut,
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => ResetReason::Unreachable,
        _ => ResetReason::PeerReset,
    }
}

fn set_options(socket: &SockRef<'_>) -> io::Result<()> {
    // A process that dies must not make half a download look like a whole one: until both
    // directions have ended, whatever closes the socket resets the connection.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_out_of_band_inline(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    socket.set_tcp_keepalive(&keepalive)
}
