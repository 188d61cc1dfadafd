//! Names with parameters, as chains list them: `tail_rejection(eta_max=0.5)`.
//!
//! ```text
//! rule  = name [ "(" [ key "=" value { "," key "=" value } ] ")" ]
//! value = number | duration (`250ms`, `1s`, `20us`) | `true` | `false`
//! ```
//!
//! Spaces around names, keys and values do not count.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The parameters of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params {
    values: BTreeMap<String, Value>,
}

/// The value of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Number(f64),
    Time(Duration),
    Flag(bool),
}

/// No number is NaN: none can be written.
impl Eq for Value {}

/// What is wrong with a parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// It is not written as a rule.
    #[error("{0:?} is not a rule: name, or name(key=value, ...)")]
    Syntax(String),
    /// The rule has no such parameter.
    #[error("{rule} has no parameter {key:?}; it has: {known}")]
    Unknown {
        /// The rule.
        rule: &'static str,
        /// What was given.
        key: String,
        /// What there is.
        known: String,
    },
    /// The value is of another kind, or out of bounds.
    #[error("{rule}: {key} is {wanted}")]
    Value {
        /// The rule.
        rule: &'static str,
        /// The parameter.
        key: String,
        /// What it must be.
        wanted: String,
    },
}

impl Params {
    /// Takes `name` or `name(key=value, ...)` apart.
    ///
    /// # Errors
    /// The text is not of this form.
    pub fn split(text: &str) -> Result<(&str, Self), ParamError> {
        let syntax = || ParamError::Syntax(text.to_owned());
        let Some((name, rest)) = text.split_once('(') else {
            return Ok((text.trim(), Self::default()));
        };
        let inside = rest.trim_end().strip_suffix(')').ok_or_else(syntax)?.trim();
        let mut values = BTreeMap::new();
        for pair in inside.split(',').filter(|_| !inside.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(syntax)?;
            let key = key.trim();
            let value = Value::read(value.trim()).ok_or_else(syntax)?;
            if key.is_empty() || values.insert(key.to_owned(), value).is_some() {
                return Err(syntax());
            }
        }
        Ok((name.trim(), Self { values }))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// A reader for the rule of this name, which asks for each parameter that it has.
    pub fn reader(&self, rule: &'static str) -> Reader<'_> {
        Reader { params: self, rule, asked: Vec::new() }
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.values.iter().map(|(k, v)| format!("{k}={v}")).collect();
        if pairs.is_empty() { Ok(()) } else { write!(f, "({})", pairs.join(", ")) }
    }
}

impl Value {
    fn read(text: &str) -> Option<Self> {
        match text {
            "true" => return Some(Self::Flag(true)),
            "false" => return Some(Self::Flag(false)),
            _ => {}
        }
        for (unit, scale) in [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)] {
            if let Some(number) = text.strip_suffix(unit) {
                let seconds = plain(number)? * scale;
                return Duration::try_from_secs_f64(seconds).ok().map(Self::Time);
            }
        }
        plain(text).map(Self::Number)
    }
}

/// A decimal number without exponent, sign of plus, infinity or the like.
fn plain(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    let fits = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| fits)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Time(time) if time.subsec_nanos() == 0 => {
                write!(f, "{}s", time.as_secs())
            }
            Self::Time(time) if time.subsec_nanos() % 1_000_000 == 0 => {
                write!(f, "{}ms", time.as_millis())
            }
            Self::Time(time) => match time.subsec_nanos() % 1_000 {
                0 => write!(f, "{}us", time.as_micros()),
                nanos => {
                    let text = format!("{}.{nanos:03}", time.as_micros());
                    write!(f, "{}us", text.trim_end_matches('0'))
                }
            },
        }
    }
}

/// A parameter of a rule, as errors and documents tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it may be: `a number from 1 to 1.3`.
    pub values: String,
    /// What it is when nothing is written, as it would be written.
    pub default: String,
}

/// Asks for the parameters of one rule; [`Reader::finish`] refuses what was not asked for.
#[derive(Debug)]
pub struct Reader<'a> {
    params: &'a Params,
    rule: &'static str,
    asked: Vec<Parameter>,
}

