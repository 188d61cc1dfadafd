//! Names with parameters, as chains list them: `tail_rejection(eta_max=0.5)`.
//!
//! ```text
//! rule  = name [ "(" [ key "=" value { "," key "=" value } ] ")" ]
//! value = number | duration (`250ms`, `1s`, `20us`) | `true` | `false`
//! ```
//!
//! Spaces around names, keys and values are ignored.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The parameters of one rule: keys and values as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params(BTreeMap<String, String>);

/// An invalid parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// The text does not follow the grammar of a rule.
    #[error("{0:?} is not a rule: name, or name(key=value, ...)")]
    Syntax(String),
    /// The rule has no such parameter.
    #[error("{rule} has no parameter {key:?}; it has: {known}")]
    Unknown {
        /// The rule.
        rule: &'static str,
        /// The unknown key.
        key: String,
        /// The parameters of the rule.
        known: String,
    },
    /// The value has the wrong type or is out of bounds.
    #[error("{rule}: {key} is {wanted}")]
    Value {
        /// The rule.
        rule: &'static str,
        /// The parameter.
        key: &'static str,
        /// The permitted values.
        wanted: String,
    },
}

impl Params {
    /// Splits `name` or `name(key=value, ...)` into name and parameters.
    ///
    /// # Errors
    /// The text does not have this form.
    pub fn split(text: &str) -> Result<(&str, Self), ParamError> {
        let syntax = || ParamError::Syntax(text.to_owned());
        let Some((name, rest)) = text.split_once('(') else {
            return Ok((text.trim(), Self::default()));
        };
        let inside = rest.trim_end().strip_suffix(')').ok_or_else(syntax)?.trim();
        let mut values = BTreeMap::new();
        for pair in inside.split(',').filter(|_| !inside.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(syntax)?;
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            let empty = key.is_empty() || value.is_empty();
            if empty || value.contains(['(', ')']) || values.insert(key, value).is_some() {
                return Err(syntax());
            }
        }
        Ok((name.trim(), Self(values)))
    }

    /// A reader for the rule of this name. The rule asks it for each of its parameters.
    pub(crate) fn reader(&self, rule: &'static str) -> Reader<'_> {
        Reader { params: self, rule, asked: Vec::new() }
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|(k, v)| format!("{k}={v}")).collect();
        if pairs.is_empty() { Ok(()) } else { write!(f, "({})", pairs.join(", ")) }
    }
}

/// A parameter of a rule, as errors and documents describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// The permitted values: `a number from 1 to 1.3`.
    pub values: String,
    /// The default, as the configuration would spell it.
    pub default: String,
}

/// Reads the parameters of one rule; [`Reader::finish`] rejects unknown keys.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    params: &'a Params,
    rule: &'static str,
    asked: Vec<Parameter>,
}

impl Reader<'_> {
    /// A number within bounds.
    pub fn number(
        &mut self,
        key: &'static str,
        default: f64,
        bounds: RangeInclusive<f64>,
    ) -> Result<f64, ParamError> {
        let values = format!("a number from {} to {}", bounds.start(), bounds.end());
        let read = |text: &str| decimal(text).filter(|number| bounds.contains(number));
        self.ask(key, values, (default, default.to_string()), read)
    }

    /// A whole number within bounds.
    pub fn count(
        &mut self,
        key: &'static str,
        default: u64,
        bounds: RangeInclusive<u64>,
    ) -> Result<u64, ParamError> {
        let values = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        let read = |text: &str| text.parse().ok().filter(|number| bounds.contains(number));
        self.ask(key, values, (default, default.to_string()), read)
    }

    /// A time within bounds.
    pub fn time(
        &mut self,
        key: &'static str,
        default: Duration,
        bounds: RangeInclusive<Duration>,
    ) -> Result<Duration, ParamError> {
        let spelled = |time: Duration| match time.subsec_nanos() {
            0 => format!("{}s", time.as_secs()),
            _ => format!("{}ms", time.as_millis()),
        };
        let values =
            format!("a time from {} to {}", spelled(*bounds.start()), spelled(*bounds.end()));
        let read = |text: &str| duration(text).filter(|time| bounds.contains(time));
        self.ask(key, values, (default, spelled(default)), read)
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str, default: bool) -> Result<bool, ParamError> {
        let values = "true or false".to_owned();
        self.ask(key, values, (default, default.to_string()), |text| text.parse().ok())
    }

    /// Rejects keys that the rule did not ask for; returns the parameters of the rule.
    pub fn finish(self) -> Result<Vec<Parameter>, ParamError> {
        let names: Vec<_> = self.asked.iter().map(|parameter| parameter.name).collect();
        let Some(key) = self.params.0.keys().find(|key| !names.contains(&key.as_str())) else {
            return Ok(self.asked);
        };
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(ParamError::Unknown { rule: self.rule, key: key.clone(), known })
    }

    /// The value in the configuration, or the default, which comes with its spelling.
    fn ask<T>(
        &mut self,
        key: &'static str,
        values: String,
        (default, spelled): (T, String),
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ParamError> {
        let value = self.params.0.get(key).map_or(Some(default), |text| read(text));
        let wanted = values.clone();
        self.asked.push(Parameter { name: key, values, default: spelled });
        value.ok_or(ParamError::Value { rule: self.rule, key, wanted })
    }
}

