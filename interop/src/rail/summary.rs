//! Statistics of the runs of one workload.
//!
//! Two contenders are compared only by the transfers and messages of trips on which both have a
//! run that is not starved. The repeats of a contender on a trip are averaged per transfer first.

use std::collections::BTreeSet;
use std::iter;

use anyhow::{Context, Result, ensure};
use polyrail_emulator::rail::{
    Bound, Course, Handover, HandoverResult, Message, Transfer, Workload, fluids,
};
use polyrail_emulator::record::{Run, Transferred};
use polyrail_emulator::statistics::{mean, quantile};

use super::contender::Contender;
use super::paired::{Paired, Series, averaged, finite, repeat_variation};
use super::speech::{CallFigures, near_foreseen};
use crate::report::median;
use polyrail_emulator::usage::{Bins, Carriers};

/// The statistics of the runs of one workload, speed and failure rate.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The workload.
    pub workload: Workload,
    /// The trips in the order of their first appearance.
    pub trips: Vec<Course>,
    /// The sizes of the transfers in rising order.
    pub sizes: Vec<u64>,
    /// The contenders in the order of their first appearance.
    pub contenders: Vec<ContenderFigures>,
    /// The bound without a split connection.
    pub fluid: BoundSeries,
    /// The bound for a gateway that answers the SYN.
    pub split: BoundSeries,
    /// The bound of the round trip of each message, in seconds.
    pub message_bound: Series,
    /// By trip, up and down: the least delay of each packet of the call, in seconds.
    pub call_bound: Vec<[Vec<f64>; 2]>,
    /// A contender that also plays with LinkDB, another one, and the former's bad packets near
    /// failures that were forecast, with LinkDB, over the latter's.
    pub foreseen: Vec<(String, String, Paired)>,
    /// The runs that do not count, with the reason.
    pub starved: Vec<String>,
    /// By trip and transfer: the place of its size in `sizes`.
    size_of: Vec<Vec<usize>>,
}

/// A bound of all transfers.
#[derive(Clone, Debug, Default)]
pub struct BoundSeries {
    /// Mbit/s.
    pub goodput: Series,
    /// Seconds, at most until the user gives up.
    pub time: Series,
}

/// The statistics of one contender over its runs that count.
#[derive(Clone, Debug)]
pub struct ContenderFigures {
    /// Its name.
    pub name: String,
    /// The number of its runs that count.
    pub runs: usize,
    /// Mbit/s of each transfer.
    pub goodput: Series,
    /// Seconds of each transfer; an unfinished transfer counts until the user gave up.
    pub time: Series,
    /// Seconds of each message; without an answer, until the end of the trip.
    pub round_trip: Series,
    /// By size: Mbit/s, seconds and the finish of all transfers of all runs.
    pub transfers: Vec<Vec<Outcome>>,
    /// The same of all messages of all runs.
    pub round_trips: Vec<f64>,
    /// The number of messages without an answer.
    pub unanswered: usize,
    /// Its calls.
    pub calls: CallFigures,
    /// Bytes offered to the downlinks and to the uplinks, over the payload that was delivered.
    pub price: [f64; 2],
    /// By size, and last for all sizes: standard deviation over mean of the mean goodput of the
    /// repeats of a trip, the median over the trips with several repeats.
    pub variation: Vec<Option<f64>>,
    /// Use of the carriers at the beginning of downloads.
    pub bins: Bins,
}

/// The outcome of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Mbit/s.
    pub goodput: f64,
    /// Seconds until the last byte, or until the user gave up.
    pub time: f64,
    /// All bytes arrived.
    pub finished: bool,
}

