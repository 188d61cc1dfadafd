//! Sockets to be reset once their peer has acknowledged all data written before.
//!
//! Closing a socket with a linger time of zero sends RST and discards unacknowledged data. So the
//! socket is kept here until the peer's kernel has acknowledged everything, for at most
//! [`RESET_DELAY_MAX`].

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use socket2::SockRef;

/// How long a reset waits for acknowledgements.
pub const RESET_DELAY_MAX: Duration = Duration::from_secs(10);

/// The maximum number of pending resets; a further socket is reset immediately.
pub const PENDING_RESETS_MAX: usize = 1024;

/// The sockets waiting for acknowledgements.
#[derive(Debug, Default)]
pub(crate) struct PendingResets {
    waiting: Vec<(TcpStream, Instant)>,
    look_at: Option<Instant>,
}

impl PendingResets {
    /// Adds a socket that is no longer registered with a poll.
    pub(crate) fn add(&mut self, now: Instant, stream: TcpStream) {
        if self.waiting.len() >= PENDING_RESETS_MAX || is_through(&stream) {
            return reset_socket(stream);
        }
        self.waiting.push((stream, now + RESET_DELAY_MAX));
        self.look_at.get_or_insert(now + LOOK_EVERY);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| now < at) {
            return;
        }
        for (stream, _) in
            self.waiting.extract_if(.., |(stream, until)| *until <= now || is_through(stream))
        {
            reset_socket(stream);
        }
        self.look_at = (!self.waiting.is_empty()).then(|| now + LOOK_EVERY);
    }
}

fn is_through(stream: &TcpStream) -> bool {
    polyrail_tunnel::unacknowledged(stream.as_fd()).is_ok_and(|bytes| bytes == 0)
}

/// Closes a socket with RST.
pub fn reset_socket(stream: TcpStream) {
    // Fails only if the socket is closed already.
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

/// How often pending sockets are checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);
