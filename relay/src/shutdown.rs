//! The orderly shutdown of a daemon.
//!
//! ```text
//!   Serving ──drain()──> Emptying ────────no flow, or the limit────────┐
//!       │                    │                                         v
//!       └────── begin() ─────┴──> Draining ──no flow is busy,──────> Closing ──> Over
//!                                     │      or DRAIN_MAX              ^
//!                                     └───────── begin() again ────────┘
//! ```
//!
//! A drain waits for the flows that are open, and for the peers that have not heard of it: a
//! gateway whose carriers are all dark may have opened flows. Its session ends after the linger.
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
    /// A drain: flows may continue for as long as the operator permits.
    Emptying {
        until: Instant,
        look_at: Instant,
        /// Until when flows that peers opened before they heard may be on their way.
        not_before: Instant,
    },
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
            Stage::Serving | Stage::Emptying { .. } => {
                tracing::info!(legs = relay.leg_count(), "shutting down; busy flows may finish");
                relay.endpoint().go_away(now, reason);
                let moved = (relay.moved_bytes(), now);
                self.stage = Stage::Draining { until: now + DRAIN_MAX, look_at: now, moved };
            }
            Stage::Draining { .. } => self.close(now, relay),
            Stage::Closing { .. } | Stage::Over => self.stage = Stage::Over,
        }
    }

    /// Lets all flows end, within `limit`, and then ends the daemon. A second call sets another
    /// limit. Returns false if the daemon shuts down already.
    pub fn drain(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        reason: &str,
        limit: Duration,
    ) -> bool {
        match self.stage {
            Stage::Serving => {
                tracing::info!(legs = relay.leg_count(), ?limit, "draining; all flows may finish");
                relay.endpoint().drain(now, reason);
            }
            Stage::Emptying { .. } => tracing::info!(?limit, "draining with another limit"),
            _ => return false,
        }
        let (until, not_before) = (now + limit, now + EMPTYING_MIN);
        self.stage = Stage::Emptying { until, look_at: now, not_before };
        true
    }

    /// When a drain ends at the latest, while there is one.
    pub fn drains_until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Emptying { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Whether the daemon accepts tunnels: paths of its flows may need a fresh one.
    pub fn takes_tunnels(&self) -> bool {
        matches!(self.stage, Stage::Serving | Stage::Emptying { .. })
    }

    /// Whether the daemon still accepts new users.
    pub fn takes_new(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Whether tunnels are still needed.
    pub fn wants_tunnels(&self) -> bool {
        self.takes_tunnels() || matches!(self.stage, Stage::Draining { .. })
    }

    /// Whether the daemon may exit.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// When [`Shutdown::on_turn`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.stage {
            Stage::Serving | Stage::Over => None,
            Stage::Emptying { until, look_at, .. } | Stage::Draining { until, look_at, .. } => {
                Some(until.min(look_at))
            }
            Stage::Closing { until } => Some(until),
        }
    }

    /// Advances the shutdown when a step is due.
    pub fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        match &mut self.stage {
            Stage::Serving | Stage::Over => {}
            Stage::Emptying { until, look_at, not_before } => {
                if now >= *look_at {
                    *look_at = now + EMPTYING_LOOK;
                    let sessions = relay.endpoint_ref().status().sessions;
                    if !sessions.iter().all(|session| session.heard_going) {
                        *not_before = now + EMPTYING_MIN;
                    }
                    // The bytes before a reset are delivered after the flow has left its user.
                    let is_empty = sessions.iter().all(|session| session.flows_held == 0);
                    if is_empty && relay.leg_count() == 0 && now >= *not_before {
                        return self.close(now, relay);
                    }
                }
                if now >= *until {
                    self.close(now, relay);
                }
            }
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
    session.flows_held > 0 && !session.paths.is_empty() && (held || !quiet)
}

/// How long after the last byte a flow counts as idle. With [`CLOSE_MAX`], an idle daemon ends
/// within a second.
const QUIET: Duration = Duration::from_millis(400);
/// How long tunnels may take to close: a round trip of a slow carrier.
const CLOSE_MAX: Duration = Duration::from_millis(500);
/// A drain lasts at least this long after all peers have heard of it, because flows that they
/// opened before are on their way: a round trip of a slow carrier.
const EMPTYING_MIN: Duration = Duration::from_secs(2);
/// How often a drain checks for open flows.
const EMPTYING_LOOK: Duration = Duration::from_millis(200);
/// How often a shutdown checks for busy flows.
const LOOK_EVERY: Duration = Duration::from_millis(50);