impl Summary {
    /// The statistics of runs of one workload, speed and failure rate.
    ///
    /// # Errors
    /// There are no runs, they differ in these, or a run does not follow the plan of its trip.
    pub fn of(runs: &[Run]) -> Result<Self> {
        let first = runs.first().context("there are no runs")?;
        let group = |run: &Run| {
            let Course { speed_kmh, failures, carriers, .. } = run.course;
            (run.workload, speed_kmh, failures.to_bits(), carriers)
        };
        ensure!(
            runs.iter().all(|run| group(run) == group(first)),
            "runs differ in workload, speed, failure rate or carriers"
        );
        let trips = distinct(runs.iter().map(|run| run.course));
        let plans: Vec<Plan> = trips.iter().map(|trip| Plan::of(*trip, first.workload)).collect();
        let bytes = plans.iter().flat_map(|plan| &plan.transfers).map(|one| one.bytes);
        let sizes: Vec<u64> = bytes.collect::<BTreeSet<_>>().into_iter().collect();
        let place = |one: &Transfer| sizes.partition_point(|size| *size < one.bytes);
        let mut summary = Self {
            workload: first.workload,
            contenders: Vec::new(),
            fluid: BoundSeries::default(),
            split: BoundSeries::default(),
            message_bound: Vec::new(),
            call_bound: Vec::new(),
            foreseen: Vec::new(),
            starved: runs.iter().filter_map(starved).collect(),
            size_of: plans.iter().map(|it| it.transfers.iter().map(place).collect()).collect(),
            trips,
            sizes,
        };
        let carriers: Vec<Carriers> =
            plans.iter().map(|plan| summary.add_bounds(plan)).collect::<Result<_>>()?;
        for name in distinct(runs.iter().map(|run| run.contender.as_str())) {
            let mut by_trip = Vec::new();
            for (plan, size_of) in plans.iter().zip(&summary.size_of) {
                let of_trip = |run: &&Run| run.contender == name && run.course == plan.course;
                let counted = runs.iter().filter(of_trip).filter(|run| run.starved.is_none());
                let counted: Vec<&Run> = counted.collect();
                counted.iter().try_for_each(|run| plan.check(run))?;
                by_trip.push(Played { plan, size_of, runs: counted });
            }
            let mut contender = ContenderFigures::of(name, &by_trip, summary.sizes.len());
            let runs: Vec<_> = by_trip.iter().map(|trip| trip.runs.clone()).collect();
            contender.calls = CallFigures::of(&runs, &summary.call_bound);
            for (played, carriers) in by_trip.iter().zip(&carriers) {
                played.runs.iter().for_each(|run| contender.bins.add(run, carriers));
            }
            summary.contenders.push(contender);
        }
        summary.add_foreseen(runs)?;
        Ok(summary)
    }

    /// Compares contenders with LinkDB with the same without it, and with those of limited copies.
    fn add_foreseen(&mut self, runs: &[Run]) -> Result<()> {
        let names: Vec<String> = self.contenders.iter().map(|one| one.name.clone()).collect();
        for name in names.iter().filter_map(|name| name.strip_suffix("+linkdb")) {
            let mode = Contender::mode_of(name);
            let is_rival = |other: &&str| {
                *other != name && Contender::is_limited(other) && Contender::mode_of(other) == mode
            };
            let rivals = names.iter().map(String::as_str).filter(is_rival);
            for other in iter::once(name).chain(rivals) {
                let paired = self.near_failures(runs, name, other)?;
                self.foreseen.push((name.to_owned(), other.to_owned(), paired));
            }
        }
        Ok(())
    }

    /// Pairs the runs of `name` with LinkDB and those of `other` of each repeat; of a trip their
    /// mean counts.
    fn near_failures(&self, runs: &[Run], name: &str, other: &str) -> Result<Paired> {
        let (mut with, mut without) = (Series::new(), Series::new());
        for course in &self.trips {
            let route = course.route()?;
            let trip = course.trip(&route)?;
            let names = route.names().into_iter();
            let handovers = names.zip(&trip.carriers).flat_map(|(name, carrier)| {
                let failed = |one: &&Handover| one.outcome != HandoverResult::Success;
                let failed = carrier.handovers.iter().filter(failed);
                failed.map(move |one| (one.at.as_secs_f64(), name))
            });
            let failures: Vec<(f64, &str)> = handovers.collect();
            let of_trip = |run: &&Run| run.course == *course && run.starved.is_none();
            let pair = |a: &Run| {
                let is_other = |b: &&Run| b.contender == other && b.repeat == a.repeat;
                let b = runs.iter().filter(of_trip).find(is_other)?;
                Some(near_foreseen([a, b], &failures))
            };
            let has_linkdb = |run: &&Run| {
                run.call.is_some() && run.contender.strip_suffix("+linkdb") == Some(name)
            };
            let all = runs.iter().filter(of_trip).filter(has_linkdb);
            let near: Vec<[f64; 2]> = all.filter_map(pair).collect();
            if !near.is_empty() {
                let mean = |side: usize| {
                    near.iter().map(|pair| pair[side]).sum::<f64>() / near.len() as f64
                };
                with.push(vec![Some(mean(0))]);
                without.push(vec![Some(mean(1))]);
            }
        }
        Ok(self.paired_messages(&with, &without))
    }

