//! The rail: cells along a track, a train that passes them, and the links of its carriers.
//!
//! A route seed fixes the track: the borders between each carrier's cells, their quality, and the
//! borders at which handovers sometimes fail. A trip seed draws everything else. Both together give
//! links, telemetry and true handovers. [`CarrierProfile`] has the published figures for which the
//! generator is calibrated; `docs/emulation.md` compares them with the generated ones.

mod course;
mod files;
mod fluid;
mod handover;
mod profile;
mod random;
mod recorded;
mod route;
mod sighting;
mod trace;
mod trip;
mod weather;

#[cfg(test)]
mod tests;

pub use course::{Bound, Call, Course, Message, Transfer, Workload};
pub use files::Signal;
pub use fluid::{Fluid, aggregated, fluids};
pub use handover::{Handover, HandoverResult};
pub use profile::{CarrierProfile, Radio, Speed, SpeedError};
pub use recorded::{RecordedError, trip_of_traces, trips_of_traces};
pub use route::{Border, Cell, Route};
pub use sighting::Sighting;
pub use trace::TraceError;
pub use trip::{CarrierTrip, Fix, Trip};
