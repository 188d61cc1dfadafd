//! What both daemons share: tunnels joined to the session's paths and users' sockets to its
//! flows, in one mio loop.
//!
//! [`Relay`] owns the session's [`Endpoint`](polyrail_session::Endpoint), the tunnels and the
//! users' sockets ("legs"). The daemon around it owns the poll, the listeners, the dials and the
//! signals, under tokens below [`SHELL_TOKENS`].
//!
//! ```text
//!  socket ──read──> Leg ──write──> Endpoint ──transmit──> Tunnel ──> carrier
//!  socket <─writev─ Leg <─readable─ Endpoint <──receive── Tunnel <── carrier
//! ```
//!
//! What is not here: who may connect, where to, and when a carrier is tried again.
//!
//! Invariants: a leg has no buffer of its own, so that an idle flow costs little; no leg is read
//! for more than the session takes; a turn moves at most [`TURN_BYTES`] between sockets and flows
//! and at most [`LEG_BYTES`] of one leg at a time, so that no leg starves a tunnel or another leg.

#![forbid(unsafe_code)]

mod accept;
pub mod admin;
pub mod congestion;
mod daemon;
mod ending;
#[cfg(test)]
#[path = "../../tunnel/tests/common/fake.rs"]
mod fake;
mod farewell;
mod foresight;
mod ledger;
mod leg;
mod limits;
mod notice;
mod relay;
mod silence;
mod slot;
mod status;
mod suspicion;
mod tunnels;

pub use accept::AcceptGate;
pub use daemon::{Shell, run};
pub use ending::{DRAIN_MAX, Ending};
pub use farewell::{FAREWELL_MAX, FAREWELLS_MAX, reset_socket};
pub use foresight::Foresight;
pub use ledger::Carried;
pub use leg::{KEEPALIVE, LEG_BYTES, USER_TIMEOUT};
pub use limits::{RESERVED_DESCRIPTORS, flows_within, raise_descriptor_limit};
pub use notice::Notices;
pub use relay::{Relay, RelayEvent, RelaySettings, SHELL_TOKENS, TURN_BYTES};
pub use silence::{SilenceChange, Silences};
pub use slot::{Label, SAMPLE_EVERY, TunnelView};
pub use status::StatusFile;
pub use suspicion::Suspicion;

#[cfg(test)]
mod tests;
