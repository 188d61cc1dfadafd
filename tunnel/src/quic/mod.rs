//! QUIC (RFC 9000): the tunnel without head-of-line blocking between units.
//!
//! One `quiche` connection a carrier. [`Client`] (on the gateway) begins them over a UDP socket of
//! their own; [`Listener`] (on the cloud) owns one UDP socket and routes datagrams to its
//! connections by connection id. Mutual authentication, ALPN and the exporter are those of
//! [`tls`](crate::tls); the verdict on certificates is the same code.
//!
//! A connection has two kinds of streams, all unidirectional. The first stream of a side is its
//! control stream: [`Unit::Greeting`](polyrail_model::Unit) and `Control` units, each with a kind
//! byte (1, 2) and a length (16 bits, big-endian). Every further stream is one `Data` unit: how
//! many greetings its sender had sent before (a variable-length integer, RFC 9000 16), the length
//! of the frames (16 bits), then the frames, then the end of the stream. The receiver hands out
//! whole units only; data of a greeting that has not come yet waits for it, data of an earlier one
//! is dropped. `withdraw` resets a stream (RFC 9000 19.4).
//!
//! Bounds: [`FLOW_WINDOW`] bytes a connection that its reader has not taken, [`STREAMS_MAX`] open
//! streams a side, and a named bound beside every queue.

mod acks;
mod admission;
mod away;
mod bbr;
mod cid;
mod client;
mod connection;
mod context;
mod datagrams;
mod egress;
mod ending;
mod group;
mod half_open;
mod handshake;
mod ids;
mod inbox;
mod listener;
mod mail;
mod meter;
mod outbox;
mod pacer;
mod paths;
mod qlog;
mod reason;
mod retry;
mod socket;
mod spent;
mod steering;
mod tickets;
mod tunnel;
mod verify;

use std::collections::BTreeMap;

use crate::SocketOptions;

pub use client::Client;
pub use group::{Group, Stray};
pub use listener::{Listener, ListenerCounters};

/// The application protocol that both sides require (RFC 7301).
pub const ALPN: &[u8] = crate::tls::ALPN;

/// How the cloud's side of QUIC behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Congestion control of what the cloud sends: `bbr`, `cubic` or `reno`. Default `bbr`.
    pub congestion: String,
    /// The same for single carriers, by the name that the gateway gives them.
    pub carrier_congestion: BTreeMap<String, String>,
    /// The maximum number of handshakes in progress. At the limit a client with a proven address
    /// replaces the oldest; a single address gets at most a quarter of the places by proof. Default
    /// 1,024.
    pub half_open_max: usize,
    /// The number of handshakes in progress above which new clients must first prove their address
    /// (Retry, RFC 9000 8.1.2), which costs them a round trip. Default 256.
    pub retry_above: usize,
    /// The first two bytes of the connection ids given out, for a load balancer. Default 0.
    pub server_id: u16,
    /// Time limits: `user_timeout` (silence that ends a connection) and `handshake_timeout` count.
    pub socket: SocketOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            congestion: "bbr".to_owned(),
            carrier_congestion: BTreeMap::new(),
            half_open_max: 1024,
            retry_above: 256,
            server_id: 0,
            socket: SocketOptions::default(),
        }
    }
}

/// Bytes that a peer may send before our reader takes them: more than 2 x 50 Mbit/s x 1 s. Bounds
/// a connection's memory for received data, in addition to [`PARTIAL_MAX`].
pub const FLOW_WINDOW: u64 = 16 << 20;

/// Bytes of incomplete units and of units that wait for their greeting; more end the connection.
pub const PARTIAL_MAX: usize = 16 << 20;

/// Data streams that a peer may have open: 2 x 50 Mbit/s x 1 s of the smallest common segments.
/// An open stream costs about 1.3 KiB.
pub const STREAMS_MAX: u64 = 16_384;

/// The receive window of a stream. That of the control stream must not bind, because its room shows
/// the sender the bytes in flight ([`context::UNBOUND_PART`]); a data stream has only a unit.
const STREAM_WINDOW: u64 = 2 << 20;

/// Connection ids that each side keeps for the other: one in use, spares for a changed address.
const CIDS_MAX: u64 = 4;

/// Addresses that a gateway may come from during a connection. `quiche` never forgets one that was
/// in use and ignores all beyond its limit of ids, so the cloud's is larger than [`CIDS_MAX`] (the
/// gateway gives no more ids for that), and the connection ends when the last place is taken.
const PATHS_MAX: u64 = 32;

/// Label of the exporter that binds a JOIN to its connection, as in TLS.
const EXPORTER_LABEL: &str = "EXPORTER-polyrail-join";
