//! What all other Polyrail crates share: ids, units, link samples, destinations and token buckets.
//!
//! Nothing here does I/O or reads a clock. Every type is small and
//! holds only valid values.

#![forbid(unsafe_code)]

mod bucket;
pub mod codec;
mod destination;
mod flow_name;
mod handover;
mod ids;
mod link;
mod message;
mod observation;
mod path_wish;
mod tunnel;
mod units;
mod weight;

pub use bucket::Bucket;
pub use destination::{Destination, Families, HostName, HostNameError};
pub use flow_name::{FlowKind, FlowName};
pub use handover::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};
pub use ids::{
    BindingId, FlowId, Identity, IdentityError, InstanceId, NodeRole, PathId, SessionId,
    SessionKey, UserId,
};
pub use link::{LinkForecast, LinkOutlook, LinkSample, OutlookStep};
pub use message::{Channel, Delivery};
pub use observation::{
    Fix, Heard, METRES_MAX, Observation, Odometer, Reported, Serving, Silence, VELOCITY_MAX,
};
pub use path_wish::{PathRank, PathWish};
pub use tunnel::{TunnelMode, Unit};
pub use units::{Bitrate, Bytes, ParseUnitError};
pub use weight::Weight;
