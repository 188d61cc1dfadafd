//! One user's (or server's) TCP connection, joined to a flow.
//!
//! ```text
//!   read side:   Open ──end of stream──> Ended            (endpoint.finish)
//!   write side:  Open ──flow finished──> Ended            (shutdown of the socket)
//!   both Ended ──> done: the socket is closed in order
//!   the socket fails ──> received data is read, then the flow is reset
//! ```
//!
//! Readiness is edge-triggered and kept here; a side without room continues when the session
//! reports room.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use polyrail_model::UserId;
use polyrail_session::{Endpoint, FlowKey, ResetReason};
use socket2::{SockRef, TcpKeepalive};

use crate::leg_buffers::LegBuffer;

/// Idle time before a keep-alive probe on a leg, and between probes.
pub const KEEPALIVE: Duration = Duration::from_secs(60);

/// How long a leg's peer may leave data unacknowledged (`TCP_USER_TIMEOUT`).
pub const USER_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes that a leg's kernel takes before it can send them (`TCP_NOTSENT_LOWAT`): a reader that is
/// fast and then stops leaves no more behind than this and the bytes in flight.
const UNSENT_MAX: u32 = 128 * 1024;

/// The maximum number of bytes that one leg moves in each direction in its turn.
pub const LEG_BYTES: usize = 128 * 1024;

#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) stream: TcpStream,
    pub(crate) flow: FlowKey,
    /// The kernel's receive buffer.
    pub(crate) buffer: LegBuffer,
    /// When a byte last moved.
    pub(crate) moved_at: Instant,
    /// It is in the queue of legs to serve.
    pub(crate) queued: bool,
    /// The session has reported unread bytes, or may have before the leg existed; it reports them
    /// once until they are read.
    pub(crate) told: bool,
    /// Bytes read from the socket since the last [`Leg::take_read`].
    read: usize,
    readable: bool,
    writable: bool,
    read_ended: bool,
    write_ended: bool,
    failed: bool,
}

/// The result of a leg's turn.
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
    pub(crate) fn new(
        now: Instant,
        stream: TcpStream,
        flow: FlowKey,
        user: Option<UserId>,
    ) -> Self {
        if let Err(error) = set_options(&SockRef::from(&stream)) {
            // The connection may have failed: reading returns the error.
            tracing::debug!(%error, "options of a connection");
        }
        Self {
            buffer: LegBuffer::new(&stream, flow.session, user),
            stream,
            flow,
            read: 0,
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

    /// Whether the socket may have unread bytes.
    pub(crate) fn has_unread(&self) -> bool {
        self.readable && !self.read_ended
    }

    /// Bytes read from the socket since the last call.
    pub(crate) fn take_read(&mut self) -> usize {
        std::mem::take(&mut self.read)
    }

    /// Moves bytes within the turn's bound; adds their number to `moved`.
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

    /// Moves bytes from the flow to the socket; true if the bound stopped it.
    fn write_out(&mut self, now: Instant, endpoint: &mut Endpoint, moved: &mut usize) -> bool {
        let mut budget = LEG_BYTES;
        while self.writable && !self.write_ended && !self.failed {
            let [first, second] = endpoint.readable(self.flow);
            if first.is_empty() && second.is_empty() {
                if endpoint.finished(self.flow) {
                    // Fails only if the connection has failed, which reading reports, too.
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

    /// Moves bytes from the socket to the flow; true if the bound stopped it.
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
                    self.read += read;
                    budget = budget.saturating_sub(read);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.readable = false;
                        // The write side has taken the error already.
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

/// The reset reason for a socket's failure.
fn reason_of(error: &io::Error) -> ResetReason {
    match error.raw_os_error() {
        Some(libc::ETIMEDOUT) => ResetReason::TimedOut,
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => ResetReason::Unreachable,
        _ => ResetReason::PeerReset,
    }
}

fn set_options(socket: &SockRef<'_>) -> io::Result<()> {
    // After a crash, half a download must not look complete: until both directions have ended,
    // closing the socket resets the connection.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_out_of_band_inline(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_tcp_notsent_lowat(UNSENT_MAX)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    socket.set_tcp_keepalive(&keepalive)
}