impl Reader<'_> {
    /// A number within bounds.
    ///
    /// # Errors
    /// It is none, or out of bounds.
    pub fn number(
        &mut self,
        key: &'static str,
        default: f64,
        bounds: std::ops::RangeInclusive<f64>,
    ) -> Result<f64, ParamError> {
        let values = format!("a number from {} to {}", bounds.start(), bounds.end());
        match self.ask(key, values, Value::Number(default)) {
            Value::Number(number) if bounds.contains(&number) => Ok(number),
            _ => Err(self.wrong(key)),
        }
    }

    /// A whole number within bounds.
    ///
    /// # Errors
    /// It is none, or out of bounds.
    pub fn count(
        &mut self,
        key: &'static str,
        default: u64,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, ParamError> {
        let values = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        match self.ask(key, values, Value::Number(default as f64)) {
            Value::Number(number)
                if number.fract() == 0.0 && number >= 0.0 && bounds.contains(&(number as u64)) =>
            {
                Ok(number as u64)
            }
            _ => Err(self.wrong(key)),
        }
    }

    /// A time within bounds.
    ///
    /// # Errors
    /// It is none, or out of bounds.
    pub fn time(
        &mut self,
        key: &'static str,
        default: Duration,
        bounds: std::ops::RangeInclusive<Duration>,
    ) -> Result<Duration, ParamError> {
        let written = |time: &Duration| Value::Time(*time).to_string();
        let (least, most) = (written(bounds.start()), written(bounds.end()));
        match self.ask(key, format!("a time from {least} to {most}"), Value::Time(default)) {
            Value::Time(time) if bounds.contains(&time) => Ok(time),
            _ => Err(self.wrong(key)),
        }
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// It is neither.
    pub fn flag(&mut self, key: &'static str, default: bool) -> Result<bool, ParamError> {
        match self.ask(key, "true or false".to_owned(), Value::Flag(default)) {
            Value::Flag(flag) => Ok(flag),
            _ => Err(self.wrong(key)),
        }
    }

    /// Refuses parameters that nobody asked for.
    ///
    /// # Errors
    /// There is one.
    pub fn finish(self) -> Result<(), ParamError> {
        let names: Vec<_> = self.asked.iter().map(|parameter| parameter.name).collect();
        let unknown = self.params.values.keys().find(|key| !names.contains(&key.as_str()));
        match unknown {
            None => Ok(()),
            Some(key) => {
                let known = match names.is_empty() {
                    true => "none".to_owned(),
                    false => names.join(", "),
                };
                Err(ParamError::Unknown { rule: self.rule, key: key.clone(), known })
            }
        }
    }

    /// All that was asked for, in this order.
    pub(crate) fn parameters(self) -> Vec<Parameter> {
        self.asked
    }

    /// What is written, or the default.
    fn ask(&mut self, key: &'static str, values: String, default: Value) -> Value {
        if self.asked.iter().all(|parameter| parameter.name != key) {
            let default = default.to_string();
            self.asked.push(Parameter { name: key, values, default });
        }
        self.params.values.get(key).copied().unwrap_or(default)
    }

    fn wrong(&self, key: &str) -> ParamError {
        let asked = self.asked.iter().find(|parameter| parameter.name == key);
        let wanted = asked.map_or_else(String::new, |parameter| parameter.values.clone());
        ParamError::Value { rule: self.rule, key: key.to_owned(), wanted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_written_back() {
        for (text, same) in [
            ("min_rtt", "min_rtt"),
            (" min_rtt ( ) ", "min_rtt"),
            ("r(b=2, a = 0.5)", "r(a=0.5, b=2)"),
            (
                "r(t=250ms,u=20us, v=2s, w=1500ms, x=true)",
                "r(t=250ms, u=20us, v=2s, w=1500ms, x=true)",
            ),
        ] {
            let (name, params) = Params::split(text).unwrap();
            assert_eq!(format!("{name}{params}"), same);
        }
        // Whatever is read is written so that it is read again as the same.
        for (text, same) in [
            ("0s", "0s"),
            ("0.5us", "0.5us"),
            ("0.001us", "0.001us"),
            ("0.0004us", "0s"),
            ("1.0005ms", "1000.5us"),
            ("0.00125ms", "1.25us"),
            ("3600.000000001s", "3600000000.001us"),
            ("0.0000005s", "0.5us"),
        ] {
            let read = |text: &str| Params::split(&format!("r(t={text})")).unwrap().1;
            assert_eq!(read(text).to_string(), format!("(t={same})"));
            assert_eq!(read(same), read(text), "{text}");
        }
        for text in [
            "r(",
            "r)x(",
            "r(a)",
            "r(a=)",
            "r(=1)",
            "r(a=1,a=2)",
            "r(a=1e3)",
            "r(a=inf)",
            "r(a=1) x",
            "r(a=NaN)",
        ] {
            assert_eq!(Params::split(text).unwrap_err(), ParamError::Syntax(text.to_owned()));
        }
    }

    #[test]
    fn a_reader_knows_what_there_is() {
        let (_, params) = Params::split("r(n=2, t=5ms, f=false)").unwrap();
        let mut reader = params.reader("r");
        assert_eq!(reader.count("n", 7, 1..=9), Ok(2));
        assert_eq!(reader.number("m", 0.25, 0.0..=1.0), Ok(0.25));
        let (t, s) = (Duration::from_millis(5), Duration::from_secs(1));
        assert_eq!(reader.time("t", s, Duration::ZERO..=s), Ok(t));
        assert_eq!(reader.flag("f", true), Ok(false));
        assert_eq!(reader.finish(), Ok(()));

        let mut reader = params.reader("r");
        let error = reader.count("n", 7, 3..=9).unwrap_err().to_string();
        assert_eq!(error, "r: n is a whole number from 3 to 9");
        assert!(reader.number("t", 0.0, 0.0..=9.0).is_err() && reader.flag("n", true).is_err());
        assert!(reader.time("n", s, s..=s).is_err());
        let error = reader.finish().unwrap_err().to_string();
        assert_eq!(error, "r has no parameter \"f\"; it has: n, t");
    }
}
