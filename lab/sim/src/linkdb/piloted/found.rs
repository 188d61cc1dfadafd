//! The observed share of the true handovers: how many became records, of which type, and where.

use std::fmt;

use polyrail_emulator::results::{Goal, Report as Results, median};
use polyrail_model::{Handover, HandoverOutcome};

use super::play::{Passage, Truth};
use crate::linkdb::results::figure;

/// The observed share of the true handovers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// True failures.
    pub failures: Seen,
    /// True successes.
    pub successes: Seen,
    /// Records that belong to no true handover.
    pub spurious: u64,
    /// How often a true type II, and a true type III, was recorded as type I, II and III.
    pub types: [[u64; 3]; 2],
    /// How far records are from where the handovers truly were, in metres.
    pub off: Vec<f64>,
    /// Changes of cell whose outcome the detector did not know, and handovers without a place.
    pub untold: u64,
    /// Handovers without a trip or a place.
    pub unplaced: u64,
}

/// True handovers of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How many there were.
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
        self.untold += counts.detector.untold;
        self.unplaced += counts.unplaced;
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
        if let Some([middle, far]) = self.off_track() {
            for (name, metres) in [("position_off", middle), ("position_off_p95", far)] {
                results.result(&format!("{prefix}_{name}"), metres, "m", Goal::None, &[]);
            }
        }
    }

    /// How far records are off: half of them at most so far, and 95 of 100.
    fn off_track(&self) -> Option<[f64; 2]> {
        let mut sorted = self.off.clone();
        sorted.sort_by(f64::total_cmp);
        let far = *sorted.get(sorted.len() * 95 / 100)?;
        Some([median(&sorted), far])
    }
}

impl Seen {
    fn share(&self, some: u64) -> Option<f64> {
        (self.all > 0).then(|| some as f64 / self.all as f64)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| true | handovers | recorded as such | as the other | not recorded |")?;
        writeln!(f, "|---|---:|---:|---:|---:|")?;
        for (name, seen) in [("failures", self.failures), ("successes", self.successes)] {
            let Seen { all, right, wrong } = seen;
            let parts = [right, wrong, all - right - wrong];
            let [right, wrong, none] = parts.map(|part| shown(seen.share(part)));
            writeln!(f, "| {name} | {all} | {right} | {wrong} | {none} |")?;
        }
        writeln!(f, "\n| true | as type I | as type II | as type III |")?;
        writeln!(f, "|---|---:|---:|---:|")?;
        for (name, [one, two, three]) in ["type II", "type III"].iter().zip(self.types) {
            writeln!(f, "| {name} | {one} | {two} | {three} |")?;
        }
        let Self { spurious, untold, unplaced, .. } = self;
        writeln!(f, "\nrecords of nothing: {spurious}, untold: {untold}, unplaced: {unplaced}")?;
        match self.off_track() {
            Some([middle, far]) => {
                writeln!(f, "records are {middle:.1} m off in the median, {far:.1} m at p95")
            }
            None => writeln!(f, "nothing was recorded"),
        }
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

/// A dash if it was not counted.
fn shown(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{share:.3}"))
}

/// A record and its handover are at most so far apart.
const APART_MS: u64 = 5_000;
