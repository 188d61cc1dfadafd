//! The DNS forwarder: it sends passengers' UDP queries over one TCP stream to the resolver.
//!
//! [`Forwarder`] is the logic without sockets or clock. The stream is a flow of the session: the
//! owner moves bytes between it and the forwarder, opens it while [`Forwarder::wants_stream`], and
//! reports its end. TCP queries are ordinary flows, redirected to the resolver if [`is_dns`].
//!
//! Only the id of queries and answers changes, so EDNS and DNSSEC work end to end. Nothing is
//! cached.

mod forwarder;
mod message;

use std::net::SocketAddr;

pub use forwarder::{
    ATTEMPTS_MAX, DnsClient, DnsReply, Forwarder, PENDING_MAX, PENDING_USER_MAX, QUERY_TIMEOUT,
    STREAM_PATIENCE,
};
pub use message::{QUERY_MAX, UDP_ANSWER_MAX};

/// Whether an intercepted connection to this destination is redirected to the resolver, if the
/// configuration has a `[dns]` table.
pub fn is_dns(destination: &SocketAddr) -> bool {
    destination.port() == 53
}
