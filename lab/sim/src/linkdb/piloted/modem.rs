//! The reports of a modem on a generated trip.

use std::time::Duration;

use polyrail_emulator::rail::{Handover, HandoverResult, Signal};
use polyrail_model::{CellId, HandoverOutcome, Observation, Reported, Rsrp, Serving};

use super::drive::Clock;
use crate::dice::Dice;
use crate::linkdb::records::outcome;

/// The kinds of modems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modem {
    /// Asked once a second, it reports its cell, or that it has none.
    Polled,
    /// The same, but it reports a lost cell until it has the next.
    Mute,
    /// It also reports each change and its outcome.
    Events,
}

/// One carrier's modem on a trip.
#[derive(Clone, Copy, Debug)]
pub struct Radio<'a> {
    /// The carrier's name.
    pub carrier: &'a str,
    /// Its true handovers.
    pub handovers: &'a [Handover],
    /// The reports of the generator's modem, once a second.
    pub signals: &'a [Signal],
}

/// A reported change of the cell.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// When it is observed.
    at: f64,
    cell: Option<u32>,
    /// The outcome of the handover, and the length of the outage.
    ended: Option<(HandoverOutcome, Duration)>,
}

impl Radio<'_> {
    /// The observations of the modem between two seconds of the trip, unordered. `report` is the
    /// greatest age of a report, in seconds.
    pub fn observed(
        &self,
        modem: Modem,
        clock: Clock,
        (from, to): (f64, f64),
        report: f64,
        dice: &mut Dice,
    ) -> Vec<(f64, Observation)> {
        let told = if modem == Modem::Events { self.changes(report, dice) } else { Vec::new() };
        let mut seen = Vec::new();
        for change in &told {
            seen.push(self.serving(clock, change.at, change.cell));
            seen.extend(change.ended.map(|(outcome, dark)| {
                let (at, carrier) = (clock.at(change.at), self.carrier.to_owned());
                let reported = Reported { at, carrier, outcome, dark: Some(dark) };
                (change.at, Observation::Reported(reported))
            }));
        }
        let mut at = from + dice.unit();
        while at < to {
            let age = report * dice.unit();
            // A modem that reports changes repeats the last one when it is asked.
            let last = told.partition_point(|change| change.at <= at).checked_sub(1);
            let cell = match last.and_then(|last| told.get(last)) {
                Some(change) => change.cell,
                None if told.is_empty() => self.cell(at - age, modem),
                None => self.cell(from, modem),
            };
            seen.push(self.serving(clock, at, cell));
            at += 1.0;
        }
        seen
    }

    /// The cell that the modem reports at a moment; none while it has none, or none is known.
    fn cell(&self, at: f64, modem: Modem) -> Option<u32> {
        let begun = self.handovers.partition_point(|one| one.at.as_secs_f64() <= at);
        let Some(last) = begun.checked_sub(1).and_then(|place| self.handovers.get(place)) else {
            return Some(self.handovers.first()?.from);
        };
        let lost = last.outcome != HandoverResult::Success && at < end(last, None);
        match (lost, modem) {
            (false, _) => Some(last.to),
            (true, Modem::Mute) => Some(last.from),
            (true, _) => None,
        }
    }

    /// The reported changes and their outcomes, in order.
    fn changes(&self, report: f64, dice: &mut Dice) -> Vec<Change> {
        let mut told: Vec<Change> = Vec::new();
        for (place, handover) in self.handovers.iter().enumerate() {
            let began = handover.at.as_secs_f64();
            let end = end(handover, self.handovers.get(place + 1));
            // Later reports are observed later.
            let last = told.last().map_or(f64::MIN, |last| last.at);
            let lost = last.max(began + report * dice.unit());
            if handover.outcome != HandoverResult::Success && lost < end {
                told.push(Change { at: lost, cell: None, ended: None });
            }
            let at = lost.max(end + report * dice.unit());
            let dark = Duration::from_secs_f64((end - began).max(0.0));
            let ended = Some((outcome(handover.outcome), dark));
            told.push(Change { at, cell: Some(handover.to), ended });
        }
        told
    }

    fn serving(&self, clock: Clock, at: f64, cell: Option<u32>) -> (f64, Observation) {
        let serving = Serving {
            at: clock.at(at),
            carrier: self.carrier.to_owned(),
            cell: cell.map(|cell| CellId(cell.into())),
            rsrp: cell.and_then(|cell| self.rsrp(at, cell)),
        };
        (at, Observation::Serving(serving))
    }

    /// The strength of a cell by the generator's last report, or by the next one.
    fn rsrp(&self, at: f64, cell: u32) -> Option<Rsrp> {
        let second = at.max(0.0) as usize;
        let near = self.signals.iter().skip(second).take(2);
        let dbm = near.filter(|signal| signal.cell == Some(cell)).find_map(|signal| signal.rsrp)?;
        Rsrp::from_dbm(dbm)
    }
}

/// When a handover ends: at the latest when the next begins.
fn end(handover: &Handover, next: Option<&Handover>) -> f64 {
    let end = (handover.at + handover.dark).as_secs_f64();
    next.map_or(end, |next| end.min(next.at.as_secs_f64()))
}
