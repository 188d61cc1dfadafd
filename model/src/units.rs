//! Quantities: amounts of data and bit rates.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;
use std::time::Duration;

/// An amount of data in bytes. Arithmetic saturates: it never wraps and never panics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bitrate(u64);

/// A text that is not a quantity or id of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct ParseUnitError {
    pub(crate) text: String,
    pub(crate) wanted: &'static str,
}

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// `kib` times 1,024 bytes.
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib * 1024)
    }

    /// `mib` times 1,048,576 bytes.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib * 1024 * 1024)
    }

    /// The amount as a memory size, capped at what the machine can address.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Bitrate {
    /// A rate of `bits` bits per second.
    pub const fn from_bps(bits: u64) -> Self {
        Self(bits)
    }

    /// A rate of `mbit` megabits (10^6 bits) per second.
    pub fn from_mbps(mbit: f64) -> Self {
        Self((mbit * 1e6).max(0.0).round() as u64)
    }

    /// A rate of `bytes` bytes per second.
    pub const fn from_bytes_per_second(bytes: u64) -> Self {
        Self(bytes.saturating_mul(8))
    }

    /// Bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Megabits (10^6 bits) per second.
    pub fn as_mbps(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// What the rate carries in `time`.
    pub fn bytes_in(self, time: Duration) -> Bytes {
        let bits_ns = u128::from(self.0).saturating_mul(time.as_nanos());
        Bytes(u64::try_from(bits_ns / 8_000_000_000).unwrap_or(u64::MAX))
    }

    /// How long the rate needs for `bytes`; `None` when the rate is zero.
    pub fn time_for(self, bytes: Bytes) -> Option<Duration> {
        if self.0 == 0 {
            return None;
        }
        let ns = u128::from(bytes.0) * 8_000_000_000 / u128::from(self.0);
        Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b if b >= 1 << 20 => write!(f, "{:.1} MiB", b as f64 / f64::from(1 << 20)),
            b if b >= 1 << 10 => write!(f, "{:.1} KiB", b as f64 / 1024.0),
            b => write!(f, "{b} B"),
        }
    }
}

impl fmt::Display for Bitrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} Mbit/s", self.as_mbps())
    }
}

/// Reads `65536`, `64 KiB`, `16MiB`, `1 GiB`, `20 MB` (decimal) or `100 B`.
impl FromStr for Bytes {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let scale = |unit: &str| match unit {
            "" | "B" => Some(1.0),
            "KiB" => Some(1024.0),
            "MiB" => Some(1024.0 * 1024.0),
            "GiB" => Some(1024.0 * 1024.0 * 1024.0),
            "kB" | "KB" => Some(1e3),
            "MB" => Some(1e6),
            "GB" => Some(1e9),
            _ => None,
        };
        scaled(text, scale).map(Self).ok_or_else(|| ParseUnitError {
            text: text.to_owned(),
            wanted: "an amount of data such as \"64 KiB\" or \"20 MB\"",
        })
    }
}

/// Reads `500000`, `500 kbit/s`, `20 Mbit/s` or `1 Gbit/s`.
impl FromStr for Bitrate {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let scale = |unit: &str| match unit {
            "" | "bit/s" => Some(1.0),
            "kbit/s" => Some(1e3),
            "Mbit/s" => Some(1e6),
            "Gbit/s" => Some(1e9),
            _ => None,
        };
        scaled(text, scale).map(Self).ok_or_else(|| ParseUnitError {
            text: text.to_owned(),
            wanted: "a rate such as \"20 Mbit/s\" or \"500 kbit/s\"",
        })
    }
}

/// A non-negative decimal number with a unit, as a whole number of the base unit.
fn scaled(text: &str, scale: impl Fn(&str) -> Option<f64>) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let value = number.parse::<f64>().ok()? * scale(unit.trim())?;
    (value.is_finite() && value < 2f64.powi(63)).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_times_time_is_data_and_back() {
        let rate = Bitrate::from_mbps(20.0);
        assert_eq!(rate.bytes_in(Duration::from_millis(40)), Bytes(100_000));
        assert_eq!(rate.time_for(Bytes(100_000)), Some(Duration::from_millis(40)));
        assert_eq!(Bitrate::default().time_for(Bytes(1)), None);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes(u64::MAX) + Bytes(2), Bytes(u64::MAX));
        let huge = Bitrate::from_bps(u64::MAX).bytes_in(Duration::from_secs(u64::MAX / 2));
        assert_eq!(huge, Bytes(u64::MAX));
    }

    #[test]
    fn units_are_read() {
        assert_eq!("64 KiB".parse(), Ok(Bytes(65_536)));
        assert_eq!("20MB".parse(), Ok(Bytes(20_000_000)));
        assert_eq!("7".parse(), Ok(Bytes(7)));
        assert_eq!("2.5 Mbit/s".parse(), Ok(Bitrate::from_bps(2_500_000)));
        for bad in ["", "x", "5 Mb", "-1 B", "1..2 B", "9e99 B"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad:?} passed");
        }
        assert!("5 MB".parse::<Bitrate>().is_err());
    }
}
