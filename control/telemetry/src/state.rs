//! The state of each source, for status reports.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// gpsd.
    Gpsd,
    /// ModemManager.
    ModemManager,
    /// NDJSON lines from a file, a pipe or a socket.
    Replay,
}

/// The phase of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePhase {
    /// It is connecting.
    Connecting,
    /// It is connected.
    Connected,
    /// It is unavailable and waits for the next attempt.
    Waiting,
    /// Its file was played to the end.
    Ended,
}

/// The state of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceState {
    /// Its kind.
    pub source: SourceKind,
    /// Its address, bus or path.
    pub target: String,
    /// Its phase.
    pub state: SourcePhase,
    /// When it entered the phase.
    pub since: SystemTime,
    /// When the last line or message arrived.
    pub heard_at: Option<SystemTime>,
    /// Lines or messages received since the start.
    pub lines: u64,
    /// Observations since the start.
    pub observations: u64,
    /// Invalid lines or messages and refused requests since the start.
    pub errors: u64,
    /// A message for the operator.
    pub message: Option<String>,
}

impl SourceKind {
    /// Its name in logs and in the admin interface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gpsd => "gpsd",
            Self::ModemManager => "modem_manager",
            Self::Replay => "replay",
        }
    }
}

impl SourcePhase {
    /// Its name in the admin interface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Waiting => "waiting",
            Self::Ended => "ended",
        }
    }
}

/// The states of all running sources; clones share them.
#[derive(Clone, Debug, Default)]
pub struct SourceStates(Arc<Mutex<Vec<Monitor>>>);

/// Records the state of one source.
#[derive(Clone, Debug)]
pub(crate) struct Monitor(Arc<Mutex<SourceState>>);

impl SourceStates {
    /// A snapshot of the states, ordered by kind.
    pub fn snapshot(&self) -> Vec<SourceState> {
        let mut states: Vec<_> = self.monitors().iter().map(Monitor::state).collect();
        states.sort_by_key(|state| state.source);
        states
    }

    /// Adds a source; it replaces the previous source of its kind.
    pub(crate) fn insert(&self, source: SourceKind, target: String) -> Monitor {
        let monitor = Monitor::new(source, target);
        self.remove(source);
        self.monitors().push(monitor.clone());
        monitor
    }

    pub(crate) fn remove(&self, source: SourceKind) {
        self.monitors().retain(|monitor| monitor.lock().source != source);
    }

    fn monitors(&self) -> MutexGuard<'_, Vec<Monitor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Monitor {
    pub(crate) fn new(source: SourceKind, target: String) -> Self {
        Self(Arc::new(Mutex::new(SourceState {
            source,
            target,
            state: SourcePhase::Connecting,
            since: SystemTime::now(),
            heard_at: None,
            lines: 0,
            observations: 0,
            errors: 0,
            message: None,
        })))
    }

    pub(crate) fn set_phase(&self, phase: SourcePhase, message: Option<String>) {
        let mut state = self.lock();
        if state.state != phase {
            state.state = phase;
            state.since = SystemTime::now();
        }
        state.message = message;
    }

    pub(crate) fn set_message(&self, message: Option<String>) {
        self.lock().message = message;
    }

    /// Counts a line or message.
    pub(crate) fn count_line(&self) {
        let mut state = self.lock();
        state.lines += 1;
        state.heard_at = Some(SystemTime::now());
    }

    pub(crate) fn count_observation(&self) {
        self.lock().observations += 1;
    }

    /// Counts an invalid line or message, or a refused request.
    pub(crate) fn count_error(&self) {
        self.lock().errors += 1;
    }

    pub(crate) fn state(&self) -> SourceState {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, SourceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_source_replaces_the_previous_one_of_its_kind() {
        let states = SourceStates::default();
        let first = states.insert(SourceKind::Replay, "/a".to_owned());
        let _gpsd = states.insert(SourceKind::Gpsd, "127.0.0.1:2947".to_owned());
        first.count_line();
        let second = states.insert(SourceKind::Replay, "/b".to_owned());
        second.set_phase(SourcePhase::Waiting, Some("no such file".to_owned()));
        second.count_error();
        let seen = states.snapshot();
        let names: Vec<_> = seen.iter().map(|state| (state.source.as_str(), state.lines)).collect();
        assert_eq!(names, [("gpsd", 0), ("replay", 0)]);
        assert_eq!((seen[1].state, seen[1].errors), (SourcePhase::Waiting, 1));
        states.remove(SourceKind::Gpsd);
        assert_eq!(states.snapshot().len(), 1);
    }
}
