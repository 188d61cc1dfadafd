//! Units and transports of a tunnel.

use std::fmt;
use std::time::Instant;

/// The content of one call of a tunnel's `send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// HELLO, JOIN, WELCOME or REJECT: no unit overtakes it, and it overtakes none.
    Greeting,
    /// Control frames: they keep their order among themselves and around greetings.
    Control,
    /// Data of one flow: independent of all units but greetings.
    Data {
        /// The sender's tag, used to withdraw the unit; unique within a tunnel.
        tag: u64,
    },
    /// One datagram: it arrives at most once, in any order, or never. It must not be sent before
    /// the handshake is finished.
    Datagram {
        /// If it has not left until then, it is dropped.
        expires: Instant,
    },
}

/// The transport of a tunnel.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TunnelMode {
    /// QUIC over UDP.
    Quic,
    /// TLS over TCP.
    Tls,
}

impl TunnelMode {
    /// Its name in configurations, logs and the admin interface.
    pub fn as_str(self) -> &'static str {
        match self {
            TunnelMode::Quic => "quic",
            TunnelMode::Tls => "tls",
        }
    }
}

impl fmt::Display for TunnelMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
