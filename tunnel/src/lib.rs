//! A carrier's tunnel: one reliable, authenticated connection between gateway and cloud.
//!
//! [`Tunnel`] is what the daemons see: whole frames go in, the peer's frame stream comes out, and
//! the tunnel says how much it takes and how its link is doing. [`quic`] implements it with QUIC,
//! [`tls`] with TLS 1.3 over TCP; [`fake`] in memory, for tests of what stands above. The crate
//! knows nothing of sessions, flows or frames' contents.
//!
//! What is not here: which tunnel carries what (the scheduler), when to connect again (the
//! gateway, with [`Backoff`] as its policy), and how many half-open handshakes the cloud keeps
//! (the cloud; [`tls::HANDSHAKES_MAX`] is the default).

#![deny(unsafe_code)]

mod backoff;
mod carrier;
mod close;
pub mod fake;
mod kernel;
pub mod quic;
pub mod tls;
mod tunnel;

pub use backoff::Backoff;
pub use carrier::{CarrierSpec, SocketOptions, available_congestion_controls};
pub use close::{CloseReason, PeerComplaint, Side};
pub use kernel::unacknowledged;
pub use tunnel::{CONTROL_EXCESS, Early, Established, FRAMES_MAX, Tunnel, TunnelEvent};
