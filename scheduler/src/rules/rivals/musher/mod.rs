//! `musher` and `musher_scaled`: a ratio of two paths, searched again when the throughput changes.
//!
//! Rule: Saha and others, "MuSher: An Agile Multipath-TCP Scheduler for Dual-Band 802.11ad/ac
//! Wireless LANs" (MobiCom 2019); `swetanksaha/mptcp-musher`, `net/mptcp/mptcp_musher.c` and
//! `mptcp_ratio.c`. Of each 100 segments r go to the first path and the others to the second; r is
//! 5 to 95 in steps of 5. The segment waits for a full path, to keep the ratio.
//!
//! ```text
//! Reference --5 samples--> Watch --5 beyond the trigger in a row--> Search --end--> Reference
//! Search: r + 5; while that gains, on; else r - 5; while that gains, on; the last step is undone
//! ```
//!
//! A sample of the acknowledged and outstanding bytes is taken every 100 ms, or 200 ms during a
//! search. The reference is the mean of five samples. The trigger is a total change of the rate by
//! more than 200 Mbit/s, or of the outstanding bytes under -75 KB. Searches begin at least 3 s
//! apart, and the first step must gain 5 Mbit/s. `musher` is as published, for gigabit Wi-Fi;
//! `musher_scaled` is ours: the trigger is 20 % of the reference, the gain 2 %.
//!
//! Choices: r begins at 50. A search without gain returns to its first ratio (the source takes one
//! step more), and a search ends at the bounds of r. After a round trip on a full path another one
//! takes the segment. Of more than two paths every other one is a second path. Retransmissions do
//! not count.

use std::time::{Duration, Instant};

use polyrail_model::{Bytes, PathId};

use crate::rules::hsrsch::min_rtt::{fastest, group, is_open};
use crate::rules::per_path::PerPath;
use crate::rules::waits::Waits;
use crate::{Input, Note, PathSet, PathSets, SEGMENT, Schedulerlet};

#[derive(Debug)]
pub struct Musher {
    scaled: bool,
    /// r, and r as it was when the present hundred began.
    ratio: u64,
    ratio_now: u64,
    /// Segments of the present hundred.
    used: PerPath<u64>,
    /// The path of the last decision that counts.
    decided: Option<PathId>,
    samples: Samples,
    task: Task,
    searched_at: Option<Instant>,
    waits: Waits,
}

/// The observations since the last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    since: Option<Instant>,
    acked: u64,
    /// The sum of the outstanding bytes at each of the decisions.
    out: f64,
    decisions: u32,
}

/// A sample: bits and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    bps: f64,
    out: f64,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    /// Measures the reference: the number of samples and their sum.
    Reference(u32, Sample),
    /// Compares with the reference; consecutive samples beyond each trigger.
    Watch { usual: Sample, fast: u32, empty: u32 },
    /// Searches: from this ratio on, against the rate before.
    Search { step: Step, from: u64, before: f64 },
}

/// What the next sample of a search is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    TryMore,
    More,
    TryLess,
    Less,
    /// On, in the direction that gained.
    Climb {
        more: bool,
    },
}

impl Musher {
    /// `scaled`: with triggers and gains relative to the reference.
    pub fn new(scaled: bool) -> Self {
        Self {
            scaled,
            ratio: RATIO_FIRST,
            ratio_now: RATIO_FIRST,
            used: PerPath::default(),
            decided: None,
            samples: Samples::default(),
            task: Task::Reference(0, Sample::default()),
            searched_at: None,
            waits: Waits::default(),
        }
    }

    fn observe(&mut self, input: &Input<'_>) {
        let Some(since) = self.samples.since else {
            self.samples = Samples { since: Some(input.now), ..Samples::default() };
            return;
        };
        let out = input.paths.iter().map(|path| path.outstanding).sum::<Bytes>();
        self.samples.out += out.0 as f64;
        self.samples.decisions = self.samples.decisions.saturating_add(1);
        let interval = match self.task {
            Task::Search { .. } => SAMPLE_SEARCHING,
            _ => SAMPLE,
        };
        let time = input.now.saturating_duration_since(since);
        if time < interval {
            return;
        }
        let sample = Sample {
            bps: self.samples.acked as f64 * 8.0 / time.as_secs_f64(),
            out: self.samples.out / f64::from(self.samples.decisions),
        };
        self.samples = Samples { since: Some(input.now), ..Samples::default() };
        self.task = self.judge(sample, input.now);
    }

    fn judge(&mut self, sample: Sample, now: Instant) -> Task {
        match self.task {
            Task::Reference(count, sum) => {
                let sum = Sample { bps: sum.bps + sample.bps, out: sum.out + sample.out };
                if count + 1 < REFERENCE {
                    return Task::Reference(count + 1, sum);
                }
                let count = f64::from(REFERENCE);
                let usual = Sample { bps: sum.bps / count, out: sum.out / count };
                Task::Watch { usual, fast: 0, empty: 0 }
            }
            Task::Watch { usual, fast, empty } => {
                let (changed, emptied) = match self.scaled {
                    true => (usual.bps * SCALED_TRIGGER, usual.out * SCALED_TRIGGER),
                    false => (TRIGGER_BPS, TRIGGER_BYTES),
                };
                // The sum of the changes since the reference is the difference from it.
                let (fast, empty) = if (sample.bps - usual.bps).abs() > changed {
                    (fast + 1, 0)
                } else if sample.out - usual.out < -emptied {
                    (0, empty + 1)
                } else {
                    (0, 0)
                };
                if fast < TRIGGER_SAMPLES && empty < TRIGGER_SAMPLES {
                    return Task::Watch { usual, fast, empty };
                }
                if self.searched_at.is_some_and(|at| now < at + SEARCH_APART) {
                    return Task::Reference(0, Sample::default());
                }
                self.searched_at = Some(now);
                Task::Search { step: Step::TryMore, from: self.ratio, before: 0.0 }
            }
            Task::Search { step, from, before } => self.search(step, from, before, sample.bps),
        }
    }

