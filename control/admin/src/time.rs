//! Moments as operators read them: RFC 3339 with milliseconds, in UTC.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A moment of the wall clock, to the millisecond: `2026-11-21T12:40:00.123Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(OffsetDateTime);

/// The beginning of 1970.
impl Default for Timestamp {
    fn default() -> Self {
        Self(OffsetDateTime::UNIX_EPOCH)
    }
}

impl Timestamp {
    /// This moment.
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// Seconds since 1970.
    pub fn since_epoch_s(self) -> f64 {
        self.0.unix_timestamp_nanos() as f64 / 1e9
    }
}

impl From<SystemTime> for Timestamp {
    fn from(moment: SystemTime) -> Self {
        let moment = OffsetDateTime::from(moment).to_offset(time::UtcOffset::UTC);
        let whole = u32::from(moment.millisecond()) * 1_000_000;
        Self(moment.replace_nanosecond(whole).unwrap_or(moment))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (date, time) = (self.0.date(), self.0.time());
        let (hour, minute, second, millisecond) = time.as_hms_milli();
        write!(f, "{date}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        OffsetDateTime::parse(&text, &Rfc3339).map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn moments_are_written_and_read_to_the_millisecond() {
        let moment = Timestamp::from(UNIX_EPOCH + Duration::new(1_795_264_800, 7_999_999));
        assert_eq!(moment.to_string(), "2026-11-21T12:40:00.007Z");
        assert!((moment.since_epoch_s() - 1_795_264_800.007).abs() < 1e-6);
        let text = serde_json::to_string(&moment).unwrap();
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), moment);
        assert!(serde_json::from_str::<Timestamp>("\"yesterday\"").is_err());
    }
}
