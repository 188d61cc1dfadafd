//! Parses one line of replayed telemetry (`docs/telemetry.md`, version 1), strictly.

use std::time::{Duration, Instant};

use polyrail_model::{
    CellId, Fix, HandoverOutcome, METRES_MAX, Observation, Odometer, Reported, RouteId, Rsrp,
    Serving, VELOCITY_MAX,
};
use serde::{Deserialize, Deserializer, de};

/// The version of the format.
pub(super) const VERSION: u64 = 1;

/// A parsed line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplayLine {
    /// The format and version that the following lines have.
    Head,
    /// Observations.
    Telemetry(Telemetry),
}

/// The validated contents of a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Telemetry {
    /// Seconds since the start of the recording.
    pub(super) time_s: Option<f64>,
    place: Option<Place>,
    carriers: Vec<CarrierCell>,
    handovers: Vec<CarrierHandover>,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Track {
        route: RouteId,
        metres: f64,
        velocity: f64,
        error: f64,
    },
    Earth {
        latitude: f64,
        longitude: f64,
        speed: Option<f64>,
        heading: Option<f64>,
        error: Option<f64>,
    },
}

/// Why a line was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LineError {
    /// The line is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The format of the whole stream is not supported.
    #[error("{0}")]
    Incompatible(String),
}

