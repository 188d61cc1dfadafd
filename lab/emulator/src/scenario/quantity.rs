//! Times, rates and sizes in the notation of scenarios.

use std::str::FromStr;
use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};
use serde::de::{Deserialize, Deserializer, Error};

use crate::link::{Policing, Rate};

/// The longest time that may be written: one year.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The highest rate that may be written.
const RATE_MAX: Bitrate = Bitrate::from_bps(100_000_000_000);

/// The largest queue that may be written.
const QUEUE_MAX: Bytes = Bytes::from_mib(1024);

/// The least MTU of IPv4 (RFC 1122, section 3.3.3).
pub(super) const MTU_MIN_V4: u16 = 576;

/// A text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct ParseQuantityError {
    text: String,
    wanted: &'static str,
}

/// Reads `250 us`, `40 ms`, `1.5 s`, `2 m`, `1 h`, with or without the space; at most a year.
///
/// # Errors
/// Anything else, also a number without a unit.
pub fn parse_duration(text: &str) -> Result<Duration, ParseQuantityError> {
    let scale = |unit: &str| match unit {
        "ns" => Some(1e-9),
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    number
        .parse::<f64>()
        .ok()
        .zip(scale(unit.trim()))
        .and_then(|(number, scale)| Duration::try_from_secs_f64(number * scale).ok())
        .filter(|duration| *duration <= DURATION_MAX)
        .ok_or_else(|| ParseQuantityError {
            text: text.to_owned(),
            wanted: "a time such as \"40 ms\", \"1.5 s\" or \"2 m\" of at most a year",
        })
}

/// Reads `unlimited`, or a rate such as `20 Mbit/s` of at most 100 Gbit/s.
///
/// # Errors
/// Anything else.
pub fn parse_rate(text: &str) -> Result<Rate, ParseQuantityError> {
    if text.trim() == "unlimited" {
        return Ok(Rate::Unlimited);
    }
    match Bitrate::from_str(text) {
        Ok(rate) if rate <= RATE_MAX => Ok(Rate::Limited(rate)),
        _ => Err(ParseQuantityError {
            text: text.to_owned(),
            wanted: "\"unlimited\" or a rate such as \"20 Mbit/s\" of at most 100 Gbit/s",
        }),
    }
}

/// Reads `free`, `blocked` or a rate for UDP alone.
///
/// # Errors
/// Anything else.
pub fn parse_policing(text: &str) -> Result<Policing, ParseQuantityError> {
    match (text.trim(), parse_rate(text)) {
        ("free", _) => Ok(Policing::Free),
        ("blocked", _) => Ok(Policing::Blocked),
        (_, Ok(Rate::Limited(rate))) => Ok(Policing::Limited(rate)),
        _ => Err(ParseQuantityError {
            text: text.to_owned(),
            wanted: "\"free\", \"blocked\" or a rate such as \"1 Mbit/s\" of at most 100 Gbit/s",
        }),
    }
}

/// Reads an MTU in bytes.
///
/// # Errors
/// Anything but a number from 576 to 65535.
pub fn parse_path_mtu(text: &str) -> Result<u16, ParseQuantityError> {
    let read = text.trim().parse().ok().filter(|mtu| *mtu >= MTU_MIN_V4);
    read.ok_or_else(|| ParseQuantityError {
        text: text.to_owned(),
        wanted: "an MTU of 576 to 65535 bytes",
    })
}

pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
}

pub(super) fn maybe_duration<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}

pub(super) fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Rate, D::Error> {
    parse_rate(&String::deserialize(from)?).map_err(D::Error::custom)
}

pub(super) fn queue<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    let bytes: Bytes = String::deserialize(from)?.parse().map_err(D::Error::custom)?;
    if bytes > QUEUE_MAX {
        return Err(D::Error::custom(format!("a queue of {bytes} is larger than {QUEUE_MAX}")));
    }
    Ok(bytes)
}

pub(super) fn policing<'de, D: Deserializer<'de>>(from: D) -> Result<Policing, D::Error> {
    parse_policing(&String::deserialize(from)?).map_err(D::Error::custom)
}

pub(super) fn path_mtu<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    let bytes = u64::deserialize(from)?;
    parse_path_mtu(&bytes.to_string()).map(Some).map_err(D::Error::custom)
}