    fn search(&mut self, step: Step, from: u64, before: f64, bps: f64) -> Task {
        let gain = if self.scaled { before * SCALED_GAIN } else { GAIN_BPS };
        let gained = bps > before + gain;
        let over = Task::Reference(0, Sample::default());
        let on = |step, before| Task::Search { step, from, before };
        match step {
            Step::TryMore if from + RATIO_STEP <= RATIO_MAX => {
                self.ratio = from + RATIO_STEP;
                on(Step::More, bps)
            }
            Step::TryMore => on(Step::TryLess, before),
            Step::More if gained => self.climb(true, from, bps),
            Step::More => on(Step::TryLess, before),
            Step::TryLess if from >= RATIO_MIN + RATIO_STEP => {
                self.ratio = from - RATIO_STEP;
                on(Step::Less, bps)
            }
            Step::Less if gained => self.climb(false, from, bps),
            Step::TryLess | Step::Less => {
                self.ratio = from;
                over
            }
            Step::Climb { more } if bps < before => {
                self.ratio = stepped(self.ratio, !more);
                over
            }
            Step::Climb { more } => self.climb(more, from, bps),
        }
    }

    /// One step on; the search is over at the bounds.
    fn climb(&mut self, more: bool, from: u64, before: f64) -> Task {
        let next = stepped(self.ratio, more);
        if next == self.ratio {
            return Task::Reference(0, Sample::default());
        }
        self.ratio = next;
        Task::Search { step: Step::Climb { more }, from, before }
    }

    /// The path whose turn it is, and how many segments it still gets.
    fn turn(&mut self, group: PathSet, input: &Input<'_>) -> Option<(usize, u64)> {
        for _ in 0..2 {
            let mut unused = None;
            for (place, path) in group.iter().enumerate() {
                let first = place % 2 == 0;
                let share = if first { self.ratio_now } else { HUNDRED - self.ratio_now };
                let used = *self.used.of(input.paths[path].id);
                if used > 0 && used < share {
                    return Some((path, share - used));
                }
                if used == 0 {
                    unused = unused.or(Some((path, share)));
                }
            }
            if unused.is_some() {
                return unused;
            }
            self.used.iter_mut().for_each(|(_, used)| *used = 0);
            self.ratio_now = self.ratio;
        }
        None
    }
}

fn stepped(ratio: u64, more: bool) -> u64 {
    let next = if more { ratio + RATIO_STEP } else { ratio.saturating_sub(RATIO_STEP) };
    next.clamp(RATIO_MIN, RATIO_MAX)
}

impl Schedulerlet for Musher {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        self.observe(input);
        self.decided = None;
        let group = group(sets.candidates(), input);
        let again = input.segment.reinjected || !input.segment.carried.is_empty();
        let available = group.filter(|i| is_open(&input.paths[i]));
        if again || available.is_empty() {
            if let Some(path) = fastest(available, input) {
                sets.select(path);
            }
            return;
        }
        let Some((path, mut left)) = self.turn(group, input) else { return };
        let mut chosen = Some(path);
        if !available.contains(path) {
            let round = input.paths[path].srtt;
            if self.waits.hold(sets, input, round) {
                return;
            }
            (chosen, left) = (fastest(available, input), 1);
        }
        if let Some(path) = chosen {
            self.decided = Some(input.paths[path].id);
            if sets.select(path) {
                sets.limit_run(left.saturating_mul(SEGMENT));
            }
        }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        match *note {
            Note::Sent { path, bytes, copy: false, .. } if self.decided == Some(path) => {
                self.decided = None;
                *self.used.of(path) += bytes.div_ceil(SEGMENT).max(1);
            }
            Note::Acked { bytes, .. } => {
                self.samples.acked = self.samples.acked.saturating_add(bytes);
            }
            Note::Gone { path } => self.used.forget(path),
            Note::Sent { .. } | Note::Reinjected { .. } => {}
        }
    }
}

const HUNDRED: u64 = 100;
const RATIO_FIRST: u64 = 50;
const RATIO_MIN: u64 = 5;
const RATIO_MAX: u64 = 95;
const RATIO_STEP: u64 = 5;

const SAMPLE: Duration = Duration::from_millis(100);
const SAMPLE_SEARCHING: Duration = Duration::from_millis(200);
const SEARCH_APART: Duration = Duration::from_secs(3);

/// Samples of the reference.
const REFERENCE: u32 = 5;
/// Samples in a row beyond a trigger.
const TRIGGER_SAMPLES: u32 = 5;
const TRIGGER_BPS: f64 = 200e6;
const TRIGGER_BYTES: f64 = 75_000.0;
const GAIN_BPS: f64 = 5e6;
const SCALED_TRIGGER: f64 = 0.2;
const SCALED_GAIN: f64 = 0.02;

#[cfg(test)]
mod tests;
