//! RESULT lines of a comparison: named for their seeds, with a line for each missing figure.

use std::path::Path;

use anyhow::Result;
use polyrail_emulator::results::{Goal, Report};

use crate::sim::figures::{Ratio, Rows};
use crate::sim::runs::{Row, Workload};

/// Collects figures. A name begins with `sim_`, and with `sim_held_` on the trips held back.
#[derive(Debug, Default)]
pub struct Verdicts {
    report: Report,
    held_back: bool,
}

impl Verdicts {
    /// None so far.
    pub fn new(held_back: bool) -> Self {
        Self { report: Report::default(), held_back }
    }

    /// Prints one figure and keeps it. A value that is not a number is short, whatever the goal.
    pub fn result(&mut self, name: &str, value: f64, unit: &str, goal: Goal, samples: &[f64]) {
        let goal = if value.is_nan() && goal == Goal::None { Goal::AtLeast(0.0) } else { goal };
        self.report.result(&self.name(name), value, unit, goal, samples);
    }

    /// The same of a ratio, with its confidence.
    pub fn sure(&mut self, name: &str, ratio: Ratio, goal: Goal, samples: &[f64]) {
        self.result(name, ratio.value, "x", goal, samples);
        let [from, to] = ratio.between;
        println!("  {}: 95 % between {from:.3} and {to:.3}", self.name(name));
    }

    /// A row that a figure needs; says so when it is not there.
    pub fn find<'a>(
        &self,
        rows: Rows<'a>,
        workload: Workload,
        row: &str,
        figure: &str,
    ) -> Option<&'a Row> {
        let found = rows.find(row, workload);
        if found.is_none() {
            self.missing(figure, &format!("no row {row:?} in {workload:?}"));
        }
        found
    }

    /// Says that a figure cannot be had, and why.
    pub fn missing(&self, figure: &str, why: &str) {
        println!("MISSING {}: {why}", self.name(figure));
    }

    /// Writes all figures as JSON.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.report.write(path)
    }

    fn name(&self, name: &str) -> String {
        match name.strip_prefix("sim_") {
            Some(rest) if self.held_back => format!("sim_held_{rest}"),
            _ => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_seeds() {
        assert_eq!(Verdicts::new(false).name("sim_speed"), "sim_speed");
        assert_eq!(Verdicts::new(true).name("sim_speed"), "sim_held_speed");
    }

    #[test]
    fn value_that_is_not_a_number_is_short() {
        let mut verdicts = Verdicts::default();
        verdicts.result("sim_nothing", f64::NAN, "x", Goal::None, &[]);
        verdicts.result("sim_something", 1.0, "x", Goal::None, &[]);
        let text = format!("{:?}", verdicts.report);
        let met: Vec<bool> = text
            .match_indices("met: ")
            .map(|(at, _)| text[at..].starts_with("met: true"))
            .collect();
        assert_eq!(met, [false, true], "{text}");
    }
}
