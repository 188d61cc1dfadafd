//! The data plane of both daemons: connects tunnels to the session's paths and users' sockets to
//! its flows, in one mio loop.
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
//! Access control, dialing and carrier policy are left to the daemons.
//!
//! Invariants: a leg has no buffer of its own, so that an idle flow costs little; no leg is read
//! for more than the session takes; a turn moves at most [`TURN_BYTES`] between sockets and flows
//! and at most [`LEG_BYTES`] of one leg at a time, so that no leg starves a tunnel or another leg.

#![forbid(unsafe_code)]

mod accept;
mod aftermath;
mod binding_use;
pub mod congestion;
mod daemon;
mod event;
#[cfg(test)]
#[path = "../../tunnel/tests/common/fake.rs"]
mod fake;
mod foresight;
mod handshakes;
mod icmp_error;
mod leg;
mod leg_buffers;
mod limits;
mod log_limit;
mod marked;
mod pending_reset;
mod read_turns;
mod relay;
mod shutdown;
mod slot;
mod suspicion;
mod traffic;
mod tunnels;
mod turn_times;
mod user_limit;
mod workers;

pub use accept::AcceptGate;
pub use binding_use::BindingUse;
pub use daemon::{Shell, run};
pub use event::RelayEvent;
pub use foresight::{Foresight, notify};
pub use icmp_error::{
    ICMP_ERROR, IcmpCause, IcmpError, MTU_MIN, icmp_limit, receive_icmp_error, watch_icmp_errors,
};
pub use leg::{KEEPALIVE, LEG_BYTES, USER_TIMEOUT};
pub use limits::{RESERVED_DESCRIPTORS, flows_within, raise_descriptor_limit};
pub use log_limit::LogLimiter;
pub use marked::{Marked, receive_marked, watch_marks};
pub use pending_reset::{PENDING_RESETS_MAX, RESET_DELAY_MAX, reset_socket};
/// LinkDB's worker.
pub use polyrail_predictor::worker as linkdb;
pub use read_turns::{Read, ReadTurns};
pub use relay::{Relay, RelaySettings, SHELL_TOKENS, TURN_BYTES};
pub use shutdown::{DRAIN_MAX, Shutdown};
pub use slot::{Label, SAMPLE_EVERY, TunnelView};
pub use suspicion::Suspicion;
pub use traffic::Traffic;
pub use turn_times::{TURN_BOUNDS, TurnTimes};
pub use user_limit::UserLimit;
pub use workers::{MovingTunnel, Workers};

#[cfg(test)]
mod tests;
