//! A train on its track and its modems: positions, cells and handovers.
//!
//! All quantities are integers of small units, so that both sides of a session, the database and
//! exported files hold the same record. Positions are along a learned track, not on a map.
//!
//! The `serde` forms are those of LinkDB's exports: ids in hexadecimal digits, positions in metres,
//! speeds in metres per second, powers in dBm, durations in milliseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::ParseUnitError;

/// A cell, as its modem reports it (LTE's ECI, NR's NCI): unique within a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(pub u64);

/// A track, along which positions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u64);

/// One journey of one train along one route; a random number chosen when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TripId(pub u64);

macro_rules! hexadecimal {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseUnitError;

            fn from_str(text: &str) -> Result<Self, ParseUnitError> {
                let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
                let number = u64::from_str_radix(text, 16).ok().filter(|_| digits);
                number.map(Self).ok_or_else(|| ParseUnitError {
                    text: text.to_owned(),
                    wanted: "a number of 1 to 16 hexadecimal digits",
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}
hexadecimal!(CellId, RouteId, TripId);

/// The direction of travel along a track. The numbers are those of LinkDB's database and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Positions increase.
    Up = 0,
    /// Positions decrease.
    Down = 1,
}

impl Direction {
    /// The direction of the lowest bit; the other bits are ignored.
    pub fn from_bit(bits: u8) -> Self {
        if bits & 1 == 0 { Self::Up } else { Self::Down }
    }

    /// 1 or -1.
    pub fn sign(self) -> f64 {
        match self {
            Self::Up => 1.0,
            Self::Down => -1.0,
        }
    }
}

/// A position along a track, counted from where the track was begun.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "f64", into = "f64")]
pub struct Position {
    /// Tenths of a metre; negative before the beginning.
    pub decimetres: i32,
}

impl Position {
    /// The position at this many metres; NaN becomes 0.
    pub fn from_metres(metres: f64) -> Self {
        Self { decimetres: (metres * 10.0).round() as i32 }
    }

    /// Metres from the beginning.
    pub fn metres(self) -> f64 {
        f64::from(self.decimetres) / 10.0
    }
}

/// A speed along a track, without its direction.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "f64", into = "f64")]
pub struct Speed {
    /// Centimetres per second.
    pub centimetres_per_second: u16,
}

impl Speed {
    /// A speed in metres per second, clamped to 0 to 655.35.
    pub fn from_metres_per_second(speed: f64) -> Self {
        Self { centimetres_per_second: (speed * 100.0).round() as u16 }
    }

    /// Metres per second.
    pub fn metres_per_second(self) -> f64 {
        f64::from(self.centimetres_per_second) / 100.0
    }
}

/// The received power of a cell's reference signal: -200 to 0 dBm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Rsrp {
    deci_dbm: i16,
}

impl Rsrp {
    /// A power in dBm; `None` outside the range.
    pub fn from_dbm(dbm: f64) -> Option<Self> {
        (-200.0..=0.0).contains(&dbm).then(|| Self { deci_dbm: (dbm * 10.0).round() as i16 })
    }

    /// A power in tenths of a dBm; `None` outside the range.
    pub fn from_deci_dbm(deci_dbm: i16) -> Option<Self> {
        (-2_000..=0).contains(&deci_dbm).then_some(Self { deci_dbm })
    }

    /// In dBm.
    pub fn dbm(self) -> f64 {
        f64::from(self.deci_dbm) / 10.0
    }

    /// In tenths of a dBm.
    pub fn deci_dbm(self) -> i16 {
        self.deci_dbm
    }
}

impl From<Rsrp> for f64 {
    fn from(rsrp: Rsrp) -> Self {
        rsrp.dbm()
    }
}

impl TryFrom<f64> for Rsrp {
    type Error = String;

    fn try_from(dbm: f64) -> Result<Self, String> {
        Self::from_dbm(dbm).ok_or_else(|| format!("{dbm} is no power in dBm"))
    }
}

macro_rules! decimal {
    ($($name:ident: $from:ident, $to:ident, $unit:literal;)*) => {$(
        impl From<$name> for f64 {
            fn from(quantity: $name) -> Self {
                quantity.$to()
            }
        }

        impl TryFrom<f64> for $name {
            type Error = String;

            fn try_from(number: f64) -> Result<Self, String> {
                let quantity = Self::$from(number);
                // The conversion saturates.
                let is_in_range = (quantity.$to() - number).abs() < 0.1;
                is_in_range.then_some(quantity).ok_or_else(|| format!("{number} is no {}", $unit))
            }
        }
    )*};
}
decimal! {
    Position: from_metres, metres, "position in metres";
    Speed: from_metres_per_second, metres_per_second, "speed in metres per second";
}

/// How a handover ended. The numbers are those of LinkDB's database and messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HandoverOutcome {
    /// The carrier joined the next cell with an outage below 100 ms.
    #[serde(rename = "success")]
    Success = 0,
    /// It failed, and the carrier found a cell again soon (type I).
    #[serde(rename = "type1")]
    TypeI = 1,
    /// The carrier lost the cell before it joined the next; queued data arrived (type II).
    #[serde(rename = "type2")]
    TypeII = 2,
    /// The same, and queued data was lost (type III).
    #[serde(rename = "type3")]
    TypeIII = 3,
}