/// A decimal number without exponent, plus sign, infinity or NaN.
fn decimal(text: &str) -> Option<f64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

/// A decimal number with the unit `us`, `ms` or `s`.
fn duration(text: &str) -> Option<Duration> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, scale) = units
        .into_iter()
        .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?.trim(), scale)))?;
    Duration::try_from_secs_f64(decimal(number)? * scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed_and_printed() {
        for (text, printed) in [
            ("min_rtt", "min_rtt"),
            (" min_rtt ( ) ", "min_rtt"),
            ("r(b=2, a = 0.5)", "r(a=0.5, b=2)"),
            ("r(t=250ms,x=true)", "r(t=250ms, x=true)"),
        ] {
            let (name, params) = Params::split(text).unwrap();
            assert_eq!(format!("{name}{params}"), printed);
        }
        for text in ["r(", "r)x(", "r(a)", "r(a=)", "r(=1)", "r(a=1,a=2)", "r(a=1) x"] {
            assert_eq!(Params::split(text).unwrap_err(), ParamError::Syntax(text.to_owned()));
        }
    }

    #[test]
    fn values_are_read_within_their_bounds() {
        let second = Duration::from_secs(1);
        let read = |value: &str| {
            let (_, params) = Params::split(&format!("r(key={value})")).unwrap();
            let mut reader = params.reader("r");
            let number = reader.number("key", 0.25, 0.0..=9.0).ok();
            let count = reader.count("key", 7, 3..=9).ok();
            let time = reader.time("key", second, Duration::ZERO..=second).ok();
            (number, count, time.map(|time| time.as_micros()), reader.flag("key", true).ok())
        };
        for (value, expected) in [
            ("5", (Some(5.0), Some(5), None, None)),
            ("0.5", (Some(0.5), None, None, None)),
            ("2", (Some(2.0), None, None, None)),
            ("10", (None, None, None, None)),
            ("-1", (None, None, None, None)),
            ("20us", (None, None, Some(20), None)),
            ("1.5ms", (None, None, Some(1_500), None)),
            ("1s", (None, None, Some(1_000_000), None)),
            ("2s", (None, None, None, None)),
            ("false", (None, None, None, Some(false))),
            ("1e0", (None, None, None, None)),
            ("NaN", (None, None, None, None)),
            ("inf", (None, None, None, None)),
        ] {
            assert_eq!(read(value), expected, "{value}");
        }
    }

    #[test]
    fn missing_keys_have_defaults_and_unknown_keys_are_rejected() {
        let (_, params) = Params::split("r(n=2, t=5ms)").unwrap();
        let mut reader = params.reader("r");
        assert_eq!(reader.number("m", 0.25, 0.0..=1.0), Ok(0.25));
        let error = reader.count("n", 7, 3..=9).unwrap_err().to_string();
        assert_eq!(error, "r: n is a whole number from 3 to 9");
        let error = reader.finish().unwrap_err().to_string();
        assert_eq!(error, "r has no parameter \"t\"; it has: m, n");
    }
}
