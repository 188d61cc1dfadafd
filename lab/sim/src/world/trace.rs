//! A hash of all events, equal in two runs of one seed, and a log for people on demand.

use std::time::Duration;

/// The record of one world.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    verbosity: Verbosity,
}

/// How much is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Nothing.
    #[default]
    Silent,
    /// Operations and ends.
    Operations,
    /// Also every event and batch of frames.
    Everything,
}

impl Trace {
    pub(super) fn new(verbosity: Verbosity) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, verbosity }
    }

    pub(super) fn verbosity(&self) -> Verbosity {
        self.verbosity
    }

    /// Adds numbers to the hash that distinguish two courses of events.
    pub(super) fn note(&mut self, numbers: &[u64]) {
        for &number in numbers {
            self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01b3);
            self.hash ^= self.hash >> 29;
        }
    }

    /// Prints a line at this verbosity.
    pub(super) fn say(&self, level: Verbosity, at: Duration, line: impl FnOnce() -> String) {
        if self.verbosity >= level {
            eprintln!("{:>12.6} {}", at.as_secs_f64(), line());
        }
    }

    /// The hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}
