//! The orderly shutdown of a daemon.
//!
//! ```text
//!   Serving ──begin()──> Draining ──no flow is busy, or DRAIN_MAX──> Closing ──> Over
//!                            └─────────── begin() again ────────────────┘
//! ```
//!
//! A flow is busy while the session holds its data, and for [`QUIET`] after bytes moved. So idle
//! connections, which clients keep open for minutes, do not delay the end.

use std::time::{Duration, Instant};

use polyrail_session::SessionStatus;

use crate::Relay;

/// How long busy flows may continue after the shutdown began.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);

/// The progress of a shutdown.
#[derive(Debug, Default)]
pub struct Shutdown {
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Serving,
    Draining {
        until: Instant,
        look_at: Instant,
        /// Bytes that the relay had moved at the last look, and since when.
        moved: (u64, Instant),
    },
    Closing {
        until: Instant,
    },
    Over,
}

impl Shutdown {
    /// Starts to drain; a second call cuts the drain short. `reason` is sent to the peers.
    pub fn begin(&mut self, now: Instant, relay: &mut Relay, reason: &str) {
        match self.stage {
            Stage::Serving => {
                tracing::info!(legs = relay.leg_count(), "shutting down; busy flows may finish");
                relay.endpoint().go_away(now, reason);
                let moved = (relay.moved_bytes(), now);
                self.stage = Stage::Draining { until: now + DRAIN_MAX, look_at: now, moved };
            }
            Stage::Draining { .. } => self.close(now, relay),
            Stage::Closing { .. } | Stage::Over => self.stage = Stage::Over,
        }
    }

    /// Whether the daemon still accepts new users and peers.
    pub fn takes_new(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Whether tunnels are still needed.
    pub fn wants_tunnels(&self) -> bool {
        matches!(self.stage, Stage::Serving | Stage::Draining { .. })
    }

    /// Whether the daemon may exit.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// When [`Shutdown::on_turn`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.stage {
            Stage::Serving | Stage::Over => None,
            Stage::Draining { until, look_at, .. } => Some(until.min(look_at)),
            Stage::Closing { until } => Some(until),
        }
    }

    /// Advances the shutdown when a step is due.
    pub fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        match &mut self.stage {
            Stage::Serving | Stage::Over => {}
            Stage::Draining { until, look_at, moved } => {
                if now >= *look_at {
                    *look_at = now + LOOK_EVERY;
                    if relay.moved_bytes() != moved.0 {
                        *moved = (relay.moved_bytes(), now);
                    }
                    let quiet = now.saturating_duration_since(moved.1) >= QUIET;
                    let sessions = relay.endpoint_ref().status().sessions;
                    if !sessions.iter().any(|session| is_busy(session, quiet)) || now >= *until {
                        self.close(now, relay);
                    }
                }
            }
            Stage::Closing { until } => {
                if relay.tunnel_count() == 0 || now >= *until {
                    self.stage = Stage::Over;
                }
            }
        }
    }

    /// Resets the remaining flows, tells the peers, and closes the tunnels.
    fn close(&mut self, now: Instant, relay: &mut Relay) {
        if relay.leg_count() > 0 {
            tracing::info!(
                legs = relay.leg_count(),
                "shutting down; resetting the remaining flows"
            );
        }
        relay.abort_all(now);
        relay.turn(now);
        relay.close_all(now);
        self.stage = Stage::Closing { until: now + CLOSE_MAX };
    }
}

/// Whether flows of a session may still finish. `quiet`: no bytes moved lately.
fn is_busy(session: &SessionStatus, quiet: bool) -> bool {
    let held = session.memory_sent.0 + session.memory_received.0 > 0;
    // A session without a path cannot finish its flows.
    session.flows > 0 && !session.paths.is_empty() && (held || !quiet)
}

/// How long after the last byte a flow counts as idle. With [`CLOSE_MAX`], an idle daemon ends
/// within a second.
const QUIET: Duration = Duration::from_millis(400);
/// How long tunnels may take to close: a round trip of a slow carrier.
const CLOSE_MAX: Duration = Duration::from_millis(500);
/// How often a drain checks for open flows.
const LOOK_EVERY: Duration = Duration::from_millis(50);
