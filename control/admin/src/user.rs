//! The users of a daemon: the answer of `GET /v1/users`.

use std::cmp::Reverse;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use polyrail_model::{SessionKey, UserId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Timestamp;
use super::page_query::{PAGE_MAX, limit, parsed};

/// One user with open flows, recent traffic or recent refusals: an entry of `GET /v1/users`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserState {
    /// Its number in logs, 16 hexadecimal digits; the same on the gateway and on the cloud.
    pub user: String,
    /// The gateway (cloud).
    pub gateway: Option<String>,
    /// Its address, the latest one if it has several (gateway).
    pub address: Option<IpAddr>,
    /// Its group, if it belongs to one (gateway).
    pub group: Option<String>,
    /// Open flows.
    pub flows: u64,
    /// Bytes that the session has accepted for the peer, of flows and datagrams; `None` if they are
    /// not remembered.
    pub sent_bytes: Option<u64>,
    /// Bytes of the peer that the user or its servers have received; `None` if they are not
    /// remembered.
    pub received_bytes: Option<u64>,
    /// Dials under way (cloud).
    pub dials: u64,
    /// Waiting dials (cloud).
    pub dials_waiting: u64,
    /// Its refusals.
    pub refused: RefusedCounts,
    /// The reason of the latest refusal, in words.
    pub refused_reason: Option<String>,
    /// When that was.
    pub refused_at: Option<Timestamp>,
}

/// Refusals of one user since the start, or since it was forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCounts {
    /// Flows refused because too many were open (gateway).
    pub flows: u64,
    /// Flows reset because of its quota: of dials, or the most flows at the bound of all users.
    pub quota: u64,
    /// Flows reset because of a bound of all users.
    pub overload: u64,
    /// DNS queries refused (gateway).
    pub queries: u64,
}

/// The place of a user in the list: those with the most flows come first, then the order is that of
/// sessions and users. As text `FLOWS-SESSION-USER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserPlace {
    /// Its open flows.
    pub flows: Reverse<u64>,
    /// Its session.
    pub session: SessionKey,
    /// The user.
    pub user: UserId,
}

/// The users that a client requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UsersQuery {
    /// The maximum number of users in the answer; 1 to [`PAGE_MAX`], which is the default.
    #[serde(deserialize_with = "limit")]
    pub limit: usize,
    /// Users after this place.
    pub after: Option<UserPlace>,
    /// Only this user.
    #[serde(deserialize_with = "parsed")]
    pub user: Option<UserId>,
    /// Users of this gateway (cloud).
    pub gateway: Option<String>,
    /// Users with at least so many open flows.
    pub min_flows: u64,
}

impl Default for UsersQuery {
    fn default() -> Self {
        Self { limit: PAGE_MAX, after: None, user: None, gateway: None, min_flows: 0 }
    }
}

/// The answer of `GET /v1/users`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserPage {
    /// The users, those with the most flows first.
    pub users: Vec<UserState>,
    /// The value of `after` for the next page; `None` on the last one.
    pub next: Option<UserPlace>,
    /// The place of each of the users, to merge pages; not in the answer.
    #[serde(skip)]
    pub places: Vec<UserPlace>,
}

impl fmt::Display for UserPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.flows.0, self.session.0, self.user)
    }
}

impl FromStr for UserPlace {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let wrong = "expected the value of next";
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or(wrong);
        let (flows, session, user) = (next()?, next()?, next()?);
        let digits = |text: &str| text.parse::<u64>().map_err(|_| wrong);
        let (flows, session) = (Reverse(digits(flows)?), SessionKey(digits(session)?));
        Ok(Self { flows, session, user: user.parse().map_err(|_| wrong)? })
    }
}

impl Serialize for UserPlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UserPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_and_read_and_users_with_the_most_flows_come_first() {
        let texts = ["12-2-00000000000000ab", "3-1-00000000000000ff", "3-2-0000000000000001"];
        let places: Vec<UserPlace> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert!(places.is_sorted());
        assert_eq!(places[0].to_string(), texts[0]);
        for bad in ["", "1-2", "1-2-3", "x-1-00000000000000ab", "-1-00000000000000ab"] {
            assert!(bad.parse::<UserPlace>().is_err(), "{bad:?}");
        }
    }
}
