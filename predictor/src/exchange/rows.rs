//! Handovers, cells, tracks and places as they stand in files: ids in hexadecimal, positions in
//! metres, powers in dBm, in the fewest digits that say all that is kept.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::str::FromStr;
use std::time::Duration;

use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};
use serde::de::value::{self, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};

use super::Coarsening;
use crate::history::{CellHistory, CellKey, PASSAGES_MAX, Passage};
use crate::record::{self, RecordError};
use crate::store::{Mean, PLACE_TRIPS_MAX, Place, PlaceKey, SAMPLES_MAX, Visit};

/// One handover; its fields are the columns of a CSV file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandoverRow {
    trip: Hex,
    sequence: u32,
    at_ms: u64,
    carrier: String,
    route: Hex,
    direction: Way,
    position_m: Tenths,
    speed_m_s: Hundredths,
    from: Hex,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<Hex>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rsrp_dbm: Option<Tenths>,
    outcome: Outcome,
    dark_ms: u64,
}

/// What a cell remembers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CellRow {
    carrier: String,
    route: Hex,
    direction: Way,
    cell: Hex,
    passages: Vec<PassageRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PassageRow {
    trip: Hex,
    sequence: u32,
    position_m: Tenths,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rsrp_dbm: Option<Tenths>,
    outcome: Outcome,
}

/// A track: bytes whose meaning is not known here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrackRow {
    route: Hex,
    bytes: String,
}

/// A place of the trace database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlaceRow {
    carrier: String,
    route: Hex,
    direction: Way,
    hectometre: i32,
    trips: Vec<VisitRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VisitRow {
    trip: Hex,
    rate_bps: u64,
    rate_samples: u64,
    delay_us: u64,
    delay_samples: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Success,
    Type1,
    Type2,
    Type3,
}

/// An id in hexadecimal: JSON's numbers are too small for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Hex(u64);

/// A number with at most one digit after the point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
struct Tenths(i32);

/// A number with at most two digits after the point, not below zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
struct Hundredths(u16);

impl HandoverRow {
    pub(super) const COLUMNS: [&'static str; 13] = [
        "trip",
        "sequence",
        "at_ms",
        "carrier",
        "route",
        "direction",
        "position_m",
        "speed_m_s",
        "from",
        "to",
        "rsrp_dbm",
        "outcome",
        "dark_ms",
    ];

