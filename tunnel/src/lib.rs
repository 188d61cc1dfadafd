//! A carrier's tunnel: one reliable, authenticated connection between gateway and cloud.
//!
//! The daemons use the trait [`Tunnel`]: it takes whole frames, delivers the peer's frame stream,
//! and reports its room and link samples. [`quic`] implements it with QUIC, [`tls`] with TLS 1.3
//! over TCP. The crate does not depend on sessions, flows or the contents of frames.
//!
//! Others decide which tunnel carries which frame (the scheduler), when to reconnect (the gateway),
//! and how many half-open TLS handshakes the cloud keeps (the cloud; [`tls::HANDSHAKES_MAX`] is the
//! default).

#![deny(unsafe_code)]

mod carrier;
mod close;
mod drops;
mod events;
mod fault;
mod kernel;
mod network;
mod phase;
pub mod quic;
mod receive_buffer;
mod scratch;
pub mod tls;
mod tunnel;

pub use carrier::{CarrierSpec, SocketOptions, kernel_control};
pub use close::CloseReason;
pub use drops::TunnelDrops;
pub use kernel::unacknowledged;
pub use network::network;
pub use polyrail_congestion::Knowledge;
pub use receive_buffer::freeze_receive_buffer;
pub use tunnel::{CONTROL_EXCESS, Early, Established, FRAMES_MAX, Parcel, Tunnel, TunnelEvent};
