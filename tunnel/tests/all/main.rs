//! Tunnels between real sockets, in one program, because each program with both kinds of TLS takes
//! seconds to build. Tests that measure the memory of their process have programs of their own.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

mod certificates;
#[path = "../common/mod.rs"]
mod common;
mod quic;
mod quic_identity;
mod quic_link;
mod quic_listener;
mod quic_workers;
mod quic_world;
mod tls;
