//! The transport core: flows, segments, acknowledgement, reassembly and reinjection, for both
//! sides.
//!
//! An [`Endpoint`] has no socket, thread, file or clock. Its caller owns tunnels and sockets.
//!
//! # Drain contract
//! After every input (any method that takes `now`), in this order:
//! 1. [`Endpoint::poll_event`] until it answers `None`, acting on each event;
//! 2. [`Endpoint::transmit`], which hands frames to tunnels that have room;
//! 3. [`Endpoint::next_timeout`]: call [`Endpoint::on_timeout`] then, at the latest.
//!
//! Inputs may be fed in batches before draining. Events name flows by [`FlowKey`]; after
//! [`Event::Reset`] and [`Event::Closed`], and after the caller's own [`Endpoint::reset`], the key
//! is dead and calls with it have no effect.
//!
//! # Tunnels
//! A tunnel delivers each call's unit ([`polyrail_model::Unit`]) whole and at least once while it
//! lives; withdrawn data ([`Outlet::withdraw`]) may never arrive. Units of data may be reordered,
//! except around greetings (HELLO, JOIN, WELCOME, REJECT): a unit sent before a greeting arrives
//! before it or never, and a unit sent after it arrives after it. Control units keep their order
//! among themselves: a PONG confirms the control frames sent before its PING.
//!
//! A tunnel with an unfinished handshake ([`TunnelInfo::exporter`] is `None`) carries early data,
//! which an attacker may replay. A replayed JOIN, and the frames after it, do no harm. A HELLO is
//! not safe against replay and waits for [`Endpoint::tunnel_confirmed`].
//!
//! The wire is specified in `docs/protocol.md`; all bounds are in [`limits`].

#![forbid(unsafe_code)]

mod capacity;
mod carriers;
mod core;
mod counters;
mod datagram;
mod delay;
mod drops;
mod endpoint;
mod event;
mod flow;
pub mod limits;
mod listing;
mod path;
mod proof;
mod ranges;
mod rate;
mod settings;
mod window;
pub mod wire;

pub use crate::core::Outlet;
pub use datagram::UserDatagram;
pub use drops::DatagramDrops;
pub use endpoint::Endpoint;
pub use event::{Event, FlowKey, OpenError, PathReport, TunnelKey};
pub use listing::{FlowPhase, FlowView, UserTraffic, UserView};
pub use polyrail_model::SessionKey;
pub use settings::{DatagramStatus, PathStatus, SessionStatus, Settings, Status, TunnelInfo};
pub use wire::ResetReason;