impl HandoverOutcome {
    /// The outcome of a number; its higher bits are ignored.
    pub fn from_bits(bits: u8) -> Self {
        [Self::Success, Self::TypeI, Self::TypeII, Self::TypeIII][usize::from(bits & 3)]
    }

    /// Whether it is a failure.
    pub fn is_failure(self) -> bool {
        self != Self::Success
    }
}

/// A completed handover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handover {
    /// Its trip.
    pub trip: TripId,
    /// Its number among the trip's handovers, of all carriers, from 0.
    pub sequence: u32,
    /// When it began, in milliseconds since 1970 by the gateway's clock.
    pub at_ms: u64,
    /// The carrier's name, at most 32 bytes.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// The direction of travel.
    pub direction: Direction,
    /// The position at its beginning.
    #[serde(rename = "position_m")]
    pub position: Position,
    /// The train's speed.
    #[serde(rename = "speed_m_s")]
    pub speed: Speed,
    /// The old cell.
    pub from: CellId,
    /// The new cell, if known.
    pub to: Option<CellId>,
    /// The last known power of the old cell.
    #[serde(rename = "rsrp_dbm")]
    pub rsrp: Option<Rsrp>,
    /// How it ended.
    pub outcome: HandoverOutcome,
    /// The length of the outage.
    #[serde(rename = "dark_ms", with = "milliseconds")]
    pub dark: Duration,
}

mod milliseconds {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_rounded_to_their_unit() {
        assert_eq!(Position::from_metres(-12.34).metres(), -12.3);
        assert_eq!(Position::from_metres(f64::NAN), Position::default());
        assert_eq!(Speed::from_metres_per_second(83.33).metres_per_second(), 83.33);
        assert_eq!(Speed::from_metres_per_second(-1.0), Speed::default());
        assert_eq!(Rsrp::from_dbm(-101.26).map(Rsrp::dbm), Some(-101.3));
        for dbm in [f64::NAN, 1.0, -201.0, f64::INFINITY] {
            assert_eq!(Rsrp::from_dbm(dbm), None);
        }
        for number in [f64::NAN, f64::INFINITY, 1e30] {
            assert!(Position::try_from(number).is_err() && Speed::try_from(number).is_err());
        }
        assert!(Speed::try_from(-1.0).is_err());
    }

    #[test]
    fn ids_are_hexadecimal_texts() {
        assert_eq!(
            (CellId(0x1a2b).to_string(), "1a2b".parse()),
            ("1a2b".into(), Ok(CellId(0x1a2b)))
        );
        for bad in ["", "+1", "-1", "x", "10000000000000000"] {
            assert!(bad.parse::<RouteId>().is_err(), "{bad:?}");
        }
        assert_eq!((Direction::Up.sign(), Direction::Down.sign()), (1.0, -1.0));
    }
}
