//! The figures of a summary as RESULT lines.

use polyrail_emulator::rail::Workload;
use polyrail_emulator::statistics::{mean, quantile};

use super::contender::Contender;
use super::document::size_name;
use super::paired::{Paired, finite};
use super::summary::{ContenderFigures, Summary};
use crate::report::{Goal, Report};
use polyrail_emulator::usage::EDGES;

impl Summary {
    /// Prints all figures; their names begin with a prefix such as `rail_300_6`.
    pub fn report(&self, report: &mut Report, prefix: &str) {
        let mut sink = Sink { report, prefix: prefix.to_owned(), has_goals: false };
        sink.result("trips", Some(self.trips.len() as f64), "trips");
        sink.result("starved", Some(self.starved.len() as f64), "runs");
        sink.result("half_width", self.half_width(), "x");
        if let Some(paired) = self.with_linkdb() {
            let goals = |part, size| match (part, size) {
                (Part::Low, None) => Goal::AtLeast(LINKDB_LEAST),
                _ => Goal::None,
            };
            sink.has_goals = true;
            self.ratios_of(&mut sink, "linkdb_over_without", &paired, &goals);
        }
        for (with, without) in self.linkdb_pairs() {
            sink.prefix = format!("{prefix}_{}", key(&with.name));
            self.over_without(&mut sink, with, without);
        }
        self.quic_over_tls(&mut sink, prefix);
        let first = self.contenders.first();
        for (name, other, paired) in self.foreseen.iter().filter(|_| self.has_call()) {
            let ratio = paired.ratio(None);
            let value = ratio.map_or(f64::NAN, |ratio| ratio.value);
            let over = if name == other { String::new() } else { format!("_over_{}", key(other)) };
            let name = format!("{prefix}_{}_linkdb_bad_when_forecast{over}", key(name));
            let goal = Goal::AtMost(BAD_WHEN_FORECAST);
            sink.report.result(&name, value, "x", goal, &paired.each());
        }
        for (place, one) in self.contenders.iter().enumerate() {
            sink.prefix = format!("{prefix}_{}", key(&one.name));
            sink.has_goals =
                Contender::mode_of(&one.name).is_some() && !Contender::is_limited(&one.name);
            self.of_transfers(&mut sink, one);
            if self.workload.has_messages() {
                self.of_messages(&mut sink, one);
            }
            if self.has_call() {
                self.of_calls(&mut sink, one);
            }
            let goals = match self.workload {
                Workload::QuicDownloads => [QUIC_OVER_SINGLE, 1.0].map(Goal::AtLeast),
                _ => [Goal::None; 2],
            };
            if !self.has_call()
                && !self.sizes.is_empty()
                && let Some(single) = self.better_single(|one| &one.goodput, true)
            {
                self.over_single(&mut sink, &self.paired(&one.goodput, &single), goals);
            }
            if let Some(first) = first.filter(|_| place > 0) {
                self.over_first(&mut sink, one, first);
            }
            self.of_carriers(&mut sink, one);
        }
    }

    /// The price, the use of the carriers, and the variation of repeats.
    fn of_carriers(&self, sink: &mut Sink, one: &ContenderFigures) {
        let has_goals = self.is_load() && Contender::mode_of(&one.name).as_deref() == Some("quic");
        let goal = |goal: Goal| if has_goals { goal } else { Goal::None };
        sink.goal("price_down", finite(one.price[0]), goal(Goal::AtMost(PRICE[0])));
        sink.goal("price_up", finite(one.price[1]), goal(Goal::AtMost(PRICE[1])));
        for (bin, shares) in one.bins.shares().iter().enumerate() {
            let edge = EDGES.get(bin).map_or("more".to_owned(), |edge| format!("{edge:.2}"));
            let name = format!("{}_share_used_{}", sink.prefix, edge.replace('.', "_"));
            let least = SHARE_USED.iter().find(|(of, _)| EDGES.get(bin) == Some(of));
            if let Some(value) = finite(mean(shares)) {
                let goal = goal(least.map_or(Goal::None, |(_, least)| Goal::AtLeast(*least)));
                sink.report.result(&name, value, "x", goal, shares);
            }
        }
        let variation = one.variation.last().copied().flatten();
        sink.goal("variation", variation, goal(Goal::AtMost(VARIATION)));
    }

