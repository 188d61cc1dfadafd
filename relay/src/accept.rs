//! When a listener may be asked for connections.

use std::io;
use std::time::{Duration, Instant};

/// The edge of one listener's readiness, and its pause when descriptors run out.
///
/// Readiness is edge-triggered: what waits in the queue raises no further event. So the gate
/// stays ready until the listener says that nothing waits, also over a pause.
#[derive(Debug, Default)]
pub struct AcceptGate {
    ready: bool,
    paused_until: Option<Instant>,
    told_at: Option<Instant>,
}

impl AcceptGate {
    /// The listener's token was ready.
    pub fn on_ready(&mut self) {
        self.ready = true;
    }

    /// When [`AcceptGate::take`] is to be called without an event.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.paused_until.filter(|_| self.ready)
    }

    /// Whether connections may wait and no pause holds.
    pub fn is_open(&self, now: Instant) -> bool {
        self.ready && self.paused_until.is_none_or(|until| until <= now)
    }

    /// Stops asking for `PAUSE` when connections may wait: a bound of the caller's is reached.
    pub fn pause_if_open(&mut self, now: Instant) {
        if self.is_open(now) {
            self.pause(now);
        }
    }

    /// Asks `accept` for one connection; it answers `WouldBlock` when none waits.
    ///
    /// A connection that died in the queue is passed over. Out of descriptors or memory, the gate
    /// pauses for `PAUSE` and says so in the log, at most once in ten seconds.
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
        if self.told_at.is_none_or(|at| now.saturating_duration_since(at) >= TELL_EVERY) {
            self.told_at = Some(now);
            tracing::warn!(
                %error,
                "no new connections are taken for now: raise the limit of open files \
                 (LimitNOFILE) if this goes on"
            );
        }
    }
}

/// How long no connections are taken after the system refused one.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the log hears of it.
const TELL_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_descriptor_table_pauses_and_loses_nothing() {
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
        assert_eq!(gate.next_timeout(), Some(now + PAUSE));
        assert_eq!(gate.take(now, || Ok(Some(1))), None, "paused");
        assert_eq!(gate.take(now + PAUSE, || Ok(Some(1))), Some(1));
        assert_eq!(gate.take(now + PAUSE, || Ok(None::<()>)), None);
        assert_eq!(gate.next_timeout(), None);
        assert!(!gate.is_open(now + PAUSE));
    }
}