    pub(super) fn of(handover: Handover, coarsening: Coarsening) -> Self {
        Self {
            trip: Hex(handover.trip.0),
            sequence: handover.sequence,
            at_ms: handover.at_ms,
            carrier: handover.carrier,
            route: Hex(handover.route.0),
            direction: handover.direction.into(),
            position_m: Tenths(coarsening.of(handover.position).decimetres),
            speed_m_s: Hundredths(handover.speed.centimetres_per_second),
            from: Hex(handover.from.0),
            to: handover.to.map(|to| Hex(to.0)),
            rsrp_dbm: handover.rsrp.map(|rsrp| Tenths(rsrp.deci_dbm.into())),
            outcome: handover.outcome.into(),
            dark_ms: u64::try_from(handover.dark.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The fields in the order of [`HandoverRow::COLUMNS`]; what is not known is empty.
    pub(super) fn cells(self) -> [String; 13] {
        let id = |id: Hex| String::from(id);
        [
            id(self.trip),
            self.sequence.to_string(),
            self.at_ms.to_string(),
            self.carrier,
            id(self.route),
            self.direction.name().to_owned(),
            f64::from(self.position_m).to_string(),
            f64::from(self.speed_m_s).to_string(),
            id(self.from),
            self.to.map(id).unwrap_or_default(),
            self.rsrp_dbm.map(|dbm| f64::from(dbm).to_string()).unwrap_or_default(),
            self.outcome.name().to_owned(),
            self.dark_ms.to_string(),
        ]
    }

    /// From the text of each column; the error names the column.
    pub(super) fn from_cells<'a>(
        cell: impl Fn(&'static str) -> &'a str,
    ) -> Result<Self, (&'static str, String)> {
        fn number<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
            text.parse().map_err(|error: T::Err| error.to_string())
        }
        fn decimal<T: TryFrom<f64, Error = String>>(text: &str) -> Result<T, String> {
            number::<f64>(text)?.try_into()
        }
        fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
            let word: StrDeserializer<'_, value::Error> = text.into_deserializer();
            T::deserialize(word).map_err(|error| error.to_string())
        }
        fn known<T>(
            read: fn(&str) -> Result<T, String>,
        ) -> impl Fn(&str) -> Result<Option<T>, String> {
            move |text| if text.is_empty() { Ok(None) } else { read(text).map(Some) }
        }
        fn at<'a, T>(
            cell: &impl Fn(&'static str) -> &'a str,
            column: &'static str,
            read: impl Fn(&str) -> Result<T, String>,
        ) -> Result<T, (&'static str, String)> {
            read(cell(column)).map_err(|reason| (column, reason))
        }
        Ok(Self {
            trip: at(&cell, "trip", word)?,
            sequence: at(&cell, "sequence", number)?,
            at_ms: at(&cell, "at_ms", number)?,
            carrier: cell("carrier").to_owned(),
            route: at(&cell, "route", word)?,
            direction: at(&cell, "direction", word)?,
            position_m: at(&cell, "position_m", decimal)?,
            speed_m_s: at(&cell, "speed_m_s", decimal)?,
            from: at(&cell, "from", word)?,
            to: at(&cell, "to", known(word))?,
            rsrp_dbm: at(&cell, "rsrp_dbm", known(decimal))?,
            outcome: at(&cell, "outcome", word)?,
            dark_ms: at(&cell, "dark_ms", number)?,
        })
    }

    pub(super) fn handover(self) -> Result<Handover, RecordError> {
        let handover = Handover {
            trip: TripId(self.trip.0),
            sequence: self.sequence,
            at_ms: self.at_ms,
            carrier: self.carrier,
            route: RouteId(self.route.0),
            direction: self.direction.into(),
            position: Position { decimetres: self.position_m.0 },
            speed: Speed { centimetres_per_second: self.speed_m_s.0 },
            from: CellId(self.from.0),
            to: self.to.map(|to| CellId(to.0)),
            rsrp: self.rsrp_dbm.map(rsrp).transpose()?,
            outcome: self.outcome.into(),
            dark: Duration::from_millis(self.dark_ms),
        };
        record::check(&handover)?;
        Ok(handover)
    }
}

impl CellRow {
    pub(super) fn of(key: CellKey, history: &CellHistory, coarsening: Coarsening) -> Self {
        let passage = |passage: &Passage| PassageRow {
            trip: Hex(passage.trip.0),
            sequence: passage.sequence,
            position_m: Tenths(coarsening.of(passage.position).decimetres),
            rsrp_dbm: passage.rsrp.map(|rsrp| Tenths(rsrp.deci_dbm.into())),
            outcome: passage.outcome.into(),
        };
        Self {
            carrier: key.carrier,
            route: Hex(key.route.0),
            direction: key.direction.into(),
            cell: Hex(key.cell.0),
            passages: history.passages().map(passage).collect(),
        }
    }

    pub(super) fn cell(self) -> Result<(CellKey, CellHistory), RecordError> {
        record::check_carrier(&self.carrier)?;
        if self.passages.len() > PASSAGES_MAX {
            return Err(RecordError::Impossible("number of passages"));
        }
        let mut seen = BTreeSet::new();
        let mut passages = Vec::with_capacity(self.passages.len());
        for row in self.passages {
            if !seen.insert((row.trip, row.sequence)) {
                return Err(RecordError::Impossible("repeated passage"));
            }
            passages.push(Passage {
                trip: TripId(row.trip.0),
                sequence: row.sequence,
                position: Position { decimetres: row.position_m.0 },
                rsrp: row.rsrp_dbm.map(rsrp).transpose()?,
                outcome: row.outcome.into(),
            });
        }
        let key = CellKey {
            carrier: self.carrier,
            route: RouteId(self.route.0),
            direction: self.direction.into(),
            cell: CellId(self.cell.0),
        };
        Ok((key, passages.into_iter().collect()))
    }
}

impl TrackRow {
    pub(super) fn of(route: RouteId, track: &[u8]) -> Self {
        let mut bytes = String::with_capacity(track.len() * 2);
        for byte in track {
            // Writing to a text cannot fail.
            let _ = write!(bytes, "{byte:02x}");
        }
        Self { route: Hex(route.0), bytes }
    }

    pub(super) fn track(self) -> Result<(RouteId, Vec<u8>), RecordError> {
        let (pairs, rest) = self.bytes.as_bytes().as_chunks::<2>();
        let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let bytes = bytes.filter(|_| rest.is_empty());
        Ok((RouteId(self.route.0), bytes.ok_or(RecordError::Impossible("bytes"))?))
    }
}

impl PlaceRow {
    pub(super) fn of(key: PlaceKey, place: &Place) -> Self {
        let visit = |visit: &Visit| VisitRow {
            trip: Hex(visit.trip.0),
            rate_bps: visit.rate.value,
            rate_samples: visit.rate.samples,
            delay_us: visit.delay.value,
            delay_samples: visit.delay.samples,
        };
        Self {
            carrier: key.carrier,
            route: Hex(key.route.0),
            direction: key.direction.into(),
            hectometre: key.hectometre,
            trips: place.0.iter().map(visit).collect(),
        }
    }