    /// Adds the bounds of the next trip.
    fn add_bounds(&mut self, plan: &Plan) -> Result<Carriers> {
        let route = plan.course.route()?;
        let trip = plan.course.trip(&route)?;
        let fluids = fluids(&trip);
        let seconds: [fn(Bound) -> f64; 2] = [|bound| bound.fluid, |bound| bound.split];
        for (series, seconds) in [&mut self.fluid, &mut self.split].into_iter().zip(seconds) {
            let goodput = |one: &Transfer| match one.bytes {
                bytes if bytes < u64::MAX && seconds(one.bound(&fluids)) <= patience(one) => {
                    Some(bytes as f64 * 8e-6 / seconds(one.bound(&fluids)))
                }
                bytes => {
                    let volume = one.volume(&fluids).min(bytes as f64);
                    Some(volume * 8e-6 / patience(one))
                }
            };
            let time = |one: &Transfer| Some(seconds(one.bound(&fluids)).min(patience(one)));
            series.goodput.push(plan.transfers.iter().map(goodput).collect());
            series.time.push(plan.transfers.iter().map(time).collect());
        }
        let of_message = |one: &Message| finite(one.bound(&fluids));
        self.message_bound.push(plan.messages.iter().map(of_message).collect());
        let call = plan.course.call(self.workload);
        self.call_bound.push(fluids.each_ref().map(|way| call.map_or(vec![], |it| it.bound(way))));
        Ok(Carriers::of(&trip, &route.names())?)
    }

    /// Pairs two measures of the transfers.
    pub fn paired(&self, a: &Series, b: &Series) -> Paired {
        Paired::new(a, b, self.sizes.len(), |trip, place| self.size_of[trip][place])
    }

    /// Pairs the goodput of the largest transfers with the fluid bound's, by the place of the
    /// bound's goodput in [`SPEEDS`] instead of the size.
    pub fn paired_by_speed(&self, one: &ContenderFigures) -> Paired {
        let (others, largest) = (SPEEDS.len() + 1, self.sizes.len().saturating_sub(1));
        let bound = &self.fluid.goodput;
        Paired::new(&one.goodput, bound, others + 1, |trip, place| match bound[trip][place] {
            Some(speed) if self.size_of[trip][place] == largest => {
                SPEEDS.partition_point(|edge| *edge <= speed)
            }
            _ => others,
        })
    }

    /// The 95th percentile of the times of one size over that of the split bound for the same
    /// transfers, by the place of the size.
    pub fn tail(&self, one: &ContenderFigures, size: usize) -> Option<f64> {
        let [times, bounds] = self.both(&one.time, &self.split.time, Some(size));
        finite(quantile(&times, 0.95) / quantile(&bounds, 0.95))
    }

    /// The values of two measures, of the transfers or messages that have both; of transfers of one
    /// size, by its place.
    pub fn both(&self, a: &Series, b: &Series, size: Option<usize>) -> [Vec<f64>; 2] {
        let mut values = [const { Vec::new() }; 2];
        for (trip, (a, b)) in a.iter().zip(b).enumerate() {
            for (place, pair) in a.iter().zip(b).enumerate() {
                let fits = size.is_none_or(|size| self.size_of[trip][place] == size);
                if let (Some(a), Some(b)) = pair
                    && fits
                {
                    values[0].push(*a);
                    values[1].push(*b);
                }
            }
        }
        values
    }

    /// Pairs two measures of the messages.
    pub fn paired_messages(&self, a: &Series, b: &Series) -> Paired {
        Paired::new(a, b, 1, |_, _| 0)
    }

    /// Contenders with LinkDB, each with the same one without it.
    pub fn linkdb_pairs(&self) -> Vec<(&ContenderFigures, &ContenderFigures)> {
        let of = |with| -> Option<_> {
            let with: &ContenderFigures = with;
            let name = with.name.strip_suffix("+linkdb")?;
            Some((with, self.contenders.iter().find(|one| one.name == name)?))
        };
        self.contenders.iter().filter_map(of).collect()
    }

    /// The goodput of contenders with LinkDB and of the same ones without it, if there are both.
    pub fn with_linkdb(&self) -> Option<Paired> {
        let pairs = self.linkdb_pairs();
        let goodput = |one: &(&ContenderFigures, &ContenderFigures)| {
            self.paired(&one.0.goodput, &one.1.goodput)
        };
        (!pairs.is_empty()).then(|| Paired::joined(pairs.iter().map(goodput)))
    }

