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
            self.ratios_of(&mut sink, "linkdb_over_without", &paired);
        }
        let first = self.contenders.first();
        for (name, paired) in self.foreseen.iter().filter(|_| self.has_call()) {
            let ratio = paired.ratio(None);
            let value = ratio.map_or(f64::NAN, |ratio| ratio.value);
            let name = format!("{prefix}_{}_linkdb_bad_when_forecast", key(name));
            let goal = Goal::AtMost(BAD_WHEN_FORECAST);
            sink.report.result(&name, value, "x", goal, &[]);
        }
        for (place, one) in self.contenders.iter().enumerate() {
            sink.prefix = format!("{prefix}_{}", key(&one.name));
            sink.has_goals = matches!(one.name.parse(), Ok(Contender::Polyrail { .. }));
            self.of_transfers(&mut sink, one);
            if self.workload.has_messages() {
                self.of_messages(&mut sink, one);
            }
            if self.has_call() {
                self.of_calls(&mut sink, one);
            }
            if self.workload == Workload::QuicDownloads
                && let Some(single) = self.better_single(|one| &one.goodput, true)
            {
                let over = self.paired(&one.goodput, &single);
                self.over_single(&mut sink, &over, Goal::AtLeast(QUIC_OVER_SINGLE));
            }
            if let Some(first) = first.filter(|_| place > 0) {
                self.over_first(&mut sink, one, first);
            }
            sink.result("price_down", finite(one.price[0]), "x");
            sink.result("price_up", finite(one.price[1]), "x");
            for (bin, shares) in one.bins.shares().iter().enumerate() {
                let edge = EDGES.get(bin).map_or("more".to_owned(), |edge| format!("{edge:.2}"));
                let name = format!("{}_share_used_{}", sink.prefix, edge.replace('.', "_"));
                if let Some(value) = finite(mean(shares)) {
                    sink.report.result(&name, value, "x", Goal::None, shares);
                }
            }
            sink.result("variation", one.variation.last().copied().flatten(), "x");
        }
    }

    fn of_transfers(&self, sink: &mut Sink, one: &ContenderFigures) {
        self.ratios_of(sink, "of_split", &self.paired(&one.goodput, &self.split.goodput));
        self.ratios_of(sink, "of_fluid", &self.paired(&one.goodput, &self.fluid.goodput));
        if !self.is_endless() {
            self.ratios_of(sink, "time_of_split", &self.paired(&one.time, &self.split.time));
            self.ratios_of(sink, "time_of_fluid", &self.paired(&one.time, &self.fluid.time));
        }
        for (place, size) in self.sizes.iter().enumerate().filter(|_| !self.is_endless()) {
            let size = key(&size_name(*size));
            let times: Vec<f64> = one.transfers[place].iter().map(|it| it.time).collect();
            sink.result(&format!("time_mean_{size}"), finite(mean(&times)), "s");
            sink.result(&format!("time_p95_{size}"), finite(quantile(&times, 0.95)), "s");
            sink.result(&format!("time_p95_of_split_{size}"), self.tail(one, place), "x");
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
            self.over_single(sink, &over, Goal::AtMost(BAD_OVER_SINGLE));
        }
    }

    /// The ratio to the better single carrier.
    fn over_single(&self, sink: &mut Sink, paired: &Paired, goal: Goal) {
        let ratio = paired.ratio(None);
        // Without a ratio the goal is missed.
        sink.goal("over_single", Some(ratio.map_or(f64::NAN, |ratio| ratio.value)), goal);
        let between = ratio.filter(|ratio| ratio.trips >= 2).map(|ratio| ratio.between);
        sink.result("over_single_low", between.map(|between| between[0]), "x");
        sink.result("over_single_high", between.map(|between| between[1]), "x");
        let worst = if matches!(goal, Goal::AtMost(_)) { f64::max } else { f64::min };
        sink.result("over_single_worst_trip", paired.each().into_iter().reduce(worst), "x");
    }

    fn over_first(&self, sink: &mut Sink, one: &ContenderFigures, first: &ContenderFigures) {
        let over = format!("over_{}", key(&first.name));
        let goodput = self.paired(&one.goodput, &first.goodput);
        self.ratios_of(sink, &format!("{over}_goodput"), &goodput);
        if !self.is_endless() {
            let time = self.paired(&one.time, &first.time);
            self.ratios_of(sink, &format!("{over}_time"), &time);
        }
        let messages = self.paired_messages(&one.round_trip, &first.round_trip).ratio(None);
        sink.result(&format!("{over}_round_trip"), messages.map(|ratio| ratio.value), "x");
    }

    /// The ratio over all sizes, and if there are several, that of each size.
    fn ratios_of(&self, sink: &mut Sink, name: &str, paired: &Paired) {
        let value = |size| paired.ratio(size).map(|ratio| ratio.value);
        let all = paired.ratio(None);
        sink.result(name, all.map(|ratio| ratio.value), "x");
        let between = all.filter(|ratio| ratio.trips >= 2).map(|ratio| ratio.between);
        sink.result(&format!("{name}_low"), between.map(|between| between[0]), "x");
        sink.result(&format!("{name}_high"), between.map(|between| between[1]), "x");
        for (place, size) in self.sizes.iter().enumerate().filter(|_| self.sizes.len() > 1) {
            sink.result(&format!("{name}_{}", key(&size_name(*size))), value(Some(place)), "x");
        }
    }
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
}
