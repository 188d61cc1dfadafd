//! The RESULT lines of an evaluation, and its goals.

use polyrail_emulator::results::{Goal, Report as Results};
use polyrail_predictor::forecast::evaluate::{Bin, Report, Told};

/// All figures of the forecasts as they are.
pub fn judge(results: &mut Results, prefix: &str, report: &Report) {
    let failures = &report.told.failures;
    let mut add = |name: &str, value: Option<f64>, goal: Goal| {
        figure(results, &format!("{prefix}_{name}"), value, goal);
    };
    add("failures_correct", failures.correct_share(), Goal::AtLeast(0.806));
    add("failures_late", failures.late_share(), Goal::AtMost(0.02));
    add("failures_early", failures.early_share(), Goal::None);
    add("successes_correct", report.told.successes.correct_share(), Goal::AtLeast(0.782));
    let inside = report.told.successes.correct_share_in_forecast_cells();
    add("successes_correct_in_forecast_cells", inside, Goal::None);
    add("correct_of_all_failures", failures.correct_of_all(), Goal::None);
    add("coverage", failures.coverage(), Goal::None);
    add("coverage_ceiling", report.ceiling(), Goal::None);
    add("calibration_error", calibration_error(&report.calibration), Goal::AtMost(0.05));
    for (name, svm) in ["position", "signal", "both"].iter().zip(&report.svm) {
        for (what, sum) in
            [("right", svm.accuracy), ("majority", svm.majority), ("balanced", svm.balanced)]
        {
            let name = format!("{prefix}_svm_{name}_{what}");
            figure(results, &name, svm.mean(sum), Goal::None);
        }
    }
    for (name, told) in [("random", &report.random), ("always", &report.always)] {
        beside(results, &format!("{prefix}_{name}"), told);
    }
    for (count, told) in &report.learning {
        beside(results, &format!("{prefix}_after_{count}"), told);
    }
}

/// The main figures of other forecasts.
pub fn beside(results: &mut Results, prefix: &str, told: &Told) {
    let Told { failures, successes } = told;
    for (name, value) in [
        ("failures_correct", failures.correct_share()),
        ("failures_late", failures.late_share()),
        ("successes_correct", successes.correct_share()),
        ("coverage", failures.coverage()),
        ("correct_of_all_failures", failures.correct_of_all()),
    ] {
        figure(results, &format!("{prefix}_{name}"), value, Goal::None);
    }
}

/// Prints a figure; where there is nothing to count, says so.
pub fn figure(results: &mut Results, name: &str, value: Option<f64>, goal: Goal) {
    match value {
        Some(value) => results.result(name, value, "share", goal, &[]),
        None => println!("MISSING {name}: nothing was counted"),
    }
}

/// The mean distance between the rates that were expected and those that came.
fn calibration_error(bins: &[Bin]) -> Option<f64> {
    let all: u64 = bins.iter().map(|bin| bin.handovers).sum();
    let off: f64 = bins.iter().map(|bin| (bin.expected - bin.failed as f64).abs()).sum();
    (all > 0).then(|| off / all as f64)
}
