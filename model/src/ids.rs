//! Identifiers: sessions, instances, paths, flows, users, nodes and their roles.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A session within one endpoint; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

impl SessionKey {
    /// The worker that has the session: `workers` endpoints of one process number their sessions
    /// interleaved, from 1.
    pub fn worker(self, workers: usize) -> usize {
        (self.0.saturating_sub(1) % workers.max(1) as u64) as usize
    }
}

/// A path of one session: one connection of one carrier.
///
/// The number is the counter of the HELLO or JOIN that brought the path up, so it is the same on
/// both sides and is never used twice within a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u64);

/// A flow of one session: one TCP connection of a user. Never used twice within a session.
///
/// Zero names no flow: on the wire it stands for the session as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// The binding of one endpoint (address and port) of a passenger to its socket in the cloud, for
/// datagrams (RFC 4787 4). Chosen by the gateway, from one; never used twice within a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindingId(pub u64);

/// A user behind the gateway, as a number that says nothing about the user beyond equality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u64);

/// A session between one gateway process and one cloud process, chosen by the cloud.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

/// One run of a gateway process, chosen at random when it starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub [u8; 16]);

/// The role of a node, as its certificate names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// On the train: it opens tunnels, sessions and flows. TLS client authentication alone.
    Gateway,
    /// In the data center: it accepts them. TLS server authentication alone.
    Cloud,
}

impl NodeRole {
    /// `gateway` or `cloud`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Cloud => "cloud",
        }
    }
}

impl FromStr for NodeRole {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "gateway" => Ok(Self::Gateway),
            "cloud" => Ok(Self::Cloud),
            _ => Err("neither gateway nor cloud"),
        }
    }
}

macro_rules! display_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}
display_number!(PathId, FlowId, BindingId);

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for UserId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let is_number = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_number);
        number.map(Self).ok_or("expected the number of a user: 16 hexadecimal digits")
    }
}

macro_rules! display_hex {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    )*};
}
display_hex!(SessionId, InstanceId);

/// The name of a node (a gateway or a cloud) as its certificate states it.
///
/// 1 to 63 characters of `a-z 0-9 - . _`, beginning with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(String);

/// A text that is not a node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a node name: use 1 to 63 of a-z, 0-9, '-', '.', '_', led by one of a-z, 0-9")]
pub struct IdentityError(String);

impl Identity {
    /// Parses a node name.
    ///
    /// # Errors
    /// The text is empty, too long, or has a character outside the permitted ones.
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = (1..=63).contains(&name.len())
            && plain(name.as_bytes()[0])
            && name.bytes().all(|c| plain(c) || matches!(c, b'-' | b'.' | b'_'));
        if valid { Ok(Self(name.to_owned())) } else { Err(IdentityError(name.to_owned())) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_are_checked() {
        for good in ["g", "train-7", "cloud.example_1", "0a"] {
            assert_eq!(Identity::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".a", "Train", "a b", "ä", &"x".repeat(64)] {
            assert!(Identity::new(bad).is_err(), "{bad:?} passed");
        }
    }

    #[test]
    fn users_are_written_and_read() {
        assert_eq!("00000000000000ab".parse(), Ok(UserId(0xab)));
        assert_eq!(UserId(0xab).to_string(), "00000000000000ab");
        for bad in ["", "ab", "+0000000000000ab", "00000000000000ag", "00000000000000abc"] {
            assert!(bad.parse::<UserId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn session_ids_print_as_hex() {
        assert_eq!(SessionId([0xab; 16]).to_string(), "ab".repeat(16));
    }
}
