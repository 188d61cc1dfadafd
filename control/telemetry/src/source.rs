//! The common part of all sources: the receiver of observations, and the backoff between attempts.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use polyrail_model::Observation;

use super::state::{Monitor, SourcePhase, SourceState};

/// Receives observations; it must not block.
pub(super) type Observer = Arc<dyn Fn(Observation) + Send + Sync>;

/// A source's connection to the rest of the daemon.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) observe: Observer,
    pub(super) monitor: Monitor,
}

/// Exponential backoff between attempts to reach a source.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    /// Whether the current outage was logged.
    logged: bool,
}

/// The first and the longest wait.
pub(super) const WAIT_MIN: Duration = Duration::from_secs(1);
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

impl Source {
    pub(super) fn observe(&self, observation: Observation) {
        self.monitor.count_observation();
        (self.observe)(observation);
    }

    pub(super) fn connected(&self, message: Option<String>) {
        self.monitor.set_phase(SourcePhase::Connected, message);
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("monitor", &self.monitor).finish_non_exhaustive()
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: WAIT_MIN, logged: false }
    }
}

impl Backoff {
    /// The source works: the next outage is logged again.
    pub(super) fn reset(&mut self, source: &Source) {
        if std::mem::take(&mut self.logged) {
            let SourceState { source, target, .. } = source.monitor.state();
            tracing::info!(source = source.as_str(), target, "telemetry source recovered");
        }
        self.next = WAIT_MIN;
    }

    /// Logs an outage once, then waits until the next attempt is due.
    pub(super) async fn pause(&mut self, source: &Source, reason: impl Display) {
        let state = source.monitor.state();
        let (name, target, reason) = (state.source.as_str(), state.target, reason.to_string());
        if std::mem::replace(&mut self.logged, true) {
            tracing::debug!(source = name, target, reason, "telemetry source still unavailable");
        } else {
            tracing::warn!(source = name, target, reason, "telemetry source unavailable; retrying");
        }
        source.monitor.set_phase(SourcePhase::Waiting, Some(reason));
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(WAIT_MAX);
        source.monitor.set_phase(SourcePhase::Connecting, None);
    }
}

/// A source whose observations can be received.
#[cfg(test)]
pub(super) fn recorded(
    kind: super::SourceKind,
) -> (Source, std::sync::mpsc::Receiver<Observation>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let observe = move |observation| sender.send(observation).expect("the test receives");
    let monitor = Monitor::new(kind, "here".to_owned());
    (Source { observe: Arc::new(observe), monitor }, receiver)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::state::SourceKind;

    #[tokio::test(start_paused = true)]
    async fn backoff_doubles_to_its_limit_and_resets() {
        let (source, _observations) = recorded(SourceKind::Gpsd);
        let mut backoff = Backoff::default();
        let mut waits = Vec::new();
        for round in 0..8 {
            if round == 7 {
                backoff.reset(&source);
            }
            let start = Instant::now();
            backoff.pause(&source, "gone").await;
            waits.push(start.elapsed().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 1]);
        assert_eq!(source.monitor.state().state, SourcePhase::Connecting);
    }
}
