//! The DNS forwarder: passengers' UDP queries travel over one TCP stream to the resolver.
//!
//! [`Forwarder`] is the logic without sockets or clock; [`DnsSocket`] receives queries that were
//! asked of any server and answers from that server's address. The stream is a flow of the
//! session: the owner moves bytes between it and the forwarder, opens it while
//! [`Forwarder::wants_stream`], and tells when it is gone. TCP queries need none of this: they
//! are flows whose destination is changed to the resolver where [`is_dns`].
//!
//! Queries and answers pass unchanged but for their id, so EDNS and DNSSEC reach the client as
//! the resolver meant them. Nothing is cached.

mod forwarder;
mod message;
mod socket;

use std::net::SocketAddr;

pub use forwarder::{
    ATTEMPTS_MAX, Client, Forwarder, PENDING_MAX, PENDING_USER_MAX, QUERY_TIMEOUT, Reply,
    STREAM_PATIENCE,
};
pub use message::{QUERY_MAX, UDP_ANSWER_MAX};
pub use socket::{Datagram, DnsSocket};

/// Whether an intercepted connection to this destination is for the resolver instead. Only to be
/// asked when the configuration has a `[dns]` table.
pub fn is_dns(destination: &SocketAddr) -> bool {
    destination.port() == 53
}
