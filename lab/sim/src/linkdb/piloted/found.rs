//! The observed part of the true handovers: how many became records, of which type, and where.

use polyrail_emulator::results::{Goal, Report as Results};
use polyrail_model::{Handover, HandoverOutcome};

use super::play::{Passage, Truth};
use crate::linkdb::results::figure;
use crate::sim::metrics::quantile;

/// The observed part of the true handovers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// True failures.
    pub failures: Seen,
    /// True successes.
    pub successes: Seen,
    /// Records that belong to no true handover.
    pub spurious: u64,
    /// How often true types II and III were recorded as types I, II and III.
    pub types: [[u64; 3]; 2],
    /// The distances of records from the true places, in metres.
    pub off: Vec<f64>,
    /// Changes of cell with unknown outcome, and handovers without a place.
    pub untold: u64,
}

/// True handovers of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Their number.
    pub all: u64,
    /// Those with a record of the same kind.
    pub right: u64,
    /// Those with a record of the other kind.
    pub wrong: u64,
}

impl Found {
    /// Adds a trip.
    pub fn count(&mut self, passage: &Passage) {
        let Passage { records, truths, counts } = passage;
        let matched = matched(records, truths);
        self.spurious += (records.len() - matched.iter().flatten().count()) as u64;
        self.untold += counts.untold;
        for (truth, record) in truths.iter().zip(matched) {
            let (fails, was) = (truth.handover.outcome.is_failure(), truth.handover.outcome);
            let seen = if fails { &mut self.failures } else { &mut self.successes };
            seen.all += 1;
            let Some(record) = record.and_then(|place| records.get(place)) else { continue };
            let right = record.outcome.is_failure() == fails;
            seen.right += u64::from(right);
            seen.wrong += u64::from(!right);
            if let (Some(was), Some(told)) = (kind(was), kind(record.outcome)) {
                self.types[was - 1][told] += 1;
            }
            if record.route == truth.handover.route {
                self.off.push((record.position.metres() - truth.metres).abs());
            }
        }
    }

    /// Its RESULT lines.
    pub fn judge(&self, results: &mut Results, prefix: &str) {
        let learned = (self.failures.right + self.successes.wrong) as f64;
        let counts = [
            ("failures_learned", learned),
            ("spurious_records", self.spurious as f64),
            ("untold", self.untold as f64),
        ];
        for (name, count) in counts {
            results.result(&format!("{prefix}_{name}"), count, "", Goal::None, &[]);
        }
        for (name, share) in [
            ("failures_recorded", self.failures.share(self.failures.right)),
            ("failures_as_successes", self.failures.share(self.failures.wrong)),
            ("successes_recorded", self.successes.share(self.successes.right)),
            ("successes_as_failures", self.successes.share(self.successes.wrong)),
            ("type_2_as_2", share_of(self.types[0], 1)),
            ("type_3_as_3", share_of(self.types[1], 2)),
        ] {
            figure(results, &format!("{prefix}_{name}"), share, Goal::None);
        }
        for (name, share) in [("position_off", 0.5), ("position_off_p95", 0.95)] {
            let metres = quantile(&self.off, share);
            if metres.is_finite() {
                results.result(&format!("{prefix}_{name}"), metres, "m", Goal::None, &[]);
            }
        }
    }
}

impl Seen {
    fn share(&self, some: u64) -> Option<f64> {
        (self.all > 0).then(|| some as f64 / self.all as f64)
    }
}

/// For each true handover the place of its record: of the same carrier and cell, nearest in time.
fn matched(records: &[Handover], truths: &[Truth]) -> Vec<Option<usize>> {
    let mut taken = vec![false; records.len()];
    let mut found = Vec::with_capacity(truths.len());
    for Truth { handover: truth, .. } in truths {
        let apart = |record: &Handover| record.at_ms.abs_diff(truth.at_ms);
        let fits = |(place, record): &(usize, &Handover)| {
            let same = record.carrier == truth.carrier && record.from == truth.from;
            same && apart(record) <= APART_MS && !taken[*place]
        };
        let near = records.iter().enumerate().filter(fits).min_by_key(|(_, one)| apart(one));
        let near = near.map(|(place, _)| place);
        near.into_iter().for_each(|place| taken[place] = true);
        found.push(near);
    }
    found
}

/// Failures by their type, from 0.
fn kind(outcome: HandoverOutcome) -> Option<usize> {
    match outcome {
        HandoverOutcome::Success => None,
        HandoverOutcome::TypeI => Some(0),
        HandoverOutcome::TypeII => Some(1),
        HandoverOutcome::TypeIII => Some(2),
    }
}

fn share_of(counts: [u64; 3], place: usize) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    (all > 0).then(|| counts[place] as f64 / all as f64)
}

/// The greatest distance in time between a record and its handover.
const APART_MS: u64 = 5_000;
