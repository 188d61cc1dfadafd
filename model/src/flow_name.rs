//! The names of flows and bindings in the admin interface.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::SessionKey;

/// The protocol of a passenger's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowKind {
    /// A flow: one TCP connection.
    Tcp,
    /// A binding: one UDP endpoint of a passenger.
    Udp,
}

impl FlowKind {
    /// Its name in the admin interface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl FromStr for FlowKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            _ => Err("neither tcp nor udp"),
        }
    }
}

/// A flow or binding of one endpoint; never used twice. As text `SESSION-KIND-NUMBER`, for example
/// `1-tcp-42`. The order is that of lists: by session, then flows before bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowName {
    /// Its session.
    pub session: SessionKey,
    /// Whether it is a flow or a binding.
    pub kind: FlowKind,
    /// The number of the flow or binding in its session.
    pub number: u64,
}

impl fmt::Display for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.session.0, self.kind.as_str(), self.number)
    }
}

impl FromStr for FlowName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or(FORM);
        let (session, kind, number) = (next()?, next()?, next()?);
        let digits = |text: &str| text.parse().map_err(|_| FORM);
        let kind = kind.parse().map_err(|_| FORM)?;
        Ok(Self { session: SessionKey(digits(session)?), kind, number: digits(number)? })
    }
}

impl Serialize for FlowName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FlowName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

const FORM: &str = "expected the id of a flow, as 1-tcp-42";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_and_read() {
        let name = FlowName { session: SessionKey(3), kind: FlowKind::Udp, number: 42 };
        assert_eq!(name.to_string(), "3-udp-42");
        assert_eq!("3-udp-42".parse(), Ok(name));
        for bad in ["", "3", "3-udp", "3-udp-", "3-sctp-1", "-udp-1", "3-udp-1-2", "x-tcp-1"] {
            assert!(bad.parse::<FlowName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn lists_go_by_session_and_have_flows_before_bindings() {
        let names = ["1-tcp-2", "1-tcp-10", "1-udp-1", "2-tcp-1"];
        let names: Vec<FlowName> = names.iter().map(|name| name.parse().unwrap()).collect();
        assert!(names.is_sorted());
    }
}
