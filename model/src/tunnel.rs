//! What sessions and tunnels say of each other's work: units and modes.

use std::fmt;
use std::str::FromStr;

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

/// How a tunnel travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TunnelMode {
    /// QUIC over UDP.
    Quic,
    /// TLS over TCP.
    Tls,
}

/// A text that names no mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelModeError;

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

impl FromStr for TunnelMode {
    type Err = TunnelModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "quic" => Ok(TunnelMode::Quic),
            "tls" => Ok(TunnelMode::Tls),
            _ => Err(TunnelModeError),
        }
    }
}

impl fmt::Display for TunnelModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("neither \"quic\" nor \"tls\"")
    }
}

impl std::error::Error for TunnelModeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for mode in [TunnelMode::Quic, TunnelMode::Tls] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("udp".parse::<TunnelMode>(), Err(TunnelModeError));
    }
}
