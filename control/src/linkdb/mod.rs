//! The thread that owns a daemon's LinkDB: it records handovers, forecasts the next, and keeps the
//! other side's database equal.
//!
//! ```text
//!   telemetry sources ─┐                                  ┌─> forecasts ──> session
//!   silence of paths ──┼─> [bounded channel] ─> thread ──┼─> telemetry ──> the cloud
//!   the peer's frames ─┘         (redb, fsync)            └─> handovers ──> the peer
//! ```
//!
//! Whoever feeds it never waits: what finds the channel full is dropped and counted. The data plane
//! is woken when there is something for it, and what it has no room for waits. A database that
//! cannot be opened or written stops nothing: what was learned stays in memory, the error stands in
//! the state, and it is tried again.
//!
//! A gateway's thread works from observations ([`Role::Train`]), a cloud's from what its gateways
//! tell it ([`Role::Ground`]).

mod ground;
mod handle;
mod keeper;
mod learned;
mod outlook;
mod state;
mod station;
mod train;
mod unsaid;

#[cfg(test)]
mod tests;

pub use handle::{Asker, LinkDb, Options, Role, Tuning};
pub use state::{CarrierOutlook, LinkDbState, StoreState, TripState, Unrecorded};

use polyrail_model::{Bitrate, Delivery, LinkForecast, LinkOutlook, Observation};
use polyrail_predictor::wire::{SyncMessage, Telemetry};
use std::time::{Duration, Instant};

/// A session, as its daemon counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionNumber(pub u64);

/// What the thread is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Something was observed on board.
    Observed(Observation),
    /// A session stands.
    Up {
        /// Which.
        session: SessionNumber,
        /// Who is at its other end.
        peer: String,
    },
    /// A session has ended.
    Down(SessionNumber),
    /// A gateway says where it is (cloud).
    Telemetry {
        /// Whose session.
        session: SessionNumber,
        /// When it came.
        at: Instant,
        /// What it says.
        telemetry: Telemetry,
    },
    /// The peer's database speaks.
    Sync {
        /// In which session.
        session: SessionNumber,
        /// What it says.
        message: SyncMessage,
    },
    /// What a carrier carries now, in the direction in which this side sends.
    Measured {
        /// Whose session.
        session: SessionNumber,
        /// The carrier.
        carrier: String,
        /// Its rate.
        rate: Bitrate,
        /// Its smoothed round-trip time.
        srtt: Duration,
    },
    /// The configuration has changed.
    Retune(Tuning),
}

/// What the thread says to the data plane.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// What is foreseen of a carrier from now on.
    Forecast {
        /// In which session.
        session: SessionNumber,
        /// The carrier.
        carrier: String,
        /// Nothing, or the failure ahead.
        forecast: Option<LinkForecast>,
    },
    /// What earlier trips say of the track ahead of a carrier.
    Outlook {
        /// In which session.
        session: SessionNumber,
        /// The carrier.
        carrier: String,
        /// The next seconds; empty: nothing is known.
        outlook: LinkOutlook,
    },
    /// A modem that had lost its cell has found one: connections over it begin anew (gateway).
    FoundCell {
        /// The carrier.
        carrier: String,
    },
    /// A message to the cloud.
    Telemetry {
        /// In which session.
        session: SessionNumber,
        /// What.
        telemetry: Telemetry,
    },
    /// To be told to the peer's database.
    Sync {
        /// In which session.
        session: SessionNumber,
        /// How it is delivered.
        delivery: Delivery,
        /// What.
        message: SyncMessage,
    },
}
