//! Tables of metrics, and their text in the OpenMetrics format.
//!
//! A [`Family`] is one metric: its name, type, unit, and how its value is read from an item, as a
//! path. `prometheus-client` writes label values as they are, so they are escaped here.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet,
    EncodeLabelValue, GaugeValueEncoder, LabelSetEncoder, LabelValueEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Unit;

/// One metric of each item of a kind.
pub(super) struct Family<T: 'static> {
    name: &'static str,
    unit: Option<&'static str>,
    is_counter: bool,
    help: &'static str,
    read: Read<T>,
}

/// How the values of an item are read.
pub(super) enum Read<T: 'static> {
    /// One value, or none while it is unknown.
    One(fn(&T) -> Option<Value>),
    /// Several values, which differ in this label.
    By(&'static str, fn(&T) -> Vec<(&'static str, Value)>),
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
}

/// The labels of an item.
pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Items with their labels.
pub(super) type Items<'a, T> = Vec<(Labels<'a>, &'a T)>;

impl<T> Family<T> {
    /// A value that never decreases while the process lives; its name in the text ends in `_total`.
    pub const fn counter(name: &'static str, help: &'static str, read: Read<T>) -> Self {
        Self { name, unit: None, is_counter: true, help, read }
    }

    /// A value that rises and falls.
    pub const fn gauge(name: &'static str, help: &'static str, read: Read<T>) -> Self {
        Self { name, unit: None, is_counter: false, help, read }
    }

    /// A counter with a unit, which becomes a part of the name.
    pub const fn counter_in(
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        read: Read<T>,
    ) -> Self {
        Self { name, unit: Some(unit), is_counter: true, help, read }
    }

    /// A gauge with a unit, which becomes a part of the name.
    pub const fn gauge_in(
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        read: Read<T>,
    ) -> Self {
        Self { name, unit: Some(unit), is_counter: false, help, read }
    }

    /// Writes the values of all items; nothing if there is none.
    pub fn put(&self, encoder: &mut DescriptorEncoder<'_>, items: &Items<'_, T>) -> fmt::Result {
        let mut samples = Vec::new();
        for (labels, item) in items {
            match self.read {
                Read::One(read) => samples.extend(read(item).map(|value| (labels, None, value))),
                Read::By(label, read) => {
                    let values = read(item).into_iter();
                    samples.extend(values.map(|(of, value)| (labels, Some((label, of)), value)));
                }
            }
        }
        if samples.is_empty() {
            return Ok(());
        }
        let unit = self.unit.map(|unit| Unit::Other(unit.to_owned()));
        let kind = if self.is_counter { MetricType::Counter } else { MetricType::Gauge };
        let mut metric = encoder.encode_descriptor(self.name, self.help, unit.as_ref(), kind)?;
        for (labels, extra, value) in samples {
            let labels = AllLabels { labels: labels.as_slice(), extra };
            if labels.labels.is_empty() && extra.is_none() {
                put_value(&mut metric, self.is_counter, value)?;
            } else {
                put_value(&mut metric.encode_family(&labels)?, self.is_counter, value)?;
            }
        }
        Ok(())
    }
}

fn put_value(
    metric: &mut prometheus_client::encoding::MetricEncoder<'_>,
    is_counter: bool,
    value: Value,
) -> fmt::Result {
    if is_counter {
        metric.encode_counter(&value, None::<&Exemplar<NoLabelSet, f64>>)
    } else {
        metric.encode_gauge(&value)
    }
}

/// A counter or gauge of a whole number.
pub(super) fn whole(value: u64) -> Option<Value> {
    Some(Value::Whole(value))
}

/// A counter or gauge of any number.
pub(super) fn real(value: f64) -> Option<Value> {
    Some(Value::Real(value))
}

/// 1 or 0.
pub(super) fn flag(value: bool) -> Option<Value> {
    whole(u64::from(value))
}

/// Whole numbers by the value of their label.
pub(super) fn wholes<const N: usize>(
    values: [(&'static str, u64); N],
) -> Vec<(&'static str, Value)> {
    values.map(|(of, value)| (of, Value::Whole(value))).into()
}

/// For each name 1 if it is the current one, otherwise 0.
pub(super) fn one_of<K: PartialEq + Copy, const N: usize>(
    names: [(&'static str, K); N],
    current: Option<K>,
) -> Vec<(&'static str, Value)> {
    wholes(names.map(|(name, key)| (name, u64::from(Some(key) == current))))
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => EncodeCounterValue::encode(value, encoder),
            Self::Real(value) => EncodeCounterValue::encode(value, encoder),
        }
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => EncodeGaugeValue::encode(value, encoder),
            Self::Real(value) => EncodeGaugeValue::encode(value, encoder),
        }
    }
}

/// The labels of an item and that of a value.
struct AllLabels<'a> {
    labels: &'a [(&'static str, &'a str)],
    extra: Option<(&'static str, &'static str)>,
}

impl EncodeLabelSet for AllLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in self.labels.iter().copied().chain(self.extra) {
            let mut label = encoder.encode_label();
            let mut key = label.encode_label_key()?;
            key.write_str(name)?;
            let mut text = key.encode_label_value()?;
            Escaped(value).encode(&mut text)?;
            text.finish()?;
        }
        Ok(())
    }
}

/// A label value with a backslash before `\`, `"` and line feeds (OpenMetrics 1.0, "ABNF").
struct Escaped<'a>(&'a str);

impl EncodeLabelValue for Escaped<'_> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => encoder.write_str("\\\\")?,
                '"' => encoder.write_str("\\\"")?,
                '\n' => encoder.write_str("\\n")?,
                other => encoder.write_char(other)?,
            }
        }
        Ok(())
    }
}
