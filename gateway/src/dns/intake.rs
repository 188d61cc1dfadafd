//! When a datagram socket is asked for datagrams, and what its errors mean.
//!
//! Readiness is edge-triggered: what waits raises no further event, so the intake stays ready
//! until the socket says that nothing waits. An error concerns one datagram or one moment: it is
//! logged and the next datagram is asked for. Only a socket that answers [`ERRORS_MAX`] times in a
//! row with errors is left alone until its next event, so that a broken one cannot keep the loop
//! busy.

use std::io;
use std::time::Instant;

use polyrail_relay::LogLimiter;

/// Errors in a row after which the socket's next event is awaited.
pub const ERRORS_MAX: usize = 64;

/// One datagram socket's readiness.
#[derive(Debug, Default)]
pub struct Intake {
    ready: bool,
    errors: usize,
    notices: LogLimiter,
}

impl Intake {
    /// The socket's token was ready.
    pub fn on_ready(&mut self) {
        self.ready = true;
    }

    /// Whether datagrams may wait.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Asks `receive` for one datagram; it answers `WouldBlock` when none waits. `None`: wait for
    /// the socket's next event.
    pub fn take<T>(
        &mut self,
        now: Instant,
        mut receive: impl FnMut() -> io::Result<T>,
    ) -> Option<T> {
        while self.ready {
            match receive() {
                Ok(datagram) => {
                    self.errors = 0;
                    return Some(datagram);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.ready = false,
                    io::ErrorKind::Interrupted => {}
                    _ => self.fail(now, &error),
                },
            }
        }
        None
    }

    fn fail(&mut self, now: Instant, error: &io::Error) {
        self.errors += 1;
        if self.errors >= ERRORS_MAX {
            self.errors = 0;
            self.ready = false;
        }
        if let Some(left_out) = self.notices.permit(now) {
            tracing::warn!(%error, left_out, "a DNS query could not be received");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(number: i32) -> io::Result<u32> {
        Err(io::Error::from_raw_os_error(number))
    }

    #[test]
    fn an_error_costs_one_datagram_and_no_time() {
        let now = Instant::now();
        let mut waiting = vec![
            error(libc::EWOULDBLOCK),
            Ok(2),
            error(libc::EINTR),
            error(libc::ENOBUFS),
            Ok(1),
            Err(io::Error::other("a datagram without addresses")),
        ];
        let mut intake = Intake::default();
        assert_eq!(intake.take(now, || Ok(0)), None, "not ready yet");
        intake.on_ready();
        let mut next = || waiting.pop().unwrap();
        assert_eq!(intake.take(now, &mut next), Some(1));
        assert_eq!(intake.take(now, &mut next), Some(2), "at the same time");
        assert!(intake.is_ready());
        assert_eq!(intake.take(now, &mut next), None);
        assert!(!intake.is_ready());
    }

    #[test]
    fn a_broken_socket_does_not_keep_the_loop_busy() {
        let now = Instant::now();
        let mut intake = Intake::default();
        let mut calls = 0;
        for round in 1..=2 {
            intake.on_ready();
            let broken = || {
                calls += 1;
                error(libc::ENOMEM)
            };
            assert_eq!(intake.take(now, broken), None);
            assert_eq!((calls, intake.is_ready()), (round * ERRORS_MAX, false));
        }
        intake.on_ready();
        assert_eq!(intake.take(now, || Ok(1)), Some(1), "mended");
    }
}