/// The route of lines without one.
const ROUTE: &str = "replay";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    format: Option<String>,
    version: Option<u64>,
    time_s: Option<f64>,
    route: Option<String>,
    metres: Option<f64>,
    metres_per_second: Option<f64>,
    latitude: Option<f64>,
    longitude: Option<f64>,
    heading: Option<f64>,
    error_m: Option<f64>,
    #[serde(default)]
    carriers: Vec<CarrierCell>,
    #[serde(default)]
    handovers: Vec<CarrierHandover>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CarrierCell {
    carrier: String,
    // Null means no cell; a missing key is an error.
    #[serde(deserialize_with = "Option::deserialize")]
    cell: Option<u64>,
    #[serde(default, deserialize_with = "rsrp")]
    rsrp_dbm: Option<Rsrp>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CarrierHandover {
    carrier: String,
    outcome: ReportedOutcome,
    dark_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReportedOutcome {
    Success,
    TypeI,
    #[serde(alias = "failure_held")]
    TypeIi,
    #[serde(alias = "failure_dropped")]
    TypeIii,
}

fn rsrp<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Rsrp>, D::Error> {
    let Some(dbm) = Option::deserialize(from)? else { return Ok(None) };
    let range = || de::Error::custom(format_args!("rsrp_dbm: {dbm} is not between -200 and 0"));
    Rsrp::from_dbm(dbm).map(Some).ok_or_else(range)
}

/// The identifier of a named route: the first eight bytes of its SHA-256.
pub fn route_id(name: &str) -> RouteId {
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest.as_ref()[..8]);
    RouteId(u64::from_be_bytes(first))
}

impl ReplayLine {
    /// Reads a line.
    ///
    /// # Errors
    /// The format or a value is invalid.
    pub(super) fn parse(text: &str) -> Result<Self, LineError> {
        let raw: Raw = serde_json::from_str(text).map_err(|e| LineError::Invalid(e.to_string()))?;
        if raw.format.is_some() || raw.version.is_some() {
            return raw.head();
        }
        raw.telemetry().map(Self::Telemetry).map_err(LineError::Invalid)
    }
}

impl Raw {
    fn head(&self) -> Result<ReplayLine, LineError> {
        let (format, version) = (self.format.as_deref(), self.version);
        if format == Some(FORMAT) && version == Some(VERSION) {
            return Ok(ReplayLine::Head);
        }
        let (format, version) = (format.unwrap_or("?"), version.unwrap_or(0));
        let known = format!("supported is {FORMAT} {VERSION}");
        Err(LineError::Incompatible(format!("its format is {format} {version}; {known}")))
    }

    fn telemetry(self) -> Result<Telemetry, String> {
        let time_s = within("time_s", self.time_s, 0.0, TIME_MAX)?;
        let place = self.place()?;
        if self.carriers.len().max(self.handovers.len()) > LIST_MAX {
            return Err(format!("more than {LIST_MAX} carriers"));
        }
        let Self { carriers, handovers, .. } = self;
        for handover in &handovers {
            within("dark_s", handover.dark_s, 0.0, DARK_MAX)?;
        }
        if place.is_none() && carriers.is_empty() && handovers.is_empty() {
            return Err("it is empty".to_owned());
        }
        Ok(Telemetry { time_s, place, carriers, handovers })
    }

    fn place(&self) -> Result<Option<Place>, String> {
        let error = within("error_m", self.error_m, ERROR_MIN, 1e5)?;
        let latitude = within("latitude", self.latitude, -90.0, 90.0)?;
        let longitude = within("longitude", self.longitude, -180.0, 180.0)?;
        let heading = within("heading", self.heading, 0.0, 360.0)?;
        let metres = within("metres", self.metres, -METRES_MAX, METRES_MAX)?;
        let velocity =
            within("metres_per_second", self.metres_per_second, -VELOCITY_MAX, VELOCITY_MAX)?;
        let route = self.route.as_deref();
        if route.is_some_and(|name| name.is_empty() || name.len() > NAME_MAX) {
            return Err(format!("route: a name has 1 to {NAME_MAX} bytes"));
        }
        match (metres, latitude.zip(longitude)) {
            (Some(metres), None) if latitude.or(longitude).or(heading).is_none() => {
                let velocity = velocity.ok_or("metres_per_second is missing next to metres")?;
                let route = route_id(route.unwrap_or(ROUTE));
                let error = error.unwrap_or(ERROR_USUAL);
                Ok(Some(Place::Track { route, metres, velocity, error }))
            }
            (None, Some((latitude, longitude))) if route.is_none() => {
                if velocity.is_some_and(|speed| speed < 0.0) {
                    return Err("metres_per_second is less than zero".to_owned());
                }
                let (speed, heading) = (velocity, heading.map(|heading| heading % 360.0));
                Ok(Some(Place::Earth { latitude, longitude, speed, heading, error }))
            }
            (None, None) if self.has_no_place() => Ok(None),
            _ => Err("a place is metres and metres_per_second, with a route and error_m or \
                      without; or latitude and longitude, with metres_per_second, heading and \
                      error_m or without"
                .to_owned()),
        }
    }

    fn has_no_place(&self) -> bool {
        let numbers = [self.metres_per_second, self.latitude, self.longitude, self.heading];
        numbers.iter().chain([&self.error_m]).all(Option::is_none) && self.route.is_none()
    }
}

impl Telemetry {
    /// The observations at `at`, of known carriers; the position first.
    pub(super) fn observations(
        self,
        at: Instant,
        known: impl Fn(&String) -> bool,
    ) -> Vec<Observation> {
        let place = self.place.map(|place| match place {
            Place::Track { route, metres, velocity, error } => {
                Observation::Odometer(Odometer { at, route, metres, velocity, error })
            }
            Place::Earth { latitude, longitude, speed, heading, error } => {
                let time_ms = None;
                Observation::Fix(Fix { at, time_ms, latitude, longitude, speed, heading, error })
            }
        });
        let carriers = self.carriers.into_iter().filter(|one| known(&one.carrier));
        let serving = carriers.map(|CarrierCell { carrier, cell, rsrp_dbm }| {
            let cell = cell.map(CellId);
            Observation::Serving(Serving { at, carrier, cell, rsrp: rsrp_dbm })
        });
        let handovers = self.handovers.into_iter().filter(|one| known(&one.carrier));
        let reported = handovers.map(|CarrierHandover { carrier, outcome, dark_s }| {
            let outcome = match outcome {
                ReportedOutcome::Success => HandoverOutcome::Success,
                ReportedOutcome::TypeI => HandoverOutcome::TypeI,
                ReportedOutcome::TypeIi => HandoverOutcome::TypeII,
                ReportedOutcome::TypeIii => HandoverOutcome::TypeIII,
            };
            let dark = dark_s.map(Duration::from_secs_f64);
            Observation::Reported(Reported { at, carrier, outcome, dark })
        });
        place.into_iter().chain(serving).chain(reported).collect()
    }
}

fn within(key: &str, value: Option<f64>, least: f64, most: f64) -> Result<Option<f64>, String> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(format!("{key}: {value} is not between {least} and {most}"))
        }
        value => Ok(value),
    }
}

