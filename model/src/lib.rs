//! The vocabulary that all other Polyrail crates share: ids, units, link samples and destinations.
//!
//! Nothing here does I/O, reads a clock or decides anything. Every type is small and
//! holds only valid values.

#![forbid(unsafe_code)]

mod destination;
mod ids;
mod link;
mod observation;
mod rail;
mod tunnel;
mod units;

pub use destination::{Destination, Families, HostName, HostNameError};
pub use ids::{FlowId, Identity, IdentityError, InstanceId, PathId, SessionId, UserId};
pub use link::{LinkForecast, LinkOutlook, LinkSample, OutlookStep};
pub use observation::{
    Fix, Heard, METRES_MAX, Observation, Odometer, Reported, Serving, Silence, VELOCITY_MAX,
};
pub use rail::{
    CarrierTelemetry, CellId, Direction, Handover, HandoverOutcome, LedgerDigest, LedgerMessage,
    Position, RouteId, Rsrp, Speed, Telemetry, TripId, TripKnown, Urgency,
};
pub use tunnel::{TunnelMode, Unit};
pub use units::{Bitrate, Bytes, ParseUnitError};
