//! Detects handovers from the reports of modems and the silence of paths.
//!
//! A handover is a change of the serving cell, or its loss and return. Its outcome is the modem's
//! report, or follows from the first matching row (`docs/linkdb.md`, section 6; POLYCORN 2.3; Wang
//! et al., MobiCom 2019, 2.2):
//!
//! | evidence | outcome |
//! |---|---|
//! | the same cell returned | type I |
//! | no loss of the cell, under 100 ms of silence | success |
//! | the same, no silence noticed, and evidence that there was none | success |
//! | the same without evidence | none: it is not recorded |
//! | data in flight arrived after all | type II |
//! | data in flight was lost | type III |
//! | unknown, no loss of the cell reported, under 1 s | type I |
//! | unknown | type II, over 3.5 s type III |
//!
//! A silence is noticed only while data is in flight, and none is on an idle path, or on a path
//! that the scheduler avoids because of a forecast. So there is evidence of a success only if
//! - the path made progress between the modem's last report of the old cell and the first of the
//!   new one, and again within a second, without a silence between, or
//! - the modem is known to report the loss of a cell or the outcome of handovers, and its reports
//!   are at most 1.5 s apart around the change. An outage shorter than the time between two reports
//!   may be missed then.
//!
//! Otherwise the outcome is unknown, because a false success would make the cell look better than
//! it is. The loss of a cell needs no evidence.
//!
//! A silence without a change of cell is no handover. A change during a silence that began ten
//! seconds earlier is not recorded, because the silence has another cause. A change is a gap, not a
//! handover, if no cell is found for 20 seconds, or if nothing passes for 20 seconds after one is
//! found (a modem reset, a long tunnel, a dead path). Changes of cell while nothing passes are one
//! handover, from the first cell to the last.
//!
//! A modem, or the source of its reports, may be down for a while and return in another cell: that
//! is a gap, too. A modem that repeats its cell (one cell three times in a row, each within 30
//! seconds) has a gap after 30 seconds without a report. A modem that reports only changes is
//! silent in a long cell, so it has a gap after ten minutes only.
//!
//! A polled modem reports a change late. A handover begins with its silence; without one, midway
//! between the two reports, at most half a second before the later one.
//!
//! Pass each observation to [`Detector::observe`], and call [`Detector::advance`] after it and at
//! least once a second.

mod carrier;
mod outcome;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{
    CellId, HandoverOutcome, Heard, Observation, Reported, Rsrp, Serving, Silence,
};
use serde::{Deserialize, Serialize};

use crate::wire::{CARRIER_NAME_MAX, CarrierTelemetry, TELEMETRY_CARRIERS_MAX};
use carrier::CarrierDetector;

/// A concluded handover, without its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    /// When it began.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
    /// The old cell.
    pub from: CellId,
    /// The new cell.
    pub to: Option<CellId>,
    /// The last reported power of the old cell.
    pub rsrp: Option<Rsrp>,
    /// How it ended.
    pub outcome: HandoverOutcome,
    /// The length of the outage; zero if no silence was noticed.
    pub dark: Duration,
}

/// Observations that did not become a recorded handover, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrecorded {
    /// Handovers without a trip or a position.
    pub unplaced: u64,
    /// Gaps in the observations of a carrier that were too long.
    pub gaps: u64,
    /// Changes of cell with unknown outcome: without evidence of a success, or during a silence
    /// with another cause.
    pub untold: u64,
    /// Observations of carriers with too long a name, or of too many carriers.
    pub strangers: u64,
    /// Handovers and tracks that overflowed a queue.
    pub dropped: u64,
}

impl Unrecorded {
    /// The sum of all counters.
    pub fn total(&self) -> u64 {
        self.unplaced + self.gaps + self.untold + self.strangers + self.dropped
    }
}

/// Detects the handovers of all carriers.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    carriers: BTreeMap<String, CarrierDetector>,
    strangers: u64,
}

impl Detector {
    /// Takes an observation of a modem or a path; ignores positions.
    pub fn observe(&mut self, observation: &Observation) {
        let (Observation::Serving(Serving { carrier, .. })
        | Observation::Reported(Reported { carrier, .. })
        | Observation::Silence(Silence { carrier, .. })
        | Observation::Heard(Heard { carrier, .. })) = observation
        else {
            return;
        };
        let Some(carrier) = self.carrier(carrier) else { return };
        match observation {
            Observation::Serving(serving) => carrier.serving(serving),
            Observation::Reported(reported) => carrier.reported(reported),
            Observation::Silence(silence) => carrier.silence(silence),
            Observation::Heard(heard) => carrier.heard(heard.at),
            Observation::Fix(_) | Observation::Odometer(_) => {}
        }
    }

    /// Concludes handovers by time, and returns all concluded since the last call.
    pub fn advance(&mut self, now: Instant) -> Vec<Detected> {
        let carriers = self.carriers.values_mut();
        let concluded = carriers.flat_map(|carrier| {
            carrier.advance(now);
            std::mem::take(&mut carrier.detected)
        });
        concluded.collect()
    }

    /// The modems that have reported within 30 seconds, by name.
    pub fn carriers(&self, now: Instant) -> Vec<CarrierTelemetry> {
        let known = self.carriers.iter().filter_map(|(name, carrier)| {
            let seen = carrier.current(now)?;
            Some(CarrierTelemetry { carrier: name.clone(), cell: seen.cell, rsrp: seen.rsrp })
        });
        known.collect()
    }

    /// Observations that did not become handovers.
    pub fn unrecorded(&self) -> Unrecorded {
        let sum = |count: fn(&CarrierDetector) -> u64| self.carriers.values().map(count).sum();
        Unrecorded {
            gaps: sum(|carrier| carrier.gaps),
            untold: sum(|carrier| carrier.untold),
            strangers: self.strangers,
            ..Unrecorded::default()
        }
    }

    fn carrier(&mut self, name: &str) -> Option<&mut CarrierDetector> {
        if !self.carriers.contains_key(name) {
            if self.carriers.len() >= TELEMETRY_CARRIERS_MAX || name.len() > CARRIER_NAME_MAX {
                self.strangers += 1;
                return None;
            }
            self.carriers.insert(name.to_owned(), CarrierDetector::new(name));
        }
        self.carriers.get_mut(name)
    }
}
