//! A trip as files: the scenario of its links, its telemetry, and its true handovers.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;

use super::handover::{Handover, HandoverResult};
use super::route::{Cell, Route};
use super::trip::{CarrierTrip, Fix, Trip};
use crate::dice::Dice;
use crate::scenario::{End, LinkScenario, Scenario};

/// A report of a modem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signal {
    /// When.
    pub at: Duration,
    /// The serving cell; none from the loss of one until the next.
    pub cell: Option<u32>,
    /// How strong it is, in dBm.
    pub rsrp: Option<f64>,
}

impl Handover {
    /// The signal of the cell that is left, as the carrier's modem last reported it.
    pub fn heard(&self, signals: &[Signal]) -> Option<f64> {
        let reported = signals.partition_point(|signal| signal.at <= self.at);
        let of_cell = |signal: &&Signal| signal.cell == Some(self.from);
        signals[..reported].iter().rev().find(of_cell)?.rsrp
    }
}

impl Trip {
    /// The scenario of its links; they are named after the carriers.
    pub fn scenario(&self, route: &Route) -> Scenario {
        let links = route.carriers.iter().zip(&self.carriers).map(|(profile, carrier)| {
            let name = profile.name.to_owned();
            let end = || End { interface: name.clone(), addresses: Vec::new(), namespace: None };
            let [up, down] = carrier.links.clone();
            let (near, far) = (end(), end());
            LinkScenario { name, mtu: MTU, near, far, nat: false, up, down }
        });
        Scenario {
            seed: self.seed,
            duration: Some(self.length),
            near: None,
            far: None,
            links: links.collect(),
        }
    }

    /// The reports of each carrier's modem, one for each fix of the position. In the last three
    /// seconds of a cell its signal approaches that of the handover out of it.
    pub fn signals(&self, route: &Route) -> Vec<Vec<Signal>> {
        let carriers = self.carriers.iter().zip(0..);
        carriers.map(|(carrier, number)| self.signals_of(route, carrier, number)).collect()
    }

    fn signals_of(&self, route: &Route, carrier: &CarrierTrip, number: u64) -> Vec<Signal> {
        let mut dice = Dice::labelled(self.seed ^ route.seed.rotate_left(32), SIGNALS + number);
        let cells = route.cells.get(number as usize).map_or(&[][..], Vec::as_slice);
        let report = |fix: &Fix| {
            let noise = NOISE * dice.normal();
            let last = carrier.handovers.iter().rposition(|handover| handover.at <= fix.at);
            let (past, ahead) = carrier.handovers.split_at(last.map_or(0, |last| last + 1));
            let (last, next) = (past.last(), ahead.first());
            let lost = |handover: &&Handover| {
                handover.outcome != HandoverResult::Success && fix.at < handover.at + handover.dark
            };
            if last.filter(lost).is_some() {
                return Signal { at: fix.at, cell: None, rsrp: None };
            }
            let cell = match last {
                Some(last) => cells.get(last.to as usize),
                None => match next {
                    Some(next) => cells.get(next.from as usize),
                    None => cells.iter().find(|cell| fix.metres < cell.to),
                },
            };
            let rsrp = cell.map(|cell| strength(cell, fix, next) + noise);
            Signal { at: fix.at, cell: cell.map(|cell| cell.id), rsrp }
        };
        self.fixes.iter().map(report).collect()
    }

    /// The train's telemetry, a line of JSON a second: `time_s`, `metres` along the track and
    /// `metres_per_second`, and for each carrier `carrier`, `cell` and `rsrp_dbm`, which are null
    /// while it has no cell.
    pub fn telemetry_lines(&self, route: &Route) -> String {
        let signals = self.signals(route);
        let mut text = String::new();
        for (place, fix) in self.fixes.iter().enumerate() {
            let carriers = route.carriers.iter().zip(&signals).filter_map(|(profile, signals)| {
                let signal = signals.get(place)?;
                let rsrp = signal.rsrp.map(tenths);
                Some(json!({ "carrier": profile.name, "cell": signal.cell, "rsrp_dbm": rsrp }))
            });
            let line = json!({
                "time_s": fix.at.as_secs_f64(),
                "metres": tenths(fix.metres),
                "metres_per_second": (fix.speed * 1e3).round() / 1e3,
                "carriers": carriers.collect::<Vec<_>>(),
            });
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// The true handovers, a line of JSON each, in the order of time: `time_s`,
    /// `carrier`, `from`, `to`, `metres`, `rsrp_dbm`, `outcome` (`success`, `failure_held` or
    /// `failure_dropped`) and `dark_s`.
    pub fn handover_lines(&self, route: &Route) -> String {
        let mut all: Vec<_> = route
            .carriers
            .iter()
            .zip(&self.carriers)
            .flat_map(|(profile, carrier)| carrier.handovers.iter().map(|one| (profile.name, one)))
            .collect();
        all.sort_by_key(|(_, handover)| handover.at);
        let mut text = String::new();
        for (carrier, handover) in all {
            let outcome = match handover.outcome {
                HandoverResult::Success => "success",
                HandoverResult::FailureHeld => "failure_held",
                HandoverResult::FailureDropped => "failure_dropped",
            };
            let line = json!({
                "time_s": handover.at.as_secs_f64(),
                "carrier": carrier,
                "from": handover.from,
                "to": handover.to,
                "metres": tenths(handover.metres),
                "rsrp_dbm": tenths(handover.rsrp),
                "outcome": outcome,
                "dark_s": handover.dark.as_secs_f64(),
            });
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// The strength of a cell at a fix, in dBm: by the place in it, and finally by the next handover.
fn strength(cell: &Cell, fix: &Fix, next: Option<&Handover>) -> f64 {
    let place = ((fix.metres - cell.from) / (cell.to - cell.from)).clamp(0.0, 1.0);
    let from_middle = (2.0 * place - 1.0).abs();
    let usual = cell.border.rsrp + MIDDLE * (1.0 - from_middle);
    let Some(next) = next else { return usual };
    let left = next.at.saturating_sub(fix.at).div_duration_f64(FADING).min(1.0);
    next.rsrp + (usual - next.rsrp) * left
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

const MTU: u16 = 1500;
/// The gain of the signal in the middle of a cell, and the error of a report, in dB.
const MIDDLE: f64 = 20.0;
const NOISE: f64 = 2.0;
/// The time in which the signal approaches that of the next handover, which is weaker if it comes
/// late or at a weak moment. A choice: nothing is published.
const FADING: Duration = Duration::from_secs(3);
/// The label of the dice, apart from those of the trip.
const SIGNALS: u64 = 200;
