//! The rows of the lists, and the counters from which their rates come.

use std::collections::HashMap;

use polyrail_admin::{FlowState, PathState, UserState};

use super::super::shown::scaled;
use super::answers::Answers;

/// Rates in bit/s, as this daemon sends and receives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) sent: f64,
    pub(super) received: f64,
}

/// A user or flow.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Its cells before the rates.
    pub(super) head: Vec<String>,
    /// Down and up, in bit/s; `None` in the first poll.
    pub(super) rates: Option<(f64, f64)>,
    /// Its cells after the rates and the bytes.
    pub(super) tail: Vec<String>,
    /// Bytes of both directions.
    pub(super) bytes: u64,
    pub(super) flows: u64,
    pub(super) age_s: f64,
}

impl Row {
    /// Both directions.
    pub(super) fn rate(&self) -> f64 {
        self.rates.map_or(0.0, |(down, up)| down + up)
    }
}

/// The byte counters, sent and received, by the key of their row.
pub(super) fn counters(answers: &Answers) -> impl Iterator<Item = (String, (u64, u64))> {
    let paths = answers
        .paths
        .iter()
        .map(|path| (path_key(path), (path.counters.sent_bytes, path.counters.received_bytes)));
    let users = answers
        .users
        .iter()
        .filter_map(|user| Some((user_key(user), (user.sent_bytes?, user.received_bytes?))));
    let flows = answers.flows.iter();
    let flows = flows.map(|flow| (flow_key(flow), (flow.sent_bytes, flow.received_bytes)));
    paths.chain(users).chain(flows)
}

pub(super) fn path_key(path: &PathState) -> String {
    format!("path {}", path.name)
}

fn user_key(user: &UserState) -> String {
    format!("user {} {}", user.gateway.as_deref().unwrap_or_default(), user.user)
}

fn flow_key(flow: &FlowState) -> String {
    format!("flow {}", flow.id)
}

/// The users.
pub(super) fn users(answers: &Answers, rates: &HashMap<String, Rates>) -> Vec<Row> {
    let row = |user: &UserState| {
        let rates = rates.get(&user_key(user));
        let place = user.gateway.clone();
        let place = place.or(user.address.map(|address| address.to_string()));
        let bytes = user.sent_bytes.unwrap_or(0) + user.received_bytes.unwrap_or(0);
        let refused = user.refused;
        let refused = refused.flows + refused.quota + refused.overload + refused.queries;
        Row {
            head: vec![user.user.clone(), place.unwrap_or_else(|| "-".to_owned())],
            rates: rates.map(|rates| rates.down_and_up(answers.status.role)),
            tail: vec![user.flows.to_string(), refused.to_string()],
            bytes,
            flows: user.flows,
            age_s: 0.0,
        }
    };
    answers.users.iter().map(row).collect()
}

/// The carriers of a flow, and on a cloud its gateway, which may be cut.
fn carriers(flow: &FlowState) -> String {
    let gateway = flow.gateway.as_ref().map_or(String::new(), |gateway| format!(" of {gateway}"));
    flow.carriers.join(",") + &gateway
}

/// The flows.
pub(super) fn flows(answers: &Answers, rates: &HashMap<String, Rates>) -> Vec<Row> {
    let row = |flow: &FlowState| {
        let rates = rates.get(&flow_key(flow));
        let bytes = flow.sent_bytes + flow.received_bytes;
        let destination = flow.destination.clone().unwrap_or_else(|| "-".to_owned());
        Row {
            head: vec![flow.id.to_string(), destination],
            rates: rates.map(|rates| rates.down_and_up(answers.status.role)),
            tail: vec![short_age(flow.age_s), carriers(flow)],
            bytes,
            flows: 1,
            age_s: flow.age_s,
        }
    };
    answers.flows.iter().map(row).collect()
}

/// A rate with three digits at most, as `12.3 Mbit/s`.
pub(super) fn short_rate(bits_per_s: f64) -> String {
    scaled(digits(bits_per_s), &["bit/s", "kbit/s", "Mbit/s", "Gbit/s"])
}

/// Bytes with three digits at most.
pub(super) fn short_bytes(count: u64) -> String {
    scaled(digits(count as f64), &["B", "kB", "MB", "GB", "TB"])
}

/// A time in its largest unit.
fn short_age(seconds: f64) -> String {
    let (value, unit) = match seconds as u64 {
        seconds @ 0..60 => (seconds, "s"),
        seconds @ 60..3_600 => (seconds / 60, "min"),
        seconds @ 3_600..86_400 => (seconds / 3_600, "h"),
        seconds => (seconds / 86_400, "d"),
    };
    format!("{value} {unit}")
}

/// The value rounded to three digits.
fn digits(value: f64) -> f64 {
    if value < 1.0 {
        return 0.0;
    }
    let step = 10_f64.powf(value.log10().floor() - 2.0).max(1.0);
    (value / step).round() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_three_digits_at_most() {
        for (value, text) in [
            (0.4, "0 bit/s"),
            (9.6, "10 bit/s"),
            (999.6, "1 kbit/s"),
            (1_234.0, "1.2 kbit/s"),
            (12_345.0, "12.3 kbit/s"),
            (123_456.0, "123 kbit/s"),
            (999_950.0, "1 Mbit/s"),
            (12_345_678_901.0, "12.3 Gbit/s"),
        ] {
            assert_eq!(short_rate(value), text);
        }
        assert_eq!(short_bytes(123_456_789), "123 MB");
        let ages = [59.9, 61.0, 7_199.0, 90_000.0].map(short_age);
        assert_eq!(ages, ["59 s", "1 min", "1 h", "1 d"]);
    }
}
