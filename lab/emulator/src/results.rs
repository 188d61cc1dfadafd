//! Figures as RESULT lines and as JSON.
//!
//! `RESULT <name> <value> <unit> goal <op> <value> ok|short`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// The goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// No goal.
    None,
}

impl Goal {
    fn parts(self) -> (&'static str, f64) {
        match self {
            Goal::AtLeast(value) => (">=", value),
            Goal::AtMost(value) => ("<=", value),
            Goal::None => (">=", 0.0),
        }
    }

    fn is_met(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(goal) => value >= goal,
            Goal::AtMost(goal) => value <= goal,
            Goal::None => true,
        }
    }
}

/// One measured figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    name: String,
    value: f64,
    unit: String,
    goal: String,
    met: bool,
    /// The single measurements behind it.
    samples: Vec<f64>,
}

/// Collects the figures of a run.
#[derive(Debug, Default)]
pub struct Report {
    figures: Vec<Figure>,
}

impl Report {
    /// Prints one figure and keeps it.
    pub fn result(&mut self, name: &str, value: f64, unit: &str, goal: Goal, samples: &[f64]) {
        let (operator, bound) = goal.parts();
        let met = goal.is_met(value);
        let word = if met { "ok" } else { "short" };
        let (value_text, bound) = (shown(value), shown(bound));
        println!("RESULT {name} {value_text} {unit} goal {operator} {bound} {word}");
        self.figures.push(Figure {
            name: name.into(),
            value,
            unit: unit.into(),
            goal: format!("{operator} {bound}"),
            met,
            samples: samples.to_vec(),
        });
    }

    /// The figure of this name, if there is one.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    /// All figures.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// Whether there is no figure.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    /// Adds the figures of another report.
    pub fn append(&mut self, mut other: Report) {
        self.figures.append(&mut other.figures);
    }

    /// Writes the figures as JSON.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&self.figures)?)
            .with_context(|| format!("{}", path.display()))
    }
}

/// Where figures are written: `results` in the target folder that holds this program.
///
/// # Errors
/// When the program does not know its own path.
pub fn results_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let profile = program.parent().context("own folder")?;
    Ok(profile.parent().context("target folder")?.join("results"))
}

/// The middle value; of two middle ones, their mean. Zero for an empty list.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (length, middle) if length % 2 == 1 => sorted[middle],
        (_, middle) => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        for (values, middle) in
            [(vec![], 0.0), (vec![3.0], 3.0), (vec![5.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0], 2.5)]
        {
            assert_eq!(median(&values), middle, "{values:?}");
        }
    }

    #[test]
    fn goal_is_met_on_its_side() {
        for (goal, value, met) in [
            (Goal::AtLeast(1.7), 1.7, true),
            (Goal::AtLeast(1.7), 1.69, false),
            (Goal::AtMost(300.0), 300.1, false),
            (Goal::None, 0.0, true),
        ] {
            assert_eq!(goal.is_met(value), met, "{goal:?} {value}");
        }
    }
}
