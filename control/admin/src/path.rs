//! One carrier's path: its state, and changes by operators.

use std::net::SocketAddr;
use std::time::Duration;

use polyrail_model::{Bitrate, LinkSample, TunnelMode};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use super::Timestamp;
use polyrail_config::{Cap, CapAction, CarrierRole, Mode, RateLimit};

/// One carrier with its path: an entry of `GET /v1/paths`.
///
/// A gateway lists every carrier of its configuration, in its order. A cloud lists a carrier of a
/// gateway from its first path until the session's end, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathState {
    /// Its name in this interface: the carrier's name; on a cloud `GATEWAY:CARRIER`.
    pub name: String,
    /// The carrier's name.
    pub carrier: String,
    /// The node at the other end, once known.
    pub peer: Option<String>,
    /// Whether it may be used.
    pub enabled: bool,
    /// The configured role; on a cloud `primary` or `backup`, as the gateway reports.
    pub role: CarrierRole,
    /// The most that each side sends over it, if limited: by the operator, or at its cap.
    pub rate_limit_bits_per_s: Option<u64>,
    /// Its cap, if it has one (gateway).
    pub cap: Option<CapState>,
    /// The interface that it is bound to (gateway).
    pub interface: Option<String>,
    /// The configured mode; on a cloud the mode that the cloud serves.
    pub configured_mode: Mode,
    /// The mode of the connection in use; `None` without one.
    pub mode: Option<TunnelMode>,
    /// Its state.
    pub state: PathPhase,
    /// When it entered this state.
    pub since: Timestamp,
    /// Why the mode was chosen (gateway); `None` before the first decision.
    pub decision: Option<ModeDecision>,
    /// Why QUIC is demoted (gateway).
    pub demotion: Option<Demotion>,
    /// Counters since the daemon's start.
    pub counters: PathCounters,
    /// This end of the connection in use.
    pub local_address: Option<SocketAddr>,
    /// The other end of the connection in use.
    pub peer_address: Option<SocketAddr>,
    /// Measurements of the connection in use; `None` before its first sample.
    pub link: Option<LinkState>,
    /// All its connections, the one in use first.
    pub connections: Vec<ConnectionState>,
}

/// The cap of a carrier, and the data that it has used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapState {
    /// The cap.
    pub limit_bytes: u64,
    /// The day of the month on which a period begins.
    pub reset_day: u8,
    /// What happens at the cap.
    pub at: CapAction,
    /// How far it is used.
    pub level: CapLevel,
    /// Bytes of the current period, in both directions; `None` before the first count.
    pub used_bytes: Option<u64>,
    /// The first day of the period.
    pub period_from: Option<String>,
    /// The first day of the next period.
    pub period_until: Option<String>,
}

/// How far a cap is used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CapLevel {
    /// Less than 75 %.
    #[default]
    Low,
    /// At least 75 %.
    High,
    /// At least 95 %.
    NearlyReached,
    /// At least 100 %.
    Reached,
}

/// The state of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathPhase {
    /// It carries data, or is ready to.
    Up,
    /// Its connection makes no progress.
    Stalled,
    /// It has no connection.
    #[default]
    Down,
    /// It is disabled by the operator.
    Disabled,
    /// It has reached its cap, and carries nothing until the next period.
    Capped,
    /// Its interface is missing, down, or without an address.
    NoInterface,
    /// It is not needed now: another cloud serves the users (gateway).
    Standby,
}

/// Why a carrier's mode was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeDecision {
    /// The chosen mode.
    pub mode: TunnelMode,
    /// The reason, in words.
    pub reason: String,
    /// When.
    pub at: Timestamp,
}

/// Why a carrier in mode `auto` does not use QUIC for some time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Demotion {
    /// The reason, in words.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// When QUIC is tried again, in seconds from now.
    pub retry_in_s: f64,
}

/// Counters of a carrier since the daemon's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCounters {
    /// Changes from one mode to the other.
    pub mode_changes: u64,
    /// Demotions from QUIC to TLS.
    pub demotions: u64,
    /// Paths that moved to a fresh connection.
    pub restarts: u64,
    /// Connections that were begun, of both modes.
    pub attempts: u64,
    /// Connections that were begun in mode `quic`.
    pub quic_attempts: u64,
    /// Of these, connections without an answer of the cloud.
    pub quic_attempts_unanswered: u64,
    /// Connections that were begun in mode `tls`.
    pub tls_attempts: u64,
    /// Of these, connections without an answer of the cloud.
    pub tls_attempts_unanswered: u64,
    /// Times that it stalled.
    pub stalls: u64,
    /// Users' bytes sent, copies included.
    pub sent_bytes: u64,
    /// Users' bytes received, copies included.
    pub received_bytes: u64,
    /// Packets with data sent by its connections, those lost included.
    #[serde(default)]
    pub sent_packets: u64,
    /// Packets of its connections that were declared lost.
    #[serde(default)]
    pub lost_packets: u64,
}

/// The last measurements of a connection's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u64,
    /// Least round-trip time in microseconds.
    pub rtt_min_us: u64,
    /// Mean deviation of the round-trip time in microseconds.
    pub rtt_var_us: u64,
    /// Congestion window in bytes.
    pub window_bytes: u64,
    /// Sent and not yet acknowledged, in bytes.
    pub in_flight_bytes: u64,
    /// Accepted by the transport and not yet sent, in bytes.
    pub unsent_bytes: u64,
    /// Rate of delivery in bits per second; `None` before the first measurement.
    pub delivery_rate_bits_per_s: Option<u64>,
    /// Whether the application, not the path, limited that rate.
    pub application_limited: bool,
    /// Data packets sent, including retransmissions.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Consecutive timeouts without progress.
    pub timeouts: u32,
    /// Bytes that the peer's transport acknowledged.
    pub acked_bytes: u64,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionPhase {
    /// Its handshake is unfinished.
    Connecting,
    /// Its handshake is unfinished, and early data passes.
    Early,
    /// It is up, but carries no data before the peer has answered.
    Unproven,
    /// It carries data, or is ready to.
    Up,
    /// It makes no progress.
    Stalled,
    /// A newer connection replaced it.
    Superseded,
}

