//! The readiness of listeners and datagram sockets, with pauses after errors.

use std::io;
use std::time::{Duration, Instant};

/// The readiness of one listener, and its pause after an error.
///
/// Readiness is edge-triggered: connections that are queued raise no further event. So the gate
/// stays ready until the listener returns `WouldBlock`, also over a pause.
#[derive(Debug, Default)]
pub struct AcceptGate {
    ready: bool,
    paused_until: Option<Instant>,
    warned_at: Option<Instant>,
}

impl AcceptGate {
    /// The listener's token was ready.
    pub fn on_ready(&mut self) {
        self.ready = true;
    }

    /// When [`AcceptGate::take`] is to be called without an event: now while the gate is open.
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        self.ready.then(|| self.paused_until.map_or(now, |until| until.max(now)))
    }

    /// Whether connections may be queued and no pause holds.
    pub fn is_open(&self, now: Instant) -> bool {
        self.ready && self.paused_until.is_none_or(|until| until <= now)
    }

    /// Pauses for `PAUSE` if the gate is open: a limit of the caller's is reached.
    pub fn pause_if_open(&mut self, now: Instant) {
        if self.is_open(now) {
            self.pause(now);
        }
    }

    /// Asks `accept` for one connection; it returns `WouldBlock` when none is queued.
    ///
    /// A connection that died in the queue is skipped. After any other error, such as a lack of
    /// descriptors, the gate pauses for `PAUSE` and logs a warning, at most once in ten seconds.
    pub fn take<T>(
        &mut self,
        now: Instant,
        mut accept: impl FnMut() -> io::Result<Option<T>>,
    ) -> Option<T> {
        while self.is_open(now) {
            self.paused_until = None;
            match accept() {
                Ok(Some(connection)) => return Some(connection),
                Ok(None) => self.ready = false,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.ready = false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => self.fail(now, &error),
                },
            }
        }
        None
    }

    fn pause(&mut self, now: Instant) {
        self.paused_until = Some(now + PAUSE);
    }

    fn fail(&mut self, now: Instant, error: &io::Error) {
        self.pause(now);
        if self.warned_at.is_none_or(|at| now.saturating_duration_since(at) >= WARN_EVERY) {
            self.warned_at = Some(now);
            tracing::warn!(
                %error,
                "cannot accept, retrying in 100 ms; raise the limit of open files (LimitNOFILE) if \
                 this persists"
            );
        }
    }
}

/// How long nothing is accepted after an error.
const PAUSE: Duration = Duration::from_millis(100);
/// The least time between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_descriptor_table_pauses_and_drops_no_connection() {
        let mut gate = AcceptGate::default();
        let now = Instant::now();
        assert!(!gate.is_open(now));
        gate.on_ready();
        let mut calls = 0;
        let refused = gate.take(now, || {
            calls += 1;
            Err::<Option<()>, _>(io::Error::from_raw_os_error(libc::EMFILE))
        });
        assert_eq!((refused, calls), (None, 1));
        assert_eq!(gate.next_timeout(now), Some(now + PAUSE));
        assert_eq!(gate.take(now, || Ok(Some(1))), None, "paused");
        assert_eq!(gate.take(now + PAUSE, || Ok(Some(1))), Some(1));
        assert_eq!(gate.take(now + PAUSE, || Ok(None::<()>)), None);
        assert_eq!(gate.next_timeout(now + PAUSE), None);
        assert!(!gate.is_open(now + PAUSE));
    }
}
