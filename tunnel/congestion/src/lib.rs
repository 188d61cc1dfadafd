//! Congestion control of one carrier's connection: sans-IO, deterministic, without allocation per
//! packet.
//!
//! [`Rail`] is fed with totals of a connection (bytes sent, acknowledged, lost, in flight) and with
//! round-trip times, and answers with a pacing rate and a window. [`Supplement`] completes
//! `quiche`'s bbr. The tunnel drives QUIC with either, and the simulator runs the same code.
//! `docs/congestion.md` has their rules and sources.
//!
//! They leave loss detection, retransmission and the sending itself to the transport.

#![forbid(unsafe_code)]

mod extreme;
mod flight;
mod rail;
mod supplement;

pub use rail::{Acked, Knowledge, Rail};
pub use supplement::{PathModel, Supplement};

/// The size in bytes that windows are rounded to: a full packet of a QUIC tunnel.
pub(crate) const PACKET: u64 = 1_350;
