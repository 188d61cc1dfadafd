//! Scheduling by what earlier trips measured at each place (Dong, Song, Zhang and Du, "Improving
//! Onboard Internet Services for High-Speed Vehicles by Multipath Transmission in Heterogeneous
//! Wireless Networks", III, IV and VI).
//!
//! A place is a second of travel. The rates are what the links can carry: a map that a real train
//! learns is no better. Three questions:
//! - Does the past tell more about the rate at a place than the present trip a moment ago?
//! - How long are the queues of the paper's scheduler and of its rivals, if nothing bounds them?
//!   Packets arrive at nine tenths of what both carriers carry together at that moment.
//! - What does a download gain that begins within 3 s after a handover?

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polyrail_emulator::rail::{CarrierTrip, Course, Fluid, Trip};
use polyrail_emulator::results::{Goal, Report};
use polyrail_model::{Bitrate, Bytes, FlowId, LinkOutlook, OutlookStep, PathId};
use polyrail_scheduler::{
    Chain, ChainSpec, Decision, Input, LookAhead, LookAheadStep, Note, PathView, SegmentView,
};

use super::Options;
use super::picture::{Curve, Panel, picture};
use crate::dice::Dice;
use crate::sim::metrics::{interval, mean, quantile};
use crate::sim::runs::{caught, parallel};
use crate::sim::table::Table;
use crate::sim::{Contestant, Engine, world_told};
use crate::world::{Side, World};

/// What a scheduler knows about the line ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Map {
    /// Nothing.
    None,
    /// The medians of earlier trips.
    Past,
    /// The present trip itself.
    Perfect,
}

impl Map {
    fn name(self) -> &'static str {
        match self {
            Self::None => "no map",
            Self::Past => "past",
            Self::Perfect => "perfect",
        }
    }
}

/// A measured trip and the maps of its places.
struct Line {
    trip: Trip,
    past: Places,
    present: Places,
}

/// Rate and delay by carrier, side that sends, and second.
type Places = Vec<[Vec<Place>; 2]>;

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Bits a second.
    rate: f64,
    delay: Duration,
}

pub(super) fn study(options: &Options, report: &mut Report) -> Result<()> {
    let count = options.trips.unwrap_or(TRIPS);
    // The queues of the first half drain in the second one.
    let seconds = 2 * options.seconds.unwrap_or(SECONDS);
    let course = |seed| Course {
        speed_kmh: 300,
        failures: super::FAILURES,
        seed,
        seconds,
        carriers: Course::CARRIERS,
    };
    let line = |seed| Line::draw(course(seed), options.smoke);
    let lines = (options.from..).take(count as usize).map(line).collect::<Result<Vec<_>>>()?;
    predictors(&lines, report);
    queues(&lines, options.threads, report)?;
    after_handovers(&lines, options, report)?;
    options.draw("places.svg", || {
        let line = lines.first().context("no trip")?;
        line.picture()
    })
}

impl Line {
    fn draw(course: Course, short: bool) -> Result<Self> {
        let route = course.route()?;
        let trip = Trip { seed: course.seed, ..course.trip(&route)? };
        let earlier = course.earlier(&route, if short { 2 } else { EARLIER })?;
        let earlier: Vec<Places> = earlier.iter().map(places).collect();
        let present = places(&trip);
        let past = present.iter().enumerate().map(|(carrier, sides)| {
            [0, 1].map(|side| {
                let all = 0..sides[side].len();
                all.map(|second| typical(&earlier, carrier, side, second)).collect()
            })
        });
        Ok(Self { past: past.collect(), present, trip })
    }

    fn map(&self, map: Map) -> Option<&Places> {
        match map {
            Map::None => None,
            Map::Past => Some(&self.past),
            Map::Perfect => Some(&self.present),
        }
    }

    fn picture(&self) -> Result<String> {
        let points = |places: &[Place]| {
            let all = (0..).map(f64::from).zip(places.iter().map(|place| place.rate * 1e-6));
            all.collect()
        };
        let panel = |(label, carrier): (&'static str, usize)| Panel {
            label,
            top: 40.0,
            curves: vec![
                Curve {
                    class: "a",
                    name: "this trip".into(),
                    points: points(&self.present[carrier][1]),
                },
                Curve {
                    class: "b",
                    name: "median of 24 earlier".into(),
                    points: points(&self.past[carrier][1]),
                },
            ],
        };
        let panels: Vec<Panel<'_>> =
            ["A, Mbit/s", "B, Mbit/s"].into_iter().zip(0..self.present.len()).map(panel).collect();
        let title = "Rate along the line: one trip and the median of earlier ones";
        picture(title, self.trip.length.as_secs_f64(), &panels)
    }
}

