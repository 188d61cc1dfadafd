//! The destination of a flow.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A host name, for example of a SOCKS request or a URL.
///
/// 1 to 253 ASCII characters; labels of 1 to 63 letters, digits, `-` or `_` (RFC 1123 2.1, with
/// the underscore that is found in practice), joined by dots; a trailing dot is dropped. IPv4
/// addresses are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(String);

/// An invalid host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host name")]
pub struct HostNameError(String);

/// The server that a flow is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// The address and port of an intercepted connection.
    Address(SocketAddr),
    /// A name and port, which the cloud resolves.
    Name(HostName, u16),
}

/// The address families that a host supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// IPv4 works.
    pub v4: bool,
    /// IPv6 works.
    pub v6: bool,
}

impl HostName {
    /// Parses a host name.
    ///
    /// # Errors
    /// The text is not a host name in the sense of the type.
    pub fn new(text: &str) -> Result<Self, HostNameError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let label = |l: &str| {
            (1..=63).contains(&l.len())
                && l.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
                && !l.starts_with('-')
                && !l.ends_with('-')
        };
        let valid = name.len() <= 253
            && name.split('.').all(label)
            && name.parse::<std::net::Ipv4Addr>().is_err();
        if valid { Ok(Self(name.to_owned())) } else { Err(HostNameError(text.to_owned())) }
    }

    /// The name as text, without a trailing dot.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Destination {
    /// The port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name(_, port) => *port,
        }
    }
}

impl Families {
    /// Both families.
    pub const BOTH: Self = Self { v4: true, v6: true };

    /// Whether an address of this family is reached.
    pub fn includes(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.v4,
            IpAddr::V6(_) => self.v6,
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_checked() {
        for good in ["a", "example.com", "xn--bcher-kva.example", "_dmarc.example", "1.2.3.x"] {
            assert_eq!(HostName::new(good).unwrap().as_str(), good);
        }
        assert_eq!(HostName::new("example.com.").unwrap().as_str(), "example.com");
        let long = format!("{}.com", "a".repeat(64));
        for bad in ["", ".", "a..b", "-a.b", "a b", "10.0.0.1", "é.fr", &long, &"a.".repeat(130)] {
            assert!(HostName::new(bad).is_err(), "{bad:?} passed");
        }
    }

    #[test]
    fn destinations_print_as_usual() {
        let name = Destination::Name(HostName::new("example.com").unwrap(), 443);
        assert_eq!(name.to_string(), "example.com:443");
        let v6 = Destination::Address("[2001:db8::1]:80".parse().unwrap());
        assert_eq!(v6.to_string(), "[2001:db8::1]:80");
    }
}
