//! What all sources share: where their observations go, and how they are tried again.

use std::fmt::Display;
use std::time::Duration;

use polyrail_model::Observation;

use super::queue::ObservationSender;
use super::state::{Monitor, SourcePhase, SourceState};

/// A source's way out.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    pub(super) out: ObservationSender,
    pub(super) monitor: Monitor,
}

/// How long is waited before a source is tried again: twice as long each time.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    /// Whether the operator knows that the source is not there.
    told: bool,
}

/// The first wait and the longest.
pub(super) const WAIT_MIN: Duration = Duration::from_secs(1);
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

impl Sink {
    /// Hands an observation on.
    pub(super) fn observe(&self, observation: Observation) {
        self.monitor.observed();
        self.out.send(observation);
    }

    /// The source is there.
    pub(super) fn connected(&self, message: Option<String>) {
        self.monitor.is(SourcePhase::Connected, message);
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: WAIT_MIN, told: false }
    }
}

impl Backoff {
    /// The source works: the next loss is news again.
    pub(super) fn reset(&mut self, sink: &Sink) {
        if std::mem::take(&mut self.told) {
            let SourceState { source, target, .. } = sink.monitor.state();
            tracing::info!(source = source.as_str(), target, "telemetry is back");
        }
        self.next = WAIT_MIN;
    }

    /// The source was lost, or not found: says so, once, and waits.
    pub(super) async fn pause(&mut self, sink: &Sink, reason: impl Display) {
        let state = sink.monitor.state();
        let (source, target, reason) = (state.source.as_str(), state.target, reason.to_string());
        if std::mem::replace(&mut self.told, true) {
            tracing::debug!(source, target, reason, "still no telemetry");
        } else {
            tracing::warn!(source, target, reason, "no telemetry from this source; trying again");
        }
        sink.monitor.is(SourcePhase::Waiting, Some(reason));
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(WAIT_MAX);
        sink.monitor.is(SourcePhase::Connecting, None);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::telemetry::queue::observations;
    use crate::telemetry::state::SourceKind;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_bound_and_begin_anew() {
        let monitor = Monitor::new(SourceKind::Gpsd, "here".to_owned());
        let sink = Sink { out: observations(1).0, monitor };
        let mut backoff = Backoff::default();
        let mut waits = Vec::new();
        for round in 0..8 {
            if round == 7 {
                backoff.reset(&sink);
            }
            let begun = Instant::now();
            backoff.pause(&sink, "gone").await;
            waits.push(begun.elapsed().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 1]);
        assert_eq!(sink.monitor.state().state, SourcePhase::Connecting);
    }
}
