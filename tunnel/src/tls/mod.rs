//! TLS 1.3 over TCP: the tunnel for networks that pass only TCP.
//!
//! Mutual authentication, ALPN [`ALPN`], sessions resumed by single-use tickets with early data
//! (RFC 8446 2.3), one [`send`](crate::Tunnel::send) a TLS record. [`Client`] (on the gateway) and
//! [`Server`] (on the cloud) make tunnels; [`Listener`] takes the connections.
//!
//! Suites: AES-128-GCM first (three times cheaper than ChaCha20 where the processor has AES),
//! then AES-256-GCM and ChaCha20-Poly1305. The provider is `ring` alone.

mod client;
mod connection;
mod engine;
mod handshake;
mod listener;
mod queue;
mod reason;
mod server;
mod tickets;
mod verifier;

use rustls::crypto::{CryptoProvider, ring};

pub use client::Client;
pub use listener::Listener;
pub use server::{Server, Sessions};

/// The application protocol that both sides require (RFC 7301).
pub const ALPN: &[u8] = b"polyrail/1";

/// The default limit of connections of a cloud that are in the handshake.
///
/// The cloud counts them (accepted, not yet `Up`) and drops new ones at the bound. One needs about
/// 10 KiB in addition to the kernel's memory, and at most [`HANDSHAKE_MAX`] and its plaintext,
/// until the handshake timeout.
pub const HANDSHAKES_MAX: usize = 1024;

/// The maximum number of bytes received before the end of the handshake, early data included; a
/// peer that sends more is disconnected. Our peers send about 3 KB and [`EARLY_DATA_MAX`].
pub const HANDSHAKE_MAX: usize = 32_768;

/// The maximum of early data that a client sends, in bytes of TLS records.
///
/// With the rest of the first flight it fits in the ten segments of TCP's initial window
/// (RFC 6928): more would wait for the round trip that early data saves. A server that rejects it
/// must hold it together with the client's certificate: rustls keeps rejected records in its buffer
/// of 18 KiB until the first record after them.
pub const EARLY_DATA_MAX: usize = 12_288;

/// The maximum of early data in a ticket. The real bounds are [`EARLY_DATA_MAX`] and
/// [`HANDSHAKE_MAX`]: rustls also limits the rejected early data that it skips by this number, and
/// counts the bytes in its buffer again with each read.
const EARLY_DATA_SKIPPED_MAX: u32 = 1 << 29;
const _: () = assert!(HANDSHAKE_MAX * HANDSHAKE_MAX / 2 <= EARLY_DATA_SKIPPED_MAX as usize);

/// Tickets that a carrier keeps: enough for the racing attempts of several path restarts (three at
/// a time) before the next success.
pub const TICKETS_MAX: usize = 8;

/// [`SocketOptions::segment_max`](crate::SocketOptions::segment_max) for paths that silently drop
/// longer packets: a packet is then no longer than the shortest of a QUIC connection (1,200 bytes
/// and 8 of UDP's header; TCP's has 20, and IP's is the same).
pub const SEGMENT_SHORT: u32 = 1_200 + 8 - 20;

/// Label of the exporter that binds a JOIN to its connection.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-polyrail-join";

/// The cryptography of all tunnels.
fn provider() -> CryptoProvider {
    let cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider { cipher_suites, ..ring::default_provider() }
}