/// The mean rate and the delay in each second of a trip.
fn places(trip: &Trip) -> Places {
    let of = |carrier: &CarrierTrip| {
        [0, 1].map(|side| {
            let link = &carrier.links[side];
            let fluid = Fluid::of([link].into_iter(), trip.length);
            let place = |second: u64| Place {
                rate: fluid.volume(second as f64, second as f64 + 1.0) * 8.0,
                delay: link.delay.at(Duration::from_secs(second)).value,
            };
            (0..trip.length.as_secs()).map(place).collect()
        })
    };
    trip.carriers.iter().map(of).collect()
}

/// As LinkDB's rate map: the median of the rates, and the 0.1 quantile of the delays.
fn typical(earlier: &[Places], carrier: usize, side: usize, second: usize) -> Place {
    let all = || earlier.iter().filter_map(|trip| trip[carrier][side].get(second));
    let rates: Vec<f64> = all().map(|place| place.rate).collect();
    let delays: Vec<f64> = all().map(|place| place.delay.as_secs_f64()).collect();
    if rates.is_empty() {
        return Place::default();
    }
    let delay = Duration::from_secs_f64(quantile(&delays, 0.1));
    Place { rate: quantile(&rates, 0.5), delay }
}

/// How well the rate at a place follows from the past, and from this trip a moment ago.
fn predictors(lines: &[Line], report: &mut Report) {
    let names = ["past", "1_s_ago", "3_s_ago", "10_s_ago"];
    let mut table = Table::new(
        "Rate of the next second".to_owned(),
        names.iter().map(|name| (*name).to_owned()).collect(),
    );
    let mut columns: [Vec<f64>; 2] = Default::default();
    for (name, before) in names.iter().zip([0, 1, 3, 10]) {
        let mut pairs = Vec::new();
        for line in lines {
            for (now, past) in line.present.iter().zip(&line.past) {
                let (now, past) = (&now[1], &past[1]);
                for second in 10..now.len() {
                    let from = if before == 0 { past[second] } else { now[second - before] };
                    // In the dark no rate is measured.
                    if now[second].rate.min(from.rate) > RATE_LEAST {
                        pairs.push((from.rate.ln(), now[second].rate.ln()));
                    }
                }
            }
        }
        let errors: Vec<f64> = pairs.iter().map(|(from, to)| (to - from).abs().exp()).collect();
        let figures = [correlation(&pairs), quantile(&errors, 0.5)];
        for ((column, figure), what) in columns.iter_mut().zip(figures).zip(["correlation", "off"])
        {
            column.push(figure);
            let name = format!("places_{name}_{what}");
            report.result(&name, figure, "x", Goal::None, &[figure]);
        }
    }
    let [correlations, errors] = columns;
    table.column("correlation of logarithms", correlations.into_iter());
    table.column("median factor off", errors.into_iter());
    println!("{}", table.markdown());
}

fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let of = |value: &dyn Fn(&(f64, f64)) -> f64| -> f64 {
        mean(&pairs.iter().map(value).collect::<Vec<_>>())
    };
    let (x, y) = (of(&|pair| pair.0), of(&|pair| pair.1));
    let both = of(&|pair| (pair.0 - x) * (pair.1 - y));
    both / (of(&|pair| (pair.0 - x).powi(2)) * of(&|pair| (pair.1 - y).powi(2))).sqrt()
}

/// Two sending queues without a bound.
struct Queues {
    /// Of both queues' times to drain, every 50 ms, in seconds.
    differences: Vec<f64>,
    /// Of both queues' bytes, each over its rate in units of the lesser rate.
    normalised: Vec<f64>,
    /// From a packet's arrival to its delivery in order, in seconds.
    delays: Vec<f64>,
    /// Bytes that wait for earlier ones, in the mean.
    held: f64,
}

/// One path's queue.
struct Queue {
    fluid: Fluid,
    /// The end of the trip, in seconds.
    end: f64,
    /// When the last packet has left, in seconds.
    free_at: f64,
    /// When each packet that has not left will leave, and its bytes.
    queued: Backlog,
    /// The same of unacknowledged packets.
    outstanding: Backlog,
    /// The bytes of the last second.
    rate: f64,
}

