//! gpsd's reports: one JSON object a line (gpsd_json(5), protocol 3).

use polyrail_model::Fix;
use std::time::Instant;

use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A line from gpsd; unused reports are [`GpsdReport::Other`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "class")]
pub(super) enum GpsdReport {
    /// The first line of a connection.
    #[serde(rename = "VERSION")]
    Version {
        /// Of gpsd.
        #[serde(default)]
        release: String,
        /// Of the protocol.
        proto_major: u32,
    },
    /// The list of receivers.
    #[serde(rename = "DEVICES")]
    Devices {
        /// The receivers.
        #[serde(default)]
        devices: Vec<Device>,
    },
    /// A receiver appeared or disappeared.
    #[serde(rename = "DEVICE")]
    Device(Device),
    /// A reading: time, position, velocity.
    #[serde(rename = "TPV")]
    Reading(Reading),
    /// gpsd rejected a request.
    #[serde(rename = "ERROR")]
    Error {
        /// The message.
        #[serde(default)]
        message: String,
    },
    /// Satellites, raw data and the like.
    #[serde(other)]
    Other,
}

/// A receiver.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Device {
    /// Its name, as a path.
    #[serde(default)]
    pub(super) path: String,
    /// When it was activated; 0 if it disappeared. Text or a number, depending on gpsd's version.
    #[serde(default)]
    pub(super) activated: serde_json::Value,
}

/// A TPV report; unknown values are absent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Reading {
    /// The receiver.
    #[serde(default)]
    pub(super) device: String,
    /// 0 and 1: no fix; 2: two-dimensional; 3: three-dimensional.
    pub(super) mode: u8,
    /// By the satellites' clocks, RFC 3339.
    pub(super) time: Option<String>,
    /// Degrees north.
    pub(super) lat: Option<f64>,
    /// Degrees east.
    pub(super) lon: Option<f64>,
    /// Metres per second.
    pub(super) speed: Option<f64>,
    /// Degrees clockwise from north.
    pub(super) track: Option<f64>,
    /// Error estimates in metres: east, north, horizontal.
    pub(super) epx: Option<f64>,
    pub(super) epy: Option<f64>,
    pub(super) eph: Option<f64>,
}

impl Device {
    /// Whether it is in use.
    pub(super) fn is_active(&self) -> bool {
        self.activated.as_f64() != Some(0.0)
    }
}

impl Reading {
    /// The position, if the reading has one.
    ///
    /// # Errors
    /// The position is impossible.
    pub(super) fn fix(&self, at: Instant) -> Result<Option<Fix>, &'static str> {
        if self.mode < 2 {
            return Ok(None);
        }
        // gpsd 3.22 reports this between a receiver's first sentences.
        let (Some(latitude), Some(longitude)) = (self.lat, self.lon) else { return Ok(None) };
        if !(-90.0..=90.0).contains(&latitude) || !(-180.0..=180.0).contains(&longitude) {
            return Err("a position that is not on earth");
        }
        let speed = self.speed.filter(|speed| (0.0..=SPEED_MAX).contains(speed));
        let heading = self.track.filter(|track| (0.0..=360.0).contains(track));
        Ok(Some(Fix {
            at,
            time_ms: self.time.as_deref().and_then(milliseconds),
            latitude,
            longitude,
            speed,
            heading: heading.map(|heading| heading % 360.0),
            error: self.error(),
        }))
    }

    /// One standard deviation; gpsd's figures are 95 % bounds (libgpsd_core.c: `H_UERE_NO_DGPS`).
    fn error(&self) -> Option<f64> {
        let both = self.epx.zip(self.epy).map(|(x, y)| x.hypot(y));
        let error = self.eph.or(both)? / 2.0;
        (error > 0.0 && error.is_finite()).then_some(error)
    }
}

/// Milliseconds since 1970; `None` if the text is no such time.
fn milliseconds(text: &str) -> Option<u64> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok()
}

/// The maximum plausible speed, in metres per second.
const SPEED_MAX: f64 = 300.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(text: &str) -> Reading {
        match serde_json::from_str(text).unwrap() {
            GpsdReport::Reading(reading) => reading,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reports_are_parsed() {
        let report = |text: &str| serde_json::from_str::<GpsdReport>(text);
        let text = r#"{"class":"VERSION","release":"3.22","rev":"3.22","proto_major":3,"x":1}"#;
        let version = GpsdReport::Version { release: "3.22".to_owned(), proto_major: 3 };
        assert_eq!(report(text).unwrap(), version);
        assert_eq!(report(r#"{"class":"SKY","satellites":[{}]}"#).unwrap(), GpsdReport::Other);
        let error = GpsdReport::Error { message: "no".to_owned() };
        assert_eq!(report(r#"{"class":"ERROR","message":"no"}"#).unwrap(), error);
        let devices = r#"{"class":"DEVICES","devices":[
            {"path":"/dev/ttyUSB0","activated":"2023-01-01T00:00:00.0Z"},
            {"path":"b","activated":0}]}"#;
        let GpsdReport::Devices { devices } = report(devices).unwrap() else { panic!() };
        assert_eq!(devices.iter().map(Device::is_active).collect::<Vec<_>>(), [true, false]);
        for bad in [
            "",
            "{}",
            "[]",
            "7",
            "{\"class\":7}",
            r#"{"class":"TPV"}"#,
            r#"{"class":"TPV","mode":-1}"#,
            r#"{"class":"TPV","mode":3,"lat":"x"}"#,
            r#"{"class":"TPV","mode":3,"lat":1e999}"#,
        ] {
            assert!(report(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fix_is_parsed() {
        let text = r#"{"class":"TPV","device":"/dev/pts/1","mode":3,
            "time":"2024-05-01T10:00:00.250Z","lat":52.5,"lon":-13.25,"altHAE":40.1,"speed":83.3,
            "track":360,"epx":3.0,"epy":4.0}"#;
        let at = Instant::now();
        let fix = reading(text).fix(at).unwrap().unwrap();
        let expected = Fix {
            at,
            time_ms: Some(1_714_557_600_250),
            latitude: 52.5,
            longitude: -13.25,
            speed: Some(83.3),
            heading: Some(0.0),
            error: Some(2.5),
        };
        assert_eq!(fix, expected);
        let text = r#"{"class":"TPV","mode":2,"lat":0,"lon":0,"epx":3,"epy":4,"eph":12,"speed":-1,
            "track":400,"time":"yesterday"}"#;
        let fix = reading(text).fix(at).unwrap().unwrap();
        let parts = (fix.time_ms, fix.speed, fix.heading, fix.error);
        assert_eq!(parts, (None, None, None, Some(6.0)));
    }

    #[test]
    fn reading_without_position_has_no_fix() {
        let fix = |text: &str| {
            let text = format!("{{\"class\":\"TPV\",{text}}}");
            reading(&text).fix(Instant::now())
        };
        assert_eq!(fix("\"mode\":1"), Ok(None));
        assert_eq!(fix("\"mode\":0,\"lat\":1,\"lon\":1"), Ok(None));
        assert_eq!(fix("\"mode\":3,\"lat\":1"), Ok(None));
        for bad in ["\"mode\":3,\"lat\":91,\"lon\":0", "\"mode\":3,\"lat\":0,\"lon\":-181"] {
            assert!(fix(bad).is_err(), "{bad}");
        }
    }
}
