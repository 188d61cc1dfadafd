//! TLS 1.3 over TCP: the tunnel that works wherever TCP gets through.
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
mod feed;
mod handshake;
mod listener;
mod reason;
mod server;
mod tickets;
mod verifier;

use rustls::crypto::{CryptoProvider, ring};

pub use client::Client;
pub use listener::Listener;
pub use server::Server;

/// The application protocol that both sides insist on (RFC 7301).
pub const ALPN: &[u8] = b"polyrail/1";

/// How many connections the cloud lets be in the handshake at a time, by default.
///
/// The cloud counts them (accepted, not yet `Up`) and drops new ones at the bound. One costs about
/// 10 KiB beside the kernel's share, at most [`HANDSHAKE_MAX`] and what TLS makes of it, for at
/// most the handshake timeout.
pub const HANDSHAKES_MAX: usize = 1024;

/// Most bytes that are taken in before the handshake is over, early data included; a peer that
/// sends more is cut off. Ours send about 3 KB and [`EARLY_DATA_MAX`].
pub const HANDSHAKE_MAX: usize = 32_768;

/// Most early data that a client sends, in bytes of TLS records.
///
/// With the rest of the first flight it goes into the ten segments that TCP may send at once
/// (RFC 6928): more would wait for the round trip that early data saves. And a server that refuses
/// it must be able to hold it together with the client's certificate: rustls keeps refused records
/// in its buffer of 18 KiB until the first one behind them.
pub const EARLY_DATA_MAX: usize = 12_288;

/// What a ticket says of early data. Only [`EARLY_DATA_MAX`] and [`HANDSHAKE_MAX`] bound it: by
/// this number rustls also bounds what it skips of refused early data, and there it counts all
/// that its buffer holds once more with each read.
const EARLY_DATA_SKIPPED_MAX: u32 = 1 << 29;
const _: () = assert!(HANDSHAKE_MAX * HANDSHAKE_MAX / 2 <= EARLY_DATA_SKIPPED_MAX as usize);

/// Tickets that a carrier keeps: as many attempts as path restarts may race before the next
/// success (three at a time) find one, with room to spare.
pub const TICKETS_MAX: usize = 8;

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
