//! The admin interface: what operators see of a running daemon and may change about it.
//!
//! One thread with a tokio runtime of its own serves HTTP over a Unix socket, watches the
//! carriers' interfaces, and reads new configurations. It asks the data plane through a bounded
//! channel of [`Command`]s and wakes it; the data plane takes them when it likes, answers through
//! each command's [`Reply`], and [publishes](AdminHandle::publish) [`Event`]s. The data plane
//! never waits for this thread. `docs/admin.md` is the interface's reference.

pub mod client;
mod command;
mod connection;
mod daemon;
mod desk;
mod error;
mod event;
mod handle;
mod loaded;
mod mode_name;
mod path;
mod process;
mod reloading;
mod routes;
mod server;
mod socket;
mod status;
mod stream;
mod time;

#[cfg(test)]
mod tests;

pub use command::{Answer, Command, Reply};
pub use daemon::DaemonConfig;
pub use error::{AdminError, ErrorBody, ErrorCode, ProblemLine};
pub use event::{Event, LinkChange, Record};
pub use handle::{AdminHandle, COMMANDS_MAX, EVENTS_WAITING_MAX};
pub use loaded::Loaded;
pub use path::{
    ConnectionPhase, ConnectionState, Demotion, LinkState, ModeDecision, PathChange, PathCounters,
    PathPhase, PathState, RestartWish,
};
pub use reloading::Reloaded;
pub use server::{AdminOptions, AdminServer};
pub use status::{
    API_VERSION, ConfigState, ProcessState, SessionPhase, SessionState, Snapshot, Status,
    TunnelCounts,
};
pub use time::Timestamp;

pub(crate) use desk::Desk;
