//! The heart: flows, segments, acknowledgement, reassembly and reinjection, for both sides.
//!
//! An [`Endpoint`] knows no socket, thread, file or clock. Its caller owns tunnels and sockets.
//!
//! # Drain contract
//! After every input (any method that takes `now`), in this order:
//! 1. [`Endpoint::poll_event`] until it answers `None`, acting on each event;
//! 2. [`Endpoint::transmit`], which hands frames to tunnels that have room;
//! 3. [`Endpoint::next_timeout`]: call [`Endpoint::on_timeout`] then, at the latest.
//!
//! Inputs may be fed in batches before draining. Events name flows by [`FlowKey`]; after
//! [`Event::Reset`] and [`Event::Closed`], and after the caller's own [`Endpoint::reset`], the key
//! is dead and every call with it does nothing.
//!
//! # Tunnels
//! A tunnel delivers each call's unit ([`polyrail_model::Unit`]) whole and at least once while it
//! lives; data that was withdrawn ([`Outlet::withdraw`]) perhaps never. Units of data may overtake
//! others and be overtaken, except around greetings (HELLO, JOIN, WELCOME, REJECT): what was sent
//! before one arrives before it or never, what was sent behind it arrives behind it. Control units
//! keep their order among themselves: a PONG confirms what was said before its PING.
//!
//! A tunnel whose handshake is not over ([`TunnelInfo::exporter`] is `None`) carries early data,
//! which an attacker may replay: JOIN and all that follows it are safe against that, HELLO is not
//! and waits for [`Endpoint::tunnel_confirmed`].
//!
//! The wire is specified in `docs/protocol.md`; all bounds are in [`limits`].

#![forbid(unsafe_code)]

mod capacity;
mod core;
mod counters;
mod delay;
mod endpoint;
mod event;
mod flow;
pub mod limits;
mod path;
mod proof;
mod ranges;
mod rate;
mod settings;
pub mod wire;

pub use crate::core::Outlet;
pub use endpoint::Endpoint;
pub use event::{Event, FlowKey, OpenError, PathReport, TunnelKey};
pub use polyrail_model::SessionKey;
pub use settings::{PathStatus, Role, SessionStatus, Settings, Status, TunnelInfo};
pub use wire::ResetReason;
