//! The admin interface: the state of a running daemon, and changes by operators.
//!
//! The control thread, with its own tokio runtime, serves HTTP over a Unix socket, watches the
//! carriers' interfaces, and reads new configurations. It sends [`AdminCommand`]s to the data plane
//! through a bounded channel and wakes it. The data plane answers through each command's [`Reply`]
//! and [publishes](AdminHandle::publish) [`AdminEvent`]s; it never waits for this thread.
//! `docs/admin.md` is the reference of the interface.

#![forbid(unsafe_code)]

pub mod client;
mod command;
mod connection;
mod control;
mod data_usage;
mod error;
mod event;
mod flow;
mod handle;
mod linkdb;
mod links;
mod merge;
pub mod metrics;
mod page;
mod page_query;
mod path;
mod plane;
mod process;
pub mod reload;
mod reloading;
mod routes;
mod scheduler;
mod server;
mod socket;
mod speedtest;
mod status;
mod stream;
mod time;
mod usage;
mod user;

#[cfg(test)]
mod tests;

pub use command::{AdminCommand, PendingReply, Reply};
pub use control::StartOptions;
pub use data_usage::{DataUsage, Metered};
pub use error::{AdminError, ErrorBody, ErrorCode};
pub use event::{AdminEvent, EventRecord, LinkChange};
pub use flow::{FlowPage, FlowPhase, FlowState, FlowsQuery};
pub use handle::{AdminHandle, COMMANDS_MAX, EVENTS_WAITING_MAX};
pub use linkdb::{LinkDbProbe, SourceState};
pub use page_query::PAGE_MAX;
pub use path::{
    CapLevel, CapState, ConnectionPhase, ConnectionState, Demotion, LinkState, ModeDecision,
    PathChange, PathCounters, PathPhase, PathState, RestartWish,
};
pub use reloading::Reloaded;
pub use scheduler::Scheduler;
pub use server::{AdminOptions, start, start_with};
pub use speedtest::{
    CarrierBytes, SPEEDTEST_CARRIERS_MAX, SPEEDTEST_S, SPEEDTEST_S_MAX, SkippedCarrier,
    SpeedtestOrder, SpeedtestPhase, SpeedtestRow, SpeedtestState, SpeedtestStep, SpeedtestStepKind,
};
pub use status::{
    API_VERSION, CloudPhase, CloudState, ConfigState, DRAIN_S, DRAIN_S_MAX, Drain, DrainState,
    ProcessState, SessionPhase, SessionState, Snapshot, Status, TunnelCounts,
};
pub use time::Timestamp;
pub use user::{RefusedCounts, UserPage, UserPlace, UserState, UsersQuery};

pub(crate) use control::Control;
