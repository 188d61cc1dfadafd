//! Handovers, from what modems report and from the silence of paths.
//!
//! A handover is a change of the serving cell, or its loss and return. Its outcome is what the
//! modem says, else it follows from what is seen (`docs/linkdb.md`, section 6; POLYCORN 2.3; Wang
//! et al., MobiCom 2019, 2.2):
//!
//! | seen | outcome |
//! |---|---|
//! | no loss of the cell, under 100 ms of silence | success |
//! | the same, no silence noticed, and evidence that none was | success |
//! | the same without evidence | none: it is not recorded |
//! | the cell was lost and the same one found again | type I |
//! | what was out arrived after all | type II |
//! | what was out was lost | type III |
//! | not known which, no loss of the cell reported, under 1 s | type I |
//! | not known which | type II, over 3.5 s type III |
//!
//! Silence is noticed only while data is out, and nothing is out on an idle path, or on one that is
//! kept empty because a failure was foreseen there. So there is evidence that a handover went well
//! only when
//! - the path was heard between the modem's last report of the old cell and the first of the new
//!   one, and again within a second after that, without a silence in between, or
//! - the modem is known to tell when it is without a cell or how its handovers end, and its reports
//!   come at most 1.5 s apart around the change. What is shorter than the time between two reports
//!   may be missed then.
//!
//! Otherwise the outcome is unknown: a success that was none would make the cell look better than
//! it is. A lost cell needs no evidence.
//!
//! A silence without a change of cell is no handover. A change in the middle of a silence that had
//! begun ten seconds before is not recorded, since its outcome cannot be told: the silence has
//! another cause. Nor is one recorded when no cell is found for 20 seconds, or nothing passes for
//! 20 seconds after one is found: that is a gap (a modem's reset, a long tunnel, a dead path).
//! Changes of cell while nothing passes are one handover, from the first cell to the last.
//!
//! A modem, or what reports of it, may be gone for a while and come back in another cell: that is a
//! gap, too, and no handover from the cell before. It is one when a modem that tells its cell again
//! and again (one cell three times in a row, each within 30 seconds) has told nothing for over 30
//! seconds. A modem that tells changes alone says nothing in a long cell, so of that one it is a
//! gap after ten minutes only.
//!
//! A modem that is polled says late that its cell has changed. The handover began when its silence
//! did; where none was noticed, in the middle between the two reports, at most half a second before
//! the later one.
//!
//! Feed [`Detector::serving`], [`Detector::reported`], [`Detector::silence`] and
//! [`Detector::heard`] as they come, call [`Detector::advance`] after each and at least once a
//! second, then [`Detector::poll`] until it answers `None`.

mod carrier;
mod outcome;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::wire::CarrierTelemetry;
use polyrail_model::{CellId, HandoverOutcome, Heard, Reported, Rsrp, Serving, Silence};

use carrier::Carrier;

/// A handover that is over; where it was is for others to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    /// When it began.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
    /// The cell that was left.
    pub from: CellId,
    /// The cell that was joined.
    pub to: Option<CellId>,
    /// The last that was heard of the strength of the cell that was left.
    pub rsrp: Option<Rsrp>,
    /// How it ended.
    pub outcome: HandoverOutcome,
    /// For how long nothing passed; zero where no silence was noticed.
    pub dark: Duration,
}

/// Detects the handovers of all carriers.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    carriers: BTreeMap<String, Carrier>,
    detected: VecDeque<Detected>,
    counts: DetectorCounts,
}

/// What a detector did not turn into handovers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetectorCounts {
    /// Times in which a carrier had no cell, passed nothing, or was told nothing of, for too long.
    pub gaps: u64,
    /// Changes of cell whose outcome is unknown: without evidence that nothing was lost, or in the
    /// middle of a silence of another cause.
    pub untold: u64,
    /// Observations of carriers with a name that is too long, or of too many carriers.
    pub strangers: u64,
    /// Handovers that nobody polled in time.
    pub dropped: u64,
}

impl Detector {
    /// A modem reports its cell.
    pub fn serving(&mut self, serving: &Serving) {
        if let Some(carrier) = self.carrier(&serving.carrier) {
            carrier.serving(serving);
        }
    }

    /// A modem reports how a handover ended.
    pub fn reported(&mut self, reported: &Reported) {
        if let Some(carrier) = self.carrier(&reported.carrier) {
            carrier.reported(reported);
        }
    }

    /// A path falls silent, or does not any more.
    pub fn silence(&mut self, silence: &Silence) {
        if let Some(carrier) = self.carrier(&silence.carrier) {
            carrier.silence(silence);
        }
    }

    /// Something came over a path.
    pub fn heard(&mut self, heard: &Heard) {
        if let Some(carrier) = self.carrier(&heard.carrier) {
            carrier.heard(heard.at);
        }
    }

    /// Time has passed: ends what waited for it.
    pub fn advance(&mut self, now: Instant) {
        for (name, carrier) in &mut self.carriers {
            carrier.advance(now);
            collect(name, carrier, &mut self.detected, &mut self.counts);
        }
    }

    /// The next handover that is over.
    pub fn poll(&mut self) -> Option<Detected> {
        self.detected.pop_front()
    }

    /// The serving cell of a carrier, if it was reported within 30 seconds.
    pub fn cell(&self, now: Instant, carrier: &str) -> Option<CellId> {
        self.carriers.get(carrier)?.current(now)?.cell
    }

    /// What is known of the modems that have reported within 30 seconds, by name.
    pub fn carriers(&self, now: Instant) -> Vec<CarrierTelemetry> {
        let known = self.carriers.iter().filter_map(|(name, carrier)| {
            let seen = carrier.current(now)?;
            Some(CarrierTelemetry { carrier: name.clone(), cell: seen.cell, rsrp: seen.rsrp })
        });
        known.collect()
    }

    /// What was not turned into handovers.
    pub fn counts(&self) -> DetectorCounts {
        self.counts
    }

    fn carrier(&mut self, name: &str) -> Option<&mut Carrier> {
        let known = self.carriers.contains_key(name);
        if !known && (self.carriers.len() >= CARRIERS_MAX || name.len() > CARRIER_NAME_MAX) {
            self.counts.strangers += 1;
            return None;
        }
        Some(self.carriers.entry(name.to_owned()).or_default())
    }
}

fn collect(
    name: &str,
    carrier: &mut Carrier,
    detected: &mut VecDeque<Detected>,
    counts: &mut DetectorCounts,
) {
    let (gaps, untold) = carrier.take_counts();
    counts.gaps += gaps;
    counts.untold += untold;
    for mut one in carrier.take() {
        one.carrier = name.to_owned();
        if detected.len() >= DETECTED_MAX {
            detected.pop_front();
            counts.dropped += 1;
        }
        detected.push_back(one);
    }
}

/// Carriers, at most; observations of others are counted and ignored.
pub const CARRIERS_MAX: usize = 16;
/// Bytes of a carrier's name, as in a record; longer ones are ignored.
pub const CARRIER_NAME_MAX: usize = 32;
/// Handovers that wait to be polled; the oldest fall out.
const DETECTED_MAX: usize = 256;
