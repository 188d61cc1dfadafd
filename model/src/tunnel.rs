//! What sessions and tunnels say of each other's work: units and modes.

use std::fmt;

/// What one call of a tunnel's `send` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// HELLO, JOIN, WELCOME or REJECT: nothing passes it, in either order.
    Greeting,
    /// Control frames: they keep their order among themselves and around greetings.
    Control,
    /// Data of one flow: independent of all units but greetings.
    Data {
        /// The sender's name for it, by which it can be withdrawn; used once in a tunnel's life.
        tag: u64,
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
