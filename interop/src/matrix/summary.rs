//! The report of a run: a line per row, a summary, and both as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::median;

use super::{RowResult, StepResult, Verdict};

/// The outcomes of a run.
#[derive(Debug, Default)]
pub struct Summary {
    outcomes: Vec<RowResult>,
}

/// Prints one row: `ok`, `late` or `FAILED`, and each fault's time against its target.
pub fn print_row(outcome: &RowResult) {
    println!("{}", line(outcome));
}

impl Summary {
    /// Adds a row.
    pub fn add(&mut self, outcome: RowResult) {
        self.outcomes.push(outcome);
    }

    /// Whether no row was added.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// The number of rows with this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.verdict == verdict).count()
    }

    /// The rows that failed.
    pub fn failed(&self) -> impl Iterator<Item = &RowResult> {
        self.outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Failed)
    }

    /// A table of the faults' times, the rows that were late or failed, and the totals.
    pub fn text(&self) -> String {
        let mut faults: BTreeMap<(&str, u64), Vec<&StepResult>> = BTreeMap::new();
        for step in self.outcomes.iter().flat_map(|outcome| &outcome.steps) {
            faults.entry((&step.fault, step.target_ms)).or_default().push(step);
        }
        let mut text = format!(
            "{:<22} {:>9} {:>9} {:>9} {:>9} {:>12}\n",
            "fault", "target ms", "median", "worst", "in time", "lost"
        );
        for ((fault, target), steps) in faults {
            let times: Vec<f64> = steps.iter().map(|step| step.took_ms as f64).collect();
            let lost: usize = steps.iter().map(|step| step.lost).sum();
            let datagrams: usize = steps.iter().map(|step| step.datagrams).sum();
            let worst = times.iter().copied().fold(0.0, f64::max);
            let in_time = times.iter().filter(|ms| **ms <= target as f64).count();
            let (median, count) = (median(&times), times.len());
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{fault:<22} {target:>9} {median:>9.0} {worst:>9.0} {:>9} {:>12}",
                format!("{in_time}/{count}"),
                format!("{lost}/{datagrams}")
            );
        }
        for (verdict, word) in [(Verdict::Late, "late"), (Verdict::Failed, "failed")] {
            for outcome in self.outcomes.iter().filter(|outcome| outcome.verdict == verdict) {
                let _ = writeln!(text, "{word}: {}", outcome.row);
            }
        }
        let total: f64 = self.outcomes.iter().map(|outcome| outcome.total_s).sum();
        let _ = write!(
            text,
            "{} rows in {total:.0} s: {} ok, {} late, {} failed",
            self.outcomes.len(),
            self.count(Verdict::Ok),
            self.count(Verdict::Late),
            self.count(Verdict::Failed)
        );
        text
    }

    /// Writes all outcomes as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&self.outcomes)?)
            .with_context(|| format!("{}", path.display()))
    }
}

fn line(outcome: &RowResult) -> String {
    let word = match outcome.verdict {
        Verdict::Ok => "ok",
        Verdict::Late => "late",
        Verdict::Failed => "FAILED",
    };
    let mut text = format!("{word:<6} {:>5.1} s  {}", outcome.total_s, outcome.row);
    for step in &outcome.steps {
        let over = if step.verdict == Verdict::Ok { "" } else { " LATE" };
        let _ = write!(
            text,
            "\n{:15}{} on {}: {} of {} ms{over}, {} of {} datagrams lost",
            "", step.fault, step.carrier, step.took_ms, step.target_ms, step.lost, step.datagrams
        );
    }
    if let Some(error) = &outcome.error {
        let _ = write!(text, "\n{:15}{error}", "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verdict: Verdict, took_ms: u64) -> RowResult {
        let step = StepResult {
            fault: "nat-rebinding".into(),
            carrier: "alpha".into(),
            class: "change".into(),
            took_ms,
            target_ms: 700,
            datagrams: 50,
            lost: 2,
            verdict,
        };
        RowResult {
            row: format!("{} x auto IPv4 nat-rebinding", format!("{verdict:?}").to_lowercase()),
            verdict,
            steps: vec![step],
            bytes: 1,
            total_s: 2.0,
            error: (verdict == Verdict::Failed).then(|| "no way".into()),
        }
    }

    #[test]
    fn the_summary_counts_and_has_median_and_worst() {
        let mut summary = Summary::default();
        for (verdict, ms) in [(Verdict::Ok, 300), (Verdict::Late, 900), (Verdict::Failed, 500)] {
            summary.add(outcome(verdict, ms));
        }
        let text = summary.text();
        assert!(text.contains("3 rows in 6 s: 1 ok, 1 late, 1 failed"), "{text}");
        for word in ["late", "failed"] {
            let line = format!("{word}: {word} x auto IPv4 nat-rebinding");
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{text}");
        }
        assert!(!text.contains("ok x auto"), "{text}");
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["nat-rebinding", "700", "500", "900", "2/3", "6/150"]);
        assert_eq!(summary.failed().count(), 1);
    }

    #[test]
    fn a_row_says_which_fault_was_late_and_why_it_failed() {
        let late = line(&outcome(Verdict::Late, 900));
        assert!(late.contains("on alpha: 900 of 700 ms LATE, 2 of 50 datagrams lost"), "{late}");
        let failed = line(&outcome(Verdict::Failed, 1));
        assert!(failed.starts_with("FAILED") && failed.ends_with("no way"), "{failed}");
    }
}
