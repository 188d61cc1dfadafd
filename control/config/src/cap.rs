//! What an operator grants a carrier: an amount of data in a month, and a rate.

use std::fmt;
use std::str::FromStr;

use polyrail_model::{Bitrate, Bytes};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::values::{count, parsed};

/// `carrier.cap`: how much data a carrier may carry in a month, in both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cap {
    /// 1 MB to 1 PB.
    pub bytes: CapBytes,
    /// The day of the month on which a period begins, at 0:00 UTC; default 1, 1 to 28.
    #[serde(default = "first", deserialize_with = "count::<_, _, 1, 28>")]
    pub reset_day: u8,
    /// What happens at the cap; default stop.
    #[serde(default)]
    pub at: CapAction,
}

/// What happens when a carrier has reached its cap, until the next period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapAction {
    /// It carries nothing.
    #[default]
    Stop,
    /// It is a backup.
    Backup,
    /// It has this rate limit.
    Limit(RateLimit),
}

/// An amount of data in a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CapBytes(Bytes);

/// `carrier.rate_limit`: the most that each side sends over a carrier; 64 kbit/s to 100 Gbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RateLimit(Bitrate);

impl CapBytes {
    /// The amount.
    pub fn bytes(self) -> Bytes {
        self.0
    }
}

impl RateLimit {
    /// The rate.
    pub fn rate(self) -> Bitrate {
        self.0
    }
}

impl FromStr for CapBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes: Bytes = text.parse().map_err(|error| format!("{error}"))?;
        let fits = (1_000_000..=1_000_000_000_000_000).contains(&bytes.0);
        fits.then_some(Self(bytes)).ok_or_else(|| format!("{text:?} is not between 1 MB and 1 PB"))
    }
}

impl FromStr for RateLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate: Bitrate = text.parse().map_err(|error| format!("{error}"))?;
        let fits = (64_000..=100_000_000_000).contains(&rate.as_bps());
        fits.then_some(Self(rate))
            .ok_or_else(|| format!("{text:?} is not between 64 kbit/s and 100 Gbit/s"))
    }
}

impl FromStr for CapAction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stop" => Ok(Self::Stop),
            "backup" => Ok(Self::Backup),
            _ => match text.strip_prefix("limit:") {
                Some(rate) => rate.parse().map(Self::Limit),
                None => Err(format!("{text:?} is not \"stop\", \"backup\" or \"limit:RATE\"")),
            },
        }
    }
}

/// As in a configuration, without loss.
impl fmt::Display for CapBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0.0, [(1_000_000_000, "GB"), (1_000_000, "MB"), (1, "B")])
    }
}

/// As in a configuration, without loss.
impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0.as_bps(), [(1_000_000, "Mbit/s"), (1_000, "kbit/s"), (1, "bit/s")])
    }
}

impl fmt::Display for CapAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop => f.write_str("stop"),
            Self::Backup => f.write_str("backup"),
            Self::Limit(rate) => write!(f, "limit:{rate}"),
        }
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, reset_day, at } = self;
        write!(f, "{bytes} from day {reset_day}, then {at}")
    }
}

/// Types that are written as they are displayed.
macro_rules! as_text {
    ($($name:ident)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                parsed(deserializer)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

as_text! { CapBytes RateLimit CapAction }

/// Writes a number in the largest unit that keeps it whole.
fn scaled(f: &mut fmt::Formatter<'_>, number: u64, units: [(u64, &str); 3]) -> fmt::Result {
    let whole = units.iter().find(|(scale, _)| number.is_multiple_of(*scale));
    whole.map_or(Ok(()), |(scale, unit)| write!(f, "{} {unit}", number / scale))
}

fn first() -> u8 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_written_without_loss() {
        for text in ["50 GB", "1500 MB", "1048577 B"] {
            assert_eq!(text.parse::<CapBytes>().unwrap().to_string(), text);
        }
        assert_eq!("1.5 GB".parse::<CapBytes>().unwrap().to_string(), "1500 MB");
        for text in ["20 Mbit/s", "1500 kbit/s", "64001 bit/s"] {
            assert_eq!(text.parse::<RateLimit>().unwrap().to_string(), text);
        }
        for text in ["stop", "backup", "limit:64 kbit/s"] {
            assert_eq!(text.parse::<CapAction>().unwrap().to_string(), text);
        }
        for bad in ["", "0", "999 kB", "1001000 GB", "-1 GB", "50 GBit"] {
            assert!(bad.parse::<CapBytes>().is_err(), "{bad:?}");
        }
        for bad in ["", "63 kbit/s", "101 Gbit/s", "20 MB"] {
            assert!(bad.parse::<RateLimit>().is_err(), "{bad:?}");
        }
        for bad in ["", "Stop", "limit", "limit:", "limit:1 kbit/s", "never"] {
            assert!(bad.parse::<CapAction>().is_err(), "{bad:?}");
        }
    }
}
