//! The rail: cells along a track, a train that passes them, and what that makes of its carriers.
//!
//! A route seed fixes the track: where each carrier's cells meet, how good they are, and at which
//! borders handovers fail now and then. A trip seed draws everything else. From both come links,
//! telemetry, and the handovers as they truly were. The published figures that the generator is
//! calibrated against are in [`CarrierProfile`]; `docs/emulation.md` sets them beside what comes
//! out.

mod dice;
mod files;
mod profile;
mod radio;
mod recorded;
mod route;
mod sighting;
mod trace;
mod trip;

#[cfg(test)]
mod tests;

pub use files::Signal;
pub use profile::{CarrierProfile, Speed, SpeedError};
pub use radio::Radio;
pub use recorded::{RecordedError, trip_of_traces, trips_of_traces};
pub use route::{Border, Cell, Route};
pub use sighting::Sighting;
pub use trace::TraceError;
pub use trip::{CarrierTrip, Fix, Handover, HandoverResult, Trip};