    /// A contender with LinkDB over the same one without.
    fn over_without(&self, sink: &mut Sink, with: &ContenderFigures, without: &ContenderFigures) {
        let goals = |part, size: Option<usize>| match part {
            Part::High if self.is_cell(size) => Goal::AtLeast(1.0),
            _ => Goal::None,
        };
        sink.has_goals = true;
        let goodput = self.paired(&with.goodput, &without.goodput);
        self.ratios_of(sink, "over_without", &goodput, &goals);
        for (place, size) in self.sizes.iter().enumerate().filter(|_| !self.is_endless()) {
            let [times, others] = self.both(&with.time, &without.time, Some(place));
            let ratio = quantile(&times, 0.95) / quantile(&others, 0.95);
            let name = format!("time_p95_over_without_{}", key(&size_name(*size)));
            sink.goal(&name, finite(ratio), Goal::AtMost(LINKDB_TAIL));
        }
        let [times, others] = self.both(&with.round_trip, &without.round_trip, None);
        for (name, share, most) in LINKDB_MESSAGES {
            let ratio = quantile(&times, share) / quantile(&others, share);
            sink.goal(name, finite(ratio), Goal::AtMost(most));
        }
    }

    /// Mode `quic` over mode `tls`, in whatever order they were played.
    fn quic_over_tls(&self, sink: &mut Sink, prefix: &str) {
        let named = |name: &str| self.contenders.iter().find(|one| one.name == name);
        let (Some(quic), Some(tls)) = (named("quic"), named("tls")) else { return };
        if !self.is_load() {
            return;
        }
        let goals = |part, size: Option<usize>| match part {
            Part::Value if size.is_none() => Goal::AtLeast(1.0),
            Part::Low if self.is_cell(size) => Goal::AtLeast(OVER_TLS_LOW),
            _ => Goal::None,
        };
        (sink.prefix, sink.has_goals) = (format!("{prefix}_quic_to_tls"), true);
        self.ratios_of(sink, "goodput", &self.paired(&quic.goodput, &tls.goodput), &goals);
    }

    /// Downloads and `bulk`, for which mode `quic` has goals.
    fn is_load(&self) -> bool {
        matches!(self.workload, Workload::Downloads | Workload::Bulk)
    }

    /// Whether this is one size, and not the mean of several.
    fn is_cell(&self, size: Option<usize>) -> bool {
        size.is_some() || self.sizes.len() == 1
    }