    /// By trip on which all of them have a run, the measure of the better of the contenders that
    /// have one carrier each: that with the greater sum, or the smaller one. `None` if none plays.
    pub fn better_single(
        &self,
        measure: fn(&ContenderFigures) -> &Series,
        is_greater_better: bool,
    ) -> Option<Series> {
        let singles = || self.contenders.iter().filter(|one| one.name.starts_with("single-"));
        singles().next()?;
        let better = |trip: usize| {
            let sum = |list: &&Vec<Option<f64>>| list.iter().flatten().sum::<f64>();
            let lists = || singles().map(|one| &measure(one)[trip]);
            let all = lists().all(|list| list.iter().any(Option::is_some));
            let lists = lists().filter(|_| all);
            let sign = if is_greater_better { 1.0 } else { -1.0 };
            lists.max_by(|a, b| (sign * sum(a)).total_cmp(&(sign * sum(b)))).cloned()
        };
        Some((0..self.trips.len()).map(|trip| better(trip).unwrap_or_default()).collect())
    }

    /// The largest half-width of the ratios over all sizes: of each contender's goodput to the
    /// split bound and to the first contender. Without transfers, of the round trips of messages.
    /// `None` if a pair has fewer than two trips.
    pub fn half_width(&self) -> Option<f64> {
        let first = self.contenders.first()?;
        let mut largest: f64 = 0.0;
        for (place, one) in self.contenders.iter().enumerate() {
            let pairs = if self.sizes.is_empty() {
                let bound = self.paired_messages(&one.round_trip, &self.message_bound);
                [bound, self.paired_messages(&one.round_trip, &first.round_trip)]
            } else {
                let bound = self.paired(&one.goodput, &self.split.goodput);
                [bound, self.paired(&one.goodput, &first.goodput)]
            };
            // The ratio of the first contender to itself is no result.
            for pair in pairs.iter().take(if place == 0 { 1 } else { 2 }) {
                largest = largest.max(pair.ratio(None)?.half_width()?);
            }
        }
        Some(largest)
    }
}

impl ContenderFigures {
    /// The number of unfinished transfers of a size, by its place.
    pub fn unfinished(&self, size: usize) -> usize {
        self.transfers[size].iter().filter(|one| !one.finished).count()
    }

    fn of(name: &str, trips: &[Played], sizes: usize) -> Self {
        let runs = || trips.iter().flat_map(|trip| &trip.runs).copied();
        let answers = || runs().flat_map(|run| &run.messages);
        let mut transfers = vec![Vec::new(); sizes];
        for (size, outcome) in trips.iter().flat_map(|trip| trip.outcomes().concat()) {
            transfers[size].push(outcome);
        }
        let of_outcomes = |value: fn(Outcome) -> f64| -> Series {
            trips.iter().map(|trip| trip.averaged(value)).collect()
        };
        let round_trips = |trip: &Played| averaged(&trip.round_trips());
        let of_size = |size: usize| {
            let size = Some(size).filter(|size| *size < sizes);
            let each: Vec<f64> = trips.iter().filter_map(|trip| trip.variation(size)).collect();
            (!each.is_empty()).then(|| median(&each))
        };
        Self {
            name: name.to_owned(),
            runs: runs().count(),
            goodput: of_outcomes(|outcome| outcome.goodput),
            time: of_outcomes(|outcome| outcome.time),
            round_trip: trips.iter().map(round_trips).collect(),
            transfers,
            round_trips: trips.iter().flat_map(Played::round_trips).flatten().flatten().collect(),
            unanswered: answers().filter(|answer| answer.is_none()).count(),
            calls: CallFigures::default(),
            price: price(runs()),
            variation: (0..=sizes).map(of_size).collect(),
            bins: Bins::default(),
        }
    }
}

/// Transfers and messages of a trip.
struct Plan {
    course: Course,
    transfers: Vec<Transfer>,
    messages: Vec<Message>,
}

impl Plan {
    fn of(course: Course, workload: Workload) -> Self {
        let (transfers, messages) = (course.transfers(workload), course.messages(workload));
        Self { course, transfers, messages }
    }

