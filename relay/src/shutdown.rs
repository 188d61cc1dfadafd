//! The orderly end of a daemon.
//!
//! ```text
//!   Serving ──begin()──> Draining ──no flows left, or DRAIN_MAX──> Closing ──> Over
//!                            └────────── begin() again ───────────────┘
//! ```

use std::time::{Duration, Instant};

use polyrail_session::SessionStatus;

use crate::Relay;

/// How long open flows may go on after the daemon was told to end.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Where a daemon stands between its signal and its end.
#[derive(Debug, Default)]
pub struct Ending {
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Serving,
    Draining {
        until: Instant,
        look_at: Instant,
    },
    Closing {
        until: Instant,
    },
    Over,
}

impl Ending {
    /// Begins the end; the second time the drain is cut short.
    pub fn begin(&mut self, now: Instant, relay: &mut Relay, reason: &str) {
        match self.stage {
            Stage::Serving => {
                tracing::info!(legs = relay.leg_count(), "ending: open flows may finish");
                relay.endpoint().go_away(now, reason);
                self.stage = Stage::Draining { until: now + DRAIN_MAX, look_at: now };
            }
            Stage::Draining { .. } => self.close(now, relay),
            Stage::Closing { .. } | Stage::Over => self.stage = Stage::Over,
        }
    }

    /// Whether the daemon still takes new users and peers in.
    pub fn takes_new(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Whether tunnels are still wanted.
    pub fn wants_tunnels(&self) -> bool {
        matches!(self.stage, Stage::Serving | Stage::Draining { .. })
    }

    /// Whether the daemon may end.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// When [`Ending::on_turn`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.stage {
            Stage::Serving | Stage::Over => None,
            Stage::Draining { until, look_at } => Some(until.min(look_at)),
            Stage::Closing { until } => Some(until),
        }
    }

    /// Goes on with the end.
    pub fn on_turn(&mut self, now: Instant, relay: &mut Relay) {
        match &mut self.stage {
            Stage::Serving | Stage::Over => {}
            Stage::Draining { until, look_at } => {
                if now >= *look_at {
                    *look_at = now + LOOK_EVERY;
                    let sessions = relay.endpoint_ref().status().sessions;
                    // What has no path left cannot finish.
                    let open =
                        |session: &SessionStatus| session.flows > 0 && !session.paths.is_empty();
                    if !sessions.iter().any(open) || now >= *until {
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

    /// Resets what is left, says so to the peers, and closes the tunnels.
    fn close(&mut self, now: Instant, relay: &mut Relay) {
        if relay.leg_count() > 0 {
            tracing::info!(legs = relay.leg_count(), "ending: resetting the flows that are left");
        }
        relay.abort_all(now);
        relay.turn(now);
        relay.close_all(now);
        self.stage = Stage::Closing { until: now + CLOSE_MAX };
    }
}

/// How long tunnels may take to close.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether flows are left.
const LOOK_EVERY: Duration = Duration::from_millis(50);