    fn of_transfers(&self, sink: &mut Sink, one: &ContenderFigures) {
        let is_quic = Contender::mode_of(&one.name).as_deref() == Some("quic");
        let split = |part, size: Option<usize>| {
            let size = size.map(|place| self.sizes[place]);
            let goal = OF_SPLIT.iter().find(|(of, _)| Some(*of) == size);
            let is_due = is_quic && part == Part::Value && self.workload == Workload::Downloads;
            goal.filter(|_| is_due).map_or(Goal::None, |(_, least)| Goal::AtLeast(*least))
        };
        let fluid = |part, _| match part {
            Part::Value if is_quic && self.workload == Workload::Bulk => Goal::AtLeast(OF_FLUID),
            _ => Goal::None,
        };
        self.ratios_of(sink, "of_split", &self.paired(&one.goodput, &self.split.goodput), &split);
        self.ratios_of(sink, "of_fluid", &self.paired(&one.goodput, &self.fluid.goodput), &fluid);
        if !self.is_endless() {
            for (name, bound) in [("time_of_split", &self.split), ("time_of_fluid", &self.fluid)] {
                self.ratios_of(sink, name, &self.paired(&one.time, &bound.time), &no_goals);
            }
        }
        for (place, size) in self.sizes.iter().enumerate().filter(|_| !self.is_endless()) {
            let size = key(&size_name(*size));
            let times: Vec<f64> = one.transfers[place].iter().map(|it| it.time).collect();
            sink.result(&format!("time_mean_{size}"), finite(mean(&times)), "s");
            sink.result(&format!("time_p95_{size}"), finite(quantile(&times, 0.95)), "s");
            let most = if is_quic && self.is_load() { Goal::AtMost(TAIL) } else { Goal::None };
            sink.goal(&format!("time_p95_of_split_{size}"), self.tail(one, place), most);
            sink.result(&format!("time_worst_{size}"), finite(quantile(&times, 1.0)), "s");
            let unfinished = one.unfinished(place) as f64;
            sink.result(&format!("unfinished_{size}"), Some(unfinished), "transfers");
        }
    }

    fn of_messages(&self, sink: &mut Sink, one: &ContenderFigures) {
        let milliseconds = |value: f64| finite(value * 1e3);
        let list = &one.round_trips;
        sink.result("round_trip_mean", milliseconds(mean(list)), "ms");
        sink.result("round_trip_p50", milliseconds(quantile(list, 0.5)), "ms");
        sink.result("round_trip_p99", milliseconds(quantile(list, 0.99)), "ms");
        sink.result("round_trip_p99_9", milliseconds(quantile(list, 0.999)), "ms");
        sink.result("round_trip_worst", milliseconds(quantile(list, 1.0)), "ms");
        sink.result("unanswered", Some(one.unanswered as f64), "messages");
        let bound = self.paired_messages(&one.round_trip, &self.message_bound).ratio(None);
        sink.result("round_trip_of_bound", bound.map(|ratio| ratio.value), "x");
    }

    fn of_calls(&self, sink: &mut Sink, one: &ContenderFigures) {
        let call = &one.calls;
        sink.result("call_lost", finite(call.lost), "x");
        sink.result("call_late", finite(call.late), "x");
        sink.result("call_delay_mean", finite(call.delay_mean), "ms");
        sink.result("call_delay_p95", finite(call.delay_p95), "ms");
        sink.goal("call_windows_good", call.good_share(), Goal::AtLeast(WINDOWS_GOOD));
        sink.goal("call_copies", finite(call.copies), Goal::AtMost(COPIES));
        if let Some(single) = self.better_single(|one| &one.calls.bad, false) {
            let over = self.paired_messages(&call.bad, &single);
            self.over_single(sink, &over, [Goal::AtMost(BAD_OVER_SINGLE), Goal::None]);
        }
    }

    /// The ratio to the better single carrier, with goals for it and for its lower end.
    fn over_single(&self, sink: &mut Sink, paired: &Paired, [goal, low]: [Goal; 2]) {
        let ratio = paired.ratio(None);
        if ratio.is_none() && goal == Goal::None {
            return;
        }
        // Without a ratio the goal is missed.
        sink.goal("over_single", Some(ratio.map_or(f64::NAN, |ratio| ratio.value)), goal);
        let between = ratio.filter(|ratio| ratio.trips >= 2).map(|ratio| ratio.between);
        sink.goal("over_single_low", between.map(|between| between[0]), low);
        sink.result("over_single_high", between.map(|between| between[1]), "x");
        let worst = if matches!(goal, Goal::AtMost(_)) { f64::max } else { f64::min };
        sink.result("over_single_worst_trip", paired.each().into_iter().reduce(worst), "x");
    }