/// Packets by the time at which they are gone, and the sum of their bytes.
#[derive(Default)]
struct Backlog {
    packets: VecDeque<(f64, u64)>,
    bytes: u64,
}

impl Backlog {
    fn push(&mut self, until: f64, bytes: u64) {
        self.packets.push_back((until, bytes));
        self.bytes += bytes;
    }

    fn advance(&mut self, now: f64) {
        while let Some((_, bytes)) = self.packets.front().filter(|(until, _)| *until <= now) {
            self.bytes -= bytes;
            self.packets.pop_front();
        }
    }
}

/// The name of a figure, its heading, and the figure.
type Column = (&'static str, &'static str, fn(&Queues) -> f64);

fn queues(lines: &[Line], threads: usize, report: &mut Report) -> Result<()> {
    let arms = [
        ("network_adaptive", Map::Past),
        ("network_adaptive", Map::Perfect),
        ("network_adaptive", Map::None),
        ("edpf", Map::None),
        ("weighted_round_robin", Map::None),
        ("polyrail", Map::None),
    ];
    let played = parallel(arms.len() * lines.len(), threads, |task| {
        let ((chain, map), line) = (arms[task / lines.len()], &lines[task % lines.len()]);
        anyhow::Ok(Queues::play(line, ChainSpec::named(chain)?.build(), map))
    });
    let played = played.into_iter().collect::<Result<Vec<_>>>()?;
    let rows = arms.map(|(chain, map)| format!("{chain}, {}", map.name())).to_vec();
    let mut table = Table::new("Queues without a bound".to_owned(), rows);
    let figures: [Column; 6] = [
        ("difference_mean_s", "difference of queueing times, s", |q| mean(&q.differences)),
        ("difference_p95_s", "95th percentile", |q| quantile(&q.differences, 0.95)),
        ("growth", "last quarter over first", |q| {
            let quarter = q.differences.len() / 4;
            let last = q.differences.len() - quarter;
            mean(&q.differences[last..]) / mean(&q.differences[..quarter]).max(1e-3)
        }),
        ("normalised_kb", "difference of normalised lengths, KB", |q| mean(&q.normalised) * 1e-3),
        ("delay_p95_s", "delivery in order, 95th percentile, s", |q| quantile(&q.delays, 0.95)),
        ("held_kb", "bytes waiting for earlier ones, KB", |q| q.held * 1e-3),
    ];
    for (short, heading, figure) in figures {
        let values: Vec<f64> = played
            .chunks(lines.len())
            .map(|trips| quantile(&trips.iter().map(figure).collect::<Vec<_>>(), 0.5))
            .collect();
        for ((chain, map), value) in arms.iter().zip(&values) {
            let name = format!("places_{chain}_{}_{short}", map.name().replace(' ', "_"));
            report.result(&name, *value, "", Goal::None, &[*value]);
        }
        table.column(heading, values.into_iter());
    }
    println!("{}", table.markdown());
    Ok(())
}

impl Queues {
    fn play(line: &Line, mut chain: Chain, map: Map) -> Self {
        let base = Instant::now();
        let length = line.trip.length;
        let mut queues: Vec<Queue> =
            line.trip.carriers.iter().map(|it| Queue::new(it, length)).collect();
        let mut found =
            Self { differences: Vec::new(), normalised: Vec::new(), delays: Vec::new(), held: 0.0 };
        let (mut now, mut sampled, mut offset) = (1.0, 0.0, 0);
        // Each packet: when it arrived, reached the far end, and its bytes.
        let mut packets: Vec<(f64, f64, u64)> = Vec::new();
        let end = length.as_secs_f64() / 2.0;
        while now < end {
            queues.iter_mut().for_each(|queue| queue.advance(now));
            if now - sampled >= SAMPLE {
                sampled = now;
                found.sample(now, &queues);
            }
            let bytes = if packets.len().is_multiple_of(2) { LARGE } else { SMALL };
            let view = |(number, queue): (usize, &Queue)| PathView {
                look_ahead: look_ahead(line.map(map), number, now),
                ..queue.view(number, line.present[number][1][now as usize].delay)
            };
            let paths: Vec<PathView> = queues.iter().enumerate().map(view).collect();
            let at = base + Duration::from_secs_f64(now);
            let segment = SegmentView { offset, remaining: Bytes(bytes), ..SegmentView::default() };
            if let Decision::Send { primary, .. } =
                chain.decide(&Input { paths: &paths, segment, now: at })
            {
                let path = paths[primary].id;
                let flow = FlowId::default();
                chain.note(&Note::Sent { path, flow, offset, bytes, copy: false }, at);
                packets.push((now, queues[primary].push(now, bytes), bytes));
            }
            offset += bytes;
            let rate = queues.iter().map(|queue| queue.rate).sum::<f64>() / 8.0 * LOAD;
            now += bytes as f64 / rate.max(RATE_LEAST / 8.0);
        }
        let mut released: f64 = 0.0;
        for (at, there, bytes) in packets {
            released = released.max(there);
            found.delays.push(released - at);
            found.held += (released - there) * bytes as f64 / end;
        }
        found
    }

