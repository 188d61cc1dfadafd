//! Fuzz targets: one for each surface that strangers, peers, passengers or operators write to.
//!
//! A target takes bytes and drives production code with real state. It panics if a promise breaks.
//! `make fuzz` discovers inputs with libFuzzer; a test replays the corpora of `corpus/`.

#![forbid(unsafe_code)]

mod admin;
mod configuration;
mod dns;
mod gateway_report;
mod icmp_error;
mod input;
mod linkdb_frames;
mod linkdb_import;
mod quic;
mod session;
mod socks5;
mod wire;

/// A target.
#[derive(Debug)]
pub struct Surface {
    /// Its name, and the folder of its corpus.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const SURFACES: &[Surface] = &[
    Surface { name: "wire", run: wire::wire },
    Surface { name: "session", run: session::session },
    Surface { name: "quic_listener", run: quic::quic_listener },
    Surface { name: "dns", run: dns::dns },
    Surface { name: "socks5", run: socks5::socks5 },
    Surface { name: "linkdb_frames", run: linkdb_frames::linkdb_frames },
    Surface { name: "linkdb_import", run: linkdb_import::linkdb_import },
    Surface { name: "gateway_report", run: gateway_report::gateway_report },
    Surface { name: "icmp_error", run: icmp_error::icmp_error },
    Surface { name: "configuration", run: configuration::configuration },
    Surface { name: "admin", run: admin::admin },
];