    fn over_first(&self, sink: &mut Sink, one: &ContenderFigures, first: &ContenderFigures) {
        let over = format!("over_{}", key(&first.name));
        let goodput = self.paired(&one.goodput, &first.goodput);
        self.ratios_of(sink, &format!("{over}_goodput"), &goodput, &no_goals);
        if !self.is_endless() {
            let time = self.paired(&one.time, &first.time);
            self.ratios_of(sink, &format!("{over}_time"), &time, &no_goals);
        }
        let messages = self.paired_messages(&one.round_trip, &first.round_trip).ratio(None);
        sink.result(&format!("{over}_round_trip"), messages.map(|ratio| ratio.value), "x");
    }

    /// The ratio over all sizes, and if there are several, that of each size, with their intervals.
    fn ratios_of(
        &self,
        sink: &mut Sink,
        name: &str,
        paired: &Paired,
        goal: &dyn Fn(Part, Option<usize>) -> Goal,
    ) {
        let each = (0..self.sizes.len()).filter(|_| self.sizes.len() > 1).map(Some);
        for size in std::iter::once(None).chain(each) {
            let Some(ratio) = paired.ratio(size) else { continue };
            let suffix = size.map(|place| format!("_{}", key(&size_name(self.sizes[place]))));
            let name = format!("{name}{}", suffix.unwrap_or_default());
            sink.goal(&name, Some(ratio.value), goal(Part::Value, size));
            if ratio.trips >= 2 {
                let [low, high] = ratio.between;
                sink.goal(&format!("{name}_low"), Some(low), goal(Part::Low, size));
                sink.goal(&format!("{name}_high"), Some(high), goal(Part::High, size));
            }
        }
    }
}

/// A ratio, or an end of its interval.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Value,
    Low,
    High,
}

fn no_goals(_: Part, _: Option<usize>) -> Goal {
    Goal::None
}

/// A report with the beginning of the names.
struct Sink<'a> {
    report: &'a mut Report,
    prefix: String,
    /// The figures are Polyrail's.
    has_goals: bool,
}

impl Sink<'_> {
    /// A ratio with the goal of Polyrail's contenders.
    fn goal(&mut self, name: &str, value: Option<f64>, goal: Goal) {
        let Some(value) = value else { return };
        let goal = if self.has_goals { goal } else { Goal::None };
        self.report.result(&format!("{}_{name}", self.prefix), value, "x", goal, &[]);
    }

    fn result(&mut self, name: &str, value: Option<f64>, unit: &str) {
        if let Some(value) = value {
            let name = format!("{}_{name}", self.prefix);
            self.report.result(&name, value, unit, Goal::None, &[]);
        }
    }
}

/// Mode `quic`: the goodput over the split bound by size, and over the fluid bound.
const OF_SPLIT: [(u64, f64); 3] = [(256_000, 0.82), (1_000_000, 0.85), (4_000_000, 0.85)];
const OF_FLUID: f64 = 0.88;
/// The lower end of its goodput over that of mode `tls`.
const OVER_TLS_LOW: f64 = 0.97;
/// The 95th percentile of its completion times over the split bound's.
const TAIL: f64 = 1.25;
/// Its price, down and up.
const PRICE: [f64; 2] = [1.12, 0.05];
/// The share of carriers that it uses, by the upper edge of the earlier share.
const SHARE_USED: [(f64, f64); 2] = [(0.25, 0.65), (0.5, 0.72)];
/// The variation of its repeats.
const VARIATION: f64 = 0.06;

/// LinkDB over none: the lower end of the goodput, the 95th percentile of completion times, and
/// quantiles of the round trips of messages.
const LINKDB_LEAST: f64 = 0.98;
const LINKDB_TAIL: f64 = 1.03;
const LINKDB_MESSAGES: [(&str, f64, f64); 2] =
    [("round_trip_p99_over_without", 0.99, 1.02), ("round_trip_p99_9_over_without", 0.999, 0.9)];

