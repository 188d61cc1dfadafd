//! The users of a daemon: the answer of `GET /v1/users`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Timestamp;

/// The maximum number of users in an answer, those with the most flows first.
pub const USERS_LISTED_MAX: usize = 1_000;

/// One user with open flows or with recent refusals: an entry of `GET /v1/users`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