    pub(super) fn place(self) -> Result<(PlaceKey, Place), RecordError> {
        record::check_carrier(&self.carrier)?;
        if self.trips.len() > PLACE_TRIPS_MAX {
            return Err(RecordError::Impossible("number of trips"));
        }
        let mean = |samples, value| {
            let possible = samples <= SAMPLES_MAX && (samples > 0 || value == 0);
            let mean = possible.then_some(Mean { samples, value });
            mean.ok_or(RecordError::Impossible("number of samples"))
        };
        let mut visits: Vec<Visit> = Vec::with_capacity(self.trips.len());
        for row in self.trips {
            let trip = TripId(row.trip.0);
            if visits.iter().any(|visit| visit.trip == trip) {
                return Err(RecordError::Impossible("repeated trip"));
            }
            let rate = mean(row.rate_samples, row.rate_bps)?;
            visits.push(Visit { trip, rate, delay: mean(row.delay_samples, row.delay_us)? });
        }
        let key = PlaceKey {
            carrier: self.carrier,
            route: RouteId(self.route.0),
            direction: self.direction.into(),
            hectometre: self.hectometre,
        };
        Ok((key, Place(visits)))
    }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Type1 => "type1",
            Self::Type2 => "type2",
            Self::Type3 => "type3",
        }
    }
}

fn rsrp(dbm: Tenths) -> Result<Rsrp, RecordError> {
    let deci_dbm = i16::try_from(dbm.0).ok().filter(|deci_dbm| (-2000..=0).contains(deci_dbm));
    Ok(Rsrp { deci_dbm: deci_dbm.ok_or(RecordError::Impossible("received power"))? })
}

impl From<Direction> for Way {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Up => Self::Up,
            Direction::Down => Self::Down,
        }
    }
}

impl From<Way> for Direction {
    fn from(way: Way) -> Self {
        match way {
            Way::Up => Self::Up,
            Way::Down => Self::Down,
        }
    }
}

impl From<HandoverOutcome> for Outcome {
    fn from(outcome: HandoverOutcome) -> Self {
        match outcome {
            HandoverOutcome::Success => Self::Success,
            HandoverOutcome::TypeI => Self::Type1,
            HandoverOutcome::TypeII => Self::Type2,
            HandoverOutcome::TypeIII => Self::Type3,
        }
    }
}

impl From<Outcome> for HandoverOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Type1 => Self::TypeI,
            Outcome::Type2 => Self::TypeII,
            Outcome::Type3 => Self::TypeIII,
        }
    }
}

impl From<Hex> for String {
    fn from(id: Hex) -> Self {
        format!("{:x}", id.0)
    }
}

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(&text, 16).ok().filter(|_| plain);
        let shown: String = text.chars().take(40).collect();
        number.map(Self).ok_or_else(|| format!("{shown:?} is no id of 1 to 16 hexadecimal digits"))
    }
}

impl From<Tenths> for f64 {
    fn from(tenths: Tenths) -> Self {
        f64::from(tenths.0) / 10.0
    }
}

impl TryFrom<f64> for Tenths {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        let tenths = whole(number, 10.0, f64::from(i32::MIN), f64::from(i32::MAX))?;
        Ok(Self(tenths as i32))
    }
}

impl From<Hundredths> for f64 {
    fn from(hundredths: Hundredths) -> Self {
        f64::from(hundredths.0) / 100.0
    }
}

impl TryFrom<f64> for Hundredths {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        Ok(Self(whole(number, 100.0, 0.0, f64::from(u16::MAX))? as u16))
    }
}

/// So many parts of a number, where they are whole and within the bounds.
fn whole(number: f64, parts: f64, min: f64, max: f64) -> Result<f64, String> {
    let exact = number * parts;
    let whole = exact.round();
    if !(min..=max).contains(&whole) {
        return Err(format!("{number} is not between {} and {}", min / parts, max / parts));
    }
    if (exact - whole).abs() > WHOLE_TOLERANCE {
        return Err(format!("{number} is finer than 1/{parts}"));
    }
    Ok(whole)
}

/// What the product of a decimal fraction may be off a whole number in binary.
const WHOLE_TOLERANCE: f64 = 1e-5;