/// Good windows of calls, copies of datagrams, lost or late packets over the better single
/// carrier's and, within 2 s of forecast failures, over those without LinkDB; and the goodput of
/// the users' QUIC over the better single carrier's.
const WINDOWS_GOOD: f64 = 0.95;
const COPIES: f64 = 0.1;
const BAD_OVER_SINGLE: f64 = 0.3;
const BAD_WHEN_FORECAST: f64 = 0.5;
const QUIC_OVER_SINGLE: f64 = 1.1;

/// A name as a part of a figure's: `quic_linkdb` for `quic+linkdb`, `4mb` for `4 MB`.
fn key(name: &str) -> String {
    name.to_lowercase().replace(' ', "").replace(|it: char| !it.is_ascii_alphanumeric(), "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::summary::tests::{run, seed};

    #[test]
    fn figures_are_named_after_contenders_and_sizes() {
        let runs = [run(seed(7), "tls", 4.0), run(seed(7), "quic+linkdb", 6.0)];
        let mut report = Report::default();
        Summary::of(&runs).unwrap().report(&mut report, "rail_300_6");
        let value = |name: &str| report.value(name).map(|value| (value * 1e3).round() / 1e3);
        assert_eq!(value("rail_300_6_trips"), Some(1.0));
        assert_eq!(value("rail_300_6_quic_linkdb_over_tls_goodput"), Some(1.5));
        assert_eq!(value("rail_300_6_quic_linkdb_over_tls_goodput_256kb"), Some(1.5));
        assert_eq!(value("rail_300_6_quic_linkdb_over_tls_time_4mb"), Some(0.667));
        assert_eq!(value("rail_300_6_tls_time_worst_4mb"), Some(8.0));
        assert!(value("rail_300_6_tls_of_split_1mb").is_some());
        assert_eq!(value("rail_300_6_tls_over_tls_goodput"), None);
        assert_eq!(value("rail_300_6_half_width"), None, "one trip");
    }

    #[test]
    fn goals_are_those_of_quic_and_of_linkdb() {
        let contenders = [("tls", 4.0), ("quic", 6.0), ("quic+linkdb", 3.0)];
        let of_trip = |trip| contenders.map(|(name, goodput)| run(seed(trip), name, goodput));
        let runs: Vec<_> = (7..9).flat_map(of_trip).collect();
        let mut report = Report::default();
        Summary::of(&runs).unwrap().report(&mut report, "rail");
        let figures = serde_json::to_value(report.figures()).unwrap();
        let goal = |name: &str| {
            let figure = figures.as_array().unwrap().iter().find(|one| one["name"] == name);
            let figure = figure.unwrap_or_else(|| panic!("no {name}"));
            (figure["goal"].as_str().unwrap().to_owned(), figure["met"].as_bool().unwrap())
        };
        for (name, expected, is_met) in [
            ("rail_quic_of_split_256kb", ">= 0.820", false),
            ("rail_quic_of_split_4mb", ">= 0.850", false),
            ("rail_tls_of_split_4mb", ">= 0", true),
            ("rail_quic_time_p95_of_split_1mb", "<= 1.250", true),
            ("rail_quic_price_down", "<= 1.120", false),
            ("rail_quic_price_up", "<= 0.050", true),
            ("rail_tls_price_down", ">= 0", true),
            ("rail_quic_to_tls_goodput", ">= 1.000", true),
            ("rail_quic_to_tls_goodput_4mb_low", ">= 0.970", true),
            ("rail_quic_to_tls_goodput_low", ">= 0", true),
            ("rail_quic_linkdb_over_tls_goodput", ">= 0", true),
            ("rail_linkdb_over_without_low", ">= 0.980", false),
            ("rail_quic_linkdb_over_without_4mb_high", ">= 1.000", false),
            ("rail_quic_linkdb_time_p95_over_without_4mb", "<= 1.030", false),
        ] {
            assert_eq!(goal(name), (expected.to_owned(), is_met), "{name}");
        }
    }
}
