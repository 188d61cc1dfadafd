//! Chooses the next flow and the path of its next segment: pure policy.
//!
//! A scheduler is a [`Chain`] of [`Schedulerlet`]s over three sets of paths (POLYCORN 4.2). A
//! schedulerlet reads views and moves paths between the sets; it owns its own state and touches
//! nothing else. The session acts on the [`Decision`]. [`FairQueue`] chooses the flow.
//!
//! Nothing here knows a socket, a clock or a random source.

#![forbid(unsafe_code)]

mod chain;
mod fair_queue;
mod handler;
mod params;
mod registry;
mod rule;
mod rules;
#[cfg(test)]
mod samples;
mod sets;
mod view;

pub use chain::{Chain, Decision, Schedulerlet};
pub use fair_queue::{FairQueue, Turn};
pub use handler::{Again, Handler, Note, OutView};
pub use params::{ParamError, Parameter};
pub use registry::{
    ChainSpec, ChainSpecError, chain_names, is_reconstructed, rule_info, schedulerlet_names,
};
pub use sets::{Kind, PathSet, PathSets};
pub use view::{Forecast, Input, LookAhead, LookAheadStep, PathView, SegmentView, rank};

/// A segment: the unit that every rule counts (POLYCORN's packet), in bytes.
pub const SEGMENT: u64 = 1_400;

/// The most that one decision may grant: 11 segments, so that a run and its frame header fit
/// into one TLS record of 16,384 bytes.
pub const RUN_MAX: u64 = 11 * SEGMENT;

/// The longest time for which a session delays an acknowledgement.
pub const ACK_DELAY_MAX: std::time::Duration = std::time::Duration::from_millis(50);

/// The most paths that one session may have at once; one bit each in a [`PathSet`].
pub const PATHS_MAX: usize = 64;
