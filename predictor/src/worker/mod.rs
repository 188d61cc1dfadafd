//! LinkDB's worker thread: it records handovers, forecasts the next ones, and synchronises its
//! database with the other side's.
//!
//! ```text
//!   observations ─────────┐                                 ┌─> forecasts ──> session
//!   silence of paths ─────┼─> [bounded channel] ─> thread ──┼─> telemetry ──> the cloud
//!   messages of the peer ─┘        (redb, fsync)            └─> handovers ──> the peer
//! ```
//!
//! Feeding never blocks: input that finds the channel full is dropped and counted. The worker
//! notifies the data plane when there is output. If the database cannot be opened or written, the
//! worker keeps forecasting from memory, reports the error and retries. If the worker panics, the
//! panic is logged, counted and reported, and forecasts stay off until the daemon restarts.
//!
//! A gateway's worker learns from observations, a cloud's from the messages of its gateways.

mod allowance;
mod buffered;
mod cloud;
mod forecasts;
mod gateway;
mod handle;
mod lookahead;
mod options;
mod outcomes;
mod rates;
mod state;
mod thread;

#[cfg(test)]
mod tests;

pub use crate::detect::Unrecorded;
pub use allowance::{MESSAGES_A_SECOND, MESSAGES_AT_ONCE};
pub use handle::{Feeder, Worker};
pub use options::{LinkDbSettings, Notify, Options};
pub use state::{CarrierState, StoreState, TripState, WorkerState};

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Delivery, LinkForecast, LinkOutlook, Observation, SessionKey};

use crate::shared::{Answer, News};
use crate::wire::{SyncMessage, Telemetry};

/// What the thread does, by role: sans-IO but for the database.
trait Engine {
    fn take(&mut self, now: Instant, wall_ms: u64, input: Input);

    fn on_timeout(&mut self, now: Instant, wall_ms: u64);

    /// Reads and writes the database, after all outputs were polled. True if there may be more.
    fn write(&mut self, now: Instant, wall_ms: u64) -> bool;

    fn poll(&mut self, now: Instant) -> Option<Output>;

    /// When the engine has work to do without input; `None`: now.
    fn next_timeout(&self) -> Option<Instant>;

    /// Outputs were dropped: the next update repeats all forecasts.
    fn repeat_forecasts(&mut self);

    fn state(&self, now: Instant) -> WorkerState;

    /// Takes news of the shared database; none if the local one cannot be used (cloud).
    fn share(&mut self, _now: Instant, _wall_ms: u64, _news: News) -> Option<Answer> {
        None
    }

    /// Whether entries were written that the shared database may lack, since the last call.
    fn take_unshared(&mut self) -> bool {
        false
    }

    /// Ends the trip and writes its observations.
    fn close(&mut self, now: Instant, wall_ms: u64);
}

/// An input of the worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// An observation on board (gateway).
    Observed(Observation),
    /// A session is up.
    Up {
        /// The session.
        session: SessionKey,
        /// The name in the peer's certificate.
        peer: String,
    },
    /// Users' flows go to this session from now on, which is up (gateway): forecasts and telemetry
    /// follow. The first session that is up is followed without this.
    Follow(SessionKey),
    /// A session has ended.
    Down(SessionKey),
    /// Telemetry of a gateway (cloud).
    Telemetry {
        /// The gateway's session.
        session: SessionKey,
        /// When it arrived.
        at: Instant,
        /// The telemetry.
        telemetry: Telemetry,
    },
    /// A message of the peer's database.
    Sync {
        /// The peer's session.
        session: SessionKey,
        /// The message.
        message: SyncMessage,
    },
    /// Rate and delay of a carrier, in the direction in which this side sends.
    Measured {
        /// The session.
        session: SessionKey,
        /// The carrier.
        carrier: String,
        /// Its rate.
        rate: Bitrate,
        /// Its smoothed round-trip time.
        srtt: Duration,
    },
    /// The configuration has changed.
    Reload(LinkDbSettings),
}

/// An output of the worker, for the data plane.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The forecast of a carrier from now on.
    Forecast {
        /// The session.
        session: SessionKey,
        /// The carrier.
        carrier: String,
        /// The predicted failure, if any.
        forecast: Option<LinkForecast>,
    },
    /// Expected rates of a carrier.
    Outlook {
        /// The session.
        session: SessionKey,
        /// The carrier.
        carrier: String,
        /// The next seconds; empty if unknown.
        outlook: LinkOutlook,
    },
    /// A modem without a cell has found one: the carrier's connection restarts (gateway).
    FoundCell {
        /// The carrier.
        carrier: String,
    },
    /// A message to the cloud (gateway).
    Telemetry {
        /// The session.
        session: SessionKey,
        /// The message.
        telemetry: Telemetry,
    },
    /// A message to the peer's database.
    Sync {
        /// The session.
        session: SessionKey,
        /// How it is delivered.
        delivery: Delivery,
        /// The message.
        message: SyncMessage,
    },
}

impl Output {
    /// The session that it is for.
    pub(crate) fn session(&self) -> Option<SessionKey> {
        match self {
            Self::Forecast { session, .. }
            | Self::Outlook { session, .. }
            | Self::Telemetry { session, .. }
            | Self::Sync { session, .. } => Some(*session),
            Self::FoundCell { .. } => None,
        }
    }
}