    fn sample(&mut self, now: f64, queues: &[Queue]) {
        let [a, b] = queues else { return };
        self.differences.push((a.waits(now) - b.waits(now)).abs());
        let rates = [a, b].map(|queue| queue.rate.max(RATE_LEAST));
        let least = rates[0].min(rates[1]);
        let over = |queue: &Queue, rate: f64| queue.queued.bytes as f64 * least / rate;
        self.normalised.push((over(a, rates[0]) - over(b, rates[1])).abs());
    }
}

impl Queue {
    fn new(carrier: &CarrierTrip, length: Duration) -> Self {
        let fluid = Fluid::of([&carrier.links[1]].into_iter(), length);
        let (queued, outstanding) = Default::default();
        let end = length.as_secs_f64();
        Self { fluid, end, free_at: 0.0, queued, outstanding, rate: 0.0 }
    }

    fn advance(&mut self, now: f64) {
        self.queued.advance(now);
        self.outstanding.advance(now);
        self.rate = self.fluid.volume((now - 1.0).max(0.0), now) * 8.0;
    }

    /// Queues a packet; returns when it reaches the far end.
    fn push(&mut self, now: f64, bytes: u64) -> f64 {
        // Packets that are not there by the end of the trip count as if they came then.
        self.free_at = self.fluid.served(self.free_at.max(now), bytes).min(self.end);
        let there = self.fluid.arrival(self.free_at).min(self.end);
        self.queued.push(self.free_at, bytes);
        self.outstanding.push(2.0 * there - self.free_at, bytes);
        there
    }

    /// The time until the queue is empty.
    fn waits(&self, now: f64) -> f64 {
        (self.free_at - now).max(0.0)
    }

    fn view(&self, number: usize, delay: Duration) -> PathView {
        let rate = Some(Bitrate::from_mbps(self.rate.max(RATE_LEAST) * 1e-6));
        PathView {
            id: PathId(number as u64),
            carrier: number as u32,
            srtt: delay * 2,
            rtt_min: delay * 2,
            owd: Some(delay),
            room: Bytes(u64::from(u32::MAX)),
            outstanding: Bytes(self.outstanding.bytes),
            window: Bytes(u64::from(u32::MAX)),
            rate,
            capacity: rate,
            ..PathView::default()
        }
    }
}

fn look_ahead(map: Option<&Places>, carrier: usize, now: f64) -> LookAhead {
    let Some(places) = map.map(|map| &map[carrier][1]) else { return LookAhead::default() };
    let step = |ahead: usize| {
        let second = now as usize + ahead;
        let place = places.get(second)?;
        let begins = (second as f64 - now).max(0.0);
        Some(LookAheadStep {
            begins_in: Duration::from_secs_f64(begins),
            ends_in: Duration::from_secs_f64(second as f64 + 1.0 - now),
            rate: Bitrate::from_mbps(place.rate.max(RATE_LEAST) * 1e-6),
            delay: place.delay,
        })
    };
    LookAhead::new((0..STEPS).map_while(step))
}

