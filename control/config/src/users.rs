//! The other tables about users: `[dns]`, `[socks5]` and `[users]`.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::values::{ListenAddress, PeerAddress, list, one};

/// `[dns]`: a forwarder of users' DNS queries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dns {
    /// Where queries arrive; default 7853.
    #[serde(default = "default_port")]
    pub port: NonZeroU16,
    /// The resolver that the cloud connects to.
    #[serde(deserialize_with = "one::<_, PeerAddress, _>")]
    pub resolver: SocketAddr,
}

/// `[socks5]`: a SOCKS5 server for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socks5 {
    /// Where it listens; 1 to 8.
    #[serde(deserialize_with = "list::<_, ListenAddress, _, 1, 8>")]
    pub listen: Vec<SocketAddr>,
    /// When it reports success; default immediate.
    #[serde(default)]
    pub reply: SocksReply,
}

/// When a SOCKS5 request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocksReply {
    /// At once: this saves a round trip, and a failure shows as a reset.
    #[default]
    Immediate,
    /// When the cloud has reached the server, with the true outcome.
    Dialed,
}

/// `[users]`: how users are distinguished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Users {
    /// Default link address.
    pub key: UserKey,
}

/// The identity of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserKey {
    /// The neighbour's link address where known, else the source address.
    #[default]
    LinkAddress,
    /// The source address.
    Address,
}

fn default_port() -> NonZeroU16 {
    const { NonZeroU16::new(7853).unwrap() }
}
