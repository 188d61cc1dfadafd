//! How each source is doing, for the status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::admin::Timestamp;

/// What a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// gpsd.
    Gpsd,
    /// ModemManager.
    ModemManager,
    /// Lines from a file, a pipe or a socket.
    Replay,
}

/// Where a source stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourcePhase {
    /// It is being reached.
    Connecting,
    /// It is there.
    Connected,
    /// It is not there, and is tried again after a while.
    Waiting,
    /// It has said all that it had to say.
    Ended,
}

/// One source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceState {
    /// What it is.
    pub source: SourceKind,
    /// Where it is: an address, a bus, a path.
    pub target: String,
    /// Where it stands.
    pub state: SourcePhase,
    /// Since when.
    pub since: Timestamp,
    /// When it last said something.
    pub heard_at: Option<Timestamp>,
    /// Lines or messages that it said since the start.
    pub lines: u64,
    /// What was observed through it since the start.
    pub observations: u64,
    /// Lines or messages that could not be understood, and requests that were refused.
    pub errors: u64,
    /// What is to be said of it in words.
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

/// The states of all sources that are in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<Vec<Monitor>>>);

/// One source's place on the board.
#[derive(Clone, Debug)]
pub(super) struct Monitor(Arc<Mutex<SourceState>>);

impl Board {
    /// How the sources are doing, in the order of their kinds.
    pub(crate) fn states(&self) -> Vec<SourceState> {
        let mut states: Vec<_> = self.monitors().iter().map(Monitor::state).collect();
        states.sort_by_key(|state| state.source);
        states
    }

    /// A place for a source, instead of the one that its kind had.
    pub(super) fn place(&self, source: SourceKind, target: String) -> Monitor {
        let monitor = Monitor::new(source, target);
        self.clear(source);
        self.monitors().push(monitor.clone());
        monitor
    }

    /// The source is no longer in use.
    pub(super) fn clear(&self, source: SourceKind) {
        self.monitors().retain(|monitor| monitor.get().source != source);
    }

    fn monitors(&self) -> MutexGuard<'_, Vec<Monitor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Monitor {
    pub(super) fn new(source: SourceKind, target: String) -> Self {
        Self(Arc::new(Mutex::new(SourceState {
            source,
            target,
            state: SourcePhase::Connecting,
            since: Timestamp::now(),
            heard_at: None,
            lines: 0,
            observations: 0,
            errors: 0,
            message: None,
        })))
    }

    /// Where the source stands now.
    pub(super) fn is(&self, phase: SourcePhase, message: Option<String>) {
        let mut state = self.get();
        if state.state != phase {
            state.state = phase;
            state.since = Timestamp::now();
        }
        state.message = message;
    }

    /// What is to be said of it.
    pub(super) fn says(&self, message: Option<String>) {
        self.get().message = message;
    }

    /// It said something.
    pub(super) fn heard(&self) {
        let mut state = self.get();
        state.lines += 1;
        state.heard_at = Some(Timestamp::now());
    }

    /// Something was observed.
    pub(super) fn observed(&self) {
        self.get().observations += 1;
    }

    /// Something was wrong with what it said.
    pub(super) fn failed(&self) {
        self.get().errors += 1;
    }

    pub(super) fn state(&self) -> SourceState {
        self.get().clone()
    }

    fn get(&self) -> MutexGuard<'_, SourceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_one_place() {
        let board = Board::default();
        let first = board.place(SourceKind::Replay, "/a".to_owned());
        let _gpsd = board.place(SourceKind::Gpsd, "127.0.0.1:2947".to_owned());
        first.heard();
        let again = board.place(SourceKind::Replay, "/b".to_owned());
        again.is(SourcePhase::Waiting, Some("no such file".to_owned()));
        again.failed();
        let states = board.states();
        let seen: Vec<_> =
            states.iter().map(|state| (state.source.as_str(), state.lines)).collect();
        assert_eq!(seen, [("gpsd", 0), ("replay", 0)]);
        let json = serde_json::to_value(&states[1]).unwrap();
        assert_eq!((&json["source"], &json["state"]), (&"replay".into(), &"waiting".into()));
        assert_eq!((&json["errors"], &json["message"]), (&1.into(), &"no such file".into()));
        board.clear(SourceKind::Gpsd);
        assert_eq!(board.states().len(), 1);
    }
}