/// Downloads of 1 MB that begin within 3 s after a handover, in the whole engine.
fn after_handovers(lines: &[Line], options: &Options, report: &mut Report) -> Result<()> {
    let arms = [
        ("network_adaptive", Map::None),
        ("network_adaptive", Map::Past),
        ("network_adaptive", Map::Perfect),
        ("polyrail", Map::None),
    ];
    let runs = parallel(arms.len() * lines.len(), options.threads, |task| {
        let ((chain, map), line) = (arms[task / lines.len()], &lines[task % lines.len()]);
        let contestant = Contestant::named(chain, Engine::Full);
        caught(|| line.downloads(&contestant, map))
    });
    let runs = runs.into_iter().collect::<Result<Vec<_>, _>>().map_err(anyhow::Error::msg)?;
    let of = |arm: usize, trips: &[usize]| {
        let own = trips.iter().flat_map(|trip| &runs[arm * lines.len() + trip]);
        mean(&own.copied().collect::<Vec<_>>())
    };
    let all: Vec<usize> = (0..lines.len()).collect();
    for (arm, (chain, map)) in arms.iter().enumerate() {
        let gain = |trips: &[usize]| of(arm, trips) / of(0, trips);
        let [low, high] = interval(lines.len(), gain);
        let name = format!("places_after_handover_{chain}_{}", map.name().replace(' ', "_"));
        let goal = if *map == Map::Past && options.judges() { GAIN } else { Goal::None };
        let mbps = of(arm, &all);
        report.result(&format!("{name}_mbps"), mbps, "Mbit/s", Goal::None, &[mbps]);
        report.result(&name, gain(&all), "x", goal, &[gain(&all)]);
        for (end, value) in [("low", low), ("high", high)] {
            report.result(&format!("{name}_{end}"), value, "x", Goal::None, &[value]);
        }
    }
    Ok(())
}

impl Line {
    /// The goodputs in Mbit/s. The moments are those of all contestants.
    fn downloads(&self, contestant: &Contestant, map: Map) -> Vec<f64> {
        let tell = |world: &mut World| {
            if let Some(places) = self.map(map) {
                expect(world, places);
            }
        };
        let mut world = world_told(&self.trip, contestant, tell);
        let mut goodputs = Vec::new();
        for at in self.moments(world.elapsed()) {
            world.run_for(at - world.elapsed());
            let Ok(flow) = world.open(1) else { break };
            world.flow_mut(flow).server = (MEGABYTE, true);
            let took = world.run_until(PATIENCE, |world| world.flow(flow).legs[0].end_seen);
            let seconds = took.unwrap_or(PATIENCE).as_secs_f64();
            goodputs.push(world.flow(flow).legs[0].read as f64 * 8e-6 / seconds);
        }
        goodputs
    }

    /// Within 3 s after a handover, far enough from each other.
    fn moments(&self, from: Duration) -> Vec<Duration> {
        let mut dice = Dice::new(self.trip.seed ^ 0x4a7e);
        let handovers = self.trip.carriers.iter().flat_map(|carrier| &carrier.handovers);
        let mut moments: Vec<Duration> =
            handovers.map(|one| one.at + one.dark + WITHIN.mul_f64(dice.unit())).collect();
        moments.sort();
        let mut last = from;
        moments.retain(|at| {
            let fits = *at >= last && *at + PATIENCE <= self.trip.length;
            if fits {
                last = *at + PATIENCE + PAUSE;
            }
            fits
        });
        moments
    }
}

/// Both sides know each second of the map as the train reaches it.
fn expect(world: &mut World, places: &Places) {
    let begin = world.now() - world.elapsed();
    for (carrier, sides) in places.iter().enumerate() {
        for side in Side::BOTH {
            let step = |second: usize| {
                let place = sides[side as usize].get(second)?;
                let rate = Bitrate::from_mbps(place.rate.max(RATE_LEAST) * 1e-6);
                let from = begin + Duration::from_secs(second as u64);
                Some(OutlookStep { from, rate, delay: place.delay })
            };
            for second in 0..sides[0].len() {
                let at = Duration::from_secs(second as u64);
                let Some(after) = at.checked_sub(world.elapsed()) else { continue };
                let steps = (second..second + STEPS).map_while(step).collect();
                world.expect(after, carrier, side, LinkOutlook { steps });
            }
        }
    }
}

const TRIPS: u64 = 24;
const SECONDS: u64 = 120;
/// Earlier trips over the same line.
const EARLIER: u64 = 24;
/// Bits a second; a carrier with less is dark.
const RATE_LEAST: f64 = 50_000.0;
/// Bytes of the packets that alternate.
const LARGE: u64 = 1_400;
const SMALL: u64 = 140;
/// The share of the carriers' present rate that arrives.
const LOAD: f64 = 0.9;
/// Seconds between two looks at the queues.
const SAMPLE: f64 = 0.05;
/// Seconds of a look-ahead, as in LinkDB.
const STEPS: usize = 4;
const MEGABYTE: u64 = 1_000_000;
const WITHIN: Duration = Duration::from_secs(3);
/// A download is given up after this time.
const PATIENCE: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(500);
const GAIN: Goal = Goal::AtLeast(1.1);