    /// Checks that a run has all transfers and messages.
    fn check(&self, run: &Run) -> Result<()> {
        let follows = self.transfers.len() == run.transfers.len()
            && self.messages.len() == run.messages.len()
            && self.transfers.iter().zip(&run.transfers).all(|(plan, seen)| {
                let late = seen.at_s - plan.at.as_secs_f64();
                (plan.bytes, plan.up) == (seen.bytes, seen.up) && (0.0..LATE_MAX_S).contains(&late)
            })
            && self.course.call(run.workload).map(|call| call.packets as usize)
                == run.call.as_ref().map(|call| call.up.len());
        let (name, seed) = (&run.contender, run.course.seed);
        ensure!(follows, "the run of {name} on trip {seed} does not follow the plan of the trip");
        Ok(())
    }
}

/// The runs of a contender on a trip that count.
struct Played<'a> {
    plan: &'a Plan,
    size_of: &'a [usize],
    runs: Vec<&'a Run>,
}

impl Played<'_> {
    /// By run: the transfers with the places of their sizes.
    fn outcomes(&self) -> Vec<Vec<(usize, Outcome)>> {
        let of_run = |run: &&Run| {
            let pairs = self.plan.transfers.iter().zip(&run.transfers);
            pairs
                .zip(self.size_of)
                .map(|((plan, seen), size)| (*size, outcome(plan, seen)))
                .collect()
        };
        self.runs.iter().map(of_run).collect()
    }

    /// By run: the round trips of all messages.
    fn round_trips(&self) -> Vec<Vec<Option<f64>>> {
        let end = self.plan.course.length();
        let of_run = |run: &&Run| {
            let pairs = self.plan.messages.iter().zip(&run.messages);
            pairs.map(|(plan, seen)| seen.or(Some((end - plan.at).as_secs_f64()))).collect()
        };
        self.runs.iter().map(of_run).collect()
    }

    /// The mean over the runs, by transfer.
    fn averaged(&self, value: fn(Outcome) -> f64) -> Vec<Option<f64>> {
        let of_run = |run: &Vec<(usize, Outcome)>| run.iter().map(|it| Some(value(it.1))).collect();
        averaged(&self.outcomes().iter().map(of_run).collect::<Vec<_>>())
    }

    /// The coefficient of variation of the mean goodput; for `None` of all sizes.
    fn variation(&self, size: Option<usize>) -> Option<f64> {
        let of_run = |run: &Vec<(usize, Outcome)>| {
            let of_size = run.iter().filter(|it| size.is_none_or(|size| size == it.0));
            mean(&of_size.map(|it| it.1.goodput).collect::<Vec<_>>())
        };
        repeat_variation(&self.outcomes().iter().map(of_run).collect::<Vec<_>>())
    }
}

/// The edges of the bound's goodput, in Mbit/s, by which the report divides transfers.
pub const SPEEDS: [f64; 3] = [10.0, 20.0, 40.0];
/// How late a transfer may begin.
const LATE_MAX_S: f64 = 0.1;

/// An endless transfer counts over its planned time.
fn outcome(plan: &Transfer, seen: &Transferred) -> Outcome {
    let goodput = match plan.bytes {
        u64::MAX => seen.received as f64 * 8e-6 / patience(plan),
        _ => finite(seen.goodput()).unwrap_or_default(),
    };
    Outcome { goodput, time: seen.took_s, finished: seen.finished }
}

/// How long the user waits, in seconds.
fn patience(plan: &Transfer) -> f64 {
    (plan.until - plan.at).as_secs_f64()
}

fn price<'a>(runs: impl Iterator<Item = &'a Run>) -> [f64; 2] {
    let (mut offered, mut payload) = ([0.0; 2], 0.0);
    for run in runs {
        for carrier in &run.carriers {
            offered = [0, 1].map(|side| offered[side] + carrier.offered[side] as f64);
        }
        let answered = run.messages.iter().flatten().count();
        payload += run.transfers.iter().map(|one| one.received as f64).sum::<f64>()
            + (answered * (Message::UP + Message::DOWN)) as f64;
    }
    offered.map(|bytes| bytes / payload)
}

fn starved(run: &Run) -> Option<String> {
    let why = run.starved.as_ref()?;
    Some(format!("{} on seed {}, repeat {}: {why}", run.contender, run.course.seed, run.repeat))
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut list = Vec::new();
    for item in items {
        if !list.contains(&item) {
            list.push(item);
        }
    }
    list
}

#[cfg(test)]
pub(super) mod tests;