/// The format's name in its first line.
const FORMAT: &str = "polyrail-telemetry";
/// The default error of a position along a track: one standard deviation, in metres.
const ERROR_USUAL: f64 = 10.0;
/// The minimum error, in metres.
const ERROR_MIN: f64 = 0.01;
/// Four months.
const TIME_MAX: f64 = 1e7;
const DARK_MAX: f64 = 3600.0;
const LIST_MAX: usize = 16;
const NAME_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(text: &str) -> Vec<Observation> {
        match ReplayLine::parse(text) {
            Ok(ReplayLine::Telemetry(line)) => line.observations(at(), |name| name != "z"),
            other => panic!("{text}: {other:?}"),
        }
    }

    /// The same instant for all lines.
    fn at() -> Instant {
        static AT: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *AT.get_or_init(Instant::now)
    }

    #[test]
    fn line_of_the_emulated_rail_is_parsed() {
        let text = r#"{"carriers":[{"carrier":"a","cell":17,"rsrp_dbm":-93.4},
            {"carrier":"b","cell":null,"rsrp_dbm":null},{"carrier":"z","cell":1}],
            "metres":1234.5,"metres_per_second":83.333,"time_s":14.0}"#;
        let serving = |carrier: &str, cell, rsrp| {
            let carrier = carrier.to_owned();
            Observation::Serving(Serving { at: at(), carrier, cell, rsrp })
        };
        let route = route_id("replay");
        let (metres, velocity, error) = (1234.5, 83.333, ERROR_USUAL);
        let seen = observed(text);
        let Observation::Odometer(odometer) = &seen[0] else { panic!("{seen:?}") };
        let expected = Odometer { at: at(), route, metres, velocity, error };
        assert_eq!(*odometer, expected);
        let rsrp = Rsrp::from_dbm(-93.4);
        assert_eq!(seen[1..], [serving("a", Some(CellId(17)), rsrp), serving("b", None, None)]);
    }

    #[test]
    fn coordinates_and_reported_handovers_are_parsed() {
        let text = r#"{"latitude":52.5,"longitude":13.4,"heading":360,"error_m":4,
            "handovers":[{"carrier":"a","outcome":"type_iii","dark_s":1.5},
            {"carrier":"b","outcome":"failure_held"},{"carrier":"b","outcome":"success"}]}"#;
        let seen = observed(text);
        let Observation::Fix(fix) = &seen[0] else { panic!("{seen:?}") };
        assert_eq!((fix.heading, fix.error, fix.speed), (Some(0.0), Some(4.0), None));
        let outcomes: Vec<_> = seen[1..]
            .iter()
            .map(|one| match one {
                Observation::Reported(reported) => (reported.outcome, reported.dark),
                other => panic!("{other:?}"),
            })
            .collect();
        let dark = Some(Duration::from_millis(1500));
        let expected = [
            (HandoverOutcome::TypeIII, dark),
            (HandoverOutcome::TypeII, None),
            (HandoverOutcome::Success, None),
        ];
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn head_names_format_and_version() {
        let head = ReplayLine::parse(r#"{"format":"polyrail-telemetry","version":1}"#);
        assert_eq!(head, Ok(ReplayLine::Head));
        for other in [
            r#"{"format":"polyrail-telemetry","version":2}"#,
            r#"{"format":"else","version":1}"#,
            r#"{"version":1}"#,
        ] {
            assert!(matches!(ReplayLine::parse(other), Err(LineError::Incompatible(_))), "{other}");
        }
    }

    /// SHA-256 of the name, as `printf replay | sha256sum` prints it.
    #[test]
    fn route_id_is_the_hash_of_the_name() {
        assert_eq!(route_id("replay").to_string(), ROUTE_REPLAY);
        assert_ne!(route_id("a"), route_id("b"));
    }

    const ROUTE_REPLAY: &str = "ac203c9843b5bd8c";

    #[test]
    fn invalid_values_are_rejected() {
        let place = "\"metres\":1,\"metres_per_second\":1";
        for bad in [
            "{}".to_owned(),
            "[]".to_owned(),
            "7".to_owned(),
            "{\"time_s\":1}".to_owned(),
            format!("{{{place}"),
            format!("{{{place},\"speed\":1}}"),
            format!("{{{place},\"time_s\":-1}}"),
            format!("{{{place},\"time_s\":\"1\"}}"),
            format!("{{{place},\"error_m\":0}}"),
            format!("{{{place},\"route\":\"\"}}"),
            format!("{{{place},\"latitude\":1,\"longitude\":1}}"),
            format!("{{{place},\"heading\":1}}"),
            "{\"metres\":1}".to_owned(),
            "{\"metres\":1e9,\"metres_per_second\":1}".to_owned(),
            "{\"metres\":10000001,\"metres_per_second\":1}".to_owned(),
            "{\"metres\":1,\"metres_per_second\":400}".to_owned(),
            "{\"metres\":1,\"metres_per_second\":-171}".to_owned(),
            "{\"latitude\":1}".to_owned(),
            "{\"latitude\":1,\"longitude\":1,\"route\":\"x\"}".to_owned(),
            "{\"latitude\":1,\"longitude\":1,\"metres_per_second\":-1}".to_owned(),
            "{\"latitude\":91,\"longitude\":1}".to_owned(),
            "{\"carriers\":[{\"carrier\":\"a\"}]}".to_owned(),
            "{\"carriers\":[{\"carrier\":\"a\",\"cell\":-1}]}".to_owned(),
            "{\"carriers\":[{\"carrier\":\"a\",\"cell\":1,\"rsrp_dbm\":1}]}".to_owned(),
            "{\"handovers\":[{\"carrier\":\"a\",\"outcome\":\"lost\"}]}".to_owned(),
            "{\"handovers\":[{\"carrier\":\"a\",\"outcome\":\"success\",\"dark_s\":-1}]}"
                .to_owned(),
            format!("{{\"carriers\":[{}]}}", vec!["{\"carrier\":\"a\",\"cell\":1}"; 17].join(",")),
        ] {
            assert!(matches!(ReplayLine::parse(&bad), Err(LineError::Invalid(_))), "{bad}");
        }
    }
}