/// One connection of a carrier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionState {
    /// Its number in the daemon's logs.
    pub id: u64,
    /// The number of its path in the session; `None` before it is one.
    pub path: Option<u64>,
    /// Its mode.
    pub mode: TunnelMode,
    /// Its state.
    pub state: ConnectionPhase,
    /// This end; `None` while unknown.
    pub local_address: Option<SocketAddr>,
    /// The other end; `None` while unknown.
    pub peer_address: Option<SocketAddr>,
    /// How long ago it was begun, in seconds.
    pub age_s: f64,
    /// Users' bytes sent over it, copies included.
    pub sent_bytes: u64,
    /// Users' bytes received over it, copies included.
    pub received_bytes: u64,
    /// Its figures; `None` before its first sample.
    pub link: Option<LinkState>,
}

/// The body of `PUT /v1/paths/{name}`; absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathChange {
    /// Whether the carrier may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The mode of its tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Which carriers go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<CarrierRole>,
    /// The data that it may carry in a month; `Some(None)` (`null`): any.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub cap: Option<Option<Cap>>,
    /// The most that each side sends over it; `Some(None)` (`null`): no limit.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub rate_limit: Option<Option<RateLimit>>,
    /// Restart the path.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "restart")]
    pub restart: Option<RestartWish>,
}

/// Why to restart a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartWish {
    /// On request: `true`.
    Wanted,
    /// The carrier's modem is in another cell: `"cell"`.
    Cell,
}

impl PathChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl From<&LinkSample> for LinkState {
    fn from(sample: &LinkSample) -> Self {
        Self {
            srtt_us: micros(sample.srtt),
            rtt_min_us: micros(sample.rtt_min),
            rtt_var_us: micros(sample.rtt_var),
            window_bytes: sample.window.0,
            in_flight_bytes: sample.in_flight.0,
            unsent_bytes: sample.unsent.0,
            delivery_rate_bits_per_s: sample.delivery_rate.map(Bitrate::as_bps),
            application_limited: sample.application_limited,
            sent_packets: sample.sent_packets,
            lost_packets: sample.lost_packets,
            timeouts: sample.timeouts,
            acked_bytes: sample.acked.0,
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Serialize for RestartWish {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Wanted => serializer.serialize_bool(true),
            Self::Cell => serializer.serialize_str("cell"),
        }
    }
}

/// Reads `true` or the cause of a restart; `false` means none.
/// A field that may be `null`.
fn present<'de, D, T>(from: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(from).map(Some)
}

fn restart<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RestartWish>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null | Value::Bool(false) => Ok(None),
        Value::Bool(true) => Ok(Some(RestartWish::Wanted)),
        Value::String(cause) if cause == "cell" => Ok(Some(RestartWish::Cell)),
        _ => Err(de::Error::custom("expected true or \"cell\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_parsed_strictly() {
        let read = |text: &str| serde_json::from_str::<PathChange>(text);
        let change = read(r#"{"enabled": false, "mode": "tls"}"#).unwrap();
        assert_eq!((change.enabled, change.mode), (Some(false), Some(Mode::Tls)));
        assert!(read("{}").unwrap().is_empty());
        for (text, wish) in [
            (r#"{"restart":true}"#, RestartWish::Wanted),
            (r#"{"restart":"cell"}"#, RestartWish::Cell),
        ] {
            let change = read(text).unwrap();
            assert_eq!(change.restart, Some(wish));
            assert_eq!(serde_json::to_string(&change).unwrap(), text);
        }
        for text in [
            r#"{"role":"never","cap":null,"rate_limit":null}"#,
            r#"{"cap":{"bytes":"50 GB","reset_day":7,"at":"limit:1 Mbit/s"}}"#,
            r#"{"rate_limit":"20 Mbit/s"}"#,
        ] {
            let change = read(text).unwrap();
            assert!(!change.is_empty(), "{text}");
            assert_eq!(serde_json::to_string(&change).unwrap(), text);
        }
        for none in [r#"{"restart": false}"#, r#"{"restart": null}"#] {
            assert!(read(none).unwrap().is_empty(), "{none}");
        }
        for (bad, reason) in [
            (r#"{"mod": "tls"}"#, "unknown field `mod`"),
            (r#"{"mode": "udp"}"#, "unknown variant `udp`"),
            (r#"{"enabled": 1}"#, "expected a boolean"),
            (r#"{"restart": "modem"}"#, "expected true or \"cell\""),
            (r#"{"role": "spare"}"#, "unknown variant `spare`"),
            (r#"{"rate_limit": "1 kbit/s"}"#, "not between 64 kbit/s and 100 Gbit/s"),
            (r#"{"cap": {"bytes": "1 B"}}"#, "not between 1 MB and 1 PB"),
            (r#"{"cap": {"bytes": "1 GB", "reset_day": 29}}"#, "29 is not between 1 and 28"),
            (r#"{"cap": {"bytes": "1 GB", "at": "halt"}}"#, "is not \"stop\", \"backup\""),
            (r#"{"restart": 1}"#, "expected true or \"cell\""),
            (r#"{"scheduler": "min_rtt"}"#, "unknown field `scheduler`"),
            ("7", "invalid type"),
        ] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.contains(reason), "{bad}: {error}");
        }
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(read(&text).unwrap(), change, "{text}");
    }
}
