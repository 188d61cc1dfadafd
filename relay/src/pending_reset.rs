//! Sockets that are to be reset as soon as their peer has what was written before.
//!
//! Closing a socket with a linger time of zero sends RST and throws away what the kernel still
//! holds for the peer. So such a socket waits here until the peer's kernel has acknowledged all,
//! for at most [`FAREWELL_MAX`].

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use socket2::SockRef;

/// How long a reset waits for the peer to acknowledge what precedes it.
pub const FAREWELL_MAX: Duration = Duration::from_secs(10);

/// Resets that wait at once; beyond, a socket is reset at once.
pub const FAREWELLS_MAX: usize = 1024;

/// The sockets that wait.
#[derive(Debug, Default)]
pub(crate) struct Farewells {
    waiting: Vec<(TcpStream, Instant)>,
    look_at: Option<Instant>,
}

impl Farewells {
    /// Takes a socket that is in no poll any more.
    pub(crate) fn add(&mut self, now: Instant, stream: TcpStream) {
        if self.waiting.len() >= FAREWELLS_MAX || is_through(&stream) {
            return reset_socket(stream);
        }
        self.waiting.push((stream, now + FAREWELL_MAX));
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
    // It fails only on a socket that is dead already.
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

/// How often waiting sockets are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
